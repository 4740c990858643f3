"""A program that a runtime loses is found; what was never taken is no loss."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from ci.runner import Runner
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
from tests.support.programs import program
from tests.support.scripts import script

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


RUNNER = """\
model=$2
while [ $# -gt 0 ]; do case $1 in --output_folder_path) out=$2;; esac; shift; done
write() { head -c 768 /dev/zero | tr '\\0' $1 > $out/output_0_0.raw; }
case $0$model in *1.5.1/*1.5.0/*) {does};; *) write 1;; esac
"""
"""Stands in for a version's runner: what 1.5.1 does with a program of 1.5.0, and the right thing else."""


class WithoutQnn(programs.Toolkit):
    def qnn(self) -> dict[str, str]:
        return dict(os.environ)


@pytest.mark.parametrize(
    ("does", "result"),
    [
        ("write 1", "same"),
        ("write 2", "differs"),
        ("true", "differs"),
        ("echo 'E: method error 0x30'; exit 1", "refused"),
        ("kill -9 $$", None),
    ],
)
def test_a_program_of_an_older_executorch_is_judged_by_what_a_later_runtime_does(
    does: str, result: Result | None, tmp_path: Path
) -> None:
    pte = tmp_path / "made.pte"
    pte.write_bytes(program())

    class Scripts(WithoutQnn):
        """Runners that are scripts, and one program of all versions."""

        def executorch(self, release: object, variables: Mapping[str, str]) -> dict[str, str]:
            return dict(variables)

        def runner(self, version: str, release: object) -> Runner:
            return Runner(script(tmp_path / "runners" / version / "runner", RUNNER.replace("{does}", does)))

        def compile(self, maker: str, programs: Sequence[str], variables: object) -> dict[str, Path]:
            return dict.fromkeys(programs, pte)

    golden = Golden(schema=1, programs=(PROGRAM,), executorch=(PROGRAM,), least_sqnr_db=60)
    selection = Selection("wheels", "x86_64-linux", "SM8650", store=tmp_path, reports=tmp_path)

    def measured() -> str:
        tools = Scripts(selection, tmp_path / "golden", 9, {})
        results = programs.measure(golden, ["1.5.1", "1.5.0"], tools, tmp_path / "kept")
        return results[PROGRAM]["1.5.0"].runtimes["1.5.1"].result

    if result is None:
        # The system ended it, which says nothing of the program.
        with pytest.raises(EnvironmentLacking):
            measured()
    else:
        assert measured() == result


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
