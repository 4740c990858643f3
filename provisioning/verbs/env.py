"""`env`: print the environment of a target, for a shell or another program."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from provisioning.base.errors import UnknownName
from provisioning.base.files import write_named
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import dist_path

EXAMPLES = """\
  eval "$(python -m provisioning env)"
  nox -s env -- --format json --target aarch64-android -o env.json
  python -m provisioning env QNN_SDK_ROOT
"""


def sh(variables: Mapping[str, str]) -> str:
    """Lines for `eval "$(…)"` in any POSIX shell. They can carry any value."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def to_json(variables: Mapping[str, str]) -> str:
    return json.dumps(dict(variables), indent=2) + "\n"


def github(variables: Mapping[str, str]) -> str:
    """Lines for the file that GITHUB_ENV names."""
    # Nobody can guess it, so no value can end its block early.
    delimiter = f"end_{secrets.token_hex(16)}"
    return "".join(f"{name}<<{delimiter}\n{value}\n{delimiter}\n" for name, value in variables.items())


FORMATS: dict[str, Callable[[Mapping[str, str]], str]] = {"sh": sh, "github": github, "json": to_json}
"""Variables in the syntax of their reader."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="print only this variable's value")
    parser.add_argument("--format", choices=FORMATS, default="sh", help="the syntax [%(default)s]")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of printing")


def run(args: argparse.Namespace) -> int:
    from provisioning.environment import resolve

    environment = resolve(selection_of(args), os.environ).for_shell(os.environ, dist_path())
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
