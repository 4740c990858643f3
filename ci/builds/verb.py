"""`build_x86`, `build_android` and `build_linux_arm64`: ExecuTorch from source."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioning.base.command_line import count, repeatable
from provisioning.base.settings import DEFAULT_TARGET, add_selection

BUILD_TYPES = ("RelWithDebInfo", "Release", "Debug", "MinSizeRel")


class SourceBuild:
    """The verb that builds for one target."""

    def __init__(self, name: str, target: str) -> None:
        self.name, self.target = name, target
        self.EXAMPLES = f"""\
  nox -s {name}
  nox -s {name} -- --release --executorch DIR
  nox -s {name} -- --dry-run
"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_selection(parser)
        parser.add_argument(
            "--executorch",
            type=Path,
            metavar="DIR",
            help="the tree [EXECUTORCH_ROOT, the store's executorch-source]",
        )
        parser.add_argument(
            "--build-type",
            choices=BUILD_TYPES,
            default=BUILD_TYPES[0],
            help="[%(default)s]; Release is stripped",
        )
        parser.add_argument(
            "--release", dest="build_type", action="store_const", const="Release", help="--build-type Release"
        )
        parser.add_argument(
            "--jobs", "-j", type=count, help="compile this many files at once [by cores and memory]"
        )
        parser.add_argument("--clean", action="store_true", help="build everything again")
        repeatable(
            parser, "--cmake-arg", "ARG", "NAME=VALUE or another argument, for configuring each project"
        )
        parser.add_argument(
            "--target-only", action="store_true", help="only the library and the runner, no Python adaptors"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="print the commands that would run, and do nothing"
        )
        parser.add_argument(
            "--build-dir", type=Path, metavar="DIR", help="where it is compiled [build/executorch/TARGET]"
        )
        parser.add_argument(
            "--output", "-o", type=Path, metavar="DIR", help="where the files go [dist/TARGET]"
        )
        parser.add_argument(
            "--glibc", metavar="VERSION", help="the newest glibc it may need [the profile's floor]"
        )
        if self.target == DEFAULT_TARGET:
            parser.add_argument(
                "--install",
                action="store_true",
                help="copy adaptors and schemas into the tree instead of an overlay",
            )
        if self.target == "aarch64-linux":
            parser.add_argument(
                "--compiler",
                metavar="PREFIX",
                help="what the compilers' names begin with [aarch64-linux-gnu-]",
            )
            parser.add_argument(
                "--sysroot", type=Path, metavar="DIR", help="the device's headers and libraries"
            )
            parser.add_argument(
                "--toolchain-file",
                type=Path,
                metavar="FILE",
                help="a vendor's CMake toolchain, instead of both",
            )

    def run(self, args: argparse.Namespace) -> int:
        from ci.builds import source

        return source.run(args, self.name, self.target)


X86 = SourceBuild("build_x86", "x86_64-linux")
ANDROID = SourceBuild("build_android", "aarch64-android")
LINUX_ARM64 = SourceBuild("build_linux_arm64", "aarch64-linux")
