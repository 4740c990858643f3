"""`env`: print the environment of a target, for a shell or another program."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from provisioning.base.errors import UnknownName
from provisioning.base.files import write_named
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import dist_path
from provisioning.environment_formats import FORMATS

EXAMPLES = """\
  eval "$(python -m provisioning env)"
  nox -s env -- --format dotenv --target aarch64-android -o .env
  python -m provisioning env QNN_SDK_ROOT
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="print only this variable's value")
    parser.add_argument("--format", choices=FORMATS, default="sh", help="the syntax [%(default)s]")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of printing")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print on stderr what is used")


def run(args: argparse.Namespace) -> int:
    from provisioning.environment import resolve

    environment = resolve(selection_of(args), os.environ).with_runner(os.environ, dist_path())
    if not args.quiet:
        environment.explain()
    if args.name:
        if args.name not in environment.variables:
            raise UnknownName(f"the environment sets no {args.name}", args.name, environment.variables)
        text = environment.variables[args.name] + "\n"
    else:
        text = FORMATS[args.format](environment.variables)
    if args.output:
        write_named(args.output, text)
    else:
        # Paths may hold bytes that are no text; write them unchanged.
        sys.stdout.buffer.write(os.fsencode(text))
        sys.stdout.flush()
    return 0
