"""What is known of failures of QNN, FastRPC, the loader and ExecuTorch: manifests/diagnose.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from provisioning.base.errors import ManifestError
from provisioning.base.settings import MANIFESTS

MANIFEST = MANIFESTS / "diagnose.toml"

CODE_IN_TEXT = re.compile(
    r"""(?ix) (?: err(?:or)?(?:\ code)? | status | failed | user\ err ) (?: \ with (?: \ err(?:or)? )? )?
        [\s:=,]* (0x[0-9a-f]{3,16} | \d{4,5}) \b"""
)


# What CI systems and terminals put around a line: GitHub's time stamp, colours.
DECORATION = re.compile(
    r"^\ufeff?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z |\x1b\[[0-9;]*[A-Za-z]|\r(?=\n)", re.MULTILINE
)
DATA_TYPES_IN_TEXT = re.compile(r"(?i)data ?types?\b.*?(0x[0-9a-f]{1,8})\b(?:.*?(0x[0-9a-f]{1,8})\b)?")


@dataclass(frozen=True, slots=True)
class Entry:
    """A known failure. Not shown when an entry named in `unless` is found too, as it is nearer the cause."""

    id: str
    patterns: tuple[re.Pattern[str], ...]
    codes: tuple[int, ...]
    unless: tuple[str, ...]
    cause: str
    fix: str
    source: str
    example: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    entries: tuple[Entry, ...]
    codes: dict[int, str]
    data_types: dict[int, str]
    ranges: dict[str, tuple[int, int]]

    def entry(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.id == name)


@dataclass(frozen=True, slots=True)
class Explanation:
    """`line` counts from 1; it is 0 for a code, which comes without text."""

    id: str
    cause: str
    fix: str
    source: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.cause} ({self.id}: {self.source})"


@dataclass(frozen=True, slots=True)
class Code:
    """A number that QNN or FastRPC gave. `name` is empty when only its range is known."""

    code: int
    component: str
    name: str

    @property
    def known(self) -> bool:
        return bool(self.name)

    def __str__(self) -> str:
        number = f"{self.code:#x}" if self.code > 0xFFFF else f"{self.code} ({self.code:#x})"
        return f"{number}: {self.name or 'not in the table'} [{self.component or 'no known component'}]"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    subject: str
    explanations: tuple[Explanation, ...]
    codes: tuple[Code, ...]
    data_types: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    """What was measured of the operators in it, where they lose accuracy."""

    @property
    def explained(self) -> bool:
        return bool(self.explanations or self.operators) or any(code.known for code in self.codes)


def diagnose(text: str, subject: str = "") -> Diagnosis:
    """Everything known about a log: explanations in the order of the lines, then the numbers in it."""
    return Diagnosis(subject, tuple(explain(text)), tuple(codes_in(text)), tuple(data_types_in(text)))


def explain(text: str) -> list[Explanation]:
    """The failures found in a log, nearest to the cause, in the order in which they appear."""
    text = DECORATION.sub("", text)
    explanations: dict[str, Explanation] = {}
    for entry in knowledge().entries:
        matches = [match for pattern in entry.patterns if (match := pattern.search(text))]
        if matches:
            first = min(matches, key=lambda match: match.start())
            explanations[entry.id] = _explanation(entry, text, first.start())
    kept = [
        shown
        for name, shown in explanations.items()
        if not explanations.keys() & set(knowledge().entry(name).unless)
    ]
    return sorted(kept, key=lambda shown: shown.line)


def nearest(text: str) -> Explanation | None:
    """The failure that a log shows first, if any is known."""
    return next(iter(explain(text)), None)


def causes(text: str) -> str:
    """The known failures in a log and their fixes, as further lines of a message; empty if there are none."""
    return "".join(f"\n  {shown}\n  fix: {shown.fix}" for shown in explain(text))


def explain_code(number: int) -> Diagnosis:
    """What one number means, and the failures it is known from."""
    code = code_named(number)
    entries = [entry for entry in knowledge().entries if code.code in entry.codes]
    shown = tuple(Explanation(e.id, e.cause, e.fix, e.source, 0, "") for e in entries)
    return Diagnosis(str(code), shown, (code,))


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
    numbers = dict.fromkeys(int(digits, 0) for digits in CODE_IN_TEXT.findall(text))
    codes = dict.fromkeys(code_named(number) for number in numbers)
    return [code for code in codes if code.known]


def data_type_name(number: int) -> str:
    """QNN's own name of a tensor's data type, or the number in hexadecimal if it is not in the table."""
    return knowledge().data_types.get(number, f"{number:#x}")


def with_names_of_data_types(text: str) -> str:
    """The same text; numbers that stand for data types are replaced by their names."""

    def named(line: re.Match[str]) -> str:
        return re.sub(r"0x[0-9a-fA-F]{1,8}\b", lambda number: data_type_name(int(number[0], 16)), line[0])

    return DATA_TYPES_IN_TEXT.sub(named, text)


def data_types_in(text: str) -> list[str]:
    """The data types that a log gives as numbers, each once, with their names."""
    numbers = dict.fromkeys(
        int(number, 16) for match in DATA_TYPES_IN_TEXT.finditer(text) for number in match.groups() if number
    )
    known = knowledge().data_types
    return [f"{number:#x}: {known[number]}" for number in numbers if number in known]


@cache
def knowledge() -> Knowledge:
    from pydantic import Field

    from provisioning.base.documents import Model, load

    class Row(Model):
        id: str
        patterns: tuple[str, ...]
        codes: tuple[int, ...] = ()
        unless: tuple[str, ...] = ()
        cause: str
        fix: str
        source: str
        example: str

    class Table(Model):
        schema_: int = Field(alias="schema")
        entry: tuple[Row, ...]
        ranges: dict[str, tuple[int, int]]
        codes: dict[str, str]
        data_types: dict[str, str]

    table = load(MANIFEST, Table)
    entries = tuple(
        Entry(
            row.id,
            tuple(_compiled(row.id, pattern) for pattern in row.patterns),
            row.codes,
            row.unless,
            row.cause,
            row.fix,
            row.source,
            row.example.strip("\n"),
        )
        for row in table.entry
    )
    names = [entry.id for entry in entries]
    for entry in entries:
        for other in entry.unless:
            if other not in names:
                raise ManifestError(
                    MANIFEST, f"entry {entry.id}: unless", expected="the id of an entry", found=repr(other)
                )
        if names.count(entry.id) > 1:
            raise ManifestError(MANIFEST, "entry", expected="ids used once", found=f"{entry.id!r} twice")
    return Knowledge(entries, _by_number(table.codes), _by_number(table.data_types), table.ranges)


def _by_number(names: dict[str, str]) -> dict[int, str]:
    return {int(number, 0): name for number, name in names.items()}


def _explanation(entry: Entry, text: str, start: int) -> Explanation:
    begin = text.rfind("\n", 0, start) + 1
    end = text.find("\n", start)
    line = text[begin : end if end >= 0 else len(text)].strip()
    number = text.count("\n", 0, start) + 1
    return Explanation(entry.id, entry.cause, entry.fix, entry.source, number, _abbreviated(line))


def _abbreviated(line: str, width: int = 200) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ManifestError(
            MANIFEST, f"entry {name}: patterns", expected="a regular expression", found=str(error)
        ) from error
