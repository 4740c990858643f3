"""`lock`: regenerate the lock files, record hashes that manifests lack, or check that none of it is stale."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from provisioning import licences
from provisioning.base.command_line import repeatable, switch
from provisioning.base.settings import profile_names, store_path

EXAMPLES = """\
  nox -s lock
  nox -s lock -- --check
  nox -s lock -- --component qnn-sdk --accept-licence qualcomm-ai-stack
  nox -s lock -- --upgrade pytest
"""


def configure(parser: argparse.ArgumentParser) -> None:
    switch(parser, "--check", "write nothing, need no network, name what is stale")
    repeatable(parser, "--component", "NAME", "provision this component and record its hashes")
    parser.add_argument("--profile", action="append", default=[], help="only this profile; may be repeated")
    parser.add_argument(
        "--upgrade",
        action="append",
        nargs="?",
        const="",
        metavar="PACKAGE",
        help="take newer versions: of this package (may be repeated), or of all",
    )
    switch(parser, "--torch", "record the builds of torch that your package index has")
    licences.add_flag(parser)
    parser.add_argument("--store", type=Path, help="where provisioned trees live [QNN_CI_STORE, user cache]")


def run(args: argparse.Namespace) -> int:
    from lab.lock import files
    from provisioning.store import Store

    profiles = args.profile or profile_names()
    if args.check:
        return files.check(profiles)
    if args.torch:
        return files.record_builds_of_torch()
    store = Store(store_path(args.store))
    files.record_components(store, profiles, args.component, licences.named(args.accept, os.environ))
    files.record_wheels(store)
    # If a component or profile is named, only that is done.
    if args.upgrade is None and (args.component or args.profile):
        return 0
    upgrade = [f"--upgrade-package={name}" if name else "--upgrade" for name in args.upgrade or []]
    for name in files.lockable():
        changed = files.regenerate(name, upgrade)
        sys.stdout.write(f"manifests/locks/{name}.txt: {'written' if changed else 'unchanged'}\n")
    return files.record_builds_of_torch() if files.torch_problems(files.torch_pin()) else 0
