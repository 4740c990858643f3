"""`cache`: sign and upload what a run packed. No user code runs here, so this verb alone may have the key."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from provisioning.base.command_line import Parser
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.secrets import RESULTS
from provisioning.base.settings import user_path

EXAMPLES = """\
  QNN_CI_REMOTE_CACHE_RESULTS=results python -m ci test_lowering --suite models.toml
  QNN_CI_REMOTE_CACHE_SIGNING_KEY_FILE=signing-key.pem python -m ci cache push results
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    summary = "sign what runs packed into these folders, upload it, and remove it from them"
    push = verbs.add_parser("push", help=summary, description=summary)
    push.add_argument(
        "results", nargs="*", type=Path, metavar="RESULTS", help=f"folders of results [{RESULTS}]"
    )


def run(args: argparse.Namespace) -> int:
    return {"push": _push}[args.what](args.results)


def _push(typed: Sequence[Path]) -> int:
    named = os.environ.get(RESULTS)
    here = str(Parser.user_folder())
    folders = [user_path(folder, "RESULTS", here) for folder in typed] or ([Path(named)] if named else [])
    if not folders:
        raise UsageError("no folder of results is named", fix=f"name the one that {RESULTS} named in the run")
    return push(folders)


def push(folders: Sequence[Path]) -> int:
    from ci.sharing import packed
    from ci.sharing.remote import writing
    from provisioning.base.foreign import in_line
    from provisioning.base.mutex import mutex

    remote, signer = writing(os.environ)
    with contextlib.ExitStack() as stack:
        for folder in folders:
            packed.checked(folder)
            stack.enter_context(mutex(folder / ".lock"))
        results = [result for folder in folders for result in packed.packed(folder)]
        if not results:
            sys.stdout.write("nothing to push\n")
            return 0
        pushed, bad = 0, 0
        for path in sorted(results, key=lambda path: path.name):
            try:
                result = packed.read(path)
            except CheckFailed as error:
                bad += 1
                sys.stderr.write(f"{in_line(error.message)}\n")
                continue
            remote.send(signer, result.key, result.document, result.blobs)
            packed.remove(path)
            pushed += 1
    sys.stdout.write(f"{pushed} of {len(results)} results pushed to {remote.shown}\n")
    return 1 if bad else 0
