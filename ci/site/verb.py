"""`site`: render docs/, and what is known of operators, errors and faults, as static HTML."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from provisioning.base.command_line import switch
from provisioning.base.settings import outputs_path

EXAMPLES = """\
  nox -s site
  nox -s site -- -o /tmp/site
  nox -s site -- --check                          only whether each link leads somewhere
  python -m http.server --directory dist/site     look at it as a phone sees it
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="the folder to write, instead of an earlier site [dist/site]",
    )
    switch(parser, "--check", "write nothing; name broken links")
    parser.epilog = (parser.epilog or "") + "\nExit code: 1 if a link of a page leads nowhere.\n"


def run(args: argparse.Namespace) -> int:
    from ci.site.build import build, write
    from provisioning.base.command_line import Parser

    began = time.monotonic()
    folder = args.output or outputs_path() / "dist" / "site"
    files = build()
    pages = sum(name.endswith(".html") for name in files)
    if args.check:
        sys.stdout.write(f"each link of {pages} pages leads somewhere\n")
        return 0
    write(files, folder)
    index, user = folder / "index.html", Parser.user_folder()
    shown = index.relative_to(user) if index.is_relative_to(user) else index
    sys.stdout.write(f"wrote {shown}: {pages} pages in {time.monotonic() - began:.0f} s\n")
    return 0
