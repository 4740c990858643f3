"""`test_upstream`: any of the suites that the executorch wheel holds, on the HTP emulator."""

from __future__ import annotations

import argparse
import os

from ci.lanes.upstream.flags import add_tests, options_of

EXAMPLES = """\
  python -m ci test_upstream --sample
  python -m ci test_upstream operators --flow 8a8w -k conv2d
  python -m ci test_upstream operators values chains
  python -m ci test_upstream passes qat --soc SM8750
  python -m ci test_upstream --list
"""


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
        help="only this precision of the operators",
    )


def run(args: argparse.Namespace) -> int:
    from ci.lanes.upstream.stage import run_suites
    from ci.lanes.upstream.suite import SUITES
    from provisioning.base.errors import UnknownName

    for name in args.suites:
        if name not in SUITES:
            raise UnknownName(f"{name} is no suite", name, SUITES)
    suites = [SUITES[name] for name in dict.fromkeys(args.suites or SUITES)]
    return run_suites(suites, options_of(args), os.environ)
