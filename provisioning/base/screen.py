"""Bars of running work: drawn on our terminal, or sent as events to the process that started us.

The gate shows the output of the stages that it starts and draws their bars. It passes each a pipe, whose
descriptor is in `QNN_CI_PROGRESS`. Each event is a line of JSON: {"bar": 1, "name": …, "done": …, "total": …,
"note": …}, {"remove": 1}, or {"log": …} for a line that belongs in the log and not on the screen.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

CHANNEL = "QNN_CI_PROGRESS"


_numbers = itertools.count(1)


def new_bar() -> int:
    """A number that no other bar of this process has."""
    return next(_numbers)


def display_for(out: TextIO) -> Display | None:
    """Where bars can be drawn; None where lines of text have to do."""
    if out is sys.stderr and (descriptor := _channel()) is not None:
        return Events(descriptor, out)
    drawable = out.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    return Screen(out) if drawable else None


Display: TypeAlias = "Screen | Events"


def channel_value(descriptor: int) -> str:
    """CHANNEL's value. A process that did not inherit the pipe may have another file under that number."""
    status = os.fstat(descriptor)
    return f"{descriptor}:{status.st_dev}:{status.st_ino}"


def _channel() -> int | None:
    value = os.environ.get(CHANNEL, "")
    try:
        descriptor = int(value.partition(":")[0])
        return descriptor if channel_value(descriptor) == value else None
    except (ValueError, OSError):
        return None


class Events:
    """Sends events to the process that shows our output; lines go there as output."""

    def __init__(self, descriptor: int, out: TextIO) -> None:
        self._descriptor, self._out = descriptor, out
        self._lock = threading.Lock()

    def bar(self, bar: int, name: str, done: float, total: float | None, note: str) -> None:
        self._send({"bar": bar, "name": name, "done": done, "total": total, "note": note})

    def remove(self, bar: int) -> None:
        self._send({"remove": bar})

    def print(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()

    def log(self, text: str) -> None:
        self._send({"log": text})

    def _send(self, event: Mapping[str, Any]) -> None:
        line = memoryview(f"{json.dumps(event)}\n".encode())
        with self._lock:
            try:
                while line and self._descriptor >= 0:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # nobody draws any more; the work continues
                self._descriptor = -1


_drawing: list[Screen] = []
"""Those of this process that have bars now."""


def say(text: str) -> None:
    """Print a line on stderr's terminal, above the bars if there are any; also from a handler of a signal."""
    # A handler that comes while stderr's buffer is written cannot use it.
    with contextlib.suppress(RuntimeError):
        if _drawing:
            _drawing[-1].print(text)
            return
    os.write(sys.stderr.fileno(), f"\n{text}\n".encode())


class Screen:
    """Bars at the bottom of a terminal, and text above them."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rows: dict[int, TaskID] = {}
        self._rich: RichProgress | None = None
        self._lock = threading.RLock()

    @property
    def drawing(self) -> bool:
        return self._rich is not None

    def bar(self, bar: int, name: str, done: float, total: float | None, note: str) -> None:
        """Add a bar, or change it."""
        with self._lock:
            if self._rich is None:
                self._rich = _rows(self._out)
                self._rich.start()
                _drawing.append(self)
            if bar not in self._rows:
                self._rows[bar] = self._rich.add_task(name, total=total, note=note)
            self._rich.update(self._rows[bar], completed=done, total=total, note=note)

    def remove(self, bar: int) -> None:
        with self._lock:
            if self._rich is not None and bar in self._rows:
                self._rich.remove_task(self._rows.pop(bar))
                if not self._rows:
                    self.clear()

    def clear(self) -> None:
        """Remove all bars, and give the terminal back."""
        with self._lock:
            self._rows.clear()
            if self._rich is not None:
                self._rich.stop()
                self._rich = None
                _drawing.remove(self)

    def print(self, text: str) -> None:
        """A line above the bars."""
        from rich.text import Text

        with self._lock:
            if self._rich is not None:
                # Colours stay; other escape sequences and markup are shown as text.
                self._rich.console.print(Text.from_ansi(text), soft_wrap=True)
            else:
                self._out.write(f"{text}\n")
                self._out.flush()

    def log(self, text: str) -> None:
        """A line for a log, which a terminal does not show."""


def _rows(out: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(file=out),
        transient=True,
    )
