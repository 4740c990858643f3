"""Where in the user's repository a finding is: the model's line, else the case's in its suite."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.base.command_line import Parser
from provisioning.base.files import repository_of
from provisioning.base.findings import Finding, Place
from provisioning.base.toml import line_of

_SAID = re.compile(r"(?:(?<=\()|(?<![^\s(]))[^\s()]+:[1-9]\d*(?=\)|: )")
"""`(ci/net.py:5)`, or `ci/models.toml:7: …`, in a message."""


@dataclass(frozen=True, slots=True)
class Places:
    """The files that findings of a command can be in."""

    folders: Sequence[Path]
    """Those that a path may be relative to."""
    tops: Sequence[Path]
    """The user's repositories: of the folder where they typed, of the suites, of ExecuTorch's tree."""
    suites: Sequence[Path]

    @classmethod
    def of(cls, command: str = "") -> Places:
        """`command` is what was typed, and names the suites, or ExecuTorch's tree."""
        folder, suites = Parser.user_folder(), [*_named("--suite", command)]
        trees = [*_named("--executorch", command)]
        trees += [Path(tree) for tree in (os.environ.get("EXECUTORCH_ROOT"),) if tree]
        inside = (*suites, *(tree / "file" for tree in trees), folder / "file")
        tops = list(dict.fromkeys(map(repository_of, inside)))
        # A model's line is relative to its repository.
        return cls([*tops, folder, *(suite.parent for suite in suites)], tops, suites)

    def located(self, finding: Finding) -> Finding:
        """The finding with a place that is in the user's repository, or without any."""
        return replace(finding, place=next(filter(None, self._candidates(finding)), None))

    def _candidates(self, finding: Finding) -> Iterator[Place | None]:
        said = map(Place.read, _SAID.findall(finding.message))
        for place in (finding.place, Place.read(finding.subject), Place(finding.subject), *said):
            for folder in self.folders if place else ():
                yield place and self._in_repository(folder / place.file, place)
        case = finding.subject.partition("/")[0]
        for suite in self.suites:
            if line := line_of(("case", case), suite):
                yield self._in_repository(suite, Place("", line))
        for suite in self.suites:
            yield self._in_repository(suite, Place(""))

    def _in_repository(self, file: Path, place: Place) -> Place | None:
        path = Path(os.path.normpath(file))
        with contextlib.suppress(OSError, ValueError):
            if path.is_file():
                top = next((top for top in self.tops if path.is_relative_to(top)), None)
                return replace(place, file=path.relative_to(top).as_posix()) if top else None
        return None


def _named(flag: str, command: str) -> Iterator[Path]:
    """The paths that the user typed behind this flag."""
    with contextlib.suppress(ValueError):
        for word, after in itertools.pairwise(shlex.split(command)):
            if word == flag:
                yield Path(os.path.normpath(Parser.user_folder() / after))
