"""A finding is shown at a place of the user's repository: a line of the model, or of the suite's case."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from provisioning.base.files import repository_of
from provisioning.base.findings import Finding, Place
from provisioning.base.parser import Parser
from provisioning.base.toml_lines import line_of

_SAID = re.compile(r"(?:(?<=\()|(?<![^\s(]))[^\s()]+:[1-9]\d*(?=\)|: )")
"""`(ci/net.py:5)`, or `ci/models.toml:7: …`, in a message."""


@dataclass(frozen=True, slots=True)
class Places:
    """These files of the user may hold what the findings of a command are about."""

    folders: Sequence[Path]
    """The folders that a path may be relative to."""
    tops: Sequence[Path]
    """The user's repositories hold the folder where they typed, the suites, and ExecuTorch's tree."""
    suites: Sequence[Path]
    suite_of: Mapping[str, Path] = field(default_factory=dict)
    """Maps each subject to its suite. Two suites may have a case of one name."""

    @classmethod
    def of(cls, command: str = "", suite_of: Mapping[str, Path] | None = None) -> Places:
        """Find the places of a command. `command` is what was typed, and names the suites, or ExecuTorch's
        tree."""
        folder, suites = Parser.user_folder(), [*_paths_of("--suite", command)]
        trees = [*_paths_of("--executorch", command)]
        trees += [Path(tree) for tree in (os.environ.get("EXECUTORCH_ROOT"),) if tree]
        inside = (*suites, *(tree / "file" for tree in trees), folder / "file")
        tops = list(dict.fromkeys(map(repository_of, inside)))
        # A model's line is relative to its repository.
        folders = [*tops, folder, *(suite.parent for suite in suites)]
        return cls(folders, tops, suites, suite_of or {})

    def located(self, finding: Finding) -> Finding:
        """Return the finding with a place in the user's repository: the model's line, else its case's in the
        suite; or without a place."""
        return replace(finding, place=next(filter(None, self._candidates(finding)), None))

    def _candidates(self, finding: Finding) -> Iterator[Place | None]:
        """Yield where the finding may be: its own place, its subject, the places that its message names; then
        its case, then its suite."""
        said = map(Place.read, _SAID.findall(finding.message))
        places = (finding.place, Place.read(finding.subject), Place(finding.subject), *said)
        for place in filter(None, places):
            for folder in self.folders:
                yield self._relate_to_repository(folder / place.file, place)
        case = finding.subject.partition("/")[0]
        own = self.suite_of.get(finding.subject)
        for suite in [own] if own else self.suites:
            if line := line_of(("case", case), suite):
                yield self._relate_to_repository(suite, Place("", line))
        for suite in self.suites:
            yield self._relate_to_repository(suite, Place(""))

    def _relate_to_repository(self, file: Path, place: Place) -> Place | None:
        path = Path(os.path.normpath(file))
        with suppress(OSError, ValueError):
            if path.is_file():
                top = next((top for top in self.tops if path.is_relative_to(top)), None)
                return replace(place, file=path.relative_to(top).as_posix()) if top else None
        return None


def _paths_of(flag: str, command: str) -> Iterator[Path]:
    """The paths that the user typed behind this flag."""
    with suppress(ValueError):
        for word, after in itertools.pairwise(shlex.split(command)):
            if word == flag:
                yield Path(os.path.normpath(Parser.user_folder() / after))
