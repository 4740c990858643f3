"""One suite judged by two profiles: what is worse by the reports of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.report import verb
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Metric
from provisioning.base.stage_run import StageRun
from tests.support.typed import run_here


def ran(folder: Path, profile: str, figures: dict[str, tuple[float, int]]) -> Path:
    """The reports of a suite on a profile, with the SQNR and the traffic of each program."""
    stage = StageRun("test_emulator", profile, "x86_64-linux", "nox -s test_emulator")
    programs: dict[str, Metric] = {
        name: {"verdict": "pass", "figures": {"sqnr_db": sqnr}, "costs": {"ddr_read": traffic}}
        for name, (sqnr, traffic) in figures.items()
    }
    stage.metrics["programs"] = programs
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


def test_a_folder_without_reports_is_refused(tmp_path: Path) -> None:
    now = ran(tmp_path / "newer", "wheels", {"net": (31.0, 9000)})
    with pytest.raises(EnvironmentLacking):
        run_here(verb, "--reports", now, "--against", tmp_path)
