"""`test_delegate`: ExecuTorch's own delegate suite on the HTP emulator; the flags that all suites share."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from ci.suite.options import Choice, add_accept, add_work, host_selection, work_of
from provisioning.base.command_line import count, repeatable, switch, valued
from provisioning.base.selection import add_selection

if TYPE_CHECKING:
    from ci.lanes.upstream.stage import UpstreamOptions


def add_tests(parser: argparse.ArgumentParser) -> None:
    """The flags that all suites share."""
    add_selection(parser)
    choice = parser.add_argument_group("which tests")
    repeatable(choice, "-k", "EXPR", "parts of names with and, or, not and parentheses", dest="expressions")
    switch(choice, "--sample", "a few tests, the same each time")
    valued(choice, "--shard", "I/N", "the I-th of N parts of equal length")
    switch(choice, "--list", "list the chosen tests and run none")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", "-j", type=count, metavar="N", help="workers in parallel [cores]")
    add_work(how, "a test", cached=False)
    switch(how, "--no-cache", "run unchanged tests too")
    switch(how, "--keep", "keep the files of tests that pass too")
    add_accept(how, "outcomes and lengths, in manifests/upstream")


def options_of(args: argparse.Namespace) -> UpstreamOptions:
    from ci.lanes.upstream.stage import UpstreamOptions

    return UpstreamOptions(
        selection=host_selection(args),
        choice=Choice(words=tuple(args.expressions), shard=args.shard or ""),
        sample=args.sample,
        work=work_of(args),
        list_only=args.list,
        accept=args.accept,
    )


EXAMPLES = """\
  python -m ci test_delegate
  python -m ci test_delegate -k 'conv2d and not quantized' --soc SM8750
  python -m ci test_delegate --sample
  python -m ci test_delegate --shard 1/4 --jobs 2
  python -m ci test_delegate --list
  python -m ci test_delegate --no-cache --keep
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
    stage = StageRun(suite.stage, options.selection.profile, options.selection.target)
    return run_suites(stage, [suite], options, os.environ)
