"""What is known of a log or a number: the earliest cause, who speaks, and what to collect; and the text of a
log as people have it, without what is put around lines."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import NamedTuple, Protocol

from ci.diagnose.rules import (
    Code,
    FailureRule,
    LogPattern,
    Rank,
    TextMatch,
    code_named,
    failure_rules,
    table,
)

DATA_TYPES = LogPattern(r"(?i)data ?types?\b.*?(0x[0-9a-f]{1,8})\b(?:.*?(0x[0-9a-f]{1,8})\b)?", blanks=False)
CODE_NAME = LogPattern(r"\b(QNN_[A-Z]+(?:_[A-Z]+)*_ERROR_[A-Z_]+)\b")
COLLECT = "the command, its whole output with the verbose option, and the versions of the programs in it"
LONGEST = 200
MODELS = "models"
"""The family of the rules about a model and what is written in it."""


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
        return f"{self.cause} ({self.id}: {self.source})" if self.public else f"{self.cause} ({self.id})"

    @property
    def cause_and_text(self) -> str:
        """The cause, and the line that tells of it."""
        return f"{self.cause.rstrip('.')}: {self.text}"

    @property
    def public(self) -> bool:
        """Whether the source has an address; a page of ours may not be there."""
        return "://" in self.source


@dataclass(frozen=True, slots=True)
class Diagnosis:
    subject: str
    explanations: tuple[Explanation, ...] = ()
    """The causes that were found; for a log only the one that is nearest to the cause."""
    codes: tuple[Code, ...] = ()
    data_types: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    """What was measured of the operator that was asked for."""
    told_by: str = ""
    """The program that speaks of trouble; empty if none is known, or there is no trouble."""
    collect: str = ""
    """What to collect next."""
    trouble: tuple[str, ...] = ()
    """The first lines that tell of trouble."""
    lines: int = 0
    harmless: int = 0
    """How many lines look like trouble and are none."""
    later: tuple[Explanation, ...] = ()
    """What else was found in the log: most often caused by the first, so that its fix would mislead."""

    @property
    def explained(self) -> bool:
        """Whether nothing is left to find out; so is a log without trouble."""
        if self.explanations or self.operators:
            return True
        return any(code.name and not code.general for code in self.codes) or bool(
            self.lines and not self.trouble
        )


def diagnose_log(log: Readable, subject: str) -> Diagnosis:
    """Return what is known of a log. One without a line of trouble is healthy, whatever rules match."""
    text = read_log_text(log)
    if not text.trouble:
        return Diagnosis(subject, lines=text.lines, harmless=text.harmless)
    explanations = _explanations(text)
    first = explanations[0] if explanations else None
    heard = next((row for row in table().speakers if row.pattern.search(text.trouble)), None)
    if first and (
        nearer := next((row for row in table().speakers if row.pattern.search(first.text.encode())), None)
    ):
        heard = nearer
    return Diagnosis(
        subject,
        (first,) if first else (),
        tuple(dict.fromkeys(code for _, code in _codes(text))),
        tuple(_data_types(text)),
        told_by=heard.name if heard else "",
        collect=heard.collect if heard else COLLECT,
        trouble=tuple(_abbreviate(line) for line in _telling(text.trouble.splitlines())[:3]),
        lines=text.lines,
        harmless=text.harmless,
        later=tuple(explanations[1:]),
    )


FRAME = re.compile(rb"Traceback \(most recent|^\s*File \".*\", line \d+, in ")


def _telling(trouble: list[bytes]) -> list[bytes]:
    """Return the lines that say what happened, before those of a traceback that only lead to it."""
    return sorted(trouble, key=lambda line: FRAME.search(line) is not None)


class Hit(NamedTuple):
    """A line of the log that a rule explains."""

    line: int
    rule: FailureRule
    text: bytes


def _explanations(text: LogText) -> list[Explanation]:
    """Return what explains the log, the nearest to its cause first."""
    hits_by_rule = _hits_of_texts(text)
    for rule_id, hit in _hits_of_numbers(text).items():
        # What a rule says of a text is more than what it says of a number.
        hits_by_rule.setdefault(rule_id, hit)
    hits = [hit for hit in hits_by_rule.values() if hits_by_rule.keys().isdisjoint(hit.rule.unless)]
    hits.sort(key=lambda hit: (hit.rule.rank, hit.line, not hit.rule.decided))
    # Of a form or an ending only the first is told, and only where nothing else is.
    ends = [hit for hit in hits if hit.rule.rank >= Rank.end]
    shown = [hit for hit in hits if hit not in ends] or ends[:1]
    return [_explanation(hit.rule, hit.line, hit.text) for hit in shown]


def _hits_of_texts(text: LogText) -> dict[str, Hit]:
    """Find the first line that fits the patterns of each rule, by the rule's id."""
    logs = [text]
    if (without_sources := text.remove_sources()) is not None:
        logs.append(without_sources)
    hits: dict[str, Hit] = {}
    for rule in failure_rules().values():
        for log in logs:
            start = _first(rule, log)
            if start is None or not all(pattern.search(log.text) for pattern in rule.also):
                continue
            hit = Hit(log.line(start), rule, text.text and log.line_at(start))
            if rule.id not in hits or hit.line <= hits[rule.id].line:
                hits[rule.id] = hit
    return hits


def _hits_of_numbers(text: LogText) -> dict[str, Hit]:
    """Find the first line with an error number of each rule, by the rule's id."""
    hits: dict[str, Hit] = {}
    for (line, words), code in _codes(text):
        for rule in failure_rules().values():
            if rule.rank in (Rank.meaning, Rank.form) and code.number in rule.codes:
                hits.setdefault(rule.id, Hit(line, rule, words))
    return hits


def _first(rule: FailureRule, log: LogText) -> int | None:
    """Return where the first match begins that counts."""
    best: int | None = None
    against = rule.unless_line
    for pattern in rule.patterns:
        for match in pattern.finditer(log.text):
            start = match.start()
            if best is not None and start >= best:
                break
            if against is None or not against.search(log.line_at(start)):
                best = start
                break
    return best


def _explanation(rule: FailureRule, line: int = 0, text: bytes = b"") -> Explanation:
    words = _abbreviate(text)
    return Explanation(rule.id, rule.cause, rule.fix, rule.source, line, words, rule.decided)


def _abbreviate(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _codes(log: LogText) -> list[tuple[tuple[int, bytes], Code]]:
    """The numbers of programs, with their lines. One that two of them could have given is the first's that
    knows it."""
    by_place = dict[int, Code]()
    for row in table().numbers:
        for match in row.pattern.finditer(log.text):
            for start, number in _numbers_in(match):
                if (code := row.code(number)).name:
                    by_place.setdefault(start, code)
    numbers = {name: number for number, name in table().codes.items()}
    for match in CODE_NAME.finditer(log.text):
        name = log.text[match.start() : match.end()].decode("ascii")
        if name in numbers:
            by_place[match.start()] = code_named(numbers[name])
    return [((log.line(start), log.line_at(start)), by_place[start]) for start in sorted(by_place)]


def _numbers_in(match: TextMatch) -> Iterator[tuple[int, int]]:
    """Yield where each number begins, and the number."""
    for group, digits in enumerate(match.groups(), 1):
        if digits:
            yield match.start(group), int(digits, 16 if b"x" in digits.lower() else 10)


def _data_types(log: LogText) -> list[str]:
    numbers = (number for match in DATA_TYPES.finditer(log.text) for _, number in _numbers_in(match))
    names = table().data_types
    return [f"{number:#x}: {names[number]}" for number in dict.fromkeys(numbers) if number in names]


def read(text: str | bytes, subject: str = "") -> Diagnosis:
    """Everything known about a text."""
    return diagnose_log(BytesIO(text.encode("utf-8", "replace") if isinstance(text, str) else text), subject)


def nearest(text: str) -> Explanation | None:
    """The failure that a log shows first, if any is known."""
    return next(iter(read(text).explanations), None)


def failure_of_model(text: str) -> Explanation | None:
    """Find the first failure in which torch or ExecuTorch cannot load, export, quantize or lower a model."""
    diagnosis = read(text)
    rows = (*diagnosis.explanations, *diagnosis.later)
    return next((row for row in rows if failure_rules()[row.id].family == MODELS), None)


def causes(text: str) -> str:
    """Return the first known failure in a log and its fix, as further lines of a message; empty if there is
    none."""
    return f"\n  {row}\n  fix: {row.fix}" if (row := nearest(text)) else ""


def explain_number(number: int) -> Diagnosis:
    """Explain what a number means to each program that has it, then the failures that it is known from."""
    code = code_named(number)
    readings = (row.code(number) for row in table().numbers if row.names or row.offset)
    codes = [code for code in dict.fromkeys([code, *readings]) if code.name] or [code]
    numbers = {code.number for code in codes}
    rules = [rule for rule in failure_rules().values() if not numbers.isdisjoint(rule.codes)]
    rules.sort(key=lambda rule: rule.rank is not Rank.meaning)
    subject = str(codes[0]) if len(codes) == 1 else f"{number} ({number:#x})"
    explanations = tuple(_explanation(rule) for rule in rules)
    return Diagnosis(subject, explanations, tuple(replace(code, general=False) for code in codes))


def explain_rule(name: str) -> Explanation | None:
    """A known failure by the id of its rule."""
    rule = failure_rules().get(name)
    return _explanation(rule) if rule else None


def data_type_name(number: int) -> str:
    """QNN's own name of a tensor's data type, or the number in hexadecimal if it is not in the table."""
    return table().data_types.get(number, f"{number:#x}")


def name_data_types(text: str) -> str:
    """Replace numbers that stand for data types by the names of these."""
    data, parts, end = text.encode("utf-8", "replace"), list[bytes](), 0
    for match in DATA_TYPES.finditer(data):
        for group, digits in enumerate(match.groups(), 1):
            if digits:
                parts += [data[end : match.start(group)], data_type_name(int(digits, 16)).encode()]
                end = match.start(group) + len(digits)
    return b"".join([*parts, data[end:]]).decode("utf-8")


# The text of a log


DECORATION = re.compile(
    rb"^(?:\xef\xbb\xbf)?\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z(?:\] | \d\d[OE][ +]| )"
    rb"|^(?:> ?|[\w.-]+ +\| )|\x1b\[[0-9;]*[A-Za-z]|\r(?=\n)",
    re.MULTILINE,
)
"""Matches the time stamps of GitHub, Jenkins and GitLab, the marks of a quotation or container, and
colours."""
SOURCE = re.compile(
    rb"^(?:(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d+ +\d+ +\d+ [VDIWEFS] [^:\n]{0,60}: ?"
    rb"|[VDIWEF]/[^(\n]{1,60}\( *\d+\): ?"
    rb"|(?:<\d+>)?\[ *\d+\.\d{6}\](?:\[ *[TC]\d+\])? "
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w./@-]+(?:\[\d+\])?: )",
    re.MULTILINE,
)
"""What logcat, dmesg and syslog put before a line."""
ENTITY = re.compile(rb"&(lt|gt|quot|amp|#39);")
ENTITIES = {b"lt": b"<", b"gt": b">", b"quot": b'"', b"amp": b"&", b"#39": b"'"}
"""How a web page writes some characters."""
CONFIGURE_LOG = b"\nevents:\n"
"""CMake's own log has this near its beginning: what it tries may fail, and that is an answer."""
TRIED = re.compile(
    rb"^    kind: \"(?:try_compile|try_run)-v\d+\"\n(?:(?:      ?.*)?\n|    [a-z].*\n)*", re.MULTILINE
)

BLOCK = 4 << 20
SMALL = 64 << 10
"""A log of up to so many bytes is searched whole; of a longer one only the lines around trouble are."""
MOST = 4 << 20
"""No more than so many bytes of a long log are searched."""
CONTEXT = 5
ENOUGH = 8
"""So many lines that differ only in digits are searched."""
DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class LogText:
    """What of a log is searched, and which lines tell of trouble."""

    text: bytes = b""
    numbers: list[int] = field(default_factory=list)
    """The number in the log of each line of the text."""
    rows: list[bytes] = field(default_factory=list)
    """The lines of the text, with what names their sources."""
    lines: int = 0
    trouble: bytes = b""
    """The lines that tell of trouble, each shape of them a few times."""
    harmless: int = 0
    """How many lines look like trouble and are none."""

    def line(self, start: int) -> int:
        return self.numbers[self.text.count(b"\n", 0, start)]

    def line_at(self, start: int) -> bytes:
        return self.rows[self.text.count(b"\n", 0, start)]

    def remove_sources(self) -> LogText | None:
        """Remove the names of sources that logcat or the like puts before each line: a message of several
        lines is then as its program wrote it."""
        bare, sources = SOURCE.subn(b"", self.text)
        return LogText(bare, self.numbers, self.rows) if sources else None


def read_log_text(log: Readable) -> LogText:
    result, counts, is_small = LogText(), Counter[bytes](), True
    for block, last in _blocks(log):
        lines = block.split(b"\n")
        numbers = range(result.lines + 1, result.lines + len(lines) + 1)
        result.lines += len(lines)
        is_small = is_small and last and len(block) <= SMALL
        places, harmless = set[int](), set[int]()
        for place in _suspicious(block):
            line = lines[place]
            if is_harmless(line):
                harmless.add(place)
                continue
            shape = line.translate(DIGITS)
            counts[shape] += 1
            if counts[shape] <= ENOUGH:
                places.add(place)
                result.trouble += line[:2000] + b"\n"
        result.harmless += len(harmless)
        if is_small:
            rows = list(range(len(lines)))
        else:
            near = {row for place in places for row in range(place - CONTEXT, place + CONTEXT + 1)}
            rows = sorted(place for place in near if 0 <= place < len(lines))
        if len(result.text) < MOST:
            result.text += b"".join((b"" if place in harmless else lines[place]) + b"\n" for place in rows)
            result.numbers += [numbers[place] for place in rows]
    result.numbers.append(result.lines + 1)
    result.rows = result.text.split(b"\n")
    return result


def _suspicious(text: bytes) -> Iterator[int]:
    """The places of the lines that look like trouble."""
    place, mark, end = 0, 0, -1
    for match in table().trouble.finditer(text):
        start = match.end() - 1
        if start <= end:
            continue
        place += text.count(b"\n", mark, start)
        mark = start
        yield place
        end = text.find(b"\n", start)
        if end < 0:
            return


def tells_of_trouble(line: bytes) -> bool:
    return table().trouble.search(line) is not None and not is_harmless(line)


def is_harmless(line: bytes) -> bool:
    """Whether a line that looks like trouble is none."""
    if table().harmless.search(line):
        return True
    while match := table().phrases.search(line):
        line = line[: match.start()] + b"," + line[match.end() :]
    return table().trouble.search(line) is None


def _blocks(log: Readable) -> Iterator[tuple[bytes, bool]]:
    """A log in parts of whole lines, as it is read, and whether it is the last. Windows'
    shell writes UTF-16."""
    block = log.read(BLOCK)
    decoder = None
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
    is_cmake = CONFIGURE_LOG in block[:100]
    rest = b""
    while block:
        more = log.read(BLOCK)
        text = rest + (decoder.decode(block).encode("utf-8", "replace") if decoder else block)
        cut = text.rfind(b"\n") + 1 or len(text) if more else len(text)
        text, rest, block = text[:cut], text[cut:], more
        if is_cmake:
            text = TRIED.sub(lambda event: b"\n" * event[0].count(b"\n"), text)
        yield plain_text(text).removesuffix(b"\n"), not more


def plain_text(text: bytes) -> bytes:
    """Remove what is put around the lines and translate known messages to English. The number of lines
    stays."""
    text = DECORATION.sub(b"", text)
    if b"&" in text:
        text = ENTITY.sub(lambda match: ENTITIES[match[1]], text)
    if not text.isascii():
        text = text.replace(b"\xc2\xa0", b" ")
        for words, english in table().english.items():
            text = text.replace(words, english)
    return text
