"""Pairs of executorch and QNN are measured step by step and written down the same way every time."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.builds import variables_for_sdk
from lab.builds.table import QnnBuild, Release, load_builds
from lab.compat import stage
from provisioning.base.findings import Metric, Outcome, Report, Severity
from provisioning.base.guard import guard
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.manifest import load_profile
from provisioning.stage_variables import HOST_LIBRARIES
from provisioning.validation.compiler_probe import Answer


def test_every_build_of_the_manifest_was_measured_with_the_profiles_executorch() -> None:
    executorch = load_profile(load_builds().profile).packages["executorch"]
    measured = {pair.build_id for pair in stage.load_measured() if pair.executorch == executorch}
    assert {build.build_id for build in load_builds().builds} <= measured


def test_the_build_that_the_profile_pins_works() -> None:
    profile = load_profile(load_builds().profile)
    pinned = (profile.packages["executorch"], profile.components["qnn-sdk"].build_id)
    assert pinned in {(row.executorch, row.build_id) for row in stage.load_measured() if row.works}


# The measurement


class Lane:
    """Answers as the ExecuTorch lane would; `errors` has rule and message for a stage and scheme."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.errors: dict[tuple[str, str], tuple[str, str]] = {}
        self.answer = Answer("device", made_device=True)
        self.working = "2.49.40"
        self.lost: set[str] = set()
        """Stages that have no verdict of any program."""
        self.commands: list[list[str]] = []
        page = root / "compat.md"
        page.write_text(
            "before\n<!-- measured pairs -->\n<!-- end of measured pairs -->\nafter\n", encoding="utf-8"
        )
        monkeypatch.setattr(subprocess, "run", self.run)

    def device(self, variables: Mapping[str, str]) -> Answer:
        if not variables["QNN_SDK_ROOT"].endswith(self.working):
            return Answer("backend", detail="unknown custom config socModel 0; error=14001")
        return self.answer

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        name = command[command.index("ci") + 1]
        self.commands.append(command)
        run = StageRun(name, "wheels", "x86_64-linux", "")
        rows: dict[str, Any] = {}
        for scheme in stage.SCHEMES:
            program = f"{stage.CASE}/{scheme}/{command[command.index('--soc') + 1]}"
            rows[program] = {"verdict": "pass"}
            if error := self.errors.get((name, scheme)):
                rows[program] = {"verdict": "fail"}
                run.add(error[0], Severity.ERROR, program, error[1])
        run.metrics["programs"] = {} if name in self.lost else rows
        run.finish().write(Path(command[command.index("--reports") + 1]))
        return subprocess.CompletedProcess(command, 0)

    def measure(
        self, *builds: str, socs: tuple[str, ...] = (), executorch: str = "1.5.1"
    ) -> tuple[int, tuple[stage.MeasuredPair, ...]]:
        selection = Selection(
            "wheels", "x86_64-linux", "SM8650", self.root / "store", self.root / "reports", socs
        )
        files = self.root / "compat.json", self.root / "compat.md"
        tools = MeasuredHere(selection, [], {}, *files, lane=self)
        code = guard(lambda: stage.measure_all(tools, builds, [executorch]), debug=False)
        return code, stage.load_measured(self.root / "compat.json")

    def steps(self) -> dict[str, Metric]:
        _, measured = self.measure("2.49.40")
        return {step: value for step, value in measured[0].values.items() if step in stage.STEPS}

    def report(self) -> Report:
        return Report.read(self.root / "reports" / "compat.json")


@dataclass(frozen=True)
class MeasuredHere(stage.PairMeasure):
    lane: Lane = field(kw_only=True)

    def installed(self, package: str) -> str:
        return {"executorch": "1.5.1", "torch": "2", "torchao": "3"}[package]

    def executorch(self, release: Release | None) -> dict[str, str]:
        return {"PYTHONPATH": release.version if release else ""}

    def sdk(self, build: QnnBuild, pinned: object) -> Path:
        return Path("sdk") / build.qnn

    def device(self, soc: str, variables: Mapping[str, str]) -> Answer:
        return self.lane.device(variables)


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lane:
    return Lane(tmp_path, monkeypatch)


def test_the_stage_passes_when_the_profiles_build_works(lane: Lane) -> None:
    code, measured = lane.measure()
    assert code == 0
    assert [row.qnn for row in measured if row.works] == ["2.49.40"]
    assert measured[0].error == "device: unknown custom config socModel 0"
    table = (lane.root / "compat.md").read_text(encoding="utf-8")
    row = next(line for line in table.splitlines() if line.startswith("| 1.5.1 |"))
    assert row.count("works") == 1 and "**no**: device" in row and measured[0].error in table
    assert {finding.rule for finding in lane.report().findings} == {"compat-broken"}


def test_the_stage_fails_when_the_profiles_build_does_not_work(lane: Lane) -> None:
    lane.working = "none"
    code, _ = lane.measure("2.49.40")
    (finding,) = lane.report().findings
    assert (code, finding.rule, finding.severity) == (1, "compat-profile-broken", Severity.ERROR)
    log = lane.root / "reports/compat/2.49.40/device.log"
    assert log.is_file() and finding.fix.endswith(f"read {log}")


@pytest.mark.parametrize("rule", ["lowering-timeout", "lowering-machine"])
def test_what_this_machine_lacks_says_nothing_of_the_pair(lane: Lane, rule: str) -> None:
    lane.errors = {(stage.LOWER, "fp16"): (rule, "no result after 600 s")}
    assert lane.measure("2.49.40") == (3, ())
    assert lane.report().outcome is Outcome.ERROR


def test_the_lane_gets_this_build_and_not_the_profiles_own(lane: Lane) -> None:
    environ = {"QNN_CI_PROFILE": "wheels", "QNN_SDK_ROOT": "another", "HOME": "x"}
    assert variables_for_sdk(environ, Path("sdk")) == {
        "HOME": "x",
        "QNN_SDK_ROOT": "sdk",
        "LD_LIBRARY_PATH": f"sdk/lib/{HOST_LIBRARIES}",
    }
    lane.measure("2.49.40", socs=("SM8750",))
    assert len(lane.commands) == 2
    assert all({"SM8750", str(lane.root / "store")} <= set(command) for command in lane.commands)
