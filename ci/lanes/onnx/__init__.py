"""`onnx`: compile ONNX models to QNN contexts, and run them on the HTP emulator."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.pipeline.compile_flags import add_compile, add_option, compile_of, is_onnx
from provisioning.base.command_line import add_timeout
from provisioning.base.errors import UsageError

EXAMPLES = """\
  python -m ci onnx compile model.onnx --soc SM8750 --precision u16u8 --calibrate samples/ -o out/
  python -m ci onnx compile model.onnx --precision fp16 --embed -o out/
  python -m ci onnx compile model.onnx --soc SM8650 --and-soc SM8750 -o out/
  python -m ci onnx compile model.onnx --dimension batch=1 --option vtcm_mb=4 -o out/
  python -m ci onnx run out/model_ctx.onnx --input x.npy --output y.npz
  python -m ci onnx options
  python -m ci onnx operators --check
"""


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    compiler = commands.add_parser("compile", help="quantize a model and compile it to a QNN context")
    add_compile(compiler)

    runner = commands.add_parser("run", help="run a compiled model on the HTP emulator")
    runner.add_argument("model", type=Path, metavar="MODEL_ctx.onnx")
    runner.add_argument(
        "--input",
        action="append",
        required=True,
        metavar="[NAME=]FILE",
        help=".npy of an input, or .npz with all of them; may be repeated",
    )
    runner.add_argument("--soc", help="the chip to hold it to [the one it was compiled for]")
    add_option(runner)
    runner.add_argument("--output", type=Path, metavar="FILE.npz", help="write the outputs there")
    runner.add_argument(
        "--as-it-is",
        action="store_true",
        help="run it although another QNN build made it, or for another chip: what happens is the runtime's",
    )
    runner.add_argument("--profile-run", type=Path, metavar="CSV", help="write what each operator took")

    commands.add_parser("options", help="list what --option takes")
    operators = commands.add_parser(
        "operators", help="choose the node test of each ONNX operator that is measured"
    )
    operators.add_argument("--check", action="store_true", help="write nothing; fail if the choice is stale")
    add_timeout(runner, "a step")
    for command in (compiler, runner):
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def run(args: argparse.Namespace) -> int:
    from ci.lanes.onnx import commands

    if args.command == "operators":
        from ci.lanes.onnx.compile import require_installed

        require_installed()
        from ci.lanes.onnx.operator_tests import run_operators

        return run_operators(check=args.check)
    if args.command == "compile":
        # As `compile`, of .onnx models alone.
        from ci.lanes.onnx.one_model import compile_model

        if not is_onnx(args.model):
            raise UsageError(f"{args.model}: expected an .onnx", fix="`compile` takes PyTorch models too")
        return compile_model(compile_of(args))
    if args.command == "options":
        return commands.list_options()
    return commands.run_model(
        commands.RunModel(
            args.model,
            args.input,
            args.soc,
            args.option,
            args.output,
            args.profile_run,
            args.as_it_is,
            args.timeout,
        )
    )
