"""`test_upstream`: any of the suites that the executorch wheel holds, on the HTP emulator."""

from __future__ import annotations

import argparse
import os

from ci.lanes.upstream.verb import add_tests, options_of

EXAMPLES = """\
  python -m ci test_upstream --sample
  python -m ci test_upstream rework-op -k 'test_conv1d[8a]'
  python -m ci test_upstream passes qat --soc SM8750
  python -m ci test_upstream --list
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help="one or more of the wheel's suites, such as delegate, rework-op and models [all of them]",
    )
    add_tests(parser)


def run(args: argparse.Namespace) -> int:
    from ci.lanes.upstream.stage import run_suites
    from ci.lanes.upstream.suite import upstream_suites
    from provisioning.base.errors import UnknownName
    from provisioning.base.stage_run import StageRun

    known = upstream_suites()
    for name in args.suites:
        if name not in known:
            raise UnknownName(f"{name} is no suite", name, known)
    suites = [known[name] for name in dict.fromkeys(args.suites or known)]
    options = options_of(args)
    stage = StageRun(suites[0].stage, options.selection.profile, options.selection.target)
    return run_suites(stage, suites, options, os.environ)
