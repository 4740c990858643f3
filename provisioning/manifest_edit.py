"""Write what was found into a manifest's text, changing nothing else of it."""

from __future__ import annotations

import re
from pathlib import Path

from provisioning.base.documents import parse
from provisioning.base.errors import ManifestError
from provisioning.manifest import Profile

_HEADER = re.compile(r"^\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")


def with_source_keys(path: Path, component: str, part: str, keys: dict[str, str | int]) -> str:
    """The text of the profile at `path` with `keys` in the source of one part, after its last key.

    Comments, order and layout stay. A key that is there with another value is an error: a pin is changed by
    hand, with the reason in the commit.
    """
    text = path.read_text(encoding="utf-8")
    profile = _parsed(text, path)
    parts = next(c for name, c in profile.components.items() if name == component).parts
    number = next(index for index, one in enumerate(parts) if one.name == part)
    source = parts[number].source
    where = f"components.{component}.parts.{number}.source"
    for key, value in keys.items():
        recorded = getattr(source, key)
        if recorded not in (None, value):
            raise ManifestError(
                path, f"{where}.{key}", expected=f"{recorded} (as recorded)", found=str(value)
            )
    missing = {key: value for key, value in keys.items() if getattr(source, key) is None}
    if not missing:
        return text
    lines = text.splitlines(keepends=True)
    last = _last_key_line(lines, component, number)
    if last is None:
        raise ManifestError(
            path,
            where,
            expected="a table [components.….parts.source] of its own",
            found="another way of writing it",
            remedy="add by hand: " + ", ".join(_assignment(*pair) for pair in missing.items()),
        )
    if not lines[last].endswith("\n"):
        lines[last] += "\n"
    lines[last + 1 : last + 1] = [f"{_assignment(*pair)}\n" for pair in missing.items()]
    changed = "".join(lines)
    _parsed(changed, path)
    return changed


def _last_key_line(lines: list[str], component: str, number: int) -> int | None:
    table = f"components.{component}.parts"
    seen = -1
    inside = False
    last = None
    for index, line in enumerate(lines):
        if header := _HEADER.match(line.strip()):
            name = re.sub(r"[\s\"']", "", header[1])
            seen += line.strip().startswith("[[") and name == table
            inside = name == f"{table}.source" and seen == number
        elif inside and re.match(r"\s*[A-Za-z0-9_-]+\s*=", line):
            last = index
    return last


def _assignment(key: str, value: str | int) -> str:
    return f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"


def _parsed(text: str, path: Path) -> Profile:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return parse(tomllib.loads(text), Profile, path)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(path, "(syntax)", expected="TOML", found=str(error)) from error
