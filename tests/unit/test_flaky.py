"""Work that chance decides, in a toy lane whose verdict a file changes that the memory does not see."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ci.engine.work import Result
from ci.pipeline import quarantine
from ci.pipeline.lane import Results, run
from ci.pipeline.options import Accept, Choice, Part, StageOptions, WorkOptions
from ci.pipeline.stage import AnyPlan
from ci.pipeline.steps import Ask, run_step
from provisioning.base.findings import Finding, Report, Severity
from provisioning.base.rendering.junit_xml import junit
from provisioning.base.settings import Selection
from tests.unit.test_lane import WORKER as PLAIN
from tests.unit.test_lane import Compile, Program, Toy

CHANCE = "CHANCE"
"""The file beside the suite: `fails`, or a number that is added to the figure."""


@dataclass(frozen=True)
class ByChance(Compile):
    def work(self, program: Program, ask: Ask) -> Mapping[str, Any]:
        # Read here, and not by the worker, it is no input.
        text = (program.suite.parent / CHANCE).read_text(encoding="utf-8")
        return ask(
            width=99 if text == "fails" else program.run.width, more=0 if text == "fails" else float(text)
        )

    def accepts(self, program: Program, result: Result) -> bool:
        least = program.run.thresholds.sqnr_db if program.run.thresholds else None
        return bool(result.failure) or result.facts["sqnr_db"] >= (least or 0)


class ChanceLane(Toy):
    def do(self, plan: AnyPlan[Program], *, new_baseline: bool) -> Results:
        return {"toy": run_step(ByChance(plan, self.code), plan.programs)}


WORKER = PLAIN.replace('10.0 * order["width"]', '10.0 * order["width"] + order["more"]')
"""Its figures are changed by the order."""
FULL = 'if True:\n        raise OSError(28, "No space left on device")\n    if False:'
FAILING = WORKER.replace('if order["width"] > 90:', FULL)


class Gate:
    """Runs the lane over a suite of one case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write()

    def write(self, of_case: str = "", of_run: str = "") -> None:
        text = f'schema = 2\n[case.net]\n{of_case}\n[[case.net.run]]\nlane = "toy"\nwidth = 3\n'
        (self.folder / "toy.toml").write_text(f'{text}socs = ["SM8650"]\n{of_run}\n', encoding="utf-8")

    def quarantine(self, until: dt.date, reason: str = "it sways") -> None:
        self.write(f'quarantine = {{ until = {until}, reason = "{reason}" }}')

    def run(
        self, chance: str = "0", *, cache: bool = True, recheck: Part | None = None, code: str = WORKER
    ) -> int:
        (self.folder / CHANCE).write_text(chance, encoding="utf-8")
        selection = Selection(
            "wheels", "x86_64-linux", "SM8650", self.folder / "store", self.folder / "reports"
        )
        choice = Choice(suites=(self.folder / "toy.toml",))
        work = WorkOptions(jobs=1, cache=cache, recheck=recheck)
        lane = ChanceLane()
        lane.code = code
        return run(lane, StageOptions(selection, choice, work, Accept(), False))

    @property
    def report(self) -> Report:
        return Report.read(self.folder / "reports/test_toy.json")

    @property
    def row(self) -> dict[str, Any]:
        rows = self.report.metrics["programs"]
        assert isinstance(rows, dict)
        (row,) = rows.values()
        assert isinstance(row, dict)
        return row

    def errors(self) -> dict[str, Finding]:
        return {
            finding.rule: finding for finding in self.report.findings if finding.severity is Severity.ERROR
        }


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


DAY = dt.timedelta(days=1)


def test_work_that_failed_and_passes_now_is_flaky(gate: Gate) -> None:
    assert gate.run("fails") == 1 and gate.errors().keys() == {"toy-refused"}
    assert gate.run() == 1
    assert "refused in 1, passed in 1 of 2 runs" in gate.errors()["flaky"].message
    assert gate.row["verdict"] == "fail"


def test_it_stays_flaky_when_its_pass_comes_from_the_cache(gate: Gate) -> None:
    gate.run("fails")
    gate.run("fails")
    gate.run()
    assert gate.run() == 1 and gate.row["cached"]
    assert "refused in 2, passed in 1 of 3 runs" in gate.errors()["flaky"].message


def test_work_that_passed_and_fails_now_is_flaky(gate: Gate) -> None:
    assert gate.run() == 0
    assert gate.run("fails", cache=False) == 1
    assert gate.errors().keys() == {"toy-refused", "flaky"}


def test_one_verdict_in_all_runs_is_not_flaky(gate: Gate) -> None:
    for _ in range(3):
        assert gate.run("fails") == 1 and gate.errors().keys() == {"toy-refused"}


def test_figures_that_sway_within_the_thresholds_are_not_flaky(gate: Gate) -> None:
    for more in ("0", "1", "2"):
        assert gate.run(more, cache=False) == 0


def test_figures_on_both_sides_of_a_threshold_are_flaky(gate: Gate) -> None:
    gate.write(of_run="thresholds = { sqnr_db = 31 }")
    gate.run("0")
    assert gate.run("2") == 1
    assert "not accepted in 1, passed in 1 of 2 runs" in gate.errors()["flaky"].message


def test_another_threshold_is_no_chance(gate: Gate) -> None:
    for least in (40, 20, 40, 20):
        gate.write(of_run=f"thresholds = {{ sqnr_db = {least} }}")
        gate.run(cache=False)
        assert gate.errors() == {}, least


def test_another_key_has_its_own_runs(gate: Gate) -> None:
    gate.run("fails")
    gate.write(of_case="non_finite = true")
    assert gate.run() == 0


def test_a_changed_input_is_no_chance(gate: Gate) -> None:
    weights = gate.folder / "weights"
    reads = f"    if open({str(weights)!r}).read() == 'bad': raise ValueError('bad weights')\n"
    worker = WORKER.replace("def work(order):\n", f"def work(order):\n{reads}")
    for content, code in (("bad", 1), ("good", 0), ("bad", 1), ("good", 0)):
        weights.write_text(content)
        assert gate.run(cache=False, code=worker) == code
        assert "flaky" not in gate.errors(), content
    weights.write_text("good")
    assert gate.run("fails", cache=False, code=worker) == 1 and "flaky" in gate.errors()


def test_of_a_worker_that_died_whole_nobody_knows_what_it_read(gate: Gate) -> None:
    weights = gate.folder / "weights"
    dies = f"    if open({str(weights)!r}).read() == 'bad': import os; os.kill(os.getppid(), 11)\n"
    worker = WORKER.replace("def work(order):\n", f"def work(order):\n{dies}")
    weights.write_text("bad")
    assert gate.run(code=worker) == 1
    weights.write_text("good")
    assert gate.run(code=worker) == 0


def test_a_failure_is_kept_and_is_never_a_result(gate: Gate) -> None:
    gate.run("fails")
    assert gate.run("fails") == 1 and not gate.row["cached"]
    kept = [
        json.loads(path.read_text())["document"]
        for path in gate.folder.glob("store/cache/memo/toy/??/*/*.run")
    ]
    assert [document["run"]["verdict"] for document in kept] == ["refused", "refused"]
    gate.run("1")
    documents = gate.folder.glob("store/cache/memo/toy/??/*/*.run")
    runs = [json.loads(path.read_text())["document"]["run"] for path in sorted(documents)]
    assert runs[-1]["figures"] == {"sqnr_db": 31.0}


def test_a_recheck_that_differs_is_flaky_and_says_how_often(gate: Gate) -> None:
    gate.run()
    assert gate.run("1", recheck=Part("100%")) == 1
    assert gate.errors().keys() == {"flaky"} and "in 1 of 2 runs" in gate.errors()["flaky"].message
    assert gate.run("2", recheck=Part("100%")) == 1
    assert "in 2 of 3 runs" in gate.errors()["flaky"].message
    assert gate.run("fails", recheck=Part("100%")) == 1
    assert [finding.rule for finding in gate.report.findings].count("flaky") == 1


def test_the_machine_is_no_chance(gate: Gate) -> None:
    assert gate.run(code=FAILING) == 3
    assert gate.run() == 0


def test_a_quarantine_keeps_it_from_failing_and_it_is_no_pass(gate: Gate) -> None:
    gate.quarantine(quarantine.today() + 20 * DAY, "waits for | QNN 2.50")
    assert gate.run("fails") == 0
    rules = {finding.rule: finding for finding in gate.report.findings}
    assert rules.keys() == {"toy-refused", "quarantined"}
    assert "QNN 2.50" in rules["quarantined"].message and gate.row["verdict"] == "quarantined"
    assert gate.run() == 0 and gate.row["verdict"] == "quarantined"
    assert (gate.report.metrics["quarantined"], gate.report.metrics["failed"]) == (1, 0)
    root = ElementTree.fromstring(junit([gate.report]))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert cases["net/toy/SM8650"].find("skipped") is not None, "JUnit has it, and not as passed"


def test_what_is_in_quarantine_is_done_in_every_run(gate: Gate) -> None:
    gate.run()
    gate.quarantine(quarantine.today() + 20 * DAY)
    assert gate.run() == 0 and not gate.row["cached"]
    gate.write()
    assert gate.run() == 0 and gate.row["cached"], "a quarantine is in no key"


def test_a_quarantine_excuses_no_machine(gate: Gate) -> None:
    gate.quarantine(quarantine.today() + 20 * DAY)
    assert gate.run(code=FAILING) == 3


@pytest.mark.parametrize(
    ("days", "rule"), [(-1, "quarantine-expired"), (0, None), (90, None), (91, "quarantine-too-long")]
)
def test_a_quarantine_ends(gate: Gate, days: int, rule: str | None) -> None:
    gate.quarantine(quarantine.today() + days * DAY)
    assert gate.run("fails") == (1 if rule else 0)
    assert gate.errors().keys() == ({rule, "toy-refused"} if rule else set())
    assert gate.run() == (1 if rule else 0), "also where it passes"


def test_what_is_steady_needs_no_quarantine(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.engine.runs.STEADY", 4)
    gate.quarantine(quarantine.today() + 20 * DAY)
    gate.run("fails")
    for _ in range(3):
        assert gate.run() == 0
    assert gate.run() == 1 and gate.errors().keys() == {"quarantine-steady"}
    gate.write()
    assert gate.run() == 0, "four runs with one verdict: it is flaky no more"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('quarantine = { until = "soon", reason = "x" }', "until"),
        ("quarantine = { until = 2026-12-31 }", "reason"),
        ('quarantine = { until = 2026-12-31, reason = "" }', "reason"),
        ("quarantine = true", "quarantine"),
    ],
)
def test_a_wrong_quarantine_is_named(
    gate: Gate, text: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from provisioning.base.errors import ManifestError

    gate.write(text)
    with pytest.raises(ManifestError, match=word):
        gate.run()
