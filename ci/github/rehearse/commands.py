"""A step's ways to talk to the runner: the files that GITHUB_ENV and others name, and printed commands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from provisioning.base.errors import CheckFailed
from provisioning.base.rendering.workflow_commands import PER_LEVEL

FILES = {
    "GITHUB_ENV": "env",
    "GITHUB_OUTPUT": "output",
    "GITHUB_PATH": "path",
    "GITHUB_STATE": "state",
    "GITHUB_STEP_SUMMARY": "summary",
}

LEVELS = ("error", "warning", "notice")

_COMMAND = re.compile(r"^::(?P<name>[A-Za-z-]+)(?:\s+(?P<properties>.*?))?::(?P<data>.*)$")
_ESCAPES = {"%0D": "\r", "%0A": "\n", "%25": "%"}
_PROPERTY_ESCAPES = {**_ESCAPES, "%3A": ":", "%2C": ","}

FORBIDDEN = re.compile(r"^(?:GITHUB_\w+|RUNNER_\w+|NODE_OPTIONS)$", re.IGNORECASE)
"""Variables that a step may not set for later ones."""


@dataclass(frozen=True, slots=True)
class Annotation:
    level: str
    title: str
    message: str
    file: str = ""
    line: str = ""

    def shown(self) -> str:
        where = f"{self.file}:{self.line}".rstrip(":")
        return ": ".join(part for part in (self.level, where, self.title, self.message) if part)

    def masked(self, masks: list[str]) -> Annotation:
        shown = (masked(text, masks) for text in (self.title, self.message, self.file, self.line))
        return Annotation(self.level, *shown)


@dataclass(slots=True)
class StepOutput:
    """The workflow commands in a step's output."""

    annotations: list[Annotation] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    _stopped: str = ""

    def shown(self) -> list[Annotation]:
        """The annotations that GitHub shows for one step: the first few of each level."""
        return [one for level in LEVELS for one in self._of(level)[:PER_LEVEL]]

    def dropped(self) -> int:
        return len(self.annotations) - len(self.shown())

    def _of(self, level: str) -> list[Annotation]:
        return [one for one in self.annotations if one.level == level]

    def read(self, line: str) -> None:
        """Process one line of output; ignore it if it is no command."""
        if self._stopped:
            if line.strip() == f"::{self._stopped}::":
                self._stopped = ""
            return
        match = _COMMAND.match(line.strip())
        if match is None:
            return
        name, data = match["name"].lower(), _unescape(match["data"], _ESCAPES)
        properties = {
            key.strip().lower(): _unescape(value, _PROPERTY_ESCAPES)
            for part in (match["properties"] or "").split(",")
            if "=" in part
            for key, _, value in [part.partition("=")]
        }
        if name in LEVELS:
            self.annotations.append(
                Annotation(
                    name,
                    properties.get("title", ""),
                    data,
                    properties.get("file", ""),
                    properties.get("line", ""),
                )
            )
        elif name == "add-mask":
            self.masks += [one for one in (data, *data.splitlines()) if one.strip()]
        elif name == "stop-commands":
            self._stopped = data
        elif name in ("set-env", "set-output", "add-path", "save-state"):
            raise CheckFailed(
                f"GitHub no longer takes the workflow command ::{name}::",
                remedy="write to the file that the environment names instead",
            )


def masked(text: str, masks: list[str]) -> str:
    for secret in sorted(set(masks), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def pairs(path: Path) -> dict[str, str]:
    """The names and values of a GITHUB_ENV or GITHUB_OUTPUT file.

    A line is `NAME=value`, or `NAME<<DELIMITER` and lines up to one that is only the delimiter; whichever of
    `=` and `<<` comes first decides.
    """
    values: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line:
            continue
        equals, heredoc = line.find("="), line.find("<<")
        if equals >= 0 and (heredoc < 0 or equals < heredoc):
            name, value = line[:equals], line[equals + 1 :]
        elif heredoc >= 0:
            name, delimiter = line[:heredoc], line[heredoc + 2 :]
            if not delimiter:
                raise _wrong(path, line, "a delimiter after <<")
            first = at
            while at < len(lines) and lines[at] != delimiter:
                at += 1
            if at == len(lines):
                raise _wrong(path, line, f"a line {delimiter!r} that ends it")
            value = "\n".join(lines[first:at])
            at += 1
        else:
            raise _wrong(path, line, "NAME=value or NAME<<DELIMITER")
        if not name:
            raise _wrong(path, line, "a name")
        values[name] = value
    return values


def entries(path: Path) -> list[str]:
    """The directories of a GITHUB_PATH file."""
    return [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line]


def _wrong(path: Path, line: str, expected: str) -> CheckFailed:
    return CheckFailed(
        f"{path.name}: expected {expected}, found {line!r}", remedy="correct the step that wrote it"
    )


def _unescape(text: str, escapes: dict[str, str]) -> str:
    return re.sub("|".join(escapes), lambda m: escapes[m[0]], text)
