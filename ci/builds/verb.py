"""`build_runner`, and `build_x86`, `build_android` and `build_linux_arm64`: ExecuTorch from source."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provisioning.base.errors import UsageError
from provisioning.base.flags import add_valued, count, repeatable, switch
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import DEFAULT_TARGET, WHEEL
from provisioning.components import ANDROID_NDK, EXECUTORCH_SOURCE, KINDS, QNN_SDK
from provisioning.environment import require_somewhere

BUILD_TYPES = ("RelWithDebInfo", "Release", "Debug", "MinSizeRel")
RUNNER_BUILD_TYPES = ("Release", "RelWithDebInfo", "Debug")
"""The first is the default."""


def add_build_flags(
    parser: argparse.ArgumentParser,
    types: Sequence[str],
    *,
    executorch: str,
    jobs: str,
    folder: str,
    output: str,
) -> None:
    """The flags of every build. `types`: the first is the default."""
    add_selection(parser, executorch=False)
    folder_flags: dict[str, Any] = {"type": Path, "metavar": "DIR"}
    parser.add_argument("--executorch", help=executorch, **folder_flags)
    parser.add_argument(
        "--build-type", choices=types, default=types[0], help="[%(default)s]; Release is stripped"
    )
    parser.add_argument("--jobs", "-j", type=count, help=f"compile this many files at once [{jobs}]")
    switch(parser, "--clean", "build everything again")
    parser.add_argument("--build-dir", help=f"the folder to compile in [{folder}]", **folder_flags)
    parser.add_argument("--output", "-o", help=f"the folder for the results [{output}]", **folder_flags)
    add_valued(
        parser,
        "--glibc",
        "VERSION",
        "the newest glibc that the binaries may need [the profile's floor]",
        type=_version,
    )
    switch(parser, "--dry-run", "print what would be done, and do nothing")


def _version(text: str) -> str:
    if re.fullmatch(r"\d+(\.\d+)+", text):
        return text
    raise argparse.ArgumentTypeError(f"expected a version like 2.34, found {text!r}")


def is_wheel(folder: Path | None) -> bool:
    """Whether `--executorch wheel` was typed: the sessions of one call of nox have the same flags, and to a
    stage that runs programs this says which executorch it runs."""
    return folder is not None and folder.name == WHEEL and not folder.exists()


class SourceBuild:
    """The verb that builds for one target."""

    def __init__(self, name: str, target: str) -> None:
        self.name, self.target = name, target
        self.EXAMPLES = f"""\
  nox -s {name}
  nox -s {name} -- --build-type Release --executorch DIR
  nox -s {name} -- --dry-run
"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_build_flags(
            parser,
            BUILD_TYPES,
            executorch="the tree [EXECUTORCH_ROOT, the store's executorch-source]",
            jobs="by cores and memory",
            folder="build/executorch/TARGET",
            output="dist/TARGET",
        )
        repeatable(
            parser, "--cmake-arg", "ARG", "NAME=VALUE or another argument, for configuring each project"
        )
        parser.set_defaults(wheel=False, toolchain_file=None)
        if self.target == DEFAULT_TARGET:
            help = "build ExecuTorch's wheel with QNN instead, and an environment that has it"
            switch(parser, "--wheel", help)
        if self.target == "aarch64-linux":
            help = "a vendor's CMake toolchain [aarch64-linux-gnu-g++]"
            add_valued(parser, "--toolchain-file", "FILE", help, type=Path)

    def check(self, args: argparse.Namespace) -> None:
        """Refuse a build whose sources are nowhere, before its environment is made."""
        needs = [QNN_SDK]
        needs += [ANDROID_NDK] if self.target in KINDS[ANDROID_NDK].needed_by else []
        needs += [] if args.executorch and not is_wheel(args.executorch) else [EXECUTORCH_SOURCE]
        selection = replace(selection_of(args), target=self.target)
        require_somewhere(needs, selection, os.environ)

    def run(self, args: argparse.Namespace) -> int:
        from ci.builds import source, wheel
        from ci.builds.source_plan import BuildOptions, plan_of
        from provisioning.base.files import disk_errors
        from provisioning.base.stage_run import StageRun
        from provisioning.python_environments import PythonEnvironments, environments_folder

        for target in args.target or ():
            if target != self.target:
                raise UsageError(f"{self.name} builds for {self.target}, not for {target}")
        options = BuildOptions(
            executorch=None if is_wheel(args.executorch) else args.executorch,
            build_type=args.build_type,
            jobs=args.jobs,
            clean=args.clean,
            build_dir=args.build_dir,
            output=args.output,
            glibc=args.glibc,
            cmake_arg=args.cmake_arg,
            toolchain_file=args.toolchain_file,
        )
        selection = replace(selection_of(args), target=self.target)
        if args.dry_run:
            plan = plan_of(options, selection, os.environ)
            sys.stdout.write(wheel.script(plan) if args.wheel else source.script(plan))
            return 0
        stage = StageRun(self.name, selection.profile, self.target)
        with (
            stage.reported(selection.reports, "build", self.target),
            disk_errors("choose other folders with --build-dir and --output"),
        ):
            if args.wheel:
                wheel.build(
                    plan_of(options, selection, os.environ),
                    stage,
                    PythonEnvironments(environments_folder(), _log),
                )
            else:
                source.build(options, selection, stage)
        return stage.close(selection.reports)


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")


class RunnerBuild:
    EXAMPLES = """\
  python -m ci build_runner
  python -m ci build_runner --target aarch64-linux
  python -m ci build_runner --target aarch64-linux --glibc 2.35
  python -m ci build_runner --build-type RelWithDebInfo -o dist/debug
  python -m ci build_runner --executorch DIR --dry-run
"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_build_flags(
            parser,
            RUNNER_BUILD_TYPES,
            executorch="the executorch package to build against"
            " [this Python's; for aarch64-linux the store's]",
            jobs="all cores",
            folder="build/runner/TARGET",
            output="dist/TARGET/wheel",
        )

    def run(self, args: argparse.Namespace) -> int:
        from ci.builds.runner_build import build_and_start, describe_build, plan_of, runner_of_tree
        from provisioning.base.files import disk_errors
        from provisioning.base.stage_run import StageRun
        from provisioning.manifest import load_profile

        selection, package = selection_of(args), args.executorch
        if is_wheel(package):
            selection, package = replace(selection, executorch=WHEEL), None
        stage = StageRun("build_runner", selection.profile, selection.target)
        with (
            stage.reported(selection.reports, "runner-build", selection.target),
            disk_errors("choose other folders with --build-dir and --output"),
        ):
            if package is None and (runner := runner_of_tree(selection, os.environ, stage)):
                sys.stdout.write(f"{runner} is that tree's own runner, which build_x86 built\n")
                return stage.close(selection.reports)
            plan = plan_of(
                selection,
                executorch=package,
                build_type=args.build_type,
                build_dir=args.build_dir,
                output=args.output,
            )
            if args.dry_run:
                sys.stdout.write(describe_build(plan))
                return 0
            glibc = args.glibc or load_profile(selection.profile).host["glibc"]
            jobs = args.jobs or os.cpu_count() or 1
            build_and_start(plan, stage, glibc, jobs=jobs, clean=args.clean)
        return stage.close(selection.reports)


RUNNER = RunnerBuild()
X86 = SourceBuild("build_x86", "x86_64-linux")
ANDROID = SourceBuild("build_android", "aarch64-android")
LINUX_ARM64 = SourceBuild("build_linux_arm64", "aarch64-linux")
