"""`cache push`: sign and upload what runs packed for the cache that machines share. It runs no user code."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from provisioning.base.command_line import Parser
from provisioning.base.errors import UsageError
from provisioning.base.rendering.text import plural
from provisioning.base.secrets import RESULTS, SIGNING_KEY
from provisioning.base.settings import user_path

EXAMPLES = f"""\
  {RESULTS}=results nox -s test_lowering -- --suite models.toml
  {SIGNING_KEY}_FILE=signing-key.pem nox -s cache -- push results
"""


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="COMMAND", required=True)
    pusher = commands.add_parser("push", help="sign and upload the results that runs packed")
    pusher.add_argument("folder", type=Path, metavar="RESULTS", help=f"the folder that {RESULTS} named")


def run(args: argparse.Namespace) -> int:
    return {"push": _push}[args.what](args.folder)


def _push(named: Path) -> int:
    from ci.engine import packed
    from ci.engine.remote import writing

    folder = user_path(named, "RESULTS", str(Parser.user_folder()))
    remote, signer = writing(os.environ)
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder", fix=f"have a run pack its results there: {RESULTS}={folder}"
        )
    count = packed.push(folder, remote, signer)
    sys.stdout.write(
        f"{plural(count, 'result')} uploaded to {remote.shown}\n"
        if count
        else f"{folder}: nothing to upload\n"
    )
    return 0
