"""Commands in our pages and the output that is shown after them, and whether a program prints that."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.settings import ROOT

FENCE = re.compile(r"^```(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = "$ "
NUMBER = re.compile(r"(?<![\w.])-?\d[\d.,]*(?![\w.])|\b[0-9a-f]{64}\b|\b[0-9a-f]{4,63}…")
"""What differs from run to run: figures, sizes, times, digests."""
OURS = re.compile(r"\b(?:nox -s|python -m ci) ([\w-]+)(?: --(?= |$))?")


@dataclass(frozen=True, slots=True)
class Example:
    page: str
    command: str
    output: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.page}: {self.command}"

    @property
    def words(self) -> list[str]:
        """The verb and its arguments."""
        return shlex.split(OURS.sub(r"qnn-ci \1", self.command), comments=True)[1:]


def examples() -> Iterator[Example]:
    """Each command of README.md and docs/ with output below it."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield from examples_of(page)


def examples_of(page: Path) -> Iterator[Example]:
    for fence in FENCE.finditer(page.read_text(encoding="utf-8")):
        _, *lines = fence[1].splitlines()
        command, output = "", list[str]()
        for line in [*lines, PROMPT]:
            if not line.startswith(PROMPT):
                output.append(line)
                continue
            if command and output:
                yield Example(page.relative_to(ROOT).as_posix(), command, tuple(output))
            command, output = line.removeprefix(PROMPT), []


def not_printed(example: Example, printed: str) -> list[str]:
    """The shown lines that are not among the printed ones, in this order. Figures may be others, and … stands
    for anything."""
    found = iter(_plain(printed).splitlines())
    missing = []
    for line in _plain("\n".join(example.output)).splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        rest = list(found)
        place = next((n for n, text in enumerate(rest) if pattern.fullmatch(text)), None)
        if place is None:
            missing.append(line)
        found = iter(rest if place is None else rest[place + 1 :])
    return missing


def _plain(text: str) -> str:
    lines = (" ".join(OURS.sub(r"qnn-ci \1", line).split()) for line in text.splitlines())
    return "\n".join(NUMBER.sub("N", line) for line in lines if line)
