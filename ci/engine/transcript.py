"""What a process prints: shown as it comes, and kept in a file.

Where our own output is a terminal the process gets one too, so that it draws its bars and colours as it would
alone; the file holds what was to be seen at the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LINGER = 0.5
"""Seconds for which a process that has ended is still read: something it started may hold its output open."""

LARGEST = 32 << 20
"""Beyond this a log is kept as it was printed."""

_CONTROL = re.compile(r"\x1b\[([0-9;?]{0,16})([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|[\r\n]")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Descriptors for the process."""

    stdout: int
    stderr: int


@contextmanager
def transcript(log: Path, shown: tuple[int, int] = (1, 2)) -> Iterator[Outputs]:
    """Inside, start one process with these outputs and wait for it; what it printed is in the file then."""
    one = _same(*shown)
    channels = [_Channel(descriptor) for descriptor in shown[: 1 if one else 2]]
    ended, end = os.pipe()
    with log.open("wb") as kept:
        copying = threading.Thread(target=_copy, args=[channels, kept.fileno(), ended], daemon=True)
        copying.start()
        try:
            yield Outputs(channels[0].theirs, channels[-1].theirs)
        finally:
            for each in channels:
                os.close(each.theirs)
            os.close(end)
            copying.join()
            os.close(ended)
    if log.stat().st_size <= LARGEST:
        text = log.read_bytes().decode("utf-8", "replace")
        log.write_text(as_seen(text), encoding="utf-8")


def as_seen(text: str) -> str:
    """What a terminal would show at the end: bars that were drawn over are gone, and so are colours."""
    lines, row, column, place = [""], 0, 0, 0
    for found in _CONTROL.finditer(text):
        column = _put(lines, row, column, text[place : found.start()])
        place = found.end()
        count = int(found[1]) if found[1] and found[1].isdecimal() else 0
        if found[0] == "\r":
            column = 0
        elif found[0] == "\n":
            row, column = row + 1, 0
            if row == len(lines):
                lines.append("")
        elif found[2] == "A":
            row = max(0, row - max(1, count))
        elif found[2] == "B":
            row = min(len(lines) - 1, row + max(1, count))
        elif found[2] == "K":
            lines[row] = "" if count == 2 else lines[row][:column]
        elif found[2] == "J" and not count:
            lines[row:] = [lines[row][:column]]
    _put(lines, row, column, text[place:])
    while len(lines) > row + 1 and not lines[-1]:
        lines.pop()
    return "\n".join(line.rstrip() for line in lines)


def _put(lines: list[str], row: int, column: int, text: str) -> int:
    line = lines[row].ljust(column)
    lines[row] = line[:column] + text + line[column + len(text) :]
    return column + len(text)


class _Channel:
    """One output: `theirs` for the process, `ours` to read it from, `shown` where it goes."""

    def __init__(self, shown: int) -> None:
        self.shown: int | None = shown
        try:
            self.ours, self.theirs = _terminal_like(shown) if os.isatty(shown) else os.pipe()
        except OSError:
            # A machine without /dev/pts has no terminals to give.
            self.ours, self.theirs = os.pipe()

    def take(self) -> bytes:
        """What has come; nothing when nobody can write any more, which a terminal calls an error."""
        try:
            return os.read(self.ours, 1 << 16)
        except OSError:
            return b""

    def show(self, block: bytes) -> None:
        if self.shown is None:
            return
        try:
            _write(self.shown, block)
        except OSError:
            # Whoever read our output left; the process and its log go on.
            self.shown = None


def _terminal_like(shown: int) -> tuple[int, int]:
    ours, theirs = os.openpty()
    # The real terminal does what has to be done to line ends.
    tty.setraw(theirs)
    size = fcntl.ioctl(shown, termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs


def _copy(channels: list[_Channel], log: int, ended: int) -> None:
    ours = {channel.ours: channel for channel in channels}
    watched: list[int] = [ended]
    deadline: float | None = None
    while ours:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select([*ours, *watched], [], [], left)[0]
        if ended in ready:
            watched, deadline = [], time.monotonic() + LINGER
        elif not ready or left == 0:
            break
        for each in ready:
            if each == ended:
                continue
            if block := ours[each].take():
                with contextlib.suppress(OSError):
                    _write(log, block)
                ours[each].show(block)
            else:
                os.close(ours.pop(each).ours)
    for channel in ours.values():
        os.close(channel.ours)


def _write(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def _same(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
