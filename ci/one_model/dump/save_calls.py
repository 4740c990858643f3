"""`save-calls`: QNN's calls for a model as C and parameters, to reproduce a bug with Qualcomm."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.one_model.dump import child
from ci.pipeline.compile_flags import plain_model_of

EXAMPLES = """\
  python -m ci save-calls model.onnx --soc SM8750 -o calls/
  python -m ci save-calls mymodels.py:net --scheme 8a8w -o calls/     # ExecuTorch's calls
"""


def configure(parser: argparse.ArgumentParser) -> None:
    child.configure(parser, "DIR", f"where {child.CALLS} and {child.PARAMETERS} go; an empty or a new folder")


def run(args: argparse.Namespace) -> int:
    output: Path = args.output
    model = plain_model_of(args)
    with child.dumped("calls", model, output.absolute()) as folder:
        for path in child.publish_calls(folder, output.absolute(), model.typed):
            print(f"{path.stat().st_size:>12,}  {output / path.name}")
    print("compile it against the SDK's headers with the backend in question; send both files with the bug")
    return 0
