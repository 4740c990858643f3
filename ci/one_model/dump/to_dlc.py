"""`to-dlc`: the QNN graph of a model as a DLC, which is compiled where it runs."""

from __future__ import annotations

import argparse

from ci.artifacts.dlc import read_dlc
from ci.one_model.dump import child
from ci.pipeline.compile_flags import plain_model_of
from provisioning.base.errors import CheckFailed, UsageError

EXAMPLES = """\
  python -m ci to-dlc model.onnx --soc SM8750 -o model.dlc
  python -m ci to-dlc mymodels.py:net --scheme 8a8w -o model.dlc     # as ExecuTorch lowers it
"""


def configure(parser: argparse.ArgumentParser) -> None:
    child.configure(parser, "FILE.dlc", "the file to write")


def run(args: argparse.Namespace) -> int:
    model, output = plain_model_of(args), args.output
    if output.is_dir():
        raise UsageError(f"{output} is a directory", fix="-o FILE.dlc")
    with child.dumped("dlc", model, output.absolute()) as folder:
        graphs = sorted(folder.glob("*.dlc"))
        if len(graphs) != 1:
            raise CheckFailed(
                f"{model.typed}: expected one QNN graph, found {len(graphs)}",
                fix="split the model, or move what stays on the CPU to its beginning or end",
            )
        contents = read_dlc(graphs[0])
        child.move(graphs[0], output.absolute(), model.typed)
    print(f"{contents.size:>12,}  {output}, QNN {contents.qnn}")
    return 0
