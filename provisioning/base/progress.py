"""Progress of long work: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from provisioning.base.units import roughly, seconds, size

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


def bar_for(out: TextIO) -> Bar | None:
    """A bar where one can be drawn; None if lines of text have to do."""
    drawable = out.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    return Bar(out) if drawable else None


class Bar:
    """A bar at the bottom of a terminal, and text above it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rich: RichProgress | None = None
        self._lock = threading.RLock()

    def draw(self, name: str, amount: float, total: float | None, note: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._rich is None:
                self._rich = Progress(
                    TextColumn("{task.description}", markup=False),
                    BarColumn(),
                    TimeElapsedColumn(),
                    TextColumn("{task.fields[note]}", markup=False),
                    console=Console(file=self._out),
                    transient=True,
                )
                self._rich.add_task(name, total=total, note=note)
                self._rich.start()
            self._rich.update(self._rich.task_ids[0], completed=amount, total=total, note=note)

    def remove(self) -> None:
        """Give the terminal back."""
        with self._lock:
            if self._rich is not None:
                self._rich.stop()
                self._rich = None

    def print(self, text: str) -> None:
        """A line above the bar."""
        from rich.text import Text

        with self._lock:
            if self._rich is not None:
                # Colours stay; other escape sequences and markup are shown as text.
                self._rich.console.print(Text.from_ansi(text), soft_wrap=True)
            else:
                self._out.write(f"{text}\n")
                self._out.flush()


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
    first_amount: int
    amount: int
    start: float
    spoke: float
    """When its last plain line was due."""
    drawn: bool = False
    """Whether it has a bar."""


class Progress:
    """Shows long work, one piece after another: as a bar with rate and time left, else as lines of text in
    `out`. Without either it is silent."""

    def __init__(self, out: TextIO | None = None, bar: Bar | None = None) -> None:
        self._out, self._bar = out, bar
        self._piece: _Piece | None = None

    def start(self, name: str, total: int | None, amount: int = 0) -> None:
        self._ended_piece()
        now = time.monotonic()
        self._piece = _Piece(name, total, amount, amount, start=now, spoke=now + QUIET_FOR - EVERY)

    def advance(self, count: int) -> None:
        if piece := self._piece:
            piece.amount += count
            self._show(piece, time.monotonic())

    def note(self, text: str) -> None:
        if self._bar:
            self._bar.print(text)
        elif self._out:
            self._out.write(text + "\n")
            self._out.flush()

    def finish(self) -> None:
        if piece := self._ended_piece():
            self.note(_summary(piece, time.monotonic()))

    def _ended_piece(self) -> _Piece | None:
        """The piece that was at work, without its bar."""
        piece, self._piece = self._piece, None
        if self._bar:
            self._bar.remove()
        return piece

    def _show(self, piece: _Piece, now: float) -> None:
        if self._bar is None:
            if now - piece.spoke >= EVERY:
                piece.spoke = now
                self.note(f"{piece.name}: {_under_way(piece, now)}")
        elif now - piece.start >= QUIET_FOR and (not piece.drawn or now - piece.spoke >= DRAWN_EVERY):
            piece.drawn, piece.spoke = True, now
            self._bar.draw(piece.name, piece.amount, piece.total, _under_way(piece, now))


SILENT = Progress()


@contextmanager
def ticking(interval: float, tick: Callable[[], None]) -> Iterator[None]:
    """Call `tick` again and again, in a thread of its own, until the block ends."""
    end = threading.Event()

    def call() -> None:
        while not end.wait(interval):
            tick()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@contextmanager
def show_working(
    work: str, say: Callable[[str], None] | None = None, interval: float = SILENT_FOR
) -> Iterator[None]:
    """Work whose progress is not known: a bar where one can be drawn, else a line now and then."""
    bar = None if say else bar_for(sys.stderr)
    out, since = say or Progress(sys.stderr).note, time.monotonic()
    if bar:
        bar.draw(work, 0, None, "")
        interval = threading.TIMEOUT_MAX
    try:
        with ticking(interval, lambda: out(f"{work}: {seconds(time.monotonic() - since)} so far")):
            yield
    finally:
        if bar:
            bar.remove()


def for_stream() -> Progress:
    """Bars where they can be drawn, else plain lines; on stderr, so that stdout is data."""
    return Progress(sys.stderr, bar_for(sys.stderr))


def _under_way(piece: _Piece, now: float) -> str:
    rate = (piece.amount - piece.first_amount) / max(now - piece.start, 1e-6)
    text = size(piece.amount)
    if piece.total:
        text += f" of {size(piece.total)} ({piece.amount * 100 // piece.total} %)"
    text += f", {size(rate)}/s"
    if piece.total and rate > 0:
        text += f", {roughly((piece.total - piece.amount) / rate)} left"
    return text


def _summary(piece: _Piece, now: float) -> str:
    text = f"{piece.name}: {size(piece.amount)}"
    if piece.total is not None and piece.amount < piece.total:
        text += f" of {size(piece.total)}, stopped"
    return f"{text} in {seconds(now - piece.start)}"
