"""`onnx`: what `compile` made of an .onnx, run on the HTP emulator."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.pipeline.compile_flags import add_option
from provisioning.base.command_line import add_timeout, switch, valued

EXAMPLES = """\
  python -m ci onnx run out/model_ctx.onnx --input x.npy --output y.npz
  python -m ci onnx options
"""


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    runner = commands.add_parser("run", help="run a compiled model on the HTP emulator")
    runner.add_argument("model", type=Path, metavar="MODEL_ctx.onnx")
    runner.add_argument(
        "--input",
        action="append",
        required=True,
        metavar="[NAME=]FILE",
        help=".npy of an input, or .npz with all of them; may be repeated",
    )
    runner.add_argument("--soc", help="the expected chip [the one it was compiled for]")
    add_option(runner)
    valued(runner, "--output", "FILE.npz", "write the outputs there", type=Path)
    switch(runner, "--as-it-is", "run it even if another QNN build made it or it is for another chip")

    commands.add_parser("options", help="list the options for --option")
    add_timeout(runner, "a step")


def run(args: argparse.Namespace) -> int:
    from ci.lanes.onnx import running

    if args.command == "options":
        return running.list_options()
    what = (args.model, args.input, args.soc, args.option)
    return running.run_model(*what, args.output, args.timeout, as_it_is=args.as_it_is)
