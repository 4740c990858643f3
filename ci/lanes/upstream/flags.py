"""The flags of `test_upstream` and `test_delegate`, added and read; imports nothing heavy."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ci.jobs import WorkOptions
from ci.suite.options import Choice, add_accept, add_work, host_selection, work_of
from provisioning.base.command_line import count, repeatable, switch, valued
from provisioning.base.selection import add_selection
from provisioning.base.settings import Selection


@dataclass(frozen=True, slots=True)
class UpstreamOptions:
    selection: Selection
    choice: Choice
    sample: str | None
    """I/N; empty for a few, and None for all tests."""
    work: WorkOptions
    list_only: bool
    fail_fast: bool
    resume: bool
    accept: bool


def add_tests(parser: argparse.ArgumentParser) -> None:
    """The flags that all suites share."""
    add_selection(parser)
    choice = parser.add_argument_group("which tests")
    repeatable(choice, "-k", "EXPR", "parts of names with and, or, not and parentheses", dest="expressions")
    valued(
        choice,
        "--sample",
        "I/N",
        "a few tests; I/N: every N-th test, the same each time",
        nargs="?",
        const="",
    )
    valued(choice, "--shard", "I/N", "the I-th of N parts of equal length")
    switch(choice, "--list", "list the chosen tests and run none")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", "-j", type=count, metavar="N", help="workers in parallel [cores]")
    add_work(how, "a test", cached=False)
    switch(how, "--no-cache", "run unchanged tests too")
    how.add_argument("--fail-fast", "-x", action="store_true", help="stop at the first unexpected result")
    switch(how, "--resume", "continue an interrupted run")
    switch(how, "--keep", "keep the files of tests that pass too")
    add_accept(how, "outcomes and lengths, in manifests/upstream")


def options_of(args: argparse.Namespace) -> UpstreamOptions:
    return UpstreamOptions(
        selection=host_selection(args),
        choice=Choice(words=tuple(args.expressions), shard=args.shard or ""),
        sample=args.sample,
        work=work_of(args),
        list_only=args.list,
        fail_fast=args.fail_fast,
        resume=args.resume,
        accept=args.accept,
    )
