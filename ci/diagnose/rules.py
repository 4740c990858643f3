"""The rules of findings (what each means, what to type, its page) and of known failures, who speaks in logs,
and how programs spell their numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import cache, cached_property
from string import Formatter
from typing import Any, Protocol, cast
from urllib.parse import quote

from provisioning.base import toml
from provisioning.base.commands import Fix, fix_of
from provisioning.base.settings import MANIFESTS

TABLE = MANIFESTS / "rules.toml"
OTHERS = {"checks.toml": "docs/checks.md", "parity_checks.toml": "docs/building.md"}
"""Tables that have more than this for each rule and check it themselves; by file the page of their rules."""

RULES_PAGE = "rules.html"
"""The page, in the site that the user named, with an anchor for each rule of a finding, by its name."""
ERRORS_PAGE = "errors.html"
"""The page of failures that `diagnose` knows, likewise."""
FAULTS_PAGE = "findings.html"
"""The page of known faults, likewise."""


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    summary: str
    fix: Fix
    page: str


def rule_named(name: str) -> Rule | None:
    """The rule with that name, else the row that stands for it."""
    all_rules = rules()
    if name in all_rules:
        return all_rules[name]
    rows = [row for row in all_rules if "*" in row and fnmatchcase(name, row)]
    # `*-timeout` says more of lowering-timeout than `lowering-*` does.
    return all_rules[min(rows, key=lambda row: (not row.startswith("*"), -len(row)))] if rows else None


@cache
def rules() -> dict[str, Rule]:
    """The rules of all tables. A name in two of them is an error of their test."""
    from pydantic import Field

    from provisioning.base.documents import Model, load

    class Row(Model):
        summary: str = Field(min_length=1)
        fix: str = Field(min_length=1)
        commands: tuple[tuple[str, ...], ...] = ()
        page: str = Field(pattern=r"^[\w./-]+\.md$")

    class Table(Model):
        schema_: int = Field(alias="schema")
        rule: dict[str, Row]

    rules_by_name = {
        name: Rule(name, row.summary, Fix(row.fix, *row.commands), row.page)
        for name, row in load(TABLE, Table).rule.items()
    }
    for file, page in OTHERS.items():
        for name, row in toml.loads((MANIFESTS / file).read_text(encoding="utf-8"))["rule"].items():
            fix = fix_of(row)
            # What a finding fills in is a word in capitals where the rule itself is explained.
            names = {name: name.upper() for _, name, _, _ in Formatter().parse(row["fix"]) if name}
            rules_by_name[name] = Rule(name, row["summary"], Fix(fix.format(**names)) if names else fix, page)
    return rules_by_name


def page_of(name: str, page: str = RULES_PAGE) -> str:
    """Return the address at which the site that the user named explains a rule or a failure; empty if there
    is no site."""
    site = os.environ.get("QNN_CI_SITE", "").rstrip("/")
    is_address = re.fullmatch(r"https?://[^\s<>\"'()\[\]]+", site) is not None
    return f"{site}/{page}#{quote(name)}" if is_address else ""


# Known failures


MANIFEST = MANIFESTS / "diagnose.toml"
RULES = MANIFESTS / "diagnose"
"""A file for each family of programs."""
QNN = "QNN"
Number = tuple[str, int]
"""A number and who counts so; QNN's and FastRPC's are QNN's."""
BLANK = re.compile(r"(\\.|\[(?:\\.|[^\]\\])*\])| (?![?*+{])|([\"'`])")
"""A blank or a quote that stands for itself, not in brackets."""


class Rank(IntEnum):
    """The order in which findings are shown: the lowest comes first."""

    cause = 0
    follows = 1
    """It only reports that a step before it failed."""
    meaning = 2
    """Says what a number, or a stack, means."""
    notice = 3
    """It is often in a log and seldom the cause."""
    end = 4
    """Says how a program ended."""
    form = 5
    """Many programs use these words."""


class TextMatch(Protocol):
    def start(self, group: int = 0) -> int: ...

    def end(self) -> int: ...

    def groups(self) -> tuple[bytes | None, ...]: ...


class LogPattern:
    """RE2's, which takes linear time on any text; compiled as it is first used. `^` and `$` are those of a
    line. With `blanks` a blank is any white space, so that a wrapped line matches too, and a quote any quote
    or none."""

    def __init__(self, *sources: str, any_case: bool = False, blanks: bool = True) -> None:
        self.source = "|".join(f"(?:{source})" for source in sources) if len(sources) > 1 else sources[0]
        self._any_case, self._blanks = any_case, blanks

    @cached_property
    def _pattern(self) -> Any:
        import re2

        options = re2.Options()
        options.log_errors = False
        options.max_mem = 64 << 20
        # Each byte is a character: text need not be UTF-8.
        options.encoding = re2.Options.Encoding.LATIN1
        source = self.source
        if self._blanks:
            source = BLANK.sub(lambda match: match[1] or (r"\s+" if match[2] is None else "[\"'`]?"), source)
        return re2.compile(f"(?{'mi' if self._any_case else 'm'}){source}".encode(), options)

    def search(self, text: bytes) -> TextMatch | None:
        return cast("TextMatch | None", self._pattern.search(text))

    def finditer(self, text: bytes) -> Iterator[TextMatch]:
        return cast("Iterator[TextMatch]", self._pattern.finditer(text))


@dataclass(frozen=True, slots=True)
class FailureRule:
    """A known failure. What is in a line in which `unless_line` is found does not count. Not shown unless
    each of `also` is found too, nor if a rule of `unless` is found, as that is nearer the cause. What has
    `several` causes does not say which of them it is."""

    id: str
    family: str
    """The name of its file."""
    patterns: Sequence[LogPattern]
    also: Sequence[LogPattern]
    unless_line: LogPattern | None
    unless: frozenset[str]
    rank: Rank
    several: bool
    codes: frozenset[Number]
    cause: str
    fix: Fix
    source: str
    example: str

    @property
    def decided(self) -> bool:
        """Whether it names one cause."""
        return self.rank in (Rank.cause, Rank.notice) and not self.several


@dataclass(frozen=True, slots=True)
class LogSpeaker:
    """A program that speaks in logs, the nearer to the cause the earlier in the table."""

    name: str
    pattern: LogPattern
    collect: Fix
    """What shows more of its failures."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The way in which a program spells its numbers. Without `names` they are those of the table of codes;
    small ones were given without `offset`."""

    of: str
    pattern: LogPattern
    offset: int
    names: dict[int, str]

    def code(self, number: int) -> Code:
        if not self.names:
            return code_named(number | self.offset if 0 < number < 0x400 else number)
        value = number & 0xFFFFFFFF if number < -255 else number
        return Code(value, self.of, self.names.get(value, ""), general=True)


@dataclass(frozen=True, slots=True)
class Code:
    """A number that a program gave. `name` is empty when only its range is known. What is `general` (errno,
    exit codes, a status) names no cause."""

    code: int
    component: str
    name: str
    general: bool = False

    @property
    def number(self) -> Number:
        return (self.component if self.general else QNN, self.code)

    def __str__(self) -> str:
        number = f"{self.code:#x}" if self.code >= 1 << 31 else f"{self.code} ({self.code:#x})"
        return f"{number}: {self.name or 'not in the table'} [{self.component or 'no known component'}]"


@dataclass(frozen=True, slots=True)
class LogTable:
    """What logs are read by, beside the rules."""

    speakers: Sequence[LogSpeaker]
    numbers: Sequence[Numbers]
    trouble: LogPattern
    """What tells of trouble, if it is not harmless."""
    harmless: LogPattern
    """Lines that look like errors and are none."""
    phrases: LogPattern
    """Words that count for nothing, such as `0 failed`: the rest of the line does."""
    codes: dict[int, str]
    data_types: dict[int, str]
    ranges: dict[str, tuple[int, int]]
    english: dict[bytes, bytes]
    """What programs say in other languages, and its English."""


@cache
def table() -> LogTable:
    data = toml.loads(MANIFEST.read_text(encoding="utf-8"))
    return LogTable(
        [
            LogSpeaker(row["name"], LogPattern(*row["patterns"]), fix_of(row, "collect"))
            for row in data["speaker"]
        ],
        [
            Numbers(
                row["of"], LogPattern(*row["patterns"]), row.get("offset", 0), _numbers(row.get("names", {}))
            )
            for row in data["numbers"]
        ],
        LogPattern(*data["trouble"], blanks=False),
        LogPattern(*(source for row in data["harmless"] for source in row["patterns"]), blanks=False),
        LogPattern(*data["phrases"], blanks=False),
        _numbers(data["codes"]),
        _numbers(data["data_types"]),
        {name: (low, high) for name, (low, high) in data["ranges"].items()},
        {word.encode(): english.encode() for english, words in data["words"].items() for word in words},
    )


def _numbers(names: dict[str, str]) -> dict[int, str]:
    return {int(number, 0): name for number, name in names.items()}


@cache
def failure_rules() -> dict[str, FailureRule]:
    """Load all rules, by their ids and in the order of the files."""
    rows = (
        {"family": path.stem, **row}
        for path in sorted(RULES.glob("*.toml"))
        for row in toml.loads(path.read_text(encoding="utf-8"))["rule"]
    )
    return {row["id"]: _rule(**row) for row in rows}


def _rule(
    id: str,
    family: str,
    cause: str,
    fix: str,
    source: str,
    example: str,
    patterns: Sequence[str] = (),
    also: Sequence[str] = (),
    unless_line: Sequence[str] = (),
    unless: Sequence[str] = (),
    rank: str = "cause",
    several: bool = False,
    codes: Sequence[int | str] = (),
    commands: Sequence[Sequence[str]] = (),
) -> FailureRule:
    return FailureRule(
        id,
        family,
        [LogPattern(source, any_case=True) for source in patterns],
        [LogPattern(source, any_case=True) for source in also],
        LogPattern(*unless_line, any_case=True) if unless_line else None,
        frozenset(unless),
        Rank[rank],
        several,
        frozenset(map(_parse_number, codes)),
        cause,
        Fix(fix, *commands),
        source,
        example.strip("\n"),
    )


def _parse_number(value: int | str) -> Number:
    """`1002`, or `Genie -4` of another program than QNN."""
    if isinstance(value, int):
        return (QNN, value)
    of, _, number = value.rpartition(" ")
    return (of, int(number, 0))


def code_named(number: int) -> Code:
    """Name a code. FastRPC's codes may be signed, and QNN's may be 64-bit handles, whose low 16 bits are the
    code."""
    log_table = table()
    value = number & 0xFFFFFFFF if -(1 << 31) <= number < 0 else number
    # Of a handle the other bits are a pointer or zero; a small number is only itself.
    if value > 0xFFFFFFFF:
        value &= 0xFFFF
    component = next((name for name, (low, high) in log_table.ranges.items() if low <= value <= high), "")
    return Code(value, component, log_table.codes.get(value, ""))
