"""The text of a log as people have it: without what is put around lines, and what of it tells of trouble."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ci.diagnose.tables import table

DECORATION = re.compile(
    rb"^(?:\xef\xbb\xbf)?\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z(?:\] | \d\d[OE][ +]| )"
    rb"|^(?:> ?|[\w.-]+ +\| )|\x1b\[[0-9;]*[A-Za-z]|\r(?=\n)",
    re.MULTILINE,
)
"""Time stamps of GitHub, Jenkins and GitLab, the marks of a quotation or container, colours."""
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
"""In the head of CMake's own log: what it tries may fail, and that is an answer."""
TRIED = re.compile(
    rb"^    kind: \"(?:try_compile|try_run)-v\d+\"\n(?:(?:      ?.*)?\n|    [a-z].*\n)*", re.MULTILINE
)

BLOCK = 4 << 20
SMALL = 64 << 10
"""A log of so many bytes is searched whole; of a longer one the lines around trouble."""
MOST = 4 << 20
"""So much of a long log is searched."""
CONTEXT = 5
ENOUGH = 8
"""So many lines that differ in digits alone are searched."""
DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


# A word of trouble is one by itself, and no part of a name, a path or an option.
class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class LogText:
    """What of a log is searched, and which lines tell of trouble."""

    text: bytes = b""
    numbers: list[int] = field(default_factory=list)
    """Of each line of the text, that in the log."""
    rows: list[bytes] = field(default_factory=list)
    """The lines of the text, with what names their sources."""
    lines: int = 0
    trouble: list[int] = field(default_factory=list)
    """Numbers of lines."""
    told: bytes = b""
    """These lines, each shape of them a few times."""
    harmless: int = 0
    """How many lines look like trouble and are none."""

    def line(self, start: int) -> int:
        return self.numbers[self.text.count(b"\n", 0, start)]

    def line_at(self, start: int) -> bytes:
        return self.rows[self.text.count(b"\n", 0, start)]

    def without_sources(self) -> LogText | None:
        """The same where logcat or the like names the source of each line: a message of several lines is then
        as its program wrote it."""
        bare, often = SOURCE.subn(b"", self.text)
        return LogText(bare, self.numbers, self.rows) if often else None


def of_log(log: Readable) -> LogText:
    read, often, whole = LogText(), Counter[bytes](), True
    for block, last in _blocks(log):
        lines = block.split(b"\n")
        numbers = range(read.lines + 1, read.lines + len(lines) + 1)
        read.lines += len(lines)
        whole = whole and last and len(block) <= SMALL
        wanted, harmless = set[int](), set[int]()
        for place in _suspicious(block):
            line = lines[place]
            if is_harmless(line):
                harmless.add(place)
                continue
            read.trouble.append(numbers[place])
            shape = line.translate(DIGITS)
            often[shape] += 1
            if often[shape] <= ENOUGH:
                wanted.add(place)
                read.told += line[:2000] + b"\n"
        read.harmless += len(harmless)
        if whole:
            chosen = list(range(len(lines)))
        else:
            near = {other for place in wanted for other in range(place - CONTEXT, place + CONTEXT + 1)}
            chosen = sorted(place for place in near if 0 <= place < len(lines))
        if len(read.text) < MOST:
            read.text += b"".join((b"" if place in harmless else lines[place]) + b"\n" for place in chosen)
            read.numbers += [numbers[place] for place in chosen]
    read.numbers.append(read.lines + 1)
    read.rows = read.text.split(b"\n")
    return read


def _suspicious(text: bytes) -> Iterator[int]:
    """The places of the lines that look like trouble."""
    place, counted, end = 0, 0, -1
    for match in table().trouble.finditer(text):
        start = match.end() - 1
        if start <= end:
            continue
        place += text.count(b"\n", counted, start)
        counted = start
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
    read = log.read(BLOCK)
    decoder = None
    if read.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
    tried = CONFIGURE_LOG in read[:100]
    rest = b""
    while read:
        more = log.read(BLOCK)
        text = rest + (decoder.decode(read).encode("utf-8", "replace") if decoder else read)
        cut = text.rfind(b"\n") + 1 or len(text) if more else len(text)
        text, rest, read = text[:cut], text[cut:], more
        if tried:
            text = TRIED.sub(lambda event: b"\n" * event[0].count(b"\n"), text)
        yield plain_text(text).removesuffix(b"\n"), not more


def plain_text(text: bytes) -> bytes:
    """Without what is put around its lines, in English, with the same number of lines."""
    text = DECORATION.sub(b"", text)
    if b"&" in text:
        text = ENTITY.sub(lambda found: ENTITIES[found[1]], text)
    if not text.isascii():
        text = text.replace(b"\xc2\xa0", b" ")
        for translated, english in table().english.items():
            text = text.replace(translated, english)
    return text
