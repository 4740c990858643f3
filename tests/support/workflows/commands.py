"""A step's ways to talk to the runner: the files that GITHUB_ENV and others name, and printed commands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

FILES = ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")

LEVELS = ("error", "warning", "notice")
SHOWN = 10
"""GitHub shows this many annotations of a level for one step."""

SUMMARY_LIMIT = 1 << 20

_COMMAND = re.compile(r"^::(?P<name>[A-Za-z-]+)(?:\s+(?P<properties>.*?))?::(?P<data>.*)$")
_ESCAPES = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}


class StepFailed(Exception):
    """What a step fails of."""


@dataclass(slots=True)
class StepOutput:
    """The annotations in a step's output."""

    annotations: list[tuple[str, str]] = field(default_factory=list)
    """Each with its level: `error: place: title: message`."""
    _stopped: str = ""

    def shown(self) -> list[str]:
        return [
            text
            for level in LEVELS
            for text in [text for found, text in self.annotations if found == level][:SHOWN]
        ]

    def read(self, line: str) -> None:
        """Process one line of output; ignore it if it is no command."""
        if self._stopped:
            if line.strip() == f"::{self._stopped}::":
                self._stopped = ""
            return
        match = _COMMAND.match(line.strip())
        if match is None:
            return
        if match["name"] == "stop-commands":
            self._stopped = match["data"]
        elif match["name"] in LEVELS:
            pairs = (pair.partition("=") for pair in (match["properties"] or "").split(","))
            properties = {key.strip(): _unescape(value) for key, _, value in pairs}
            where = f"{properties.get('file', '')}:{properties.get('line', '')}".rstrip(":")
            parts = (match["name"], where, properties.get("title", ""), _unescape(match["data"]))
            self.annotations.append((match["name"], ": ".join(filter(None, parts))))


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
