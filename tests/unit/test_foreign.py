"""Text of models, files, logs and pull requests steers neither a terminal nor GitHub's runner."""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.inspect import diagnose_verb, verb
from ci.report.summary import github_annotations
from provisioning.base.command_line import show_error
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Finding, Outcome, Report, Severity
from provisioning.base.foreign import in_line, one_line, visible
from provisioning.base.rendering import console
from tests.support.programs import program
from tests.support.typed import run_here

EVIL = "\x1b]0;title\x07\n::error::forged\n  ::stop-commands::x ##[error]old\r\nverified here: signature OK"


def steers(text: str) -> list[str]:
    """The lines that a terminal or the runner would obey."""
    lines = text.split("\n")
    commands = [line for line in lines if line.strip().startswith("::") or "##[" in line]
    return commands + [
        line for line in lines if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]", line)
    ]


@given(st.text(st.sampled_from(":#[]x \n\t\r\x1b\u2028\x85\xa0\u3000error")))
def test_no_text_is_a_command(text: str) -> None:
    assert steers(visible(text)) == []
    assert steers(in_line(text)) == [] and "\n" not in in_line(text)
    assert steers(one_line(text)) == [] and "\n" not in one_line(text)


def dlc(folder: Path) -> Path:
    """Each name in it is an attack."""
    with zipfile.ZipFile(stream := io.BytesIO(), "w") as archive:
        archive.writestr(EVIL, "")
        archive.writestr("model", struct.pack("<3I", 0x4AD5, 1, 8) + b"NETD")
    (folder / "evil.dlc").write_bytes(stream.getvalue())
    return folder / "evil.dlc"


def pte(folder: Path) -> Path:
    (folder / "::error::x.pte").write_bytes(program())
    return folder / "::error::x.pte"


@pytest.mark.parametrize("write", [dlc, pte])
def test_what_inspect_prints_of_a_file_is_no_command(
    write: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(verb, write(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "evil.dlc" in out or "x.pte" in out
    assert steers(out) == []
    assert not any(line.startswith("verified here") for line in out.splitlines())


def test_a_quoted_line_of_a_log_is_no_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    log.write_text("::error::No Snapdragon SOC detected\x1b]0;title\x07 ##[error]x\n")
    assert run_here(diagnose_verb, log) == 0
    out = capsys.readouterr().out
    assert "soc-not-detected" in out and steers(out) == []


def test_a_finding_and_an_error_are_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """As of the exception that a model's factory raised."""
    finding = Finding("lowering-factory", Severity.ERROR, EVIL, EVIL, EVIL)
    report = Report(EVIL, "wheels", "x86_64-linux", Outcome.FAIL, "", 1.0, (finding,), (), {"a": EVIL}, EVIL)
    assert steers(console(report, colour=False, width=100)) == []
    annotations = github_annotations([report]).splitlines()
    assert len(annotations) == 1 and "##[" not in annotations[0] and "\x1b" not in annotations[0]
    show_error(CheckFailed(EVIL, fix=EVIL))
    assert steers(capsys.readouterr().err) == []
