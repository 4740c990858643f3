"""`release`: a release of this clone; its files alone; or what still keeps it from being one."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from pathlib import Path

from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.flags import add_valued, switch

EXAMPLES = """\
  nox -s lab -- release https://github.com/YOU/qnn-ci
  nox -s lab -- release https://github.com/YOU/qnn-ci --version 1.0.0
  nox -s lab -- release
  nox -s lab -- release --check
  nox -s lab -- release --images dist/images
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        nargs="?",
        help="where the repository is: write it and the version wherever they stand, tag that, and say what"
        " its owner does then. Without it, only the files of HEAD are made",
    )
    add_valued(parser, "--version", "VERSION", "release ADDRESS as this version [that of pyproject.toml]")
    switch(parser, "--check", "write nothing; say what a release still lacks")
    add_valued(
        parser,
        "--images",
        "FOLDER",
        "write nothing; refuse images, NAME.tar, that may not be published",
        type=Path,
    )
    add_valued(
        parser, "--bills", "FOLDER", "write there what these images are made of, NAME.cdx.json", type=Path
    )
    add_valued(parser, "--published", "JSON", "record the images' references, by name, in published.toml")


def run(args: argparse.Namespace) -> int:
    from ci.image.contents import plan_of
    from ci.image.engine import connect_engine
    from lab.release import files, published
    from lab.release.tagging import release_of, tag_release
    from provisioning.base.settings import ROOT, project

    if args.version and not args.address:
        raise UsageError(
            "--version is of the release that is tagged, and no ADDRESS says where it will be",
            fix=session("lab", "release", "ADDRESS", "--version", args.version),
        )
    if args.address:
        today = dt.datetime.now(dt.timezone.utc).date()
        release = release_of(args.address, args.version or project().version, today)
        sys.stdout.write(tag_release(ROOT, release))
    elif args.check:
        files.require_releasable(ROOT)
    elif args.images:
        for name in files.IMAGES:
            files.check_image(args.images / f"{name}.tar", name)
    elif args.bills:
        with connect_engine() as engine:
            for name in files.IMAGES:
                bill = files.bill_of_image(plan_of(name), engine)
                (args.bills / f"{name}.cdx.json").write_text(bill, encoding="utf-8")
    elif args.published:
        published.record(args.published)
    else:
        files.make(os.environ)
    return 0
