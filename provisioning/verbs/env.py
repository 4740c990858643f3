"""`env`: print the environment of a target, for a shell or another program."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.errors import UnknownName, UsageError
from provisioning.base.files import write_named
from provisioning.base.rendering.variables import FORMATS, github
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import outputs_path

if TYPE_CHECKING:
    from provisioning.environment import Environment

EXAMPLES = """\
  eval "$(python -m provisioning env)"
  nox -s env -- --format dotenv --target aarch64-android -o .env
  python -m provisioning env QNN_SDK_ROOT
  python -m provisioning env --format github --append
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="print only this variable's value")
    parser.add_argument("--format", choices=FORMATS, default="sh", help="whose syntax [%(default)s]")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of printing")
    parser.add_argument(
        "--append",
        action="store_true",
        help="with --format github: append to the files that GITHUB_ENV and GITHUB_PATH name",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="do not say on stderr what is used")


def run(args: argparse.Namespace) -> int:
    from provisioning.environment import resolve

    if args.append and (args.format != "github" or args.name or args.output):
        raise UsageError(
            "--append is for --format github alone",
            fix="python -m provisioning env --format github --append",
        )
    environment = resolve(selection_of(args), os.environ).with_runner(os.environ, outputs_path())
    if not args.quiet:
        environment.explain()
    if args.name:
        text = _value(environment, args.name) + "\n"
    elif args.append:
        _append(environment, os.environ)
        return 0
    else:
        text = FORMATS[args.format](environment.variables)
    if args.output:
        write_named(args.output, text)
    else:
        # Paths may hold bytes that are no text; write them unchanged.
        sys.stdout.buffer.write(os.fsencode(text))
        sys.stdout.flush()
    return 0


def _value(environment: Environment, name: str) -> str:
    if name not in environment.variables:
        raise UnknownName(f"the environment sets no {name}", name, environment.variables)
    return environment.variables[name]


def _append(environment: Environment, environ: Mapping[str, str]) -> None:
    files = {name: environ.get(name) for name in ("GITHUB_ENV", "GITHUB_PATH")}
    for name, file in files.items():
        if not file:
            raise UsageError(
                f"--append needs {name}, which a step of GitHub Actions has set",
                fix="leave out --append to print what would be appended",
            )
    # The runner keeps PATH itself and prepends each line of GITHUB_PATH, so the last line comes first.
    variables = {name: value for name, value in environment.variables.items() if name != "PATH"}
    write_named(Path(str(files["GITHUB_ENV"])), github(variables), append=True)
    entries = "".join(f"{entry}\n" for entry in reversed(environment.path_entries))
    write_named(Path(str(files["GITHUB_PATH"])), entries, append=True)
