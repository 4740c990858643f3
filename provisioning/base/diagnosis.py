"""What is known of failures of QNN and of the programs around it: manifests/diagnose.toml and diagnose/."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, cached_property
from io import BytesIO
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from provisioning.base.errors import ManifestError
from provisioning.base.kept import kept
from provisioning.base.log_text import TROUBLE, Piece, Readable, pieces
from provisioning.base.patterns import REMEMBERED, Clue, Index, Match, Pattern, Span, table_of
from provisioning.base.repeats import Repeats
from provisioning.base.settings import MANIFESTS

MANIFEST = MANIFESTS / "diagnose.toml"
ENTRIES = MANIFESTS / "diagnose"
"""A file for each family of programs."""

DATA_TYPES_IN_TEXT = Pattern(r"(?i)data ?types?\b.*?(0x[0-9a-f]{1,8})\b(?:.*?(0x[0-9a-f]{1,8})\b)?")
BUILD_IN_TEXT = Pattern(r"\bv?(\d\.\d{1,3}\.\d{1,3}\.\d{6,12})(?:_\d+)?\b")
"""A build of QNN, as its libraries name it."""
CODE_NAME_IN_TEXT = Pattern(r"\b(QNN_[A-Z]+(?:_[A-Z]+)*_ERROR_[A-Z_]+)\b")
IN_TEXT = (DATA_TYPES_IN_TEXT, BUILD_IN_TEXT, CODE_NAME_IN_TEXT)
NUMBER = re.compile(rb"0x[0-9a-fA-F]{1,8}\b")
COLLECT = (
    "the command, its whole output with the verbose option from before the first error, and the versions of"
    " the programs in it"
)
"""What to collect where nobody known speaks."""

ANY_OTHER = "*"
"""In `unless` of an entry: every other entry, as it tells only how a program ended."""


Possible = dict[Pattern, list[Span]]
"""Where patterns can match that can."""
Number = tuple[str, int]
"""A number and who counts so, as in [[numbers]]; QNN's and FastRPC's are QNN's."""
QNN = "QNN"


class Rank(IntEnum):
    """What is told first of what was found."""

    CAUSE = 0
    FOLLOWS = 1
    MEANING = 2
    """Of a number, or of a stack."""
    NOTICE = 3
    END = 4
    """How a program ended."""
    FORM = 5
    """Words of many programs."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A known failure. What begins where one of `unless_here` begins does not count, nor what is in a line
    in which `unless_line` is found. What `loose` patterns find counts only if a program of `of` speaks
    in the log. Not shown unless each of `also` is found too, when an entry named in `unless` is found, as it
    is nearer the cause, nor in a log that names fewer than `builds` builds of QNN. What has `several` causes
    does not say which of them it is. What `follows` only reports that a step before it failed: the first of
    them is told if no cause is known. A `last_resort` tells what a number or a symptom means as far as that
    goes without its cause: the first is told if nothing nearer is known. A `notice` is seldom the fault."""

    id: str
    patterns: tuple[Pattern, ...]
    loose: tuple[Pattern, ...]
    of: tuple[str, ...]
    unless_here: tuple[Pattern, ...]
    unless_line: Pattern | None
    also: tuple[Pattern, ...]
    codes: frozenset[Number]
    unless: tuple[str, ...]
    builds: int
    several: bool
    follows: bool
    notice: bool
    last_resort: bool
    cause: str
    fix: str
    source: str
    example: str

    @property
    def after_any(self) -> bool:
        """Whether it is told only if nothing else is."""
        return ANY_OTHER in self.unless

    @property
    def rank(self) -> Rank:
        if self.after_any:
            return Rank.FORM if self.last_resort else Rank.END
        if self.last_resort:
            return Rank.MEANING
        return Rank.NOTICE if self.notice else Rank.FOLLOWS if self.follows else Rank.CAUSE

    @property
    def decided(self) -> bool:
        """Whether it names one cause."""
        return self.rank in (Rank.CAUSE, Rank.NOTICE) and not self.several

    @property
    def keys(self) -> tuple[Pattern, ...]:
        """What it is known by."""
        return (*self.patterns, *self.loose)

    @property
    def looked_for(self) -> tuple[Pattern, ...]:
        """In all of a log; what speaks against it only where it was found."""
        return (*self.keys, *self.also)


@dataclass(frozen=True, slots=True)
class Layer:
    """A program that speaks in logs, the nearer to the fault the earlier in the table. Those of one `family`
    run together."""

    name: str
    family: str
    pattern: Pattern
    collect: str
    """What shows more of its faults."""
    general: bool
    """Whether others speak through it, such as programs in Python: those are named before it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A class of faults, the more telling the earlier in the table."""

    name: str
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Harmless:
    """Lines that look like errors and are none. Those of a `quiet` row are so many that it is not told."""

    pattern: Pattern
    why: str
    quiet: bool


@dataclass(frozen=True, slots=True)
class Unread:
    """Whole lines in which words of errors are only names: left out before anything is looked for."""

    pattern: Pattern
    marks: tuple[bytes, ...]
    """One of these is in each such line."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """How a program spells its numbers. Without `names` they are those of the table of codes; small ones were
    given without `offset`."""

    of: str
    pattern: Pattern
    offset: int
    names: dict[int, str]

    def code(self, number: int) -> Code:
        if not self.names:
            return code_named(number | self.offset if 0 < number < 0x400 else number)
        value = number & 0xFFFFFFFF if number < -255 else number
        return Code(value, self.of, self.names.get(value, ""), general=True)


@dataclass(frozen=True)
class Knowledge:
    """What only logs need is made with the first: codes and rules are explained in a third of the time."""

    entries: tuple[Entry, ...]
    layers: tuple[Layer, ...]
    faults: tuple[Fault, ...]
    harmless: tuple[Harmless, ...]
    unread: tuple[Unread, ...]
    numbers: tuple[Numbers, ...]
    codes: dict[int, str]
    numbers_of: dict[str, int]
    """The same by name."""
    data_types: dict[int, str]
    ranges: dict[str, tuple[int, int]]
    words: dict[Pattern, tuple[bytes, bytes]]
    """What programs say in other languages, and that and its English."""

    @cached_property
    def entries_of(self) -> dict[Pattern, tuple[Entry, ...]]:
        entries_of: dict[Pattern, tuple[Entry, ...]] = defaultdict(tuple)
        for entry in self.entries:
            for pattern in entry.looked_for:
                entries_of[pattern] += (entry,)
        return entries_of

    @cached_property
    def patterns_of_rows(self) -> tuple[Pattern, ...]:
        rows: tuple[Layer | Fault | Harmless | Numbers, ...]
        rows = (*self.layers, *self.faults, *self.harmless, *self.numbers)
        return (*(row.pattern for row in rows), *IN_TEXT)

    @cached_property
    def index(self) -> Index:
        """Of all that is looked for in a log."""
        patterns = tuple(dict.fromkeys((*self.patterns_of_rows, *self.entries_of)))
        made = kept("index", (*_tables(), *CODE), lambda: self._table_of(patterns))
        return Index(patterns, made)

    def _table_of(self, patterns: Iterable[Pattern]) -> dict[str, Any]:
        from provisioning.base.clues import Sample, clue_of

        sample = Sample.of(entry.example for entry in self.entries)
        return table_of([clue_of(pattern, sample) for pattern in patterns])

    @cached_property
    def word_index(self) -> Index:
        clues = [Clue(((said.lower().decode(),),)) for said, _ in self.words.values()]
        return Index(tuple(self.words), table_of(clues))

    @cached_property
    def read_otherwise(self) -> Pattern:
        """What a text of ASCII has that is not read as it is: phrases of another language with no letters but
        those of English, and what marks lines that are not read."""
        said = (phrase for phrase, _ in self.words.values() if phrase.isascii())
        marks = (mark for row in self.unread for mark in row.marks)
        return _any_of(re.escape(words.decode()) for words in chain(said, marks))

    @cached_property
    def last_resorts(self) -> dict[Number, tuple[Entry, ...]]:
        """What is told of a number of which no cause is known."""
        last_resorts: dict[Number, tuple[Entry, ...]] = defaultdict(tuple)
        for entry in self.entries:
            for number in entry.codes if entry.last_resort else ():
                last_resorts[number] += (entry,)
        return last_resorts

    @cached_property
    def _by_id(self) -> dict[str, tuple[int, Entry]]:
        return {entry.id: (place, entry) for place, entry in enumerate(self.entries)}

    def entry(self, name: str) -> Entry:
        return self._by_id[name][1]

    def in_order(self, names: Iterable[str]) -> list[Entry]:
        """These entries as the table has them."""
        return [entry for _, entry in sorted((self._by_id[name] for name in names), key=itemgetter(0))]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`line` counts from 1; it is 0 for a code, which comes without text. `decided` is whether what was found
    allows for one cause alone."""

    id: str
    cause: str
    fix: str
    source: str
    line: int
    text: str
    decided: bool

    def __str__(self) -> str:
        return f"{self.cause} ({self.id}: {self.source})"


@dataclass(frozen=True, slots=True)
class Code:
    """A number that a program gave. `name` is empty when only its range is known. What is `general` (errno,
    exit codes, a status) names no cause."""

    code: int
    component: str
    name: str
    general: bool = False

    @property
    def known(self) -> bool:
        return bool(self.name)

    @property
    def number(self) -> Number:
        return (self.component if self.general else QNN, self.code)

    def __str__(self) -> str:
        number = f"{self.code:#x}" if self.code > 0xFFFF else f"{self.code} ({self.code:#x})"
        return f"{number}: {self.name or 'not in the table'} [{self.component or 'no known component'}]"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    subject: str
    explanations: tuple[Explanation, ...]
    """Of a log the one that is nearest to the cause."""
    codes: tuple[Code, ...]
    data_types: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    """What was measured of the operators in it, where they lose accuracy."""
    told_by: str = ""
    """The program that speaks of trouble; empty if none is known, or there is no trouble."""
    fault: str = ""
    """The class of its fault, where no explanation says it."""
    collect: str = ""
    """What to collect next."""
    harmless: tuple[str, ...] = ()
    """Why lines that look like errors are none."""
    trouble: bool = False
    """Whether a line tells of trouble that is not harmless."""
    later: tuple[Explanation, ...] = ()
    """What else was found in the log: most often caused by the first, so that its fix would mislead."""

    @property
    def explained(self) -> bool:
        if self.explanations or self.operators or (self.harmless and not self.trouble):
            return True
        return any(code.known and not code.general for code in self.codes)

    @property
    def heard(self) -> str:
        """Who speaks of trouble and of which class it is, as far as that is known."""
        told = f"told by {self.told_by}" if self.told_by else ""
        fault = f"kind of fault: {self.fault}" if self.fault else ""
        return "; ".join(filter(None, [told, fault]))


class Reading:
    """What is known of a log, piece after piece."""

    def __init__(self) -> None:
        self._found: dict[str, Explanation] = {}
        self._loose: dict[str, Explanation] = {}
        self._codes: dict[Code, None] = {}
        self._numbers: dict[tuple[int, bytes], Code] = {}
        """What a row of the numbers says of digits."""
        self._also: set[Pattern] = set()
        self._builds: set[bytes] = set()
        self._harmless: dict[str, None] = {}
        self._trouble = False
        self._data_types: dict[int, None] = {}
        self._layers: set[str] = set()
        self._faults: set[str] = set()
        self._done: set[Pattern] = set()
        """What no entry looks for any more."""
        self._found_by = Counter[Pattern]()
        """How many entries look for a pattern no more."""
        self._long = False
        """Whether it has more than one piece."""
        self._repeats = Repeats()

    def take(self, piece: Piece) -> None:
        """Of a long log, whose lines repeat themselves, only what is new is searched."""
        self._long = self._long or piece.line > 1
        if self._long:
            piece = replace(piece, text=self._repeats.without(piece.text))
        else:
            self._repeats.learn(piece.text)
        possible = knowledge().index.possible(piece.text, self._done)
        troubles = TROUBLE.find_all(piece.text, piece.start)
        trouble = next(troubles, None)
        harmless = self._harmless_lines(piece, possible, quiet=trouble is not None)
        entries = {
            entry.id: entry for pattern in possible for entry in knowledge().entries_of[pattern]
        }.values()
        for entry in entries:
            for patterns, shown in ((entry.patterns, self._found), (entry.loose, self._loose)):
                if patterns and entry.id not in shown:
                    found = _first(entry, patterns, piece, possible, harmless)
                    if found is not None:
                        shown[entry.id] = _explanation(entry, piece, found)
                        self._found_all(patterns)
        asked = {pattern for entry in entries for pattern in entry.also if pattern in possible} - self._also
        also = {pattern for pattern in asked if _start_of(pattern, piece, possible[pattern]) is not None}
        self._also |= also
        self._found_all(pattern for entry in entries for pattern in entry.also if pattern in also)
        lines = (_line_start(piece.text, match.start()) for match in chain([trouble], troubles) if match)
        if any(line not in harmless for line in lines):
            self._trouble = True
            self._hear(piece, possible, harmless)
        self._number(piece, possible, harmless)
        for match in _matches(BUILD_IN_TEXT, piece, possible):
            self._builds |= {build for build in match.groups() if build}
        for match in _matches(DATA_TYPES_IN_TEXT, piece, possible):
            self._data_types |= dict.fromkeys(number for _, number in _numbers_in(match))

    def _found_all(self, patterns: Iterable[Pattern]) -> None:
        for pattern in patterns:
            self._found_by[pattern] += 1
            if self._found_by[pattern] == len(knowledge().entries_of[pattern]):
                self._done.add(pattern)
                if self._long:
                    pattern.forget()

    def _harmless_lines(self, piece: Piece, possible: Possible, *, quiet: bool) -> set[int]:
        """Where the lines begin that look like errors and are none; those of which nothing is told only
        where there is trouble that they may be."""
        harmless = set[int]()
        for row in knowledge().harmless:
            if row.pattern not in possible or (row.quiet and not quiet):
                continue
            starts = (match.start() for match in _matches(row.pattern, piece, possible))
            lines = {_line_start(piece.text, start) for start in starts}
            harmless |= lines
            if lines and not row.quiet:
                self._harmless[row.why] = None
        return harmless

    def _hear(self, piece: Piece, possible: Possible, harmless: set[int]) -> None:
        for named, heard in ((knowledge().layers, self._layers), (knowledge().faults, self._faults)):
            for row in named:
                if row.name in heard or row.pattern not in possible:
                    continue
                starts = (match.start() for match in _matches(row.pattern, piece, possible))
                if any(_line_start(piece.text, start) not in harmless for start in starts):
                    heard.add(row.name)

    def _number(self, piece: Piece, possible: Possible, harmless: set[int]) -> None:
        """The numbers of programs. One that two of them could have given is the first one's that knows it.
        One of a harmless line is named, and explains nothing."""
        given = dict[int, Code]()
        for place, row in enumerate(knowledge().numbers):
            for match in _matches(row.pattern, piece, possible):
                for group, digits in enumerate(match.groups(), 1):
                    if not digits:
                        continue
                    if len(self._numbers) > REMEMBERED:
                        self._numbers.clear()
                    if (place, digits) not in self._numbers:
                        self._numbers[place, digits] = row.code(_as_integer(digits))
                    if (code := self._numbers[place, digits]).known:
                        given.setdefault(match.start(group), code)
        for match in _matches(CODE_NAME_IN_TEXT, piece, possible):
            named = piece.text[match.start() : match.end()].decode("ascii")
            if named in knowledge().numbers_of:
                given[match.start()] = code_named(knowledge().numbers_of[named])
        self._codes |= dict.fromkeys(given.values())
        first = dict[str, tuple[Entry, int]]()
        for start in sorted(given):
            entries = knowledge().last_resorts.get(given[start].number, ())
            new = [entry for entry in entries if entry.id not in first]
            if new and _line_start(piece.text, start) not in harmless:
                first |= {entry.id: (entry, start) for entry in new}
        for entry, start in first.values():
            shown = self._loose if entry.of else self._found
            if entry.id not in shown or shown[entry.id].line > piece.line:
                found = _explanation(entry, piece, start)
                shown[entry.id] = min(found, shown.get(entry.id, found), key=lambda row: row.line)

    @property
    def explanations(self) -> list[Explanation]:
        """The failures found, nearest to the cause, in the order in which they appear."""
        speak = {
            name for row in knowledge().layers if row.name in self._layers for name in (row.name, row.family)
        }
        found = dict(self._found)
        for name, shown in self._loose.items():
            if not speak.isdisjoint(knowledge().entry(name).of):
                found[name] = min(shown, found.get(name, shown), key=lambda row: row.line)
        given = {
            entry.id: entry
            for entry in knowledge().in_order(found)
            if entry.builds <= len(self._builds) and self._also.issuperset(entry.also)
        }
        kept = [entry for entry in given.values() if given.keys().isdisjoint(entry.unless)]
        kept.sort(key=lambda entry: (entry.rank, found[entry.id].line, not entry.decided))
        best = kept[0].rank if kept else Rank.CAUSE
        told = [entry for entry in kept if entry.rank is best]
        if best is Rank.CAUSE:
            told = list({found[entry.id].line: entry for entry in reversed(told)}.values())[::-1]
        elif best is not Rank.NOTICE:
            told = told[:1]
        if best < Rank.NOTICE:
            told += [entry for entry in kept if entry.rank is Rank.NOTICE]
        return [found[entry.id] for entry in told]

    @property
    def codes(self) -> list[Code]:
        """The codes of the table that the log gives as errors, each once."""
        return list(self._codes)

    @property
    def data_types(self) -> list[str]:
        """The data types that the log gives as numbers, each once, with their names."""
        known = knowledge().data_types
        return [f"{number:#x}: {known[number]}" for number in self._data_types if number in known]

    def diagnosis(self, subject: str) -> Diagnosis:
        fault = next((row.name for row in knowledge().faults if row.name in self._faults), "")
        told, later = self.explanations[:1], self.explanations[1:]
        heard = [row for row in knowledge().layers if row.name in self._layers]
        # Whoever speaks in the line that is explained, rather than beside it.
        line = told[0].text.encode() if told else b""
        in_line = (row for row in heard if not row.general and row.pattern.search(line))
        layer = next(chain(in_line, heard), None)
        return Diagnosis(
            subject,
            tuple(told),
            tuple(self.codes),
            tuple(self.data_types),
            told_by=layer.name if layer else "",
            fault="" if told else fault,
            collect=layer.collect if layer else "" if told else COLLECT,
            harmless=tuple(self._harmless),
            trouble=self._trouble,
            later=tuple(later),
        )


def in_english(text: bytes) -> bytes:
    """What programs say in other languages as they say it in English."""
    possible = knowledge().word_index.possible(text)
    # In the table's order: phrases come before the quotation marks in them.
    for pattern, (said, english) in knowledge().words.items():
        if pattern in possible:
            text = text.replace(said, english)
    return text


def as_read(text: bytes) -> bytes:
    """In English, and without lines that only name what they do; the others keep their numbers."""
    known = knowledge()
    otherwise = known.read_otherwise.search(text) is not None
    if otherwise or not text.isascii():
        text = in_english(text)
    for row in known.unread if otherwise else ():
        if any(mark in text for mark in row.marks):
            text = _without(text, row.pattern)
    return text


def _without(text: bytes, pattern: Pattern) -> bytes:
    parts, end = list[bytes](), 0
    for match in pattern.find_all(text):
        parts.append(text[end : match.start()])
        end = match.end()
    return b"".join([*parts, text[end:]])


def pieces_of(log: Readable) -> Iterator[Piece]:
    return pieces(log, as_read)


def read(text: str | bytes) -> Reading:
    """Everything known about a text."""
    reading = Reading()
    for piece in pieces_of(BytesIO(text.encode("utf-8", "replace") if isinstance(text, str) else text)):
        reading.take(piece)
    return reading


def explain(text: str) -> list[Explanation]:
    """The failures found in a log, nearest to the cause, in the order in which they appear."""
    return read(text).explanations


def nearest(text: str) -> Explanation | None:
    """The failure that a log shows first, if any is known."""
    return next(iter(explain(text)), None)


def causes(text: str) -> str:
    """The first known failure in a log and its fix, as further lines of a message; empty if there is none."""
    return f"\n  {shown}\n  fix: {shown.fix}" if (shown := nearest(text)) else ""


def explain_code(number: int) -> Diagnosis:
    """What one number means to each program that has it, and the failures it is known from: first what it
    says by itself."""
    code = code_named(number)
    others = (row.code(number) for row in knowledge().numbers if row.names or row.offset)
    known = [code for code in dict.fromkeys([code, *others]) if code.known] or [code]
    entries = [entry for entry in knowledge().entries if any(code.number in entry.codes for code in known)]
    entries.sort(key=lambda entry: not entry.last_resort)
    shown = tuple(Explanation(e.id, e.cause, e.fix, e.source, 0, "", e.decided) for e in entries)
    subject = str(known[0]) if len(known) == 1 else f"{number} ({number:#x})"
    return Diagnosis(subject, shown, tuple(replace(code, general=False) for code in known))


def code_named(number: int) -> Code:
    """Takes FastRPC codes signed, and QNN's 64-bit handles, whose low 16 bits are the code."""
    known = knowledge()
    value = number & 0xFFFFFFFF if -(1 << 31) <= number < 0 else number
    if not 0x80000000 <= value <= 0xFFFFFFFF and value > 0xFFFF:
        value &= 0xFFFF
    component = next((name for name, (low, high) in known.ranges.items() if low <= value <= high), "")
    return Code(value, component, known.codes.get(value, ""))


def codes_in(text: str) -> list[Code]:
    """The codes of the table that a log gives as errors, each once."""
    return read(text).codes


def data_type_name(number: int) -> str:
    """QNN's own name of a tensor's data type, or the number in hexadecimal if it is not in the table."""
    return knowledge().data_types.get(number, f"{number:#x}")


def with_names_of_data_types(text: str) -> str:
    """The same text; numbers that stand for data types are replaced by their names."""
    data, parts, end = text.encode("utf-8", "replace"), [], 0
    for match in DATA_TYPES_IN_TEXT.find_all(data):
        parts += [data[end : match.start()], NUMBER.sub(_named, data[match.start() : match.end()])]
        end = match.end()
    return b"".join([*parts, data[end:]]).decode("utf-8")


def _named(number: re.Match[bytes]) -> bytes:
    return data_type_name(int(number[0], 16)).encode()


CODE = tuple(Path(__file__).with_name(name) for name in ("clues.py", "diagnosis.py", "patterns.py"))


@cache
def knowledge() -> Knowledge:
    return _knowledge(kept("diagnose", (*_tables(), *CODE), _checked))


def _tables() -> tuple[Path, ...]:
    return (MANIFEST, *sorted(ENTRIES.glob("*.toml")))


def _checked() -> dict[str, Any]:
    """The tables as they are written. Raises ManifestError if something in it is wrong."""
    from pydantic import Field

    from provisioning.base.documents import Model, parse, read

    class Row(Model):
        id: str
        patterns: tuple[str, ...] = ()
        loose: tuple[str, ...] = ()
        of: tuple[str, ...] = ()
        unless_here: tuple[str, ...] = ()
        unless_line: tuple[str, ...] = ()
        also: tuple[str, ...] = ()
        codes: tuple[int | str, ...] = ()
        unless: tuple[str, ...] = ()
        builds: int = 0
        several: bool = False
        follows: bool = False
        notice: bool = False
        last_resort: bool = False
        cause: str
        fix: str
        source: str
        example: str

    class LayerRow(Model):
        name: str
        family: str = ""
        patterns: tuple[str, ...]
        collect: str
        general: bool = False

    class FaultRow(Model):
        name: str
        patterns: tuple[str, ...]

    class HarmlessRow(Model):
        patterns: tuple[str, ...]
        why: str
        quiet: bool = False

    class UnreadRow(Model):
        patterns: tuple[str, ...]
        marks: tuple[str, ...] = Field(min_length=1)
        why: str

    class NumbersRow(Model):
        of: str
        patterns: tuple[str, ...]
        offset: int = 0
        names: dict[str, str] = Field(default_factory=dict)

    class Table(Model):
        schema_: int = Field(alias="schema")
        layer: tuple[LayerRow, ...]
        fault: tuple[FaultRow, ...]
        harmless: tuple[HarmlessRow, ...]
        unread: tuple[UnreadRow, ...]
        numbers: tuple[NumbersRow, ...]
        ranges: dict[str, tuple[int, int]]
        codes: dict[str, str]
        data_types: dict[str, str]
        words: dict[str, tuple[str, ...]]

    class Entries(Model):
        entry: tuple[Row, ...]

    document = read(MANIFEST)
    table = parse(document, Table, MANIFEST)
    written = {path: read(path) for path in _tables()[1:]}
    rows = {path: parse(entries, Entries, path).entry for path, entries in written.items()}
    often = Counter(row.id for entries in rows.values() for row in entries)
    speakers = {name for layer in table.layer for name in (layer.name, layer.family) if name}
    for path, entries in rows.items():
        for row in entries:
            for other in row.unless:
                if other not in often and other != ANY_OTHER:
                    raise ManifestError(
                        path, f"entry {row.id}: unless", expected="the id of an entry", found=repr(other)
                    )
            if often[row.id] > 1:
                raise ManifestError(path, "entry", expected="ids used once", found=f"{row.id!r} twice")
            spoken = bool(row.of) == bool(row.loose) or row.last_resort
            if not spoken or not speakers.issuperset(row.of):
                raise ManifestError(
                    path,
                    f"entry {row.id}: of",
                    expected="with `loose` patterns the names of layers or their families, else nothing",
                    found=repr(row.of),
                )
    return {**document, "entry": [row for entries in written.values() for row in entries["entry"]]}


def _knowledge(table: dict[str, Any]) -> Knowledge:
    entries = tuple(
        Entry(
            row["id"],
            _any_case(row.get("patterns", ())),
            _any_case(row.get("loose", ())),
            tuple(row.get("of", ())),
            _any_case(row.get("unless_here", ())),
            _any_of(row["unless_line"], any_case=True) if "unless_line" in row else None,
            _any_case(row.get("also", ())),
            frozenset(map(_as_number, row.get("codes", ()))),
            tuple(row.get("unless", ())),
            row.get("builds", 0),
            row.get("several", False),
            row.get("follows", False),
            row.get("notice", False),
            row.get("last_resort", False),
            row["cause"],
            row["fix"],
            row["source"],
            row["example"].strip("\n"),
        )
        for row in table["entry"]
    )
    codes = _by_number(table["codes"])
    return Knowledge(
        entries,
        tuple(
            Layer(
                row["name"],
                row.get("family", ""),
                _any_of(row["patterns"]),
                row["collect"],
                row.get("general", False),
            )
            for row in table["layer"]
        ),
        tuple(Fault(row["name"], _any_of(row["patterns"])) for row in table["fault"]),
        tuple(
            Harmless(_any_of(row["patterns"]), row["why"], row.get("quiet", False))
            for row in table["harmless"]
        ),
        tuple(
            Unread(_whole_line(row["patterns"]), tuple(mark.encode() for mark in row["marks"]))
            for row in table["unread"]
        ),
        tuple(
            Numbers(
                row["of"], _any_of(row["patterns"]), row.get("offset", 0), _by_number(row.get("names", {}))
            )
            for row in table["numbers"]
        ),
        codes,
        {name: number for number, name in codes.items()},
        _by_number(table["data_types"]),
        {name: (low, high) for name, (low, high) in table["ranges"].items()},
        {
            Pattern(re.escape(phrase)): (phrase.encode(), english.encode())
            for english, phrases in table["words"].items()
            for phrase in phrases
        },
    )


def _as_number(written: int | str) -> Number:
    """`1002`, or `Genie -4` of another program than QNN."""
    if isinstance(written, int):
        return (QNN, written)
    of, _, number = written.rpartition(" ")
    return (of, int(number, 0))


def _by_number(names: dict[str, str]) -> dict[int, str]:
    return {int(number, 0): name for number, name in names.items()}


def _first(
    entry: Entry, patterns: tuple[Pattern, ...], piece: Piece, possible: Possible, harmless: set[int]
) -> int | None:
    """Where the first match of the patterns begins that counts. What is told in the last resort is not read
    from harmless lines."""

    def starts(of: Iterable[Pattern]) -> Iterator[int]:
        for pattern in of:
            yield from (match.start() for match in pattern.find_all(piece.text, piece.start))

    patterns = tuple(pattern for pattern in patterns if pattern in possible)
    firsts = (_start_of(pattern, piece, possible[pattern]) for pattern in patterns)
    first = min((start for start in firsts if start is not None), default=None)
    not_in = harmless if entry.last_resort else set[int]()
    if first is None or not (not_in or entry.unless_here or entry.unless_line):
        return first
    here = set(starts(entry.unless_here))

    @cache
    def line_counts(line: int) -> bool:
        if line in not_in:
            return False
        against = entry.unless_line
        return not against or not against.search(piece.text, line, _line_end(piece.text, line))

    counting = (
        start
        for start in starts(patterns)
        if start not in here and line_counts(_line_start(piece.text, start))
    )
    return min(counting, default=None)


def _matches(pattern: Pattern, piece: Piece, possible: Possible) -> Iterator[Match]:
    """All of them, which are in the spans. Where these overlap they are searched once."""
    joined = list[Span]()
    for span in sorted(possible.get(pattern, ())):
        if joined and span[0] <= joined[-1][1]:
            low, high = joined.pop()
            joined.append((low, max(high, span[1])))
        else:
            joined.append(span)
    for low, high in joined:
        yield from pattern.find_all(piece.text, max(low, piece.start), high)


def _start_of(pattern: Pattern, piece: Piece, spans: list[Span]) -> int | None:
    """Where the first match begins, which is in one of the spans."""
    matches = (pattern.search(piece.text, max(low, piece.start), high) for low, high in spans)
    return min((match.start() for match in matches if match), default=None)


def _line_start(text: bytes, start: int) -> int:
    return text.rfind(b"\n", 0, start) + 1


def _line_end(text: bytes, start: int) -> int:
    end = text.find(b"\n", start)
    return end if end >= 0 else len(text)


def _line_at(text: bytes, start: int) -> bytes:
    return text[_line_start(text, start) : _line_end(text, start)]


def _numbers_in(match: Match) -> Iterator[tuple[int, int]]:
    """Where each number begins, and it."""
    for group, digits in enumerate(match.groups(), 1):
        if digits:
            yield match.start(group), _as_integer(digits)


def _as_integer(digits: bytes) -> int:
    return int(digits, 16 if b"x" in digits.lower() else 10)


def _explanation(entry: Entry, piece: Piece, start: int) -> Explanation:
    line = _line_at(piece.text, start).decode("utf-8", "replace").strip()
    number = piece.line + piece.text.count(b"\n", 0, start)
    return Explanation(
        entry.id, entry.cause, entry.fix, entry.source, number, _abbreviated(line), entry.decided
    )


def _abbreviated(line: str, width: int = 200) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def _any_of(sources: Iterable[str], *, any_case: bool = False) -> Pattern:
    """One pattern: a text is searched once."""
    return Pattern("|".join(f"(?:{source})" for source in sources), any_case)


def _whole_line(sources: Iterable[str]) -> Pattern:
    """Behind the name of a container, too. A blank is a blank, so that no match has two lines."""
    return Pattern(rf"^(?:[\w.-]+[ ]+\|[ ])?(?:{'|'.join(sources).replace(' ', '[ ]')})[ \t]*$")


def _any_case(sources: Iterable[str]) -> tuple[Pattern, ...]:
    return tuple(map(_in_any_case, sources))


@cache
def _in_any_case(source: str) -> Pattern:
    """One object for each source, so that it is compiled and searched once."""
    return Pattern(source, any_case=True)
