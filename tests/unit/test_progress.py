from __future__ import annotations

import contextlib
import io
import os
import pty
import threading

import pytest

from provisioning.base.progress import Bars, Lines, Silent, for_stream


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_short_work_shows_one_line_at_its_end(out: io.StringIO, clock: Clock) -> None:
    lines = Lines(out, clock)
    lines.start("sdk.zip", 2_000_000)
    for _ in range(10):
        clock.now += 0.19
        lines.advance(200_000)
    lines.finish()
    assert out.getvalue() == "sdk.zip: 2 MB in 1.90 s\n"


def test_long_work_tells_of_itself_every_few_seconds(out: io.StringIO, clock: Clock) -> None:
    lines = Lines(out, clock)
    lines.start("sdk.zip", 200_000_000, 100_000_000)
    for _ in range(10):
        clock.now += 1
        lines.advance(10_000_000)
    lines.finish()
    assert out.getvalue().splitlines() == [
        "sdk.zip: 120 MB of 200 MB (60 %), 10 MB/s, 8.00 s left",
        "sdk.zip: 170 MB of 200 MB (85 %), 10 MB/s, 3.00 s left",
        "sdk.zip: 200 MB in 10 s",
    ]


def test_work_of_unknown_length_shows_what_is_known(out: io.StringIO, clock: Clock) -> None:
    lines = Lines(out, clock)
    lines.start("tree", None)
    clock.now += 3
    lines.advance(6_000)
    assert out.getvalue() == "tree: 6 kB, 2 kB/s\n"


def test_work_that_stops_early_says_so(out: io.StringIO, clock: Clock) -> None:
    lines = Lines(out, clock)
    lines.start("sdk.zip", 100)
    lines.advance(50)
    lines.finish()
    assert out.getvalue() == "sdk.zip: 50 B of 100 B, stopped in 0.00 s\n"


def test_a_new_start_replaces_the_old(out: io.StringIO, clock: Clock) -> None:
    lines = Lines(out, clock)
    lines.start("sdk.zip", 100)
    lines.advance(50)
    lines.start("sdk.zip", 100, 50)
    lines.advance(50)
    lines.finish()
    assert out.getvalue() == "sdk.zip: 100 B in 0.00 s\n"


def test_finishing_nothing_says_nothing(out: io.StringIO) -> None:
    lines = Lines(out)
    lines.advance(1)
    lines.finish()
    assert out.getvalue() == ""


def test_threads_have_work_of_their_own(out: io.StringIO, clock: Clock) -> None:
    lines = Lines(out, clock)
    ready = threading.Barrier(4)

    def work(number: int) -> None:
        lines.start(f"part {number}", number)
        ready.wait(20)
        lines.advance(number)
        ready.wait(20)
        lines.finish()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(out.getvalue().splitlines()) == [f"part {n}: {n} B in 0.00 s" for n in range(1, 5)]


def test_a_worker_advances_what_its_owner_started(out: io.StringIO, clock: Clock) -> None:
    lines = Lines(out, clock)
    lines.start("unpack", 7)
    worker = threading.Thread(target=lines.advance, args=(7,))
    worker.start()
    worker.join(20)
    lines.finish()
    assert out.getvalue() == "unpack: 7 B in 0.00 s\n"


def test_on_a_terminal_short_work_draws_no_bar(clock: Clock) -> None:
    out = Terminal()
    bars = Bars(out, clock)
    bars.start("sdk.zip", 100)
    bars.advance(100)
    bars.finish()
    assert out.getvalue() == "sdk.zip: 100 B in 0.00 s\n"


def test_on_a_terminal_long_work_draws_bars_and_removes_them(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    bars = Bars(out, clock)
    bars.start("[sdk].zip", 1000)
    clock.now += 3
    bars.advance(10)
    bars.advance(10)
    bars.note("waiting for [another]")
    bars.finish()
    shown = out.getvalue()
    assert "━" in shown
    assert "[sdk].zip" in shown
    assert "waiting for [another]" in shown
    assert shown.rstrip("\n").endswith("[sdk].zip: 20 B of 1 kB, stopped in 3.00 s")


def test_the_last_bar_to_end_gives_the_terminal_back(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    bars = Bars(out, clock)
    bars.start("a", 10)
    clock.now += 3
    bars.advance(1)
    bars.finish()
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert out.getvalue().rfind(shown) > out.getvalue().rfind(hidden) >= 0


@pytest.mark.parametrize(
    ("terminal", "environ", "kind"),
    [
        (True, {"TERM": "xterm-256color"}, Bars),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, Bars),
        (True, {"TERM": "dumb"}, Lines),
        (True, {}, Lines),
        (False, {"TERM": "xterm"}, Lines),
    ],
)
def test_bars_are_for_terminals_that_can_draw(terminal: bool, environ: dict[str, str], kind: type) -> None:
    assert type(for_stream(Terminal() if terminal else io.StringIO(), environ)) is kind


def test_no_colour_means_no_colour_on_a_real_terminal(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as out:
        bars = Bars(out, clock)
        bars.start("a", 10)
        clock.now += 3
        bars.advance(10)
        bars.finish()
    shown = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed ends so
        while block := os.read(ours, 65536):
            shown += block
    os.close(ours)
    assert b"a: 10 B in 3.00 s" in shown
    assert b"\x1b[3" not in shown


def test_silence_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    silent = Silent()
    silent.start("a", 1)
    silent.advance(1)
    silent.note("b")
    silent.finish()
    assert capfd.readouterr() == ("", "")
