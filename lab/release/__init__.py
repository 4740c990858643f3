"""`release`: the files of a release, or what still keeps it from being one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from provisioning.base.command_line import switch, valued

EXAMPLES = """\
  nox -s lab -- release
  nox -s lab -- release --check
  nox -s lab -- release --images dist/images
"""


def configure(parser: argparse.ArgumentParser) -> None:
    switch(parser, "--check", "write nothing; say what a release still lacks")
    valued(
        parser,
        "--images",
        "FOLDER",
        "write nothing; refuse images, NAME.tar, that may not be published",
        type=Path,
    )
    valued(parser, "--bills", "FOLDER", "write there what these images are made of, NAME.cdx.json", type=Path)
    valued(parser, "--published", "JSON", "record the images' references, by name, in manifests/images.toml")


def run(args: argparse.Namespace) -> int:
    from ci.image.contents import plan_of
    from ci.image.engine import connected
    from lab.release import files
    from provisioning.base.settings import ROOT

    if args.check:
        files.require_releasable(ROOT)
    elif args.images:
        for name in files.IMAGES:
            files.check_image(args.images / f"{name}.tar", name)
    elif args.bills:
        with connected() as engine:
            for name in files.IMAGES:
                bill = files.bill_of_image(plan_of(name), engine)
                (args.bills / f"{name}.cdx.json").write_text(bill, encoding="utf-8")
    elif args.published:
        files.record(args.published)
    else:
        files.make(os.environ)
    return 0
