"""`operator_tests`: what the operator table is made of, measured and compared with it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace

from ci.lanes.upstream.verb import add_tests, options_of
from lab.operators import MEASURED_SCHEMES
from provisioning.base.flags import repeatable

EXAMPLES = """\
  nox -s lab -- operator_tests operators -k test_conv1d. --flow 8a8w
  nox -s lab -- operator_tests values chains -k '*-log-*'
  nox -s lab -- operator_tests zoo --accept
"""

NAMES = ("operators", "zoo", "values", "chains", "rework-op")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suites",
        nargs="+",
        metavar="SUITE",
        choices=NAMES,
        help=f"{', '.join(NAMES)}; several run in turn",
    )
    add_tests(parser)
    repeatable(parser, "--flow", "SCHEME", "only this precision", dest="flows", choices=MEASURED_SCHEMES)


def expressions_for_flows(words: Sequence[str], flows: Sequence[str]) -> tuple[str, ...]:
    """These expressions, for tests in one of these precisions."""
    names = [f"[qnn_{flow}".removesuffix("_fp16") + end for flow in flows for end in ("-", "]")]
    if not names:
        return tuple(words)
    return tuple(f"({word}) and ({' or '.join(names)})" for word in words) or (" or ".join(names),)


def run(args: argparse.Namespace) -> int:
    from ci.lanes.upstream.stage import run_suites
    from lab.operators.suites import COMMAND, SUITES
    from lab.operators.table_judge import judge_of, keep_record
    from lab.operators.tried import TABLED
    from lab.stage import stage_run
    from provisioning.base.commands import leave_out
    from provisioning.base.errors import UsageError

    options = options_of(args)
    words = expressions_for_flows(options.choice.words, args.flows)
    options = replace(options, choice=replace(options.choice, words=words))
    if options.accept and (tabled := [name for name in args.suites if name in TABLED]):
        raise UsageError(
            f"--accept: {', '.join(tabled)} are compared with the operator table",
            fix=leave_out("--accept"),
        )
    suites = [SUITES[name] for name in dict.fromkeys(args.suites)]
    return run_suites(
        stage_run(COMMAND[-1], options.selection), suites, options, os.environ, judge_of, keep_record
    )
