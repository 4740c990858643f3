"""What a process prints is shown as it comes, and kept as it was seen."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.engine.transcript import as_seen, transcript


class Shown:
    """A pipe or a terminal in the place of ours, and all that was written to it."""

    def __init__(self, *, terminal: bool) -> None:
        self.ours, self.theirs = pty.openpty() if terminal else os.pipe()
        self.content = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                block = os.read(self.ours, 1 << 16)
            except OSError:
                return
            if not block:
                return
            self.content += block

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + 60
        while text not in self.content:
            assert time.monotonic() < deadline, self.content
            time.sleep(0.01)

    def close(self) -> bytes:
        os.close(self.theirs)
        self._reader.join(60)
        return self.content


def _run(log: Path, script: str, shown: tuple[int, int]) -> int:
    with transcript(log, shown) as outputs:
        command = [sys.executable, "-u", "-c", script]
        return subprocess.run(command, stdout=outputs.stdout, stderr=outputs.stderr, check=False).returncode


def test_both_outputs_are_shown_where_they_belong_and_kept_together(tmp_path: Path) -> None:
    out, err = Shown(terminal=False), Shown(terminal=False)
    script = "import sys; print('one'); print('two', file=sys.stderr)"
    _run(tmp_path / "log", script, (out.theirs, err.theirs))
    assert (out.close(), err.close()) == (b"one\n", b"two\n")
    assert sorted((tmp_path / "log").read_text().split()) == ["one", "two"]


def test_outputs_that_are_one_keep_their_order(tmp_path: Path) -> None:
    shown = Shown(terminal=False)
    script = "import sys\nfor n in range(50): print(n, file=(sys.stdout, sys.stderr)[n % 2])"
    _run(tmp_path / "log", script, (shown.theirs, shown.theirs))
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(50)]
    shown.close()


def test_it_is_shown_while_the_process_runs(tmp_path: Path) -> None:
    shown = Shown(terminal=False)
    with transcript(tmp_path / "log", (shown.theirs, shown.theirs)) as outputs:
        script = "import sys; print('begun', flush=True); sys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=outputs.stdout
        )
        shown.wait_for(b"begun")
        assert process.poll() is None
        process.communicate()
    shown.close()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_process_has_a_terminal_where_we_have_one(tmp_path: Path, terminal: bool) -> None:
    shown = Shown(terminal=terminal)
    script = "import sys; print(sys.stdout.isatty(), sys.stderr.isatty())"
    _run(tmp_path / "log", script, (shown.theirs, shown.theirs))
    assert (tmp_path / "log").read_text().split() == [str(terminal)] * 2
    shown.close()


def test_a_machine_that_has_no_terminals_to_give_gives_pipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError("out of pty devices")

    shown = Shown(terminal=True)
    monkeypatch.setattr(os, "openpty", none_left)
    assert _run(tmp_path / "log", "import os; print(os.isatty(1))", (shown.theirs, shown.theirs)) == 0
    assert (tmp_path / "log").read_text() == "False\n"
    shown.close()


def test_a_terminal_is_as_wide_as_ours(tmp_path: Path) -> None:
    shown = Shown(terminal=True)
    subprocess.run(["stty", "cols", "77", "rows", "20"], stdin=shown.theirs, check=True)
    _run(tmp_path / "log", "import os; print(os.get_terminal_size(1).columns)", (shown.theirs, shown.theirs))
    assert (tmp_path / "log").read_text() == "77\n"
    shown.close()


def test_a_reader_that_left_ends_neither_the_process_nor_the_log(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    script = "[print('x' * 9999) for _ in range(99)]; raise SystemExit(5)"
    code = _run(tmp_path / "log", script, (writing, writing))
    os.close(writing)
    assert code == 5
    assert (tmp_path / "log").read_text() == ("x" * 9999 + "\n") * 99


def test_what_the_process_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    hold, release = os.pipe()
    script = (
        "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import os; os.read(0, 1)'],"
        f" stdin={hold}, pass_fds=[{hold}]); print('done')"
    )
    began = time.monotonic()
    with transcript(tmp_path / "log", (writing, writing)) as outputs:
        command = [sys.executable, "-c", script]
        subprocess.run(command, stdout=outputs.stdout, stderr=outputs.stderr, pass_fds=[hold], check=True)
    assert time.monotonic() - began < 30
    assert (tmp_path / "log").read_text() == "done\n"
    for each in (release, hold, reading, writing):
        os.close(each)


def test_a_slow_terminal_that_takes_no_more_is_waited_for(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    ended = threading.Event()

    def run() -> None:
        _run(tmp_path / "log", "print('y' * 300_000)", (writing, writing))
        os.close(writing)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    content = b""
    while block := os.read(reading, 1 << 16):
        content += block
    assert ended.wait(60) and len(content) == 300_001
    os.close(reading)


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        ("one\r\ntwo\n", "one\ntwo\n"),
        ("10 %\r20 %\r100 %\n", "100 %\n"),
        ("\x1b[31mred\x1b[0m\n", "red\n"),
        ("a ━━━\nb ━━━\n\x1b[1A\x1b[2K\x1b[1A\x1b[2Kdone\n", "done\n"),
        ("bar\x1b[1A\x1b[2K\rnext\n", "next\n"),
        ("\x1b]8;;file:///x\x1b\\name\x1b]8;;\x1b\\\n", "name\n"),
        ("longer line\rshort\x1b[K\n", "short\n"),
        ("one\ntwo\nthree\x1b[2A\r\x1b[Jx\n", "x\n"),
        ("\x1b[99999999999999999999999999Ax", "99999999999999999999999999Ax"),
    ],
)
def test_a_log_reads_as_the_terminal_did_at_the_end(printed: str, seen: str) -> None:
    assert as_seen(printed) == seen


@given(st.text(st.sampled_from("ab\r\n\x1b[]0129;?AKJBm\x07\\"), max_size=60))
def test_any_sequence_is_taken(text: str) -> None:
    assert "\r" not in as_seen(text)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x1b\r\n"), max_size=60))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert as_seen(text) == text.rstrip()


def test_progress_bars_of_rich_leave_their_last_state(tmp_path: Path) -> None:
    script = (
        "from rich.progress import Progress\n"
        "from rich.console import Console\n"
        "with Progress(console=Console(force_terminal=True), refresh_per_second=100) as bars:\n"
        "    task = bars.add_task('fetching', total=200)\n"
        "    for _ in range(200): bars.advance(task); bars.refresh()\n"
        "print('fetched')\n"
    )
    shown = Shown(terminal=True)
    _run(tmp_path / "log", script, (shown.theirs, shown.theirs))
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if line.strip()]
    assert len(lines) == 2 and "100%" in lines[0] and lines[1] == "fetched"
    shown.close()
