"""What differs: each once, without what is intended, and with entries of the mapping that nothing needs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from ci.parity.mapping import Mapping, any_of
from ci.parity.model import TreePlace
from ci.parity.tree import Tree
from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS

ROOTS = ("parity-not-evaluated", "parity-target-missing")
"""Rules whose findings explain others, and so come first."""
NEW = ("parity-missing-in-buck", "parity-unknown-file")
"""Rules that find a file that Buck lacks."""

_NO_WORDS: MappingOf[str, object] = MappingProxyType({})


class ParityCase(Model):
    """A finding's words, with {what}, {where}, {variant}, {mapping} and those of the rule's check."""

    message: str
    fix: str


class ParityText(ParityCase):
    summary: str
    case: dict[str, ParityCase] = Field(default_factory=dict)
    """Words in place of the rule's own, where its check says so."""


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

    def place(self, table: str, position: int) -> TreePlace:
        """The line where the given one of `[[table]]` begins."""
        lines = _lines_of(self.text, table)
        return TreePlace(self.name, lines[position] if position < len(lines) else 1)


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


class Findings:
    """Collects differences, those of several variants once, and leaves out intended ones."""

    def __init__(self, mapping: Mapping, source: Source) -> None:
        self.mapping, self.source = mapping, source
        self._differences: dict[tuple[str, TreePlace, str, str], Difference] = {}
        self._dependencies: dict[str, str | None] = {}
        """By the names that were asked for, the entry of the mapping that each belongs to."""
        self.incomplete = False
        """Whether something was not evaluated, so that entries may seem unused although they are not."""

    def report(
        self,
        rule: str,
        place: TreePlace,
        what: str,
        where: str,
        words: MappingOf[str, object] = _NO_WORDS,
        *,
        case: str = "",
        variant: str = "",
        note: bool = False,
    ) -> None:
        """`words` complete the text of the rule, or of one of its cases."""
        text = parity_texts()[rule].case[case] if case else parity_texts()[rule]
        own = {"what": what, "where": where, "variant": variant, "mapping": self.source.name, **words}
        message, fix = text.message.format(**own), text.fix.format(**own)
        key = rule, place, what, where
        kept = self._differences.setdefault(key, Difference(*key, message, fix, note))
        if variant and variant not in kept.variants:
            kept.variants.append(variant)

    def report_stale(self, table: str, position: int, what: str, why: str) -> None:
        """An entry of the mapping that nothing needs. Somebody's clean-up is no error."""
        place = self.source.place(table, position)
        self.report("parity-stale-entry", place, what, table, {"why": why}, note=True)

    def node_of(self, name: str) -> str | None:
        """The `[[dependencies]]` that names it, or has a pattern for it."""
        if name not in self._dependencies:
            entries = (
                entry.name for entry in self.mapping.dependencies if any_of(name, (*entry.buck, *entry.cmake))
            )
            self._dependencies[name] = next(entries, None)
        return self._dependencies[name]

    def settled(self, tree: Tree) -> tuple[Difference, ...]:
        used: set[tuple[int, str]] = set()
        for key, row in [*self._differences.items()]:
            covering = {
                (position, name)
                for position, entry in enumerate(self.mapping.deliberate)
                if (name := entry.covering(row.rule, row.what, row.where, row.variants))
            }
            used |= covering
            if covering:
                del self._differences[key]
        if not self.incomplete:
            self._report_unused(tree, used)
        kept = [*self._differences.values()]
        for difference in kept:
            if old := renamed_from(difference.what, kept):
                difference.message += f"; {old} is named and gone: was it renamed?"
        return tuple(
            sorted(kept, key=lambda item: (item.rule not in ROOTS, item.place, item.rule, item.what))
        )

    def _report_unused(self, tree: Tree, used: set[tuple[int, str]]) -> None:
        for position, entry in enumerate(self.mapping.deliberate):
            if entry.if_exists is None or {entry.if_exists} & (tree.files | tree.directories):
                for name in entry.names:
                    if (position, name) not in used:
                        what = f"{entry.rule} of {name}"
                        self.report_stale("deliberate", position, what, "no finding needs it")
        for position, dependency in enumerate(self.mapping.dependencies):
            patterns = (*dependency.buck, *dependency.cmake)
            if not any(any_of(name, patterns) for name in self._dependencies):
                why = "no mapped library depends on it"
                self.report_stale("dependencies", position, dependency.name, why)


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
