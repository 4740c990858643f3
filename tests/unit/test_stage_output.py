"""What a stage prints is shown as it comes and kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from ci.gate.supervision import supervise
from provisioning.base.settings import ROOT


def _run(log: Path, script: str, shown: int | None = None) -> int:
    return supervise([sys.executable, "-u", "-c", script], os.environ, log, echo=shown)


def test_a_reader_that_left_ends_neither_the_process_nor_the_log(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = _run(tmp_path / "log", "[print('x' * 9999) for _ in range(99)]; raise SystemExit(5)", writing)
    os.close(writing)
    assert code == 5
    assert (tmp_path / "log").read_text() == ("x" * 9999 + "\n") * 99


def test_a_disk_that_is_full_ends_the_log_and_not_the_stage(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    assert _run(tmp_path / "log", "print('x'); raise SystemExit(5)") == 5


def test_what_the_process_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    script = "import subprocess; subprocess.Popen(['sleep', '20']); print('done')"
    begun = time.monotonic()
    assert _run(tmp_path / "log", script) == 0 and time.monotonic() < begun + 15
    assert (tmp_path / "log").read_text() == "done\n"


def test_a_stage_ends_where_who_started_it_is_killed(tmp_path: Path) -> None:
    number = tmp_path / "number"
    stage = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(number)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    script = (
        "import os, pathlib, sys; from ci.gate.supervision import supervise\n"
        f"supervise([sys.executable, '-c', {stage!r}], os.environ, pathlib.Path({str(tmp_path / 'log')!r}))"
    )
    gate = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    until = time.monotonic() + 20
    while not (number.exists() and number.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    gate.kill()
    gate.wait()
    while _runs(number.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _runs(number.read_text())


def _runs(process: str) -> bool:
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_and_errors_are_shown_in_the_order_in_which_they_come(tmp_path: Path) -> None:
    script = "import sys; print('one'); print('two', file=sys.stderr); print('three', end='')"
    with (tmp_path / "shown").open("wb") as shown:
        assert _run(tmp_path / "log", script, shown.fileno()) == 0
    for name in ("log", "shown"):
        assert (tmp_path / name).read_text() == "one\ntwo\nthree"
