"""`python -m lab VERB`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from provisioning.base.command_line import Verb, arguments_of, main

VERBS = {
    "lint": Verb("lab.lint", "check style, types, generated files and the tree's hygiene", "lint"),
    "generate": Verb("lab.generate", "regenerate the committed schemas and catalogues", "lint"),
    "lock": Verb("lab.lock.verb", "fill in hashes that manifests lack, and renew all lock files", "lint"),
    "bench": Verb(
        "lab.bench", "measure performance claims as ratios, side by side; --list names them", "executorch"
    ),
    "compat": Verb("lab.compat.verb", "measure which QNN builds this executorch can drive", "executorch"),
    "golden": Verb("lab.golden.verb", "run programs of earlier QNN builds on later ones", "onnx"),
    "faults": Verb("lab.faults.verb", "check with a script whether each known fault still exists"),
    "forecast": Verb(
        "lab.forecast.verb", "fit the constants of forecasts to what AI Hub measured on phones", "forecast"
    ),
    "site": Verb("lab.site", "build the pages as a website in dist/site", "lint"),
    "operators": Verb("lab.operators.verb", "make the operator table of what operator_tests gave", "lint"),
    "operator_tests": Verb(
        "lab.operators.tests_verb", "measure operators, as the table of operators has them", "upstream"
    ),
    "onnx_operators": Verb("lab.onnx_operators.verb", "choose the node test of each ONNX operator", "onnx"),
    "upstream_reports": Verb("lab.upstream_reports.verb", "print issues to file upstream"),
    "release": Verb("lab.release", "release this clone: address, version, tag, notes and checksums"),
    "image_pins": Verb("lab.image_pins", "pin the Debian packages, and the system, that images are built on"),
    "adopter": Verb(
        "lab.adopter.verb",
        "gate the branches of a small repository by the real workflows, on this machine",
        "lint",
    ),
    "mutations": Verb(
        "lab.mutations.verb", "change the product by chance, and say which changes no test notices", "tests"
    ),
    "pins": Verb("lab.pins", "pass newer pins to the job that proposes them"),
}

SESSIONS = ("lint", "generate", "lock", "bench")
"""They have a session of their own name, which people and workflows type."""


def environment_of(words: Sequence[str]) -> str:
    """The locked environment that `nox -s lab -- WORDS` needs; empty where any Python can answer."""
    verb = VERBS.get(words[0]) if words else None
    if verb and words[0] == "golden":
        return str(arguments_of(verb, words[1:]).lane)
    if verb and words[0] == "bench" and arguments_of(verb, words[1:]).name == "onnx":
        return "onnx"
    return verb.environment if verb else ""


def run(argv: Sequence[str]) -> int:
    return main(
        "python -m lab",
        "What measures things for manifests/, and what keeps this repository in order.",
        VERBS,
        argv,
        session=("lab",),
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
