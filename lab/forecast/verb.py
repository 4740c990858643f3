"""`forecast`: compile the models that phones measured, and fit the constants of forecasts."""

from __future__ import annotations

import argparse

from ci.suite.options import add_work, host_selection, work_of
from provisioning.base.command_line import count, repeatable, switch
from provisioning.base.commands import leave_out
from provisioning.base.errors import UsageError
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s lab -- forecast -k resnet50
  nox -s lab -- forecast --accept
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    repeatable(parser, "-k", "EXPR", "parts of names with and, or, not and parentheses", dest="expressions")
    switch(parser, "--accept", "write the constants to manifests/accepted/forecast.json")
    parser.add_argument("--jobs", "-j", type=count, metavar="N", help="models to compile in parallel [cores]")
    add_work(parser, "a step")


def run(args: argparse.Namespace) -> int:
    if args.accept and args.expressions:
        raise UsageError(
            f"-k {args.expressions[0]!r} --accept would accept these programs alone", fix=leave_out("-k")
        )
    from lab.forecast.fit import fit_forecasts

    return fit_forecasts(host_selection(args), work_of(args), args.expressions, accepts=args.accept)
