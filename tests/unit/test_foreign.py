"""Text of models, files, logs and pull requests steers neither a terminal nor GitHub's runner."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report.summary import github_annotations
from provisioning.base import foreign
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Finding, Outcome, Report, Severity
from provisioning.base.foreign import escape_line, limit_work, one_line, visible
from provisioning.base.guard import show_error
from provisioning.base.rendering import console
from provisioning.base.settings import ROOT
from tests.support.elves import Library
from tests.support.hostile import EVIL, steers


@given(st.text(st.sampled_from(":#[]x \n\t\r\x1b\u2028\x85\xa0\u3000error")))
def test_no_text_is_a_command(text: str) -> None:
    assert steers(visible(text)) == []
    assert steers(escape_line(text)) == [] and "\n" not in escape_line(text)
    assert steers(one_line(text)) == [] and "\n" not in one_line(text)


def test_a_finding_and_an_error_are_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """As of the exception that a model's factory raised."""
    finding = Finding("lowering-factory", Severity.ERROR, EVIL, EVIL, EVIL)
    report = Report(EVIL, "wheels", "x86_64-linux", Outcome.FAIL, "", 1.0, (finding,), (), {"a": EVIL}, EVIL)
    assert steers(console(report, colour=False, width=100)) == []
    annotations = github_annotations([report]).splitlines()
    assert len(annotations) == 1 and "##[" not in annotations[0] and "\x1b" not in annotations[0]
    show_error(CheckFailed(EVIL, fix=EVIL))
    assert steers(capsys.readouterr().err) == []


def test_a_limit_of_the_machine_stays(tmp_path: Path) -> None:
    """As a container's, or that of `ulimit -d`."""
    most = 900 << 20
    (tmp_path / "library.so").write_bytes(Library().encode())

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    command = [sys.executable, "-m", "ci", "inspect", str(tmp_path / "library.so")]
    done = subprocess.run(command, preexec_fn=limit, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class Finalizer:
    """Computes in its finalizer for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __del__(self) -> None:
        compute(self._seconds)


def compute(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_work_ends_soon_if_its_time_is_over_where_python_cannot_raise(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(foreign, "SECONDS", 0.02)
    began = time.process_time()
    with pytest.raises(CheckFailed), limit_work(0, CheckFailed("too long")):
        Finalizer(0.04)
        compute(5)
    assert time.process_time() - began < 0.5
    assert capfd.readouterr().err == ""


def test_work_that_takes_the_refusal_for_the_damage_of_a_part_ends_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foreign, "SECONDS", 0.02)
    began = time.process_time()
    with pytest.raises(CheckFailed), limit_work(0, CheckFailed("too long")):
        for _ in range(3):
            with contextlib.suppress(CheckFailed):
                compute(5)
        compute(5)
    assert time.process_time() - began < 1


def test_other_errors_that_python_cannot_raise_are_shown_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda row: lost.append(row.exc_type))
    with limit_work(0, CheckFailed("too long")):
        Broken()
    Broken()
    assert lost == [KeyError, KeyError]


class Broken:
    def __del__(self) -> None:
        raise KeyError
