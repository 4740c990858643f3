"""A program that a runtime loses is found; what was never taken is no loss."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ci.upstream.golden import stage
from ci.upstream.golden.executorch import outcome
from ci.upstream.golden.stage import (
    Golden,
    MakerResult,
    Result,
    Runtime,
    RuntimeResult,
    _sqnr,
    judge,
    load_measured,
    table_of,
)
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Severity, StageRun

PROGRAM = "net/u16u8/SM8650"
KNOWN = "Failed to create context from binary. Error: QNN_CONTEXT_ERROR_INVALID_ARGUMENT: deemed invalid"


def made(result: Result, message: str = "") -> dict[str, dict[str, MakerResult]]:
    return {
        PROGRAM: {
            "2.49.40": MakerResult(
                sha256="0" * 64, runtimes={"2.51.0": RuntimeResult(result=result, message=message)}
            )
        }
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
    before: dict[str, dict[str, MakerResult]],
    now: dict[str, dict[str, MakerResult]],
    rules: list[str],
    tmp_path: Path,
) -> None:
    ran = StageRun("test_golden", "wheels", "x86_64-linux", "nox -s test_golden")
    judge(ran, now, before)
    assert [finding.rule for finding in ran.findings] == rules
    assert ran.close(tmp_path) == (1 if rules else 0)


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
    ran = StageRun("test_emulator", "wheels", "x86_64-linux", "nox -s test_emulator")
    ran.add("emulator-run", Severity.ERROR, "another/fp16/SM8650", "its own trouble")
    if rule:
        ran.add(rule, Severity.ERROR, PROGRAM, "the runner ended with exit code 1")
    assert outcome(ran.finish(), PROGRAM).result == result


class Builds:
    """Answers as two builds would. No two contexts have the same bytes."""

    def __init__(self) -> None:
        self.compiled = 0

    def run(self, command: list[str], *, env: dict[str, str], **options: object) -> SimpleNamespace:
        if "test_onnx" in command:
            self.compiled += 1
            reports = Path(command[command.index("--reports") + 1])
            folder = reports / "onnx" / PROGRAM / "beside"
            folder.mkdir(parents=True)
            (folder / "model_ctx.onnx").write_text("")
            (folder / "model_ctx_qnn.bin").write_text(f"{env['QNN']}, number {self.compiled}")
        else:
            np.savez(command[command.index("--output") + 1], y=np.ones(4))
        return SimpleNamespace(returncode=0)


def test_contexts_that_were_kept_are_given_to_the_runtimes_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = Builds()
    monkeypatch.setattr(subprocess, "run", builds.run)
    monkeypatch.setattr(stage, "read_model", lambda path: SimpleNamespace(inputs=[]))
    golden = Golden(schema=1, programs=(PROGRAM,), executorch=(PROGRAM,), least_sqnr_db=60)
    runtimes = [Runtime(qnn, {"QNN": qnn}) for qnn in ("2.50.40", "2.51.0")]

    def measured(
        name: str, kept: Path | None, agreed: dict[str, MakerResult] | None = None
    ) -> dict[str, MakerResult]:
        return stage.measure(PROGRAM, runtimes, tmp_path / name, golden, 1, kept, agreed)

    first = measured("first", tmp_path / "kept")
    assert builds.compiled == 2
    assert measured("second", tmp_path / "kept", first) == first and builds.compiled == 2
    assert measured("anew", None, first) != first and builds.compiled == 4
    (tmp_path / "kept" / "2.50.40" / PROGRAM / "context" / "model_ctx_qnn.bin").write_text("another")
    with pytest.raises(CheckFailed, match=r"golden\.json"):
        measured("changed", tmp_path / "kept", first)
