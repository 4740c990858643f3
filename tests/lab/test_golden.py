"""A program that a runtime loses is found; what was never taken is no loss."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.golden import programs
from lab.golden.contexts import (
    SUMS,
    Golden,
    MakerResult,
    Result,
    RuntimeResult,
    judge,
    keep,
    rows_of,
    take,
)
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun

PROGRAM = "net/u16u8/SM8650"
KNOWN = "Failed to create context from binary. Error: QNN_CONTEXT_ERROR_INVALID_ARGUMENT: deemed invalid"


def makers(result: Result, message: str = "", maker: str = "2.49.40") -> dict[str, dict[str, MakerResult]]:
    return {
        PROGRAM: {
            maker: MakerResult(
                sha256="0" * 64, runtimes={"2.51.0": RuntimeResult(result=result, message=message)}
            )
        }
    }


@pytest.mark.parametrize(
    ("before", "now", "rules"),
    [
        (makers("same"), makers("same"), []),
        (makers("same"), makers("refused", KNOWN), ["golden-lost"]),
        (makers("same"), makers("differs", "3.0 dB"), ["golden-lost"]),
        (makers("refused", KNOWN), makers("refused", KNOWN), []),
        (makers("refused", KNOWN), makers("same"), ["golden-gained"]),
        (makers("refused", KNOWN), makers("differs", "3.0 dB"), ["golden-differs"]),
        ({}, makers("refused", KNOWN), ["golden-lost"]),
        ({}, makers("refused", KNOWN, maker="2.52.0"), []),
        ({}, makers("refused", "something nobody has read", maker="2.52.0"), ["golden-unexplained"]),
        # Diagnose knows it, and it has nothing to do with the age of the runtime.
        (makers("refused", KNOWN), makers("refused", "std::bad_alloc"), ["golden-unexplained"]),
    ],
)
def test_what_a_runtime_loses_is_an_error(
    before: dict[str, dict[str, MakerResult]],
    now: dict[str, dict[str, MakerResult]],
    rules: list[str],
    tmp_path: Path,
) -> None:
    ran = StageRun("test_golden", "wheels", "x86_64-linux", "nox -s test_golden")
    judge(ran, "onnx", now, rows_of("onnx", before))
    assert [finding.rule for finding in ran.findings] == rules
    assert ran.close(tmp_path) == (0 if rules in ([], ["golden-gained"]) else 1)


@pytest.mark.parametrize("damage", ["changed", "gone", "new", "unlisted"])
def test_kept_files_that_are_not_what_was_kept_are_refused(damage: str, tmp_path: Path) -> None:
    products, stored = tmp_path / "products", tmp_path / "kept" / PROGRAM
    products.mkdir()
    (products / "own.npz").write_text("the maker's outputs")
    keep(stored, products, ["own.npz"])
    assert take(stored, tmp_path / "again") and not take(tmp_path / "kept" / "another", tmp_path / "other")
    assert (tmp_path / "again" / "own.npz").read_text() == "the maker's outputs"
    if damage == "gone":
        (stored / "own.npz").unlink()
    else:
        name = {"changed": "own.npz", "new": "more.npz", "unlisted": SUMS}[damage]
        (stored / name).write_text("")
    with pytest.raises(CheckFailed):
        take(stored, tmp_path / "damaged")


class WithoutQnn(programs.Toolkit):
    def qnn(self) -> dict[str, str]:
        return dict(os.environ)


def test_a_runner_of_another_executorch_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: object) -> SimpleNamespace:
        ran = StageRun("build_runner", "wheels", "x86_64-linux", "nox -s build_runner")
        ran.metrics["executorch"] = "1.4.0+cpu"
        ran.finish().write(Path(command[command.index("--reports") + 1]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    golden = Golden(schema=1, programs=(PROGRAM,), executorch=(PROGRAM,), least_sqnr_db=60)
    selection = Selection("wheels", "x86_64-linux", "SM8650", store=tmp_path, reports=tmp_path)
    with pytest.raises(EnvironmentLacking, match=r"1\.5\.1.*1\.4\.0"):
        programs.measure(golden, ["1.5.1"], WithoutQnn(selection, tmp_path / "golden", 9, {}))
