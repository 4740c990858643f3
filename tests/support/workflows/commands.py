"""A step's ways to talk to the runner: the files that GITHUB_ENV and others name, and printed commands."""

from __future__ import annotations

import re
from pathlib import Path

FILES = ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")

LEVELS = ("error", "warning", "notice")
_COMMAND = re.compile(r"^::(?P<name>[A-Za-z-]+)(?:\s+(?P<properties>.*?))?::(?P<data>.*)$")
_ESCAPES = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}


class StepFailed(Exception):
    """What a step fails of."""


def shown_annotations(output: str) -> list[str]:
    """What GitHub shows of a step's output: `error: place: title: message`, by level."""
    found: dict[str, list[str]] = {level: [] for level in LEVELS}
    stopped = ""
    for line in output.splitlines():
        match = _COMMAND.match(line.strip())
        if stopped or match is None:
            stopped = "" if line.strip() == f"::{stopped}::" else stopped
        elif match["name"] == "stop-commands":
            stopped = match["data"]
        elif match["name"] in LEVELS:
            pairs = (pair.partition("=") for pair in (match["properties"] or "").split(","))
            properties = {key.strip(): _unescape(value) for key, _, value in pairs}
            where = f"{properties.get('file', '')}:{properties.get('line', '')}".rstrip(":")
            parts = (match["name"], where, properties.get("title", ""), _unescape(match["data"]))
            found[match["name"]].append(": ".join(filter(None, parts)))
    return [text for texts in found.values() for text in texts]


def pairs(path: Path) -> dict[str, str]:
    """The names and values of a GITHUB_ENV or GITHUB_OUTPUT file.

    A line is `NAME=value`, or `NAME<<DELIMITER` and lines up to one that is only the delimiter; whichever of
    `=` and `<<` comes first decides.
    """
    values: dict[str, str] = {}
    lines = iter(path.read_text(encoding="utf-8").split("\n"))
    for line in filter(None, lines):
        match = re.fullmatch(r"(.+?)(=|<<)(.*)", line)
        if match is None:
            raise StepFailed(f"{path.name}: expected NAME=value or NAME<<DELIMITER, found {line!r}")
        name, separator, value = match.groups()
        if separator == "<<":
            delimiter, held = value, []
            for inner in lines:
                if inner == delimiter:
                    break
                held.append(inner)
            else:
                raise StepFailed(f"{path.name}: expected a line {delimiter!r} that ends {name}")
            value = "\n".join(held)
        values[name] = value
    return values


def _unescape(text: str) -> str:
    return re.sub("|".join(_ESCAPES), lambda match: _ESCAPES[match[0]], text)
