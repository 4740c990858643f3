"""`test_upstream`: any of the suites that the executorch wheel holds, on the HTP emulator."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from ci.pipeline.flags import add_accept, add_recheck, add_work, host_selection, work_of
from ci.pipeline.options import Choice, WorkOptions
from provisioning.base.command_line import count, repeatable
from provisioning.base.selection import add_selection
from provisioning.base.settings import Selection

EXAMPLES = """\
  python -m ci test_upstream --sample
  python -m ci test_upstream operators --flow 8a8w -k conv2d
  python -m ci test_upstream operators values chains --accept
  python -m ci test_upstream --records nightly/
  python -m ci test_upstream passes qat --soc SM8750
  python -m ci test_upstream --list
"""


@dataclass(frozen=True, slots=True)
class UpstreamOptions:
    selection: Selection
    choice: Choice
    flows: tuple[str, ...]
    sample: str | None
    """I/N; empty for the ledger's own, and None for all tests."""
    work: WorkOptions
    list_only: bool
    report_upstream: bool
    fail_fast: bool
    resume: bool
    accept: bool


def add_tests(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The flags that all suites share; returns those that choose tests, for more of them."""
    parser.set_defaults(flows=None)
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
    add_recheck(how)
    how.add_argument("--fail-fast", "-x", action="store_true", help="stop at the first surprise")
    how.add_argument("--resume", action="store_true", help="take the surprises of an interrupted run too")
    how.add_argument("--keep", action="store_true", help="keep the files of tests that pass too")
    add_accept(how, "outcomes, lengths and figures in manifests/upstream, and docs/operators.md")
    how.add_argument(
        "--report-upstream", action="store_true", help="print what upstream should be told; runs nothing"
    )
    return choice


def options_of(args: argparse.Namespace) -> UpstreamOptions:
    return UpstreamOptions(
        selection=host_selection(args),
        choice=Choice(words=tuple(args.expressions), shard=args.shard or ""),
        flows=tuple(args.flows or ()),
        sample=args.sample,
        work=work_of(args),
        list_only=args.list,
        report_upstream=args.report_upstream,
        fail_fast=args.fail_fast,
        resume=args.resume,
        accept=args.accept,
    )


def configure(parser: argparse.ArgumentParser) -> None:
    from ci.lanes.upstream.suite import SUITES
    from ci.pipeline.precision import MEASURED_SCHEMES

    names = [f"{name} ({suite.holds})" for name, suite in SUITES.items()]
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"one or more of {'; '.join(names)} [all of them]"
    )
    choice = add_tests(parser)
    choice.add_argument(
        "--flow",
        action="append",
        choices=MEASURED_SCHEMES,
        dest="flows",
        help="of the operators, this scheme alone",
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FOLDER",
        help="make the operator table again from what runs measured, as a nightly's artifacts; runs nothing",
    )


def run(args: argparse.Namespace) -> int:
    from ci.lanes.upstream.stage import run_suites
    from ci.lanes.upstream.suite import SUITES
    from provisioning.base.errors import UnknownName

    for name in args.suites:
        if name not in SUITES:
            raise UnknownName(f"{name} is no suite", name, SUITES)
    if args.records:
        from ci.lanes.upstream.operators_page import accept_table

        accept_table(args.records)
        return 0
    suites = [SUITES[name] for name in dict.fromkeys(args.suites or SUITES)]
    return run_suites(suites, options_of(args), os.environ)
