"""`bundle`: exactly the files that a device needs, checked as one, with scripts to push and run them."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.command_line import repeatable
from provisioning.base.selection import add_selection, selection_of

EXAMPLES = """\
  nox -s bundle -- --soc SM8750 --target aarch64-android model.pte
  nox -s bundle -- --soc SM8650 --target aarch64-linux a.pte b.pte -o /tmp/bundle
  nox -s bundle -- --soc SM8850 --target aarch64-android --lpai model.pte
  nox -s bundle -- --profile wheels-2.51 --soc SC8380XP --target aarch64-windows out/model_ctx.onnx
  nox -s bundle -- --profile wheels-2.51 --soc SM8750 --target aarch64-linux out/
  nox -s bundle -- --soc SM8750 --target aarch64-android --runner llama_main --file tokenizer.bin llama.pte
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "models",
        nargs="*",
        type=Path,
        metavar="MODEL",
        help="programs (.pte); the folder that `compile` wrote; for Windows, what `compile` wrote",
    )
    parser.add_argument(
        "--dist", type=Path, metavar="DIR", help="the build to take the runner from [dist/TARGET]"
    )
    parser.add_argument(
        "--runner", metavar="NAME", help="the build's program that runs the model [qnn_executor_runner]"
    )
    repeatable(parser, "--file", "FILE", "pushed as files/NAME, such as a tokenizer", type=Path)
    parser.add_argument("--lpai", action="store_true", help="add LPAI's libraries and its signed skel")
    parser.add_argument("--signed", type=Path, metavar="DIR", help="the overlay of sign_lpai [dist/overlay]")
    parser.add_argument(
        "--root", type=Path, metavar="CERT", help="the root certificate that the signed skel must end in"
    )
    parser.add_argument(
        "--symbols", action="store_true", help="keep the symbols of the runner and its libraries"
    )
    parser.add_argument(
        "--output", "-o", type=Path, metavar="DIR", help="the folder to write to [dist/bundles/TARGET-SOC]"
    )


def run(args: argparse.Namespace) -> int:
    from ci.device.bundle.assemble import BundleOptions, assemble
    from provisioning.base.disk import disk_errors
    from provisioning.base.stage_run import StageRun

    options = BundleOptions(
        models=args.models,
        files=args.file,
        dist=args.dist,
        runner=args.runner,
        lpai=args.lpai,
        signed=args.signed,
        root=args.root,
        symbols=args.symbols,
        output=args.output,
    )
    selection = selection_of(args)
    stage = StageRun.as_typed("bundle", selection.profile, selection.target)
    with (
        stage.reported(selection.reports, "bundle", selection.soc),
        disk_errors("choose another folder with --output"),
    ):
        assemble(options, selection, stage)
    return stage.close(selection.reports)
