"""`release`: the files of a release, or what still keeps it from being one."""

from __future__ import annotations

import argparse
import os

from provisioning.base.command_line import switch

EXAMPLES = """\
  nox -s release
  nox -s release -- --check
"""


def configure(parser: argparse.ArgumentParser) -> None:
    switch(parser, "--check", "write nothing; say what a release still lacks")


def run(args: argparse.Namespace) -> int:
    from ci.github.release import make, require_releasable
    from provisioning.base.settings import ROOT

    if args.check:
        require_releasable(ROOT)
    else:
        make(os.environ)
    return 0
