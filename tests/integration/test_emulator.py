"""The emulator's stage on its own: it lowers what it needs, and a runner that misbehaves is a finding."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.support.lowering_suites import environment, run, suite

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


def _runner(folder: Path, script: str) -> Path:
    path = folder / "runner"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulator")


def test_alone_it_lowers_first_and_keeps_both(base: Path) -> None:
    assert run("build_runner", base).code == 0
    one = suite(base, {"net": {}})
    first = run("test_emulator", base, "--suite", one)
    assert first.code == 0 and "0 unchanged, 1 to compile" in first.err
    again = run("test_emulator", base, "--suite", one)
    assert again.cached() == {"net"} and "1 unchanged, 0 to compile" in again.err


@pytest.mark.parametrize(
    ("script", "rule"),
    [("sleep 600", "emulator-timeout"), ("kill -SEGV $$", "emulator-run"), ("exit 0", "emulator-missing")],
)
def test_a_runner_that_misbehaves_is_one_finding(base: Path, script: str, rule: str) -> None:
    environ = environment(QNN_EXECUTOR_RUNNER=str(_runner(base, script)))
    done = run(
        "test_emulator", base, "--suite", suite(base, {"net": {}}), "--run-timeout", "3", environ=environ
    )
    assert (done.code, done.rules("net")) == (1, {rule})


def test_another_runner_runs_it_again(base: Path) -> None:
    other = _runner(base, "exit 7")
    done = run(
        "test_emulator",
        base,
        *("--suite", suite(base, {"net": {}})),
        environ=environment(QNN_EXECUTOR_RUNNER=str(other)),
    )
    (finding,) = [each for each in done.report.findings if each.rule == "emulator-run"]
    assert "exit code 7" in finding.message
