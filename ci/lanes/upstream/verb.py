"""`test_delegate` and `test_upstream`: ExecuTorch's own tests on the HTP emulator."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from dataclasses import replace

from ci.pipeline.flags import add_work, host_selection, work_of
from ci.pipeline.options import Choice
from provisioning.base.command_line import count, repeatable
from provisioning.base.settings import add_selection

EXAMPLES = """\
  python -m ci test_delegate
  python -m ci test_delegate -k 'conv2d and not quantized' --soc SM8750
  python -m ci test_delegate --sample
  python -m ci test_delegate --shard 1/4 --jobs 2
  python -m ci test_delegate --list
  python -m ci test_delegate --no-cache --fail-fast --keep
  python -m ci test_delegate --update-ledger
"""


def configure(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The flags that all suites share; returns those that choose tests, for more of them."""
    parser.set_defaults(flows=None, table=False)
    add_selection(parser)
    choice = parser.add_argument_group("which tests")
    repeatable(choice, "-k", "EXPR", "parts of names with and, or, not and parentheses", dest="expressions")
    choice.add_argument(
        "--sample",
        nargs="?",
        const="",
        metavar="I/N",
        help="the ledger's sample of quick, different tests; I/N: every N-th test, the same each time",
    )
    choice.add_argument("--shard", metavar="I/N", help="the I-th of N parts of equal length")
    choice.add_argument("--list", action="store_true", help="list the chosen tests and run none")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", "-j", type=count, metavar="N", help="workers side by side [cores]")
    add_work(how, "a test", cached=False)
    how.add_argument("--no-cache", action="store_true", help="run unchanged tests too")
    how.add_argument("--fail-fast", "-x", action="store_true", help="stop at the first surprise")
    how.add_argument("--resume", action="store_true", help="take the surprises of an interrupted run too")
    how.add_argument("--keep", action="store_true", help="keep the files of tests that pass too")
    how.add_argument(
        "--update-ledger", action="store_true", help="record outcomes and lengths in manifests/upstream"
    )
    how.add_argument(
        "--report-upstream", action="store_true", help="print what upstream should be told; runs nothing"
    )
    return choice


def run(args: argparse.Namespace) -> int:
    return run_suites(["delegate"], "test_delegate", args)


def run_suites(names: Iterable[str], stage: str, args: argparse.Namespace) -> int:
    """Also for `test_upstream`."""
    from ci.lanes.upstream.stage import Options, check
    from ci.lanes.upstream.stage import run_suites as run_all
    from ci.lanes.upstream.suite import SUITES
    from ci.lanes.upstream.upstream_reports import print_reports

    options = Options(
        selection=host_selection(args),
        choice=Choice(words=tuple(args.expressions), shard=args.shard or ""),
        flows=tuple(args.flows or ()),
        sample=args.sample,
        work=work_of(args),
        list_only=args.list,
        fail_fast=args.fail_fast,
        resume=args.resume,
        update_ledger=args.update_ledger,
        table=args.table,
    )
    check(options)
    suites = [replace(SUITES[name], stage=stage) for name in dict.fromkeys(names)]
    if args.report_upstream:
        print_reports(options.selection.profile, [suite.name for suite in suites])
        return 0
    return run_all(suites, options, os.environ)
