"""`upstream_reports`: mistakes of ExecuTorch's tests and code that fail here, as issues to file."""

from __future__ import annotations

import argparse

from provisioning.base.errors import UnknownName
from provisioning.base.settings import DEFAULT_PROFILE

EXAMPLES = """\
  nox -s lab -- upstream_reports operators
  nox -s lab -- upstream_reports
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="of these suites [all of them]")


def run(args: argparse.Namespace) -> int:
    from ci.lanes.upstream.suite import upstream_suites
    from lab.operators.suites import SUITES as OWN
    from lab.upstream_reports.reports import print_reports

    suites = [*upstream_suites(), *OWN]
    for name in args.suites:
        if name not in suites:
            raise UnknownName(f"{name} is no suite", name, suites)
    print_reports(DEFAULT_PROFILE, args.suites or suites)
    return 0
