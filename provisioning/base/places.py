"""Where in the user's repository a finding is: the model's line, else the case's in its suite."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from provisioning.base.command_line import Parser
from provisioning.base.files import repository_of
from provisioning.base.findings import Finding, Place


def located(finding: Finding, command: str = "") -> Finding:
    """The finding with a place that is in the user's repository, or without any. `command` is what was typed,
    and names the suites, or ExecuTorch's tree."""
    folder, suites = Parser.user_folder(), [*_named("--suite", command)]
    trees = [*_named("--executorch", command), *map(Path, filter(None, [os.environ.get("EXECUTORCH_ROOT")]))]
    tops = list(
        dict.fromkeys(map(repository_of, (folder / "file", *suites, *(tree / "file" for tree in trees))))
    )
    beside = [folder, *(suite.parent for suite in suites), *tops]
    return replace(finding, place=next(filter(None, _candidates(finding, suites, beside, tops)), None))


def _candidates(
    finding: Finding, suites: Sequence[Path], folders: Sequence[Path], tops: Sequence[Path]
) -> Iterator[Place | None]:
    for place in (finding.place, Place.read(finding.subject), Place(finding.subject)):
        for folder in folders if place else ():
            yield place and _in_repository(folder / place.file, place, tops)
    for suite in suites:
        if line := _line_of(finding.subject.partition("/")[0], suite):
            yield _in_repository(suite, Place("", line), tops)
    for suite in suites:
        yield _in_repository(suite, Place(""), tops)


def _in_repository(file: Path, place: Place, tops: Sequence[Path]) -> Place | None:
    path = Path(os.path.normpath(file))
    with contextlib.suppress(OSError, ValueError):
        if path.is_file():
            top = next((top for top in tops if path.is_relative_to(top)), None)
            return replace(place, file=path.relative_to(top).as_posix()) if top else None
    return None


def _named(flag: str, command: str) -> Iterator[Path]:
    """The paths that the user typed behind this flag."""
    with contextlib.suppress(ValueError):
        for word, after in itertools.pairwise(shlex.split(command)):
            if word == flag:
                yield Path(os.path.normpath(Parser.user_folder() / after))


def _line_of(case: str, suite: Path) -> int:
    """Where a suite begins with a case; 0 where it does not."""
    heading = re.compile(rf"\s*\[+\s*case\s*\.\s*[\"']?{re.escape(case)}[\"']?\s*[.\]]")
    with contextlib.suppress(OSError, ValueError):
        for number, line in enumerate(suite.read_text(encoding="utf-8").splitlines(), 1):
            if heading.match(line):
                return number
    return 0
