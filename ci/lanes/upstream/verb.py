"""`test_delegate`: ExecuTorch's own delegate suite on the HTP emulator."""

from __future__ import annotations

import argparse
import os

from ci.lanes.upstream.flags import add_tests, options_of

EXAMPLES = """\
  python -m ci test_delegate
  python -m ci test_delegate -k 'conv2d and not quantized' --soc SM8750
  python -m ci test_delegate --sample
  python -m ci test_delegate --shard 1/4 --jobs 2
  python -m ci test_delegate --list
  python -m ci test_delegate --no-cache --fail-fast --keep
  python -m ci test_delegate --accept
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_tests(parser)


def run(args: argparse.Namespace) -> int:
    from ci.lanes.upstream.stage import run_suites
    from ci.lanes.upstream.suite import upstream_suites
    from provisioning.base.stage_run import StageRun

    suite = upstream_suites()["delegate"].model_copy(update={"command": ("test_delegate",)})
    options = options_of(args)
    stage = StageRun.as_typed(suite.stage, options.selection.profile, options.selection.target)
    return run_suites(stage, [suite], options, os.environ)
