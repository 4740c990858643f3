"""The text of logs as people have them, without what is put around lines, and whole where it was wrapped."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from provisioning.base.patterns import Pattern

TROUBLE = Pattern(
    r"(?i)error|fail|fatal|denied|abort|exception|cannot|can't|could not|\bunable|not found|no such"
    r"|no module named|unsupported|segmentation|killed|refused|invalid|mismatch|\bnan\b|<E>|crash"
    r"|\bSIG(?:SEGV|ABRT|ILL|BUS|FPE|KILL|TERM|TRAP|SYS|INT|PIPE|HUP|QUIT|XCPU|XFSZ)\b"
    r"|did(?:n.t| not) (?:find|claim|match)|too (?:long|large|small|many|old)|exceed|requires a newer"
    r"|unimplemented|panicked|segfault|\b0xC0000(?:[1-9a-f]..|0[1-9a-f].|00[1-9a-f])\b"
    r"|(?:not|n't) support|is missing|timed? ?out|\bn?err\W{1,3}(?:0x|-)?[1-9a-f]"
    r"|\b(?:status|returned|returns|ret|rc)\b(?: (?:status|code|value))?[ :=]{1,3}-[1-9]"
    r"|报错|失败|错误|异常|乱码|崩溃|闪退|卡死|不支持|不足|无法|找不到|超时"
    r"|\", line \d+, in |-\[ cut here \]-|^ \* .{1,200}\.so\)$|^\s*#\d\d "
)
"""What a log has that tells of any trouble at all."""
DECORATION = re.compile(
    rb"^(?:\xef\xbb\xbf)?\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z(?:\] | \d\d[OE][ +]| )"
    rb"|\x1b\[[0-9;]*[A-Za-z]|\r(?=\n)",
    re.MULTILINE,
)
"""What CI systems and terminals put around a line: the time stamps of GitHub, Jenkins and GitLab, colours. It
never goes back."""
DECORATED = (b"Z ", b"Z] ", b"\x1b[", b"\r\n")
"""One of these is in each decoration."""
SOURCE = re.compile(
    rb"^(?:(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d+ +"
    rb"(?:\d+ +\d+ [VDIWEFS] [^:\n]{0,60}: ?|\d+-\d+ .{1,120}? [VDIWEF]  )"
    rb"|[VDIWEF]/[^(\n]{1,60}\( *\d+\): ?"
    rb"|(?:<\d+>)?\[ *\d+\.\d{6}\](?:\[ *[TC]\d+\])? "
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w./@-]+(?:\[\d+\])?: )",
    re.MULTILINE,
)
"""What logcat (in its columns, Android Studio's and the short form), dmesg and syslog put before a line."""
UNSEEN = re.compile(rb"(\xe2\x80[\x8b-\x8f]|\xef\xbb\xbf)|\xc2\xa0|\xe2\x80\xaf")
"""Characters of web pages that nobody sees: some without a width, and blanks that do not break."""
MARGIN = re.compile(rb"(?:> ?)+|[\w.-]+ +\| ?|[ \t]+")
"""What may stand before every line: the mark of a quotation, the name of a container, an indent."""
MARGINS = 3
"""So many of them may stand one in another."""
ENTITY = re.compile(rb"&(?:amp;)?(lt|gt|quot|apos|nbsp|amp|#0?39|#x27|#34);")
ENTITIES = {
    b"lt": b"<",
    b"gt": b">",
    b"quot": b'"',
    b"#34": b'"',
    b"apos": b"'",
    b"#39": b"'",
    b"#039": b"'",
    b"#x27": b"'",
    b"nbsp": b" ",
    b"amp": b"&",
}
"""How a web page writes some characters; what was escaped twice is read too."""

PIECE = 96 << 10
"""A log is read in pieces of so many bytes."""
OVERLAP = 6 << 10
"""So much of a piece, or a little less, is in the next one too, so that what lies across both is found."""
JSON_LINE = re.compile(rb'^\{".*', re.MULTILINE)
UNESCAPED = {rb"\"": b'"', rb"\n": b"\f", rb"\t": b"\t", rb"\/": b"/", rb"\\": b"\\"}
"""What is escaped in a line of JSON. A newline becomes white space that begins no line, so that lines keep
their numbers."""
ESCAPE = re.compile(rb'\\["nt/\\]')
TERMINAL_WIDTHS = range(60, 251)
SAMPLE = 8 << 10
"""So much of a piece tells that no terminal cut it."""
SEVERAL = 10
"""Hardly more lines of a long log are its longest by chance."""
LITTLE = 5
"""A line that is shorter by so much is nearly as long."""
SCREEN = 30
"""Lines of a terminal, which one line of a log seldom fills."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


English = Callable[[bytes], bytes]
"""What puts in English what programs say in other languages."""


@dataclass(frozen=True, slots=True)
class Piece:
    text: bytes
    line: int
    """The number of its first line."""
    start: int
    """Where to begin: 1 in the middle of a line, whose byte before tells that it is no beginning."""


def pieces(log: Readable, english: English) -> Iterator[Piece]:
    """The whole log; each piece begins with the last lines of the one before, or within its last line. A
    piece comes again with whole lines if a terminal cut them. A small log does if they were wrapped in any
    way, and without what names a line's source."""
    kept, line, start = b"", 1, 0
    for block in _blocks(log):
        text = kept + block
        plain = plain_text(text, english)
        if not start:
            plain = _without_margin(plain)
        yield Piece(plain, line, start)
        if line == 1 and len(text) < PIECE:
            whole = list(_unwrapped(plain))
            again = dict.fromkeys([*whole, *map(_without_source, (plain, *whole))])
            yield from (Piece(other, line, start) for other in again if other)
        elif not start and (joined := _uncut(plain)):
            yield Piece(joined, line, start)
        cut = max(0, len(text) - OVERLAP)
        newline = text.find(b"\n", cut)
        begin, start = (newline + 1, 0) if newline >= 0 else (max(0, cut - 1), 1)
        line += text.count(b"\n", 0, begin)
        kept = text[begin:]


def _blocks(log: Readable) -> Iterator[bytes]:
    """A log as UTF-8; Windows' shell writes UTF-16."""
    block = log.read(PIECE)
    wide = next((mark for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) if block.startswith(mark)), None)
    if wide is None:
        while block:
            yield block
            block = log.read(PIECE)
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while block:
        yield decoder.decode(block).encode("utf-8", "replace")
        block = log.read(PIECE)


def plain_text(text: bytes, english: English) -> bytes:
    """Without what is put around its lines, in English, with the same number of lines."""
    if any(mark in text for mark in DECORATED):
        text = DECORATION.sub(b"", text)
    if b"&" in text:
        text = ENTITY.sub(lambda found: ENTITIES[found[1]], text)
    if b'{"' in text:
        text = JSON_LINE.sub(lambda row: ESCAPE.sub(lambda found: UNESCAPED[found[0]], row[0]), text)
    if not text.isascii():
        text = UNSEEN.sub(lambda found: b"" if found[1] else b" ", text)
    return english(text)


def _without_margin(text: bytes) -> bytes:
    """The same text without what stands before each of its lines. The last may end in the midst of that."""
    for _ in range(MARGINS):
        if not MARGIN.match(text.lstrip(b"\n")):
            break
        lines = text.split(b"\n")
        *filled, last = [line for line in lines if line.strip()] or [b""]
        margins = (found[0] if found else b"" for found in map(MARGIN.match, filled))
        margin = min(margins, key=len, default=b"")
        if not margin or TROUBLE.search(margin) or not last.startswith(margin[: len(last)]):
            break
        if not all(line.startswith(margin) for line in filled):
            break
        text = b"\n".join(line.removeprefix(margin) for line in lines)
    return text


def _without_source(text: bytes) -> bytes:
    """Nothing if no line names its source. A message of several lines is as its program wrote it."""
    bare, often = SOURCE.subn(b"", text)
    return bare if often else b""


def _unwrapped(text: bytes) -> Iterator[bytes]:
    """The same text with whole lines, if they were cut at the width of a terminal, or between words to fit a
    width. The newlines come behind the line, so that the next lines keep their numbers."""
    lines = text.split(b"\n")
    width = max(map(len, lines))
    if width not in TERMINAL_WIDTHS:
        return
    cut = [len(line) == width for line in lines[:-1]]
    # The next word did not fit in.
    full = [
        bool(line and _first_word(after)) and len(line) + 1 + len(_first_word(after)) > width
        for line, after in pairwise(lines)
    ]
    for between, goes_on in ((b"", cut), (b" ", full)):
        if any(goes_on):
            yield _joined(lines, between, goes_on)


def _first_word(line: bytes) -> bytes:
    """Nothing of an indented line, which begins anew."""
    return line.partition(b" ")[0]


def _uncut(text: bytes) -> bytes:
    """The same text with whole lines if a terminal cut several of them, else nothing."""
    # Most logs have a longer line among their first.
    if max(map(len, text[:SAMPLE].split(b"\n"))) >= TERMINAL_WIDTHS.stop:
        return b""
    lines = text.split(b"\n")
    lengths = list(map(len, lines))
    width = max(lengths)
    if width not in TERMINAL_WIDTHS or lengths.count(width) <= SEVERAL:
        return b""
    # Where nothing cuts them, lines that are little shorter are as many.
    if lengths.count(width) <= sum(width - LITTLE <= length < width for length in lengths):
        return b""
    cut = [length == width for length in lengths[:-1]]
    # A table's rows are all of one length.
    longest = max(len(run) for run in bytes(cut).split(b"\0"))
    return _joined(lines, b"", cut) if longest <= SCREEN else b""


def _joined(lines: list[bytes], between: bytes, goes_on: list[bool]) -> bytes:
    whole, held = list[bytes](), list[bytes]()
    for line, more in zip(lines, [*goes_on, False], strict=True):
        held.append(line)
        if not more:
            whole += [between.join(held), *[b""] * (len(held) - 1)]
            held.clear()
    return b"\n".join(whole)
