"""`compat`: measure which QNN builds each executorch can drive, and write down what was measured."""

from __future__ import annotations

import argparse
import os

from provisioning.base.flags import add_timeout, repeatable, switch
from provisioning.base.selection import add_selection

EXAMPLES = """\
  nox -s lab -- compat
  nox -s lab -- compat --build 2.51.0 --build 2.50.40
  nox -s lab -- compat --executorch 1.4.1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser, executorch=False)
    repeatable(parser, "--build", "QNN", "only this QNN version")
    repeatable(
        parser, "--executorch", "VERSION", "only this: the profile's, or another of manifests/compat.toml"
    )
    add_timeout(parser, "a program", 600)
    switch(parser, "--no-cache", "also repeat unchanged programs")


def run(args: argparse.Namespace) -> int:
    from lab.compat.stage import PairMeasure, measure_all
    from provisioning.base.selection import selection_of

    flags = ["--timeout", f"{args.timeout:g}", *(["--no-cache"] if args.no_cache else [])]
    return measure_all(PairMeasure(selection_of(args), flags, os.environ), args.build, args.executorch)
