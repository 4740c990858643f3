"""What a stage prints is shown as it comes and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from ci.gate.stage_output import StageOutput, shown_and_logged
from ci.gate.supervision import process_of
from provisioning.base.settings import ROOT


def _run(log: Path, script: str, shown: tuple[int, int]) -> int:
    start = partial(process_of, [sys.executable, "-u", "-c", script], os.environ)
    with shown_and_logged(log, start, shown) as process:
        return process.wait()


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

    def start(output: StageOutput) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", script]
        return subprocess.Popen(command, stdout=output.stdout, stderr=output.stderr, pass_fds=[hold])

    with shown_and_logged(tmp_path / "log", start, (writing, writing)) as process:
        assert process.wait() == 0
    assert (tmp_path / "log").read_text() == "done\n"
    for number in (release, hold, reading, writing):
        os.close(number)


def test_a_channel_that_was_not_inherited_is_not_written_to(tmp_path: Path) -> None:
    """Under the pipe's number a process may have a file of its own."""
    file = tmp_path / "file"
    script = (
        f"import os, sys; d = os.open({str(file)!r}, os.O_CREAT | os.O_WRONLY)\n"
        "os.environ['QNN_CI_PROGRESS'] = f'{d}:1:1'\n"
        "from provisioning.base.progress import display_for; print(display_for(sys.stderr))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n" and file.read_bytes() == b""
