"""`test_golden`: do programs of earlier QNN builds still load and run on later ones?"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from provisioning.base.command_line import add_timeout, repeatable
from provisioning.base.commands import typed
from provisioning.base.settings import add_selection

EXAMPLES = """\
  nox -s test_golden
  nox -s test_golden -- --qnn 2.49.40 --qnn 2.51.0
  nox -s test_golden -- --lane executorch
  nox -s test_golden -- --keep golden     give the runtimes the files of an earlier run
  nox -s test_golden -- --update          agree to what was measured: manifests/golden.json, docs/golden.md
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    repeatable(parser, "--qnn", "VERSION", "only this build of manifests/compat.toml [all]")
    parser.add_argument(
        "--lane",
        choices=("onnx", "executorch"),
        default="onnx",
        help="context binaries by QNN builds, or .pte files by executorch versions [%(default)s]",
    )
    repeatable(parser, "--executorch", "VERSION", "with --lane executorch: only this version [all]")
    parser.add_argument(
        "--update", action="store_true", help="write what was measured to manifests/golden.json and docs"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="take the programs that lie there instead of compiling them; put the others there",
    )
    add_timeout(parser, "a step", 300)


def run(args: argparse.Namespace) -> int:
    from ci.upstream.golden.stage import test_golden
    from provisioning.base.errors import UsageError
    from provisioning.base.settings import selection_of

    command = typed("nox -s test_golden --", sys.argv[2:])
    wrong = args.qnn if args.lane == "executorch" else args.executorch
    if wrong:
        other = "--executorch" if args.lane == "executorch" else "--qnn"
        raise UsageError(f"--lane {args.lane} has other versions", remedy=f"name them by {other}")
    versions = args.executorch if args.lane == "executorch" else args.qnn
    kept = args.keep.absolute() if args.keep else None
    return test_golden(
        selection_of(args), args.lane, versions, args.update, args.timeout, command, os.environ, kept
    )
