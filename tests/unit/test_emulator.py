"""Runs on the emulator: figures, thresholds, and runs that crash, hang or give nonsense."""

from __future__ import annotations

import argparse
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from ci.__main__ import VERBS
from ci.executorch import emulate as emulator
from ci.executorch.compile import Compiled, Settings
from ci.executorch.emulate import Measured, RunSlot, _measure_all, findings_of
from ci.executorch.stage import Plan
from ci.suites.accuracy import EXACT_DB
from ci.suites.baseline import Baseline
from provisioning.base.command_line import main
from provisioning.base.findings import Report
from provisioning.base.settings import ROOT, Selection
from provisioning.environment import Environment
from tests.support.lowering import BASIS, SUITE, make_program

VALUES = numpy.linspace(-1, 2, 12, dtype="float32").reshape(3, 4)


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def make_runner(folder: Path) -> Path:
    runner = folder / "runner"
    runner.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.support.emulator_runner "$@"\n')
    runner.chmod(runner.stat().st_mode | stat.S_IXUSR)
    return runner


def make_compiled(folder: Path, what: str) -> Compiled:
    """A program that tells the runner what to do."""
    made = folder / "program"
    made.mkdir()
    (made / "program.pte").write_text(what)
    row = {"dtype": "float32", "shape": [3, 4]}
    facts: dict[str, Any] = {"inputs": [], "expected": [], "reference": [], "content": what}
    for number in range(2):
        for kind, name in (("inputs", "input"), ("expected", "float")):
            VALUES.tofile(made / f"{name}_{number}_0.raw")
            facts[kind].append([{**row, "file": f"{name}_{number}_0.raw"}])
    return Compiled(made, facts, False, "key")


class TestRun:
    def _measure(self, tmp_path: Path, what: str, timeout: float = 60) -> Measured:
        slot = RunSlot(make_runner(tmp_path), ENVIRONMENT, timeout, None)
        return slot.measure(make_compiled(tmp_path, what), tmp_path / "kept")

    def test_a_run_gives_figures_and_times(self, tmp_path: Path) -> None:
        result = self._measure(tmp_path, "echo")
        assert result.figures["sqnr_db"] == EXACT_DB
        assert dict(result.times) == {"load_ms": 1.5, "run_ms": 2.5, "peak_bytes": 102400}

    def test_wrong_values_are_measured_not_hidden(self, tmp_path: Path) -> None:
        assert self._measure(tmp_path, "zeros").figures["cosine"] == 0

    @pytest.mark.parametrize(
        ("what", "rule", "says"),
        [
            ("crash", "run", "SIGSEGV"),
            ("refuse", "run", "exit code 40: qnn_executor_runner: error: the method could not be loaded"),
            ("nan", "not-finite", "12 of 12 values"),
            ("short", "shape", "expected 12 values, found 11"),
            ("nothing", "missing", "output_0_0.raw was not written"),
            ("no times", "missing", "the runner wrote no times to metrics.json: FileNotFoundError"),
            ("half times", "missing", "the runner wrote no times to metrics.json: JSONDecodeError"),
        ],
    )
    def test_a_run_that_gives_nothing_usable_says_why(
        self, tmp_path: Path, what: str, rule: str, says: str
    ) -> None:
        result = self._measure(tmp_path, what)
        assert result.rule == rule and says in result.message

    def test_a_run_that_hangs_is_ended(self, tmp_path: Path) -> None:
        result = self._measure(tmp_path, "hang", timeout=1)
        assert (result.rule, result.message) == ("timeout", "no result after 1 s")

    def test_a_run_that_begins_when_its_slot_is_closed_is_ended(self, tmp_path: Path) -> None:
        slot = RunSlot(make_runner(tmp_path), ENVIRONMENT, 20, None)
        slot.close()
        result = slot.measure(make_compiled(tmp_path, "hang"), tmp_path / "kept")
        assert (result.rule, "SIGKILL" in result.message) == ("run", True)

    def test_inputs_outputs_and_log_of_a_failure_are_kept(self, tmp_path: Path) -> None:
        kept = self._measure(tmp_path, "nan").kept
        assert kept is not None
        names = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
        assert {"input_0_0.raw", "float_0_0.raw", "outputs/output_0_0.raw", "run.log"} <= names


FAULT = SUITE.replace("thresholds = {{ sqnr_db = 20 }}", 'emulator_fault = "could not be loaded"')


class TestKept:
    def _measured(self, folder: Path, compiled: Compiled, text: str = SUITE, timeout: float = 60) -> Measured:
        program = make_program(folder / "suite", text=text)
        plan = Plan(
            selection=Selection("wheels", "x86_64-linux", "SM8650", folder / "store", folder),
            programs=(program,),
            found=Environment("wheels", "x86_64-linux", "SM8650", {}, {}, (), (), ()),
            basis=BASIS,
            settings=Settings(folder / "store", folder / "logs"),
            baselines={program.suite: Baseline(folder / "baseline.json")},
            refused={},
        )
        args = argparse.Namespace(no_cache=False, jobs=1, run_timeout=timeout)
        runner = make_runner(folder)
        return _measure_all(args, plan, runner, {program.name: compiled}, ENVIRONMENT)[program.name]

    def test_a_good_run_is_not_done_again(self, tmp_path: Path) -> None:
        compiled = make_compiled(tmp_path, "echo")
        assert [self._measured(tmp_path, compiled).cached for _ in range(2)] == [False, True]

    def test_it_is_where_figures_come_about_in_another_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiled = make_compiled(tmp_path, "echo")
        self._measured(tmp_path, compiled)
        monkeypatch.setattr(emulator, "MEASURING", ("ci/executorch/emulate.py",))
        assert not self._measured(tmp_path, compiled).cached

    def test_a_run_that_is_known_to_fail_leaves_nothing_to_look_at(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        measured = self._measured(tmp_path, make_compiled(tmp_path, "refuse"), FAULT)
        assert (measured.rule, measured.expected) == ("run", True)
        assert not list((tmp_path / "logs").iterdir())
        said = capfd.readouterr().err
        assert (
            "fails as the suite expects: the runner ended with exit code 40" in said and "FAILED" not in said
        )

    def test_one_that_is_known_to_fail_is_not_run_again(self, tmp_path: Path) -> None:
        compiled = make_compiled(tmp_path, "refuse")
        assert [self._measured(tmp_path, compiled, FAULT).cached for _ in range(2)] == [False, True]

    def test_it_is_where_the_suite_no_longer_expects_that(self, tmp_path: Path) -> None:
        compiled = make_compiled(tmp_path, "refuse")
        self._measured(tmp_path, compiled, FAULT)
        measured = self._measured(tmp_path, compiled)
        assert (measured.rule, measured.expected, measured.cached) == ("run", False, False)

    def test_a_run_that_is_late_is_never_kept(self, tmp_path: Path) -> None:
        compiled = make_compiled(tmp_path, "hang")
        text = FAULT.replace("could not be loaded", "no result")
        assert [self._measured(tmp_path, compiled, text, 0.5).cached for _ in range(2)] == [False, False]


def test_asked_to_end_it_ends_what_it_runs_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(emulator, "_run", told)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main("python -m ci", "", VERBS, ["test_emulator", "--reports", str(tmp_path)]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    (finding,) = Report.read(tmp_path / "test_emulator.json").findings
    assert (finding.rule, finding.message) == ("emulator-not-run", "interrupted")


def test_missed_thresholds_become_one_finding_with_the_command(tmp_path: Path) -> None:
    one = make_program(tmp_path)
    (finding,) = findings_of(one, Measured({"sqnr_db": 12.0}, kept=tmp_path / "kept"))
    assert finding.rule == "emulator-accuracy" and "expected at least 20, found 12" in finding.message
    assert f"-k {one.name}" in finding.remedy and "outputs and log are in" in finding.message


LOSS = {
    "operator": "aten.linear.default",
    "module": "second",
    "source": "net.py:20",
    "code": "return self.second(x)",
    "before_db": 48.2,
    "after_db": 15.5,
}


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        (
            {"sqnr_db": 12.0, "reference_sqnr_db": 70.0},
            "quantizing loses most in aten.linear.default of second at net.py:20 `return self.second(x)` "
            "(48.2 dB before it, 15.5 dB after)",
        ),
        ({"sqnr_db": 12.0, "reference_sqnr_db": 40.0}, "quantizing loses most in aten.linear.default"),
        ({"sqnr_db": 12.0, "reference_sqnr_db": 13.0}, "the program computes something else"),
        ({"sqnr_db": 25.0, "reference_sqnr_db": 40.0}, "the program computes something else"),
    ],
)
def test_a_miss_says_whether_quantizing_or_the_program_is_to_blame(
    tmp_path: Path, figures: dict[str, float], says: str
) -> None:
    one = make_program(tmp_path, text=SUITE.replace("sqnr_db = 20", "sqnr_db = 20, reference_sqnr_db = 60"))
    (finding,) = findings_of(one, Measured(figures), [LOSS])
    assert says in finding.message


def test_a_good_run_has_no_findings(tmp_path: Path) -> None:
    assert not findings_of(make_program(tmp_path), Measured({"sqnr_db": 25.0}))
