"""`build_runner`: the command line."""

from __future__ import annotations

import argparse
import os
import sys

from ci.builds.verb import RUNNER_BUILD_TYPES, add_build_flags
from provisioning.base.selection import selection_of

EXAMPLES = """\
  python -m ci build_runner
  python -m ci build_runner --target aarch64-linux
  python -m ci build_runner --target aarch64-linux --glibc 2.35
  python -m ci build_runner --build-type RelWithDebInfo -o dist/debug
  python -m ci build_runner --executorch DIR --dry-run
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_build_flags(
        parser,
        RUNNER_BUILD_TYPES,
        executorch="the executorch package to build against [this Python's; for aarch64-linux the store's]",
        jobs="all cores",
        folder="build/runner/TARGET",
        output="dist/TARGET/wheel",
    )


def run(args: argparse.Namespace) -> int:
    from ci.builds.runner_build import build_and_start, described, plan_of
    from provisioning.base.files import disk_errors
    from provisioning.base.stage_run import StageRun
    from provisioning.manifest import load_profile

    selection = selection_of(args)
    stage = StageRun("build_runner", selection.profile, selection.target)
    with (
        stage.reported(selection.reports, "runner-build", selection.target),
        disk_errors("choose other folders with --build-dir and --output"),
    ):
        plan = plan_of(
            selection,
            executorch=args.executorch,
            build_type=args.build_type,
            build_dir=args.build_dir,
            output=args.output,
        )
        if args.dry_run:
            sys.stdout.write(described(plan))
            return 0
        glibc = args.glibc or load_profile(selection.profile).host["glibc"]
        jobs = args.jobs or os.cpu_count() or 1
        build_and_start(plan, stage, glibc, jobs=jobs, clean=args.clean)
    return stage.close(selection.reports)
