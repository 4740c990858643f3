"""Progress of long work: a bar on a terminal, plain lines elsewhere, or nothing.

One object serves any number of threads. Each thread has its own piece of work, from `start` to `finish`;
a thread that never called `start` (a worker of a pool) advances the piece that was started last.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from provisioning.base.screen import Display, display_for, new_bar
from provisioning.base.units import roughly, seconds, size

QUIET_FOR = 2.0
"""Work that ends sooner than this shows one line, at its end."""
EVERY = 5.0
"""Seconds between two plain lines of one piece of work."""
DRAWN_EVERY = 0.1
"""Seconds between two states of a bar."""
SILENT_FOR = 10.0
"""The longest silence, in seconds, of work whose length is not known, where no bar is drawn."""


@dataclass(slots=True)
class _Piece:
    name: str
    total: int | None
    began_with: int
    done: int
    began: float
    spoke: float
    """When its last plain line was due."""
    bar: int | None = None
    """The number of its bar, once it has one."""


class Progress:
    """Shows long work: as bars with rate and time left on `display`, else as plain lines in `out`. Without
    either it is silent."""

    def __init__(self, out: TextIO | None = None, display: Display | None = None) -> None:
        self._out, self._display = out, display
        self._pieces: dict[int, _Piece] = {}
        self._lock = threading.RLock()

    def start(self, name: str, total: int | None, done: int = 0) -> None:
        with self._lock:
            self._ended_piece()
            now = time.monotonic()
            spoke = now + QUIET_FOR - EVERY
            self._pieces[threading.get_ident()] = _Piece(name, total, done, done, began=now, spoke=spoke)

    def advance(self, count: int) -> None:
        with self._lock:
            piece = self._pieces.get(threading.get_ident())
            if piece is None and self._pieces:
                piece = next(reversed(self._pieces.values()))
            if piece is not None:
                piece.done += count
                self._show(piece, time.monotonic())

    def note(self, text: str) -> None:
        with self._lock:
            if self._display:
                self._display.print(text)
            elif self._out:
                self._out.write(text + "\n")
                self._out.flush()

    def finish(self) -> None:
        with self._lock:
            if piece := self._ended_piece():
                self.note(_ended(piece, time.monotonic()))

    def _ended_piece(self) -> _Piece | None:
        """That of this thread, without its bar."""
        piece = self._pieces.pop(threading.get_ident(), None)
        if self._display and piece and piece.bar is not None:
            self._display.remove(piece.bar)
        return piece

    def _show(self, piece: _Piece, now: float) -> None:
        if self._display is None:
            if now - piece.spoke >= EVERY:
                piece.spoke = now
                self.note(f"{piece.name}: {_under_way(piece, now)}")
        elif now - piece.began >= QUIET_FOR and (piece.bar is None or now - piece.spoke >= DRAWN_EVERY):
            piece.bar = new_bar() if piece.bar is None else piece.bar
            piece.spoke = now
            self._display.bar(piece.bar, piece.name, piece.done, piece.total, _under_way(piece, now))


SILENT = Progress()


@contextmanager
def ticking(every: float, tick: Callable[[], None]) -> Iterator[None]:
    """Call `tick` again and again, in a thread of its own, until the block ends."""
    ended = threading.Event()

    def call() -> None:
        while not ended.wait(every):
            tick()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def at_work(what: str, say: Callable[[str], None] | None = None, every: float = SILENT_FOR) -> Iterator[None]:
    """Work whose progress is not known: a bar where one can be drawn, else a line now and then."""
    display = None if say else display_for(sys.stderr)
    out, bar, began = say or Progress(sys.stderr).note, new_bar(), time.monotonic()
    if display:
        display.bar(bar, what, 0, None, "")
        every = threading.TIMEOUT_MAX
    try:
        with ticking(every, lambda: out(f"{what}: {seconds(time.monotonic() - began)} so far")):
            yield
    finally:
        if display:
            display.remove(bar)


def for_stream() -> Progress:
    """Bars where they can be drawn, else plain lines; on stderr, so that stdout is data."""
    return Progress(sys.stderr, display_for(sys.stderr))


def _under_way(piece: _Piece, now: float) -> str:
    rate = (piece.done - piece.began_with) / max(now - piece.began, 1e-6)
    text = size(piece.done)
    if piece.total:
        text += f" of {size(piece.total)} ({piece.done * 100 // piece.total} %)"
    text += f", {size(rate)}/s"
    if piece.total and rate > 0:
        text += f", {roughly((piece.total - piece.done) / rate)} left"
    return text


def _ended(piece: _Piece, now: float) -> str:
    text = f"{piece.name}: {size(piece.done)}"
    if piece.total is not None and piece.done < piece.total:
        text += f" of {size(piece.total)}, stopped"
    return f"{text} in {seconds(now - piece.began)}"
