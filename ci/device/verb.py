"""The command lines of `run_device` and `bundle`.

`run_device` gets a bundle, which it runs, or a program, which it runs and judges (`is_program`)."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci.models.not_models import refuse_no_program
from provisioning.base.commands import Fix
from provisioning.base.errors import UsageError
from provisioning.base.flags import add_purpose, add_valued, duration, repeatable, switch
from provisioning.base.selection import add_selection, selection_of

if TYPE_CHECKING:
    from provisioning.base.findings import Report

EXAMPLES = """\
  nox -s run_device
  nox -s run_device -- --serial 1a2b3c4d --inputs input_list.txt
  nox -s run_device -- dist/bundles/aarch64-linux-QCS9100 --ssh root@board --inputs input_list.txt
  nox -s run_device -- BUNDLE --serial 1a2b3c4d --model resnet.pte --runner-arg=--iteration=10
  nox -s run_device -- out/net-SM8750-16a8w.pte --on folder --outputs from-the-phone
  nox -s run_device -- out/net-SM8750-16a8w.pte --on adb --serial 1a2b3c4d
  nox -s run_device -- out/net-SM8750-16a8w.pte --on aihub --device "Galaxy S25" --yes
"""

FOLDER, ADB, SSH, AIHUB = WAYS = ("folder", "adb", "ssh", "aihub")
"""The values of --on."""
SECONDS, HUB_SECONDS = 600.0, 3600.0
"""How long to wait for a device, and for AI Hub, if the user does not say."""
ENVIRONMENTS = {".pte": "executorch", ".onnx": "onnx"}
"""Maps the end of a program's name to the locked Python that judges it."""


def environment_of(args: argparse.Namespace, default: str) -> str:
    """Return the locked Python that the verb runs in. Judging needs numpy, which pushing a bundle does
    not."""
    return ENVIRONMENTS[args.what.suffix] if is_program(args) else default


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "what",
        nargs="?",
        type=Path,
        metavar="BUNDLE|PROGRAM",
        help="a folder that `bundle` wrote [the only one in dist/bundles]; or a program that `compile"
        " --keep-samples` wrote: its outputs are then compared with float and with the emulator",
    )
    way = parser.add_argument_group("the device")
    way.add_argument(
        "--on",
        choices=WAYS,
        help="where PROGRAM runs; folder: it ran elsewhere; aihub: on a phone of Qualcomm AI Hub"
        " [adb; ssh with --ssh]",
    )
    add_valued(way, "--device", "NAME", "a device of AI Hub, such as 'Galaxy S25'")
    switch(way, "--yes", "agree that the program and its samples are uploaded to AI Hub")
    switch(way, "--measure", "let AI Hub also measure latency, memory and where layers ran")
    add_valued(way, "--outputs", "DIR", "the outputs that PROGRAM gave elsewhere, for --on folder", type=Path)
    add_valued(way, "--bundle", "DIR", "the bundle that has PROGRAM [the only one for its chip]", type=Path)
    add_valued(way, "--serial", "S", "a device that adb lists [the only one]")
    add_valued(way, "--ssh", "USER@HOST", "a Linux device, as ssh knows it")
    add_valued(way, "--device-dir", "DIR", "the folder on the device [QNN_CI_DEVICE_DIR, a folder by target]")
    add_valued(way, "--wrap", "COMMAND", "run the runner with this: an emulator, taskset", default="")
    job = parser.add_argument_group("the run")
    add_valued(job, "--model", "NAME", "which of the bundle's models [the only one]")
    add_valued(job, "--inputs", "LIST", "an input list; its files are pushed too", type=Path)
    repeatable(job, "--runner-arg", "ARG", "give this to the runner")
    text = f"end the run after S seconds [{SECONDS:g}; of AI Hub {HUB_SECONDS:g}]"
    job.add_argument("--timeout", type=duration, metavar="S", help=text)
    switch(job, "--push-only", "update the device and run nothing")
    job.add_argument(
        "--output", "-o", type=Path, metavar="DIR", help="the folder for outputs and logs [REPORTS/device]"
    )


def is_program(args: argparse.Namespace) -> bool:
    """Whether the words name a program and no bundle."""
    return args.what is not None and args.what.suffix in ENVIRONMENTS


def check(args: argparse.Namespace) -> None:
    """Refuse flags that contradict each other."""
    if not is_program(args):
        if args.what and args.what.is_file():
            refuse_no_program(args.what, args.what)
            raise UsageError(
                f"{args.what}: expected a bundle's folder, a .pte or an .onnx, found another file",
                fix=Fix("name the folder that {} wrote", ("bundle", "PROGRAM.pte")),
            )
        for name in ("on", "outputs", "bundle", "device", "yes", "measure"):
            if getattr(args, name):
                judges = ("run_device", "PROGRAM.pte", "--on", FOLDER, "--outputs", "DIR")
                raise UsageError(
                    f"--{name} is for a program, and {args.what or 'none'} is named",
                    fix=Fix("name the program: {}", judges),
                )
        return
    for name in ("device", "yes", "measure"):
        if args.on != AIHUB and getattr(args, name):
            raise UsageError(f"--{name} is for --on {AIHUB}", fix=f"leave it out, or add --on {AIHUB}")
    if args.on == AIHUB and not args.device:
        raise UsageError(f"--on {AIHUB} needs the name of a device", fix="--device 'Galaxy S25'")
    if (args.on == FOLDER) != bool(args.outputs):
        message = "--on folder and --outputs DIR belong together"
        raise UsageError(message, fix="give both, or neither to run the program on a device")
    if (args.on == SSH) > bool(args.ssh) or (args.on in (ADB, AIHUB) and args.ssh):
        message = f"--on {args.on} and {'--ssh' if args.ssh else 'no --ssh'} contradict each other"
        raise UsageError(message, fix="--ssh USER@HOST alone names a Linux device")
    if args.inputs or args.push_only:
        flag = "--inputs" if args.inputs else "--push-only"
        raise UsageError(
            f"{flag}: a program is judged with its own samples",
            fix=Fix("leave it out, or name the bundle: {}", ("run_device", "BUNDLE")),
        )


def run(args: argparse.Namespace) -> int:
    from ci.device.judge_program import JudgeOptions, judge_program
    from ci.device.run_bundle import DeviceOptions, run_bundle
    from ci.suite.context_jobs import DeviceWanted
    from provisioning.base import rendering
    from provisioning.base.stage_run import StageRun

    def show(report: Report) -> None:
        figures = {name: value for name, value in report.metrics.items() if name != "programs"}
        rendering.show(replace(report, metrics=figures))

    check(args)
    options = DeviceOptions(
        bundle=args.bundle or (None if is_program(args) else args.what),
        serial=args.serial,
        ssh=args.ssh,
        device_dir=args.device_dir,
        wrap=args.wrap,
        model=args.model,
        inputs=args.inputs,
        runner_arguments=args.runner_arg,
        timeout=args.timeout or (HUB_SECONDS if args.on == AIHUB else SECONDS),
        push_only=args.push_only,
        output=args.output,
    )
    selection = selection_of(args)
    stage = StageRun("run_device", selection.profile, selection.target)
    with stage.reported(selection.reports, "device", options.ssh or options.serial or ""):
        if is_program(args):
            way = args.on or (SSH if args.ssh else ADB)
            wanted = DeviceWanted(name=args.device, profile=args.measure) if args.device else None
            judging = JudgeOptions(args.what, way, args.outputs, options, wanted, args.yes)
            judge_program(judging, selection, stage)
        else:
            run_bundle(options, selection, stage)
    return stage.close(selection.reports, show=show)


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
            allow_flags=args.allow_flags,
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
