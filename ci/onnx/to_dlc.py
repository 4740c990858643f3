"""`to-dlc`: the QNN graph of a model as a DLC, which is compiled where it runs."""

from __future__ import annotations

import argparse

from ci.onnx import dump
from ci.suites.programs.dlc import read_dlc
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError

EXAMPLES = """\
  python -m ci to-dlc model.onnx --soc SM8750 -o model.dlc
"""


def configure(parser: argparse.ArgumentParser) -> None:
    dump.configure(parser, "FILE.dlc", "the file to write")


def run(args: argparse.Namespace) -> int:
    if args.output.is_dir():
        raise UsageError(f"{args.output} is a directory", remedy="-o FILE.dlc")
    with dump.written("dlc", args) as folder:
        graphs = sorted(folder.glob("*.dlc"))
        if len(graphs) != 1:
            raise CheckFailed(
                f"{args.model}: expected one QNN graph, found {len(graphs)}",
                remedy=session("onnx", "audit", args.model, "--soc", args.soc),
            )
        contents = read_dlc(graphs[0])
        dump.move(graphs[0], args.output.absolute())
    print(f"{contents.size:>12,}  {args.output}, QNN {contents.qnn}")
    return 0
