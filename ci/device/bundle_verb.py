"""`bundle`: exactly the files that a device needs, checked as one, with a script to run them."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.command_line import repeatable, switch, valued
from provisioning.base.selection import add_selection, selection_of

EXAMPLES = """\
  nox -s bundle -- --profile qnn-2.37 --soc SM8750 --target aarch64-android model.pte
  nox -s bundle -- --soc SM8650 --target aarch64-linux a.pte b.pte -o /tmp/bundle
  nox -s bundle -- --profile qnn-2.48 --soc SM8850 --target aarch64-android --lpai model.pte
  nox -s bundle -- --profile wheels-2.51 --soc SC8380XP --target aarch64-windows out/model_ctx.onnx
  nox -s bundle -- --profile wheels-2.51 --soc SM8750 --target aarch64-linux out/
  nox -s bundle -- --soc QCS9100 --target aarch64-linux --runner llama_main --file tokenizer.bin llama.pte
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
    valued(parser, "--dist", "DIR", "the build to take the runner from [dist/TARGET]", type=Path)
    valued(parser, "--runner", "NAME", "the build's program that runs the model [qnn_executor_runner]")
    repeatable(parser, "--file", "FILE", "pushed as files/NAME, such as a tokenizer", type=Path)
    switch(parser, "--lpai", "add LPAI's libraries and its signed skel")
    valued(parser, "--signed", "DIR", "the overlay of sign_lpai [dist/overlay]", type=Path)
    valued(parser, "--root", "CERT", "the root certificate that the signed skel must end in", type=Path)
    parser.add_argument(
        "--output", "-o", type=Path, metavar="DIR", help="the folder to write to [dist/bundles/TARGET-SOC]"
    )


def run(args: argparse.Namespace) -> int:
    from ci.device.bundle import BundleOptions, assemble
    from provisioning.base.files import disk_errors
    from provisioning.base.stage_run import StageRun

    options = BundleOptions(
        models=args.models,
        files=args.file,
        dist=args.dist,
        runner=args.runner,
        lpai=args.lpai,
        signed=args.signed,
        root=args.root,
        output=args.output,
    )
    selection = selection_of(args)
    stage = StageRun("bundle", selection.profile, selection.target)
    with (
        stage.reported(selection.reports, "bundle", selection.soc),
        disk_errors("choose another folder with --output"),
    ):
        assemble(options, selection, stage)
    return stage.close(selection.reports)
