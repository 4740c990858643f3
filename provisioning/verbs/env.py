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

from provisioning.base.errors import UnknownName, UsageError
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


def as_json(variables: Mapping[str, str]) -> str:
    return (
        json.dumps({name: _text("json", name, value) for name, value in variables.items()}, indent=2) + "\n"
    )


def github(variables: Mapping[str, str]) -> str:
    """Lines for the file that GITHUB_ENV names."""
    blocks: list[str] = []
    for name, value in variables.items():
        # Nobody can guess it, so no value can end its block early.
        delimiter = f"end_{secrets.token_hex(16)}"
        blocks.append(f"{name}<<{delimiter}\n{_text('github', name, value)}\n{delimiter}\n")
    return "".join(blocks)


def _text(format_: str, name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the {format_} format cannot carry {name}: its value holds bytes that are not UTF-8",
            fix="use --format sh, or move what it names to a plainer path",
        ) from None
    return value


FORMATS: dict[str, Callable[[Mapping[str, str]], str]] = {"sh": sh, "github": github, "json": as_json}
"""Variables in the syntax of their reader. A value that a syntax cannot express is refused."""


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
