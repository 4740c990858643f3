"""A program that a runtime loses is found; what was never taken is no loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ci.upstream.golden.executorch import outcome
from ci.upstream.golden.stage import Made, Met, Result, _sqnr, judge, load_measured, table_of
from provisioning.base.findings import Severity, StageRun

PROGRAM = "net/u16u8/SM8650"
KNOWN = "Failed to create context from binary. Error: QNN_CONTEXT_ERROR_INVALID_ARGUMENT: deemed invalid"


def made(result: Result, message: str = "") -> dict[str, dict[str, Made]]:
    return {
        PROGRAM: {"2.49.40": Made(sha256="0" * 64, runtimes={"2.51.0": Met(result=result, message=message)})}
    }


@pytest.mark.parametrize(
    ("before", "now", "rules"),
    [
        (made("same"), made("same"), []),
        (made("same"), made("refused", KNOWN), ["golden-lost"]),
        (made("same"), made("differs", "3.0 dB"), ["golden-lost"]),
        (made("refused", KNOWN), made("refused", KNOWN), []),
        (made("refused", KNOWN), made("same"), []),
        (made("refused", KNOWN), made("differs", "3.0 dB"), ["golden-differs"]),
        ({}, made("refused", "something nobody has read"), ["golden-unexplained"]),
    ],
)
def test_what_a_runtime_loses_is_an_error(
    before: dict[str, dict[str, Made]], now: dict[str, dict[str, Made]], rules: list[str], tmp_path: Path
) -> None:
    stage = StageRun("test_golden", "wheels", "x86_64-linux", "nox -s test_golden")
    judge(stage, now, before)
    assert [finding.rule for finding in stage.findings] == rules
    assert stage.close(tmp_path) == (1 if rules else 0)


def test_other_numbers_are_told_from_the_same(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 50, dtype=np.float32)
    for name, array in {"own": values, "near": values + 1e-6, "far": -values, "nan": values * np.nan}.items():
        np.savez(tmp_path / name, y=array)
    own, near, far, nan = (tmp_path / f"{name}.npz" for name in ("own", "near", "far", "nan"))
    assert _sqnr(own, near) > 60 > _sqnr(own, far) and _sqnr(own, nan) < 0


def test_every_pair_that_was_measured_is_in_the_table() -> None:
    programs = load_measured().programs
    makers = {maker for each in programs.values() for maker in each}
    rows = table_of(programs).splitlines()[2:]
    assert {row.split("|")[1].strip() for row in rows} == makers
    assert not any("not measured" in row for row in rows)


@pytest.mark.parametrize(
    ("rule", "result"),
    [("", "same"), ("emulator-run", "refused"), ("emulator-accuracy", "differs")],
)
def test_what_a_runner_does_with_an_older_program_is_read_from_its_report(rule: str, result: Result) -> None:
    stage = StageRun("test_emulator", "wheels", "x86_64-linux", "nox -s test_emulator")
    stage.add("emulator-run", Severity.ERROR, "another/fp16/SM8650", "its own trouble")
    if rule:
        stage.add(rule, Severity.ERROR, PROGRAM, "the runner ended with exit code 1")
    assert outcome(stage.finish(), PROGRAM).result == result
