"""A session as nox runs it, with a stand-in for the Python of its environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from provisioning.settings import MANIFESTS, ROOT

STAND_IN = """#!{python}
import pathlib, signal, sys, time
here = pathlib.Path({here!r})
def tidy(number, frame):
    time.sleep(1.5)
    (here / "tidied").touch()
    raise SystemExit(130)
signal.signal(signal.SIGINT, tidy)
(here / "arguments").write_text(" ".join(sys.argv[1:]))
(here / "started").touch()
time.sleep(60)
"""


def _heed_interrupts() -> None:
    """A shell's background jobs are begun deaf to them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_session_has_time_to_tidy_up(tmp_path: Path) -> None:
    environment = tmp_path / "executorch"
    (environment / "bin").mkdir(parents=True)
    shutil.copyfile(MANIFESTS / "locks/executorch.txt", environment / "lock.txt")
    python = environment / "bin/python"
    python.write_text(STAND_IN.format(python=sys.executable, here=str(tmp_path)))
    python.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "nox", "--", "--only", "validate"],
        cwd=ROOT,
        env={**os.environ, "QNN_CI_ENVIRONMENTS": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    # As a terminal does: nox and what it runs are told together.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) != 0
    assert (tmp_path / "tidied").exists()
    assert (tmp_path / "arguments").read_text() == "-m ci gate --only validate"
