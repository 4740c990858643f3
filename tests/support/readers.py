"""Readers of environment files, after the rules that their owners document, and values hard to carry."""

from __future__ import annotations

DOCKER_LINE_LIMIT = 64 * 1024

HARD = [
    "",
    " ",
    "plain",
    "two words",
    "it's",
    "''",
    '"quoted"',
    "a'b\"c`d",
    "$HOME and $(id) and ${HOME}",
    "back\\slash",
    "ends in \\",
    "\\'",
    "\\n is not a newline",
    "a\nb\n",
    "\r\n",
    "# no comment",
    "a #b",
    "=x=",
    "!history !!",
    "tab\there",
    "größe 日本語 😀",
    "\u2028\x85\x0b",
    "-n",
    "~",
    "*?[a]",
    "EOF\nNAME<<EOF",
]
"""Values that have broken somebody's quoting."""


def read_docker(text: str, *, unquoting: bool = False) -> dict[str, str]:
    """The file of `docker run --env-file`: NAME up to a line's first `=`, and the rest as it is.

    Space before a name, empty lines and comments are dropped. Some versions take off quotes around a value.
    """
    variables: dict[str, str] = {}
    for raw in text.encode().split(b"\n"):
        assert len(raw) < DOCKER_LINE_LIMIT
        line = raw.removesuffix(b"\r").decode().lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        assert name and equals and not set(name) & set(" \t")
        if unquoting and len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        variables[name] = value
    return variables
