"""What differs: each once, without what is intended, and with entries of the mapping that nothing needs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Literal

from pydantic import Field

from ci.parity.mapping import Mapping
from ci.parity.model import TreePlace
from ci.parity.tree import Tree
from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS

ROOTS = ("parity-not-evaluated", "parity-target-missing")
"""Rules whose findings explain others, and so come first."""
NEW = ("parity-missing-in-buck", "parity-unknown-file")
"""Rules that find a file that Buck lacks."""


class ParityText(Model):
    summary: str
    message: str
    """Of a finding, with {what}, {where}, {mapping} and words of the rule's own."""
    fix: str
    """The same, for its fix."""


class ParityTexts(Model):
    schema_: Literal[1] = Field(alias="schema")
    rule: dict[str, ParityText]


@cache
def parity_texts() -> dict[str, ParityText]:
    return load(MANIFESTS / "parity_checks.toml", ParityTexts).rule


@dataclass(frozen=True, slots=True)
class Source:
    """The mapping's own file, as findings name it, and its text."""

    name: str
    text: str

    def line(self, table: str, position: int) -> int:
        """The line where the given one of `[[table]]` begins."""
        lines = _lines_of(self.text, table)
        return lines[position] if position < len(lines) else 1


@lru_cache
def _lines_of(text: str, table: str) -> list[int]:
    begins = re.compile(rf"\s*\[\[\s*{table}\s*\]\]").match
    return [number for number, line in enumerate(text.splitlines(), 1) if begins(line)]


@dataclass(slots=True)
class Difference:
    """What and where identify it: a file, pattern or dependency, in a pair, library or file."""

    rule: str
    place: TreePlace
    what: str
    where: str
    message: str
    fix: str
    note: bool = False
    """Whether it is only worth knowing, and no error."""
    variants: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, TreePlace, str, str]:
        return self.rule, self.place, self.what, self.where


class Findings:
    """Collects differences, those of several variants once, and leaves out intended ones."""

    def __init__(self, mapping: Mapping, source: Source) -> None:
        self.mapping, self.source = mapping, source
        self._differences: dict[tuple[str, TreePlace, str, str], Difference] = {}
        self._seen_dependencies: set[str] = set()
        self.nodes: dict[str, str] = {}
        """The dependency of the mapping that a name stands for, by the name."""
        self.incomplete = False
        """Whether something was not evaluated, so that entries may seem unused although they are not."""

    def report(
        self,
        rule: str,
        place: TreePlace,
        what: str,
        where: str,
        variant: str = "",
        *,
        message: str = "",
        fix: str = "",
        note: bool = False,
        **words: object,
    ) -> None:
        """`message` and `fix` replace the rule's own, which `words` complete."""
        difference = self._difference(rule, place, what, where, message, fix, variant=variant, **words)
        difference.note = note
        self.add(difference, variant)

    def add(self, difference: Difference, variant: str = "") -> None:
        kept = self._differences.setdefault(difference.key, difference)
        if variant and variant not in kept.variants:
            kept.variants.append(variant)

    def _difference(
        self,
        rule: str,
        place: TreePlace,
        what: str,
        where: str,
        message: str = "",
        fix: str = "",
        **words: object,
    ) -> Difference:
        text = parity_texts()[rule]
        words |= {"what": what, "where": where, "mapping": self.source.name}
        message = message or text.message.format(**words)
        return Difference(rule, place, what, where, message, fix or text.fix.format(**words))

    def node_of(self, name: str) -> str | None:
        """The `[[dependencies]]` that names it, or has a pattern for it."""
        self._seen_dependencies.add(name)
        if name not in self.nodes:
            for entry in self.mapping.dependencies:
                if any(fnmatchcase(name, pattern) for pattern in (*entry.buck, *entry.cmake)):
                    self.nodes[name] = entry.name
                    break
        return self.nodes.get(name)

    def settled(self, tree: Tree) -> tuple[Difference, ...]:
        kept = []
        used: set[tuple[int, str]] = set()
        for row in self._differences.values():
            covering = {
                (position, name)
                for position, entry in enumerate(self.mapping.deliberate)
                if (name := entry.covering(row.rule, row.what, row.where, row.variants))
            }
            used |= covering
            if not covering:
                kept.append(row)
        if not self.incomplete:
            kept += self._stale(tree, used)
        for difference in kept:
            if old := renamed_from(difference.what, kept):
                difference.message += f"; {old} is named and gone: was it renamed?"
        return tuple(
            sorted(kept, key=lambda item: (item.rule not in ROOTS, item.place, item.rule, item.what))
        )

    def _stale(self, tree: Tree, used: set[tuple[int, str]]) -> Iterator[Difference]:
        for position, entry in enumerate(self.mapping.deliberate):
            if entry.if_exists is None or {entry.if_exists} & (tree.files | tree.directories):
                for name in entry.names:
                    if (position, name) not in used:
                        what = f"{entry.rule} of {name}"
                        yield self.stale("deliberate", position, what, "no finding needs it")
        for position, dependency in enumerate(self.mapping.dependencies):
            patterns = (*dependency.buck, *dependency.cmake)
            if not any(fnmatchcase(name, each) for name in self._seen_dependencies for each in patterns):
                why = "no mapped library depends on it"
                yield self.stale("dependencies", position, dependency.name, why)

    def stale(self, table: str, position: int, what: str, why: str) -> Difference:
        place = TreePlace(self.source.name, self.source.line(table, position))
        difference = self._difference("parity-stale-entry", place, what, table, why=why)
        difference.note = True
        return difference


def renamed_from(path: str, differences: Sequence[Difference]) -> str | None:
    """The file that is named and does not exist, if this is the only new file of its kind in the directory
    and that the only missing one."""

    def beside(*rules: str) -> set[str]:
        return {
            item.what for item in differences if item.rule in rules and kind_of(item.what) == kind_of(path)
        }

    gone = beside("parity-missing-file")
    return gone.pop() if len(gone) == 1 and beside(*NEW, "parity-missing-in-cmake") == {path} else None


def kind_of(path: str) -> tuple[str, str]:
    return posixpath.dirname(path), posixpath.splitext(path)[1]
