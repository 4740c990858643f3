"""The laboratory: it measures what manifests/ and docs/ say, and keeps this repository in order.

    nox -s lab -- --help            every verb
    nox -s lab -- compat            each QNN build with each executorch → manifests/accepted/compat.json
    nox -s lab -- golden            programs of one build on the runtimes of others → accepted/golden.json
    nox -s lab -- faults            is each fault of manifests/known_faults.toml still there?
    nox -s lab -- forecast          constants fitted to AI Hub's measurements → accepted/forecast.json
    nox -s lab -- operator_tests SUITE  ExecuTorch's suite for all backends, and our own cases in it
    nox -s lab -- operators FOLDER  the operator table and its page, of what operator_tests gave
    nox -s lab -- onnx_operators    the node test of each ONNX operator → onnx_tests.json
    nox -s lab -- upstream_reports  issues to file with ExecuTorch
    nox -s lab -- site              docs/ as a website in dist/site
    nox -s lab -- release           what release.yml publishes
    nox -s lab -- image_pins        Debian's packages of today → manifests/image-packages.txt
    nox -s lab -- pins              hand newer pins to the job that proposes them (update-pins.yml)
    nox -s bench -- NAME            a performance claim as a ratio, side by side: bench/NAME.py
    nox -s generate                 schemas and pages that are made from code and tables
    nox -s lint                     style, types, generated files, workflows, the tree's hygiene

`suites/` and `models/` are what the nightly rows run beside the default suite.

Each verb is a file or a folder of its name, with its command line in `verb.py` where it is large. Nightly
rows of manifests/gate.toml call the verbs that measure; a person reads the difference and commits it.

The laboratory may import all of ci/ and provisioning/. Nothing of the product imports it, no fix that a user
reads names it, and no wheel has it (tests/unit/test_floors.py). Its tests are tests/lab/.
"""
