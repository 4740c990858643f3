"""`lock`: regenerate the lock files, record hashes that manifests lack, or check that none of it is stale."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from provisioning import licences
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.base.flags import repeatable, switch
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
    repeatable(parser, "--profile", "NAME", "only this profile")
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
    from lab.lock import files, hashes
    from provisioning.store import Store

    if args.check:
        if stale := [*files.stale(), *hashes.strangers()]:
            raise CheckFailed("stale lock files:\n  " + "\n  ".join(stale), fix=session("lock"))
        sys.stdout.write(f"fresh: {', '.join(files.locked_environments())}\n")
        return 0
    if not args.torch:
        store, accept = Store(store_path(args.store)), licences.acceptances(args.accept, os.environ)
        hashes.record_components(store, args.profile or profile_names(), args.component, accept)
        hashes.record_wheels(store.downloads)
        # If a component or profile is named, only that is done.
        if args.upgrade is None and (args.component or args.profile):
            return 0
        upgrade = [f"--upgrade-package={name}" if name else "--upgrade" for name in args.upgrade or []]
        for name in files.locked_environments():
            files.regenerate(name, upgrade)
    for pin in files.torch_pins():
        if args.torch or files.torch_problems(pin):
            files.record_torch(pin)
    return 0
