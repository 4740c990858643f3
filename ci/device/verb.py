"""`run_device`: push a bundle's changed files to a device, run it there, fetch outputs and logs."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.command_line import add_timeout, repeatable, switch, valued
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
    valued(way, "--serial", "S", "a device that adb lists [the only one]")
    valued(way, "--ssh", "USER@HOST", "a Linux device, as ssh knows it")
    valued(way, "--device-dir", "DIR", "the folder on the device [QNN_CI_DEVICE_DIR, a folder by target]")
    valued(
        way,
        "--wait",
        "SECONDS",
        "how long to wait for another run in that folder [%(default)g]",
        type=float,
        default=0.0,
    )
    valued(way, "--wrap", "COMMAND", "run the runner with this: an emulator, taskset", default="")
    what = parser.add_argument_group("the run")
    valued(what, "--model", "NAME", "which of the bundle's models [the only one]")
    valued(what, "--inputs", "LIST", "an input list; its files are pushed too", type=Path)
    repeatable(what, "--runner-arg", "ARG", "give this to the runner")
    add_timeout(what, "the run", 600.0)
    switch(what, "--push-only", "update the device and run nothing")
    what.add_argument(
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
        wait=args.wait,
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
