"""A program that a runtime loses is found; what was never taken is no loss."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ci.runner import Runner
from ci.suite.ran import Ran, write
from lab.golden import contexts, programs
from lab.golden.contexts import (
    SUMS,
    Golden,
    MakerResult,
    Result,
    Runtime,
    RuntimeResult,
    judge,
    keep,
    rows_of,
    sqnr,
    table_of,
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


def test_the_page_says_the_worst_of_each_lanes_programs() -> None:
    rows = rows_of("onnx", makers("same") | {"other/fp16/SM8650": makers("refused", KNOWN)[PROGRAM]})
    assert table_of("onnx", rows).splitlines()[-1] == "| 2.49.40 | refused |"
    assert table_of("onnx", rows_of("onnx", makers("same"))).splitlines()[-1] == "| 2.49.40 | runs |"
    assert "refused" not in table_of("executorch", rows)


def test_other_numbers_are_told_from_the_same() -> None:
    values = np.linspace(-1, 1, 50, dtype=np.float32)
    own = {"y": values}
    assert sqnr(own, {"y": values + 1e-6}) > 60 > sqnr(own, {"y": -values})
    assert max(sqnr(own, wrong) for wrong in ({"y": values * np.nan}, {"y": values[:9]}, {"z": values})) < 0
    classes = {"y": np.array([3, 20_000])}
    assert sqnr(classes, classes) > 60 and sqnr(classes, {"y": np.array([3, 20_001])}) < 0
    assert sqnr({**own, "z": np.array([1])}, {**own, "z": np.array([2])}) < 0


class Builds:
    """Answers as two builds would. No two contexts have the same bytes."""

    def __init__(self) -> None:
        self.compiled = 0
        self.wrong = ""
        """The build whose runtime computes something else."""

    def run(self, command: list[str], *, env: dict[str, str], **options: object) -> SimpleNamespace:
        if "test_onnx" in command:
            self.compiled += 1
            reports = Path(command[command.index("--reports") + 1])
            folder = reports / "onnx" / PROGRAM / "beside"
            folder.mkdir(parents=True)
            (folder / "model_ctx.onnx").write_text("")
            (folder / "model_ctx_qnn.bin").write_text(f"{env['QNN']}, number {self.compiled}")
        else:
            outputs = {"y": np.full(4, 2.0 if env["QNN"] == self.wrong else 1)}
            write(Ran({}, outputs, [1.0], ""), Path(command[command.index("-o") + 1]), "model_ctx.onnx")
        return SimpleNamespace(returncode=0)


def test_contexts_that_were_kept_are_given_to_the_runtimes_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = Builds()
    monkeypatch.setattr(subprocess, "run", builds.run)
    monkeypatch.setattr(contexts, "read_model", lambda path: SimpleNamespace(inputs=[]))
    golden = Golden(schema=1, programs=(PROGRAM,), executorch=(PROGRAM,), least_sqnr_db=60)
    runtimes = [Runtime(qnn, {"QNN": qnn}) for qnn in ("2.50.40", "2.51.0")]

    def measured(name: str, kept: Path | None) -> dict[str, MakerResult]:
        return contexts.measure(PROGRAM, runtimes, tmp_path / name, golden, 1, kept)

    first = measured("first", tmp_path / "kept")
    assert builds.compiled == 2
    assert measured("second", tmp_path / "kept") == first and builds.compiled == 2
    assert measured("anew", None) != first and builds.compiled == 4
    builds.wrong = "2.51.0"
    later = measured("wrong", tmp_path / "kept")["2.50.40"].runtimes
    assert {qnn: result.result for qnn, result in later.items()} == {"2.50.40": "same", "2.51.0": "differs"}


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
