"""Variables in the syntax of their reader. A value that a syntax cannot express is an error, never
changed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping

from provisioning.base.errors import UsageError

DOCKER_LINE_LIMIT = 64 * 1024
"""Docker's reader gives up on a line of this many bytes."""


def sh(variables: Mapping[str, str]) -> str:
    """Lines for `eval "$(…)"` in any POSIX shell. They can carry any value."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def as_json(variables: Mapping[str, str]) -> str:
    return (
        json.dumps({name: _text("json", name, value) for name, value in variables.items()}, indent=2) + "\n"
    )


def dotenv(variables: Mapping[str, str]) -> str:
    """Lines for python-dotenv with its default settings."""
    return "".join(f"{name}={_dotenv_value(name, value)}\n" for name, value in variables.items())


def github(variables: Mapping[str, str]) -> str:
    """Lines for the file that GITHUB_ENV names."""
    blocks: list[str] = []
    for name, value in variables.items():
        delimiter = _delimiter(_text("github", name, value))
        blocks.append(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")
    return "".join(blocks)


def docker(variables: Mapping[str, str]) -> str:
    """Lines for `docker run --env-file`, which takes the rest of a line as it is."""
    lines: list[str] = []
    for name, value in variables.items():
        line = f"{name}={_text('docker', name, value)}"
        if re.search(r"[\r\n]", value):
            raise _cannot("docker", name, "holds a line break")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            raise _cannot("docker", name, "is wrapped in quotes, which some versions of docker take off")
        if len(line.encode()) >= DOCKER_LINE_LIMIT:
            raise _cannot("docker", name, f"is longer than docker reads ({DOCKER_LINE_LIMIT} bytes a line)")
        lines.append(f"{line}\n")
    return "".join(lines)


FORMATS: dict[str, Callable[[Mapping[str, str]], str]] = {
    "sh": sh,
    "dotenv": dotenv,
    "github": github,
    "json": as_json,
    "docker": docker,
}


def _dotenv_value(name: str, value: str) -> str:
    _text("dotenv", name, value)
    if "${" in value:
        raise _cannot("dotenv", name, "holds ${, which python-dotenv would expand even in quotes")
    if "\r" in value or value.endswith("\\"):
        raise _cannot("dotenv", name, "has a carriage return, or ends in a backslash")
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _delimiter(value: str) -> str:
    """A line that is not in the value and cannot be guessed, so that no value can end its block early."""
    while True:
        delimiter = f"end_{os.urandom(16).hex()}"
        if delimiter not in value:
            return delimiter


def _text(format_: str, name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _cannot(format_, name, "holds bytes that are not UTF-8") from None
    return value


def _cannot(format_: str, name: str, why: str) -> UsageError:
    return UsageError(
        f"the {format_} format cannot carry {name}: its value {why}",
        fix="use --format sh, or move what it names to a plainer path",
    )
