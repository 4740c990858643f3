"""A toy lane: what it says of itself is all that it takes to be cached, sharded, judged and reported."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.model_commands.compile import compile_model, compile_precisions
from ci.one_model.model import OneModel
from ci.one_model.product import History
from ci.suite.lane import LaneStep, StageJudgement
from ci.suite.options import Choice, StageOptions
from ci.suite.stage import Results, Verdict
from ci.suite.suite_file import Thresholds
from ci.work.jobs import WorkOptions
from ci.work.outcome import Result
from provisioning.base.errors import EnvironmentLacking, ToolkitError, UsageError
from provisioning.base.findings import Finding, Report, Severity
from provisioning.base.settings import Selection
from tests.support import toy_lane
from tests.support.toy_lane import (
    SUITES,
    ToyOptions,
    ToyPlan,
    ToyProgram,
    lane_in_which,
)

pytestmark = pytest.mark.usefixtures("one_template")


GOOD = ("net2 or net3 or net4",)

SUITE = "schema = 2\n" + "".join(
    f'[case.net{width}]\n[[case.net{width}.run]]\nlane = "toy"\nwidth = {width}\nsocs = ["SM8650"]\n'
    for width in (2, 3, 4, 99)
)


def toys(
    folder: Path,
    accept: bool = False,
    listed: bool = False,
    work: WorkOptions = WorkOptions(jobs=1),  # noqa: B008
    goes_wrong: str = "",
    **choice: Any,
) -> tuple[int, dict[str, Any]]:
    suite = folder / "toy.toml"
    if not suite.exists():
        suite.write_text(SUITE)
    selection = Selection("wheels", "x86_64-linux", "SM8650", folder / "store", folder / "reports")
    chosen = Choice(suites=(suite,), **choice)
    options = StageOptions(selection, chosen, work, accept, listed)
    ended = lane_in_which(goes_wrong).run_suite("test_toy", options)
    rows = {} if listed else Report.read(folder / "reports/test_toy.json").metrics["programs"]
    assert isinstance(rows, dict)
    return ended, {name.partition("/")[0]: row for name, row in rows.items()}


def test_its_programs_are_cached_and_judged_and_those_that_fail_are_done_again(tmp_path: Path) -> None:
    code, rows = toys(tmp_path)
    assert code == 1 and {name: row["verdict"] for name, row in rows.items()} == {
        "net2": "pass",
        "net3": "pass",
        "net4": "pass",
        "net99": "fail",
    }
    (finding,) = Report.read(tmp_path / "reports/test_toy.json").findings
    assert (finding.rule, finding.fix) == ("toy-refused", "make it narrower")
    code, rows = toys(tmp_path)
    assert code == 1 and [row["cached"] for row in rows.values()] == [True, True, True, False]


class Weighing:
    """A second step of the toy lane, whose stage refuses the program of width 3; it counts both steps."""

    def __init__(self, folder: Path, error: str = "") -> None:
        self.folder, self.error, self.steps = folder, error, list[str]()

    def compiled(self, plan: ToyPlan, results: Results) -> Mapping[str, Result]:
        self.steps.append("toy")
        return toy_lane.compiled_results(plan, results)

    def weighed(self, plan: ToyPlan, results: Results) -> Mapping[str, Result]:
        self.steps.append("weighed")
        if self.error:
            raise EnvironmentLacking(self.error, fix="buy one")
        return results["toy"]

    def verdict(self, plan: ToyPlan, program: ToyProgram, results: Mapping[str, Result]) -> Verdict:
        (own,) = toy_lane.LANE.judgements
        lost = own.verdict(plan, program, results)
        assert lost
        heavy = [Finding("too-heavy", Severity.ERROR, program.name, "it is", "")]
        return Verdict([*lost.findings, *(heavy if program.run.width == 3 else [])], {})

    def run(self, stage: str, *stages: str, **changes: Any) -> int:
        (toy,) = toy_lane.LANE.judgements
        weight = StageJudgement(
            stage="test_weight", rule="weight-not-run", last_step="weighed", verdict=self.verdict
        )
        steps = (LaneStep("toy", self.compiled), LaneStep("weighed", self.weighed))
        lane = replace(toy_lane.LANE, steps=steps, judgements=(toy, weight), **changes)
        suite = self.folder / "toy.toml"
        suite.write_text(SUITE)
        reports = self.folder / "reports"
        selection = Selection("wheels", "x86_64-linux", "SM8650", self.folder / "store", reports)
        options = StageOptions(
            selection, Choice(suites=(suite,)), WorkOptions(jobs=1), False, False, stages=stages
        )
        return lane.run_suite(stage, options)

    def rules(self) -> dict[str, list[str]]:
        """The rules of the findings in each report."""
        reports = map(Report.read, (self.folder / "reports").glob("*.json"))
        return {report.stage: sorted(finding.rule for finding in report.findings) for report in reports}


BOTH = "test_toy", "test_weight"


def test_two_stages_judge_one_pass(tmp_path: Path) -> None:
    weighing = Weighing(tmp_path)
    assert weighing.run("test_weight", *BOTH) == 1
    assert weighing.steps == ["toy", "weighed"]
    assert weighing.rules() == {"test_toy": ["toy-refused"], "test_weight": ["too-heavy", "toy-refused"]}


def test_a_stage_alone_stops_after_its_last_step_and_judges_all_that_it_did(tmp_path: Path) -> None:
    first, second = Weighing(tmp_path / "first"), Weighing(tmp_path / "second")
    for weighing, stage in ((first, "test_toy"), (second, "test_weight")):
        weighing.folder.mkdir()
        assert weighing.run(stage) == 1
    assert (first.steps, second.steps) == (["toy"], ["toy", "weighed"])
    assert first.rules() == {"test_toy": ["toy-refused"]}
    # What both judgements find is there once.
    assert second.rules() == {"test_weight": ["too-heavy", "toy-refused"]}


def test_what_ends_a_pass_is_in_the_reports_of_the_stages_that_have_no_verdict_yet(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking):
        Weighing(tmp_path, "no scales").run("test_weight", *BOTH)
    assert Weighing(tmp_path).rules() == {"test_toy": ["toy-refused"], "test_weight": ["weight-not-run"]}


def test_a_machine_that_lacks_something_is_in_the_report_of_each_stage(tmp_path: Path) -> None:
    def plan(*_: object) -> ToyPlan:
        raise EnvironmentLacking("no floor", fix="build one")

    with pytest.raises(EnvironmentLacking):
        Weighing(tmp_path).run("test_weight", *BOTH, plan=plan)
    assert Weighing(tmp_path).rules() == {"test_toy": ["toy-not-run"], "test_weight": ["weight-not-run"]}


def test_work_ends_when_the_time_for_all_of_it_does(tmp_path: Path) -> None:
    begun = time.monotonic()
    work = WorkOptions(jobs=1, until=begun + 1)
    assert toys(tmp_path, work=work, goes_wrong="hangs", words=GOOD)[0] != 0
    assert time.monotonic() < begun + 20
    findings = Report.read(tmp_path / "reports/test_toy.json").findings
    assert len(findings) == 3 and all("no result after" in finding.message for finding in findings)


def test_a_machine_in_trouble_counts_against_no_program(tmp_path: Path) -> None:
    assert toys(tmp_path, goes_wrong="full disk", words=GOOD)[0] == 3
    findings = Report.read(tmp_path / "reports/test_toy.json").findings
    assert [finding.rule for finding in findings] == ["toy-machine"] * 3
    assert toys(tmp_path, words=GOOD)[0] == 0


def test_it_is_chosen_listed_and_sharded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toys(tmp_path, words=("net2 or net3",))[1].keys() == {"net2", "net3"}
    shards = [set(toys(tmp_path, shard=f"{part}/2")[1]) for part in (1, 2)]
    assert shards[0] | shards[1] == {"net2", "net3", "net4", "net99"} and not shards[0] & shards[1]
    capsys.readouterr()
    assert toys(tmp_path, listed=True)[0] == 0 and capsys.readouterr().out.count("SM8650") == 4


def test_a_command_that_repeats_a_program_names_the_executorch_that_was_named(tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(SUITE)
    selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path, tmp_path, executorch="wheel")
    program, *_ = lane_in_which("").chosen(Choice(suites=(tmp_path / "toy.toml",)), selection)
    assert SUITES.repeat(program).command[-2:] == ("--executorch", "wheel")


def test_a_command_that_repeats_a_program_names_its_chip_if_the_suite_does_not(tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(SUITE)
    selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path, tmp_path)
    program, *_ = lane_in_which("").chosen(Choice(suites=(tmp_path / "toy.toml",)), selection)
    other = replace(program, soc="SM8850")
    assert "--soc" not in SUITES.repeat(program).command
    assert SUITES.repeat(other).command[-2:] == ("--soc", "SM8850")
    assert "--soc" not in SUITES.repeat(other, every_chip=True).command


def test_its_figures_become_the_expected_ones(tmp_path: Path) -> None:
    assert toys(tmp_path, True, words=("net2 or net3",))[0] == 0
    programs = SUITES.programs_of(tmp_path / "toy.toml")
    assert [program.accepted.sqnr_db for program in programs] == [19.0, 29.0, None, None]
    assert (tmp_path / "toy.toml").read_text() == SUITE


def model_of(folder: Path, width: int, socs: tuple[str, ...] = ("SM8650",), **more: Any) -> OneModel:
    selection = Selection("wheels", "x86_64-linux", socs[0], folder / "store", folder / "reports", socs)
    options = ToyOptions(output=folder / "out", search=False, **more)
    return OneModel(selection, str(width), toy_lane.HEAD, options, WorkOptions(jobs=1))


def compiled(
    folder: Path,
    width: int,
    suite: Path | None = None,
    socs: tuple[str, ...] = ("SM8650",),
    **more: Any,
) -> None:
    assert compile_model(toy_lane.LANE, model_of(folder, width, socs, **more), suite, History()) == 0


def test_what_was_made_of_another_model_of_the_same_name_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    compiled(tmp_path, 5, embed=True)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(UsageError) as caught:
        compiled(tmp_path, 5, embed=True)
    assert str(tmp_path / "a" / "5") in caught.value.message
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    # From anywhere it is the same model.
    monkeypatch.chdir(tmp_path / "a")
    compiled(tmp_path, 5, embed=True)


def test_one_model_is_compiled_as_a_suite_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(tmp_path, 5, None, ("SM8650", "SM8750"))
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        f"net-{soc}": "xxxxx" for soc in ("SM8650", "SM8750")
    }
    before = capsys.readouterr().err
    assert "0 cached, 2 to do" in before and before.count("it is a toy") == 1
    compiled(tmp_path, 5, None, ("SM8650", "SM8750"))
    captured = capsys.readouterr()
    assert "2 cached, 0 to do" in captured.err and "made for SM8750" in captured.out
    with pytest.raises(ToolkitError) as caught:
        compiled(tmp_path, 99)
    assert caught.value.fix == "make it narrower" and len([*(tmp_path / "out").iterdir()]) == 2


def test_several_precisions_are_compared_in_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compile_precisions(toy_lane.LANE, model_of(tmp_path, 5), ["8a8w", "16a8w"], None) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert rows == [["precision", "chip"], ["8a8w", "SM8650"], ["16a8w", "SM8650"]]


def test_one_model_that_a_suite_gets_is_cached_for_its_stage(tmp_path: Path) -> None:
    suite = tmp_path / "toy.toml"
    compiled(tmp_path, 5, suite)
    code, rows = toys(tmp_path)
    assert code == 0 and [(row["width"], row["cached"]) for row in rows.values()] == [(5, True)]
    (program,) = SUITES.programs_of(suite)
    assert program.thresholds == Thresholds()


def test_a_toy_lane_takes_few_lines() -> None:
    text = Path(toy_lane.__file__).read_text(encoding="utf-8")
    text = text.partition("# What tests alone need")[0].partition("\nclass ")[2]
    assert len([line for line in text.splitlines() if line.strip()]) <= 140
