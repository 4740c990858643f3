"""`forecast`: compile the models that phones measured, and fit the constants of forecasts."""

from __future__ import annotations

import argparse

from ci.suite.lane_head import COMPILE
from ci.suite.options import WorkFlags
from provisioning.base.commands import leave_out
from provisioning.base.errors import UsageError
from provisioning.base.flags import repeatable, switch
from provisioning.base.option_fields import add_options, read_options
from provisioning.base.selection import add_selection, host_selection

EXAMPLES = """\
  nox -s lab -- forecast -k resnet50
  nox -s lab -- forecast --accept
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    repeatable(parser, "-k", "EXPR", "parts of names with and, or, not and parentheses", dest="expressions")
    switch(parser, "--accept", "write the constants to manifests/accepted/forecast.json")
    add_options(parser, COMPILE, {"how": WorkFlags})


def run(args: argparse.Namespace) -> int:
    if args.accept and args.expressions:
        raise UsageError(
            f"-k {args.expressions[0]!r} --accept would accept these programs alone", fix=leave_out("-k")
        )
    from lab.forecast.fit import fit_forecasts

    return fit_forecasts(
        host_selection(args),
        read_options(WorkFlags, args).work_options(),
        args.expressions,
        accepts=args.accept,
    )
