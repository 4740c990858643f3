"""`run_device` and `bundle`: the command lines."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.flags import add_purpose, add_timeout, add_valued, repeatable, switch
from provisioning.base.selection import add_selection, selection_of

EXAMPLES = """\
  nox -s run_device
  nox -s run_device -- --serial 1a2b3c4d --inputs input_list.txt
  nox -s run_device -- dist/bundles/aarch64-linux-QCS9100 --ssh root@board --inputs input_list.txt
  nox -s run_device -- BUNDLE --serial 1a2b3c4d --model resnet.pte --runner-arg=--iteration=10
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "bundle",
        nargs="?",
        type=Path,
        metavar="BUNDLE",
        help="a folder that `bundle` wrote [the only one in dist/bundles]",
    )
    way = parser.add_argument_group("the device")
    add_valued(way, "--serial", "S", "a device that adb lists [the only one]")
    add_valued(way, "--ssh", "USER@HOST", "a Linux device, as ssh knows it")
    add_valued(way, "--device-dir", "DIR", "the folder on the device [QNN_CI_DEVICE_DIR, a folder by target]")
    add_valued(way, "--wrap", "COMMAND", "run the runner with this: an emulator, taskset", default="")
    job = parser.add_argument_group("the run")
    add_valued(job, "--model", "NAME", "which of the bundle's models [the only one]")
    add_valued(job, "--inputs", "LIST", "an input list; its files are pushed too", type=Path)
    repeatable(job, "--runner-arg", "ARG", "give this to the runner")
    add_timeout(job, "the run", 600.0)
    switch(job, "--push-only", "update the device and run nothing")
    job.add_argument(
        "--output", "-o", type=Path, metavar="DIR", help="the folder for outputs and logs [REPORTS/device]"
    )


def run(args: argparse.Namespace) -> int:
    from ci.device.run_bundle import DeviceOptions, run_bundle
    from provisioning.base.stage_run import StageRun

    options = DeviceOptions(
        bundle=args.bundle,
        serial=args.serial,
        ssh=args.ssh,
        device_dir=args.device_dir,
        wrap=args.wrap,
        model=args.model,
        inputs=args.inputs,
        runner_arguments=args.runner_arg,
        timeout=args.timeout,
        push_only=args.push_only,
        output=args.output,
    )
    selection = selection_of(args)
    stage = StageRun("run_device", selection.profile, selection.target)
    with stage.reported(selection.reports, "device", options.ssh or options.serial or ""):
        run_bundle(options, selection, stage)
    return stage.close(selection.reports)


class BundleVerb:
    """Exactly the files that a device needs, checked as one, with a script to run them."""

    EXAMPLES = """\
  nox -s bundle -- --profile qnn-2.37 --soc SM8750 --target aarch64-android model.pte
  nox -s bundle -- --soc SM8650 --target aarch64-linux a.pte b.pte -o /tmp/bundle
  nox -s bundle -- --profile qnn-2.48 --soc SM8850 --target aarch64-android --lpai --root oem.pem m.pte
  nox -s bundle -- --profile wheels-2.51 --soc SC8380XP --target aarch64-windows out/model_ctx.onnx
  nox -s bundle -- --profile wheels-2.51 --soc SM8750 --target aarch64-linux out/
  nox -s bundle -- --soc QCS9100 --target aarch64-linux --runner llama_main --file tokenizer.bin llama.pte
"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_selection(parser)
        parser.add_argument(
            "models",
            nargs="*",
            type=Path,
            metavar="MODEL",
            help="programs (.pte); the folder that `compile` wrote; for Windows, what `compile` wrote",
        )
        add_valued(parser, "--dist", "DIR", "the build to take the runner from [dist/TARGET]", type=Path)
        add_valued(
            parser, "--runner", "NAME", "the build's program that runs the model [qnn_executor_runner]"
        )
        repeatable(parser, "--file", "FILE", "pushed as files/NAME, such as a tokenizer", type=Path)
        switch(parser, "--lpai", "add LPAI's libraries and its signed skel")
        add_valued(parser, "--signed", "DIR", "the overlay of sign_lpai [dist/overlay]", type=Path)
        add_valued(
            parser, "--root", "CERT", "the root certificate that the signed skel must end in", type=Path
        )
        add_purpose(parser)
        parser.add_argument(
            "--output",
            "-o",
            type=Path,
            metavar="DIR",
            help="the folder to write to [dist/bundles/TARGET-SOC]",
        )

    def run(self, args: argparse.Namespace) -> int:
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
            purpose=args.purpose,
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


BUNDLE = BundleVerb()
