"""`test_delegate` and `test_upstream`: ExecuTorch's own suites on the HTP emulator, with the same flags."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.lanes.upstream import SUITES
from ci.suite.lane_head import TESTS
from ci.suite.options import HOW, SHOWS, WHICH, Choice, StageFlags, add_choice
from provisioning.base import toml
from provisioning.base.errors import UnknownName
from provisioning.base.option_fields import add_options, option, read_options
from provisioning.base.selection import add_selection, host_selection

if TYPE_CHECKING:
    from ci.lanes.upstream.stage import UpstreamOptions


@dataclass(frozen=True)
class UpstreamFlags(StageFlags):
    sample: bool = option(
        False,
        "--sample",
        "a few tests, the same each time",
        verbs=(TESTS,),
        group=WHICH,
        unprinted="a command that repeats work names its tests",
        decides_nothing=SHOWS,
    )


def add_tests(parser: argparse.ArgumentParser) -> None:
    """Add the flags that all suites share."""
    add_selection(parser)
    add_choice(parser, TESTS)
    add_options(parser, TESTS, {HOW: UpstreamFlags})


def options_of(args: argparse.Namespace) -> UpstreamOptions:
    from ci.lanes.upstream.stage import UpstreamOptions

    flags, choice = read_options(UpstreamFlags, args), read_options(Choice, args)
    return UpstreamOptions(
        selection=host_selection(args),
        # Without `suites`, which are files in `Choice`, and names on this command line.
        choice=Choice(words=choice.words, shard=choice.shard),
        sample=flags.sample,
        work=flags.work_options(),
        list_only=flags.listed,
        accept=flags.accept,
    )


@dataclass(frozen=True, slots=True)
class UpstreamStage:
    EXAMPLES: str
    name: str
    suite: str = ""
    """Names the suite that it runs; empty if the user names suites."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        if self.suite:
            parser.set_defaults(suites=[self.suite])
        else:
            words = "one or more of the wheel's suites, such as delegate, rework-op and models [all of them]"
            parser.add_argument("suites", nargs="*", metavar="SUITE", help=words)
        add_tests(parser)

    def check(self, args: argparse.Namespace) -> None:
        """Refuse a suite that does not exist, before minutes go into the environment."""
        table = toml.loads(SUITES.read_text(encoding="utf-8"))
        names = [suite["name"] for suite in table["suite"]]
        for name in args.suites:
            if name not in names:
                raise UnknownName(f"{name} is no suite", name, names)

    def run(self, args: argparse.Namespace) -> int:
        from ci.lanes.upstream.stage import run_suites
        from ci.lanes.upstream.suite import upstream_suites
        from provisioning.base.stage_run import StageRun

        self.check(args)
        by_name = upstream_suites()
        names = dict.fromkeys(args.suites or by_name)
        suites = [by_name[name].model_copy(update={"command": (self.name,)}) for name in names]
        options = options_of(args)
        stage = StageRun(self.name, options.selection.profile, options.selection.target)
        return run_suites(stage, suites, options, os.environ)


DELEGATE = UpstreamStage(
    """\
  python -m ci test_delegate
  python -m ci test_delegate -k 'conv2d and not quantized' --soc SM8750
  python -m ci test_delegate --sample
  python -m ci test_delegate --shard 1/4 --jobs 2
  python -m ci test_delegate --list
  python -m ci test_delegate --no-cache --keep
  python -m ci test_delegate --accept
""",
    "test_delegate",
    "delegate",
)
ALL = UpstreamStage(
    """\
  python -m ci test_upstream --sample
  python -m ci test_upstream rework-op -k 'test_conv1d[8a]'
  python -m ci test_upstream passes qat --soc SM8750
  python -m ci test_upstream --list
""",
    "test_upstream",
)
