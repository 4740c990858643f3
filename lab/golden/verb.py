"""`golden`: do programs of earlier QNN builds still load and run on later ones?"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from provisioning.base.errors import UsageError
from provisioning.base.flags import add_timeout, add_valued, repeatable, switch
from provisioning.base.selection import add_selection, selection_of

EXAMPLES = """\
  nox -s lab -- golden
  nox -s lab -- golden --qnn 2.49.40 --qnn 2.51.0
  nox -s lab -- golden --lane executorch
  nox -s lab -- golden --keep golden   # give the runtimes the files of an earlier run
  nox -s lab -- golden --accept   # accept what was measured
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser, executorch=False)
    repeatable(parser, "--qnn", "VERSION", "only this build of manifests/compat.toml [all]")
    parser.add_argument(
        "--lane",
        choices=("onnx", "executorch"),
        default="onnx",
        help="context binaries of QNN builds, or .pte files of executorch versions [%(default)s]",
    )
    repeatable(parser, "--executorch", "VERSION", "with --lane executorch: only this version [all]")
    switch(
        parser,
        "--accept",
        "accept the results: write manifests/accepted/golden.json and docs/upgrades.md",
    )
    add_valued(
        parser, "--keep", "DIR", "use the programs in DIR, and compile and keep only missing ones", type=Path
    )
    add_timeout(parser, "a step", 300)


def run(args: argparse.Namespace) -> int:
    from lab.golden import contexts, programs
    from lab.stage import stage_run
    from provisioning.accepted_file import load_accepted
    from provisioning.base.documents import load
    from provisioning.base.findings import Severity

    wrong = args.qnn if args.lane == "executorch" else args.executorch
    if wrong:
        other = "--executorch" if args.lane == "executorch" else "--qnn"
        raise UsageError(f"--lane {args.lane} has other versions", fix=f"name them by {other}")
    selection = selection_of(args)
    kept = args.keep.absolute() if args.keep else None
    run = stage_run("golden", selection)
    with run.reported(selection.reports, "golden-not-measured"):
        golden, agreed = load(contexts.MANIFEST, contexts.Golden), load_accepted(contexts.MEASURED)
        folder = Path(selection.reports).absolute() / "golden"
        shutil.rmtree(folder, ignore_errors=True)
        if args.lane == "onnx":
            results = contexts.measure_all(
                golden, args.qnn, selection, folder, args.timeout, os.environ, kept
            )
        else:
            tools = programs.Toolkit(selection, folder, args.timeout, os.environ)
            results = programs.measure(golden, args.executorch, tools, kept)
        before = contexts.rows_of(args.lane, results) if args.accept else agreed.subjects
        contexts.judge(run, args.lane, results, before)
        if args.accept and not any(finding.severity is Severity.ERROR for finding in run.findings):
            contexts.write(args.lane, results)
    return run.close(selection.reports)
