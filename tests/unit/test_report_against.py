"""One suite judged by two profiles: what is worse by the reports of the other.

tests/support/two_builds has what `test_onnx --case llama_decode` reported of the shipped suite on two QNN
builds; the older one computes a Llama layer's decode step wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.report import verb
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Metric
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun
from tests.support.typed import run_here

BUILDS = ROOT / "tests" / "support" / "two_builds"


def ran(folder: Path, profile: str, figures: dict[str, tuple[float, int]], *refused: str) -> Path:
    """The reports of a suite on a profile, with the SQNR and the traffic of each program that runs."""
    stage = StageRun("test_emulator", profile, "x86_64-linux", "nox -s test_emulator")
    programs: dict[str, Metric] = {
        name: {"verdict": "pass", "figures": {"sqnr_db": sqnr}, "costs": {"ddr_read": traffic}}
        for name, (sqnr, traffic) in figures.items()
    }
    stage.metrics["programs"] = programs | {name: {"verdict": "fail"} for name in refused}
    folder.mkdir()
    stage.finish().write(folder)
    return folder


def test_what_became_worse_on_another_profile_is_named_and_what_only_differs_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ran(
        tmp_path / "wheels", "wheels", {"net": (46.0, 1000), "same": (40.0, 1000), "gone": (40.0, 1)}
    )
    now = ran(tmp_path / "newer", "qnn-2.48", {"net": (31.0, 9000), "same": (40.1, 1000), "new": (1.0, 1)})
    assert run_here(verb, "--reports", now, "--against", before) == 1
    *worse, count = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in worse] == ["net", "net"]
    assert "46" in worse[0] and "31" in worse[0] and "1 of 2" in count
    assert run_here(verb, "--reports", before, "--against", before) == 0


def test_a_build_with_a_known_fault_is_worse_than_one_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, right = BUILDS / "2.49.40", BUILDS / "2.51.0"
    assert run_here(verb, "--reports", wrong, "--against", right) == 1
    printed = capsys.readouterr().out
    assert "llama_decode" in printed and "pass → fail" in printed and "44.2 dB → 15.5 dB" in printed
    assert run_here(verb, "--reports", right, "--against", wrong) == 0


def test_a_program_that_does_not_compile_any_more_is_worse_and_one_that_is_gone_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ran(tmp_path / "wheels", "wheels", {"net": (46.0, 1000), "gone": (40.0, 1)})
    now = ran(tmp_path / "newer", "qnn-2.48", {}, "net")
    assert run_here(verb, "--reports", now, "--against", before) == 1
    worse, count = capsys.readouterr().out.splitlines()
    assert worse.startswith("net: ") and "1 of 1" in count and "1 are not in both" in count
    assert run_here(verb, "--reports", before, "--against", now) == 0


def test_two_folders_without_a_program_in_both_never_pass(tmp_path: Path) -> None:
    before = ran(tmp_path / "wheels", "wheels", {})
    now = ran(tmp_path / "newer", "qnn-2.48", {"net": (46.0, 1000)})
    with pytest.raises(CheckFailed):
        run_here(verb, "--reports", now, "--against", before)
