"""`onnx`: compile ONNX models to QNN contexts, run them on the HTP emulator, see which nodes HTP takes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ci.suites import compile_flags
from ci.suites.flags import require_host
from provisioning.base.command_line import add_timeout
from provisioning.base.errors import UsageError
from provisioning.base.settings import DEFAULT_SOC

EXAMPLES = """\
  python -m ci onnx compile model.onnx --soc SM8750 --precision u16u8 --calibrate samples/ -o out/
  python -m ci onnx compile model.onnx --precision fp16 --embed -o out/
  python -m ci onnx compile model.onnx --soc SM8650 --and-soc SM8750 -o out/
  python -m ci onnx compile model.onnx --dimension batch=1 --option vtcm_mb=4 -o out/
  python -m ci onnx run out/model_ctx.onnx --input x.npy --output y.npz
  python -m ci onnx profile out/model_ctx.onnx --input x.npy --source model.onnx --json now.json
  python -m ci onnx audit model.onnx --soc SM8650
  python -m ci onnx options
"""


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    compiler = commands.add_parser("compile", help="quantize a model and compile it to a QNN context")
    compile_flags.configure(compiler)

    runner = commands.add_parser("run", help="run a compiled model on the HTP emulator")
    runner.add_argument("model", type=Path, metavar="MODEL_ctx.onnx")
    _add_run(runner)
    runner.add_argument("--output", type=Path, metavar="FILE.npz", help="write the outputs there")
    runner.add_argument(
        "--as-it-is",
        action="store_true",
        help="run it although another QNN build made it, or for another chip: what happens is the runtime's",
    )
    runner.add_argument("--profile-run", type=Path, metavar="CSV", help="write what each operator took")

    profiler = commands.add_parser("profile", help="say what each operator and line takes on the emulator")
    profiler.add_argument("model", type=Path, metavar="MODEL_ctx.onnx")
    _add_run(profiler)
    profiler.add_argument(
        "--source",
        type=Path,
        metavar="MODEL.onnx",
        help="the model it was compiled from, which has the lines",
    )
    profiler.add_argument("--json", type=Path, metavar="FILE", help="write the profile there")
    profiler.add_argument("--against", type=Path, metavar="FILE", help="compare with an earlier --json")
    profiler.add_argument("--page", type=Path, metavar="FILE.html", help="write a page with bars and a tree")

    auditor = commands.add_parser("audit", help="say which nodes HTP does not take, and why")
    auditor.add_argument("model", type=Path, metavar="MODEL.onnx")
    _add_choices(auditor)
    auditor.add_argument("--json", action="store_true", help="print one JSON document instead of text")

    commands.add_parser("options", help="list what --option takes")
    for command in (runner, profiler, auditor):
        add_timeout(command, "a step")
    for command in (compiler, runner, profiler, auditor):
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        action="append",
        required=True,
        metavar="[NAME=]FILE",
        help=".npy of an input, or .npz with all of them; may be repeated",
    )
    parser.add_argument("--soc", help="the chip to hold it to [the one it was compiled for]")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"{compile_flags.OPTION_HELP}; may be repeated",
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--soc",
        default=os.environ.get("QNN_CI_SOC") or DEFAULT_SOC,
        help=f"chip by name, as in manifests/socs.toml [QNN_CI_SOC, {DEFAULT_SOC}]",
    )
    parser.add_argument(
        "--precision", help="u16u8, u8u8, fp16 … [fp16, or as it is where it is quantized already]"
    )
    parser.add_argument(
        "--dimension", action="append", default=[], metavar="NAME=N", help="fix a named size; may be repeated"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"{compile_flags.OPTION_HELP}; may be repeated",
    )


def _compile(args: argparse.Namespace) -> int:
    """As `compile`, of .onnx models alone."""
    from ci.onnx.one_model import compile_model

    if not compile_flags.is_onnx(args.model):
        raise UsageError(f"{args.model}: expected an .onnx", remedy="`compile` takes PyTorch models too")
    compile_flags.require_lane(args)
    require_host(args)
    return compile_model(args)


def run(args: argparse.Namespace) -> int:
    from ci.onnx import commands

    handlers = {
        "compile": _compile,
        "run": commands.run_model,
        "profile": commands.profile_model,
        "audit": commands.audit_model,
        "options": commands.list_options,
    }
    return handlers[args.command](args)
