"""The verdict of gate.yml: what is planned, and which reports of its jobs make it green."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ci.github.verdict import Planned, PlannedJob, unpack_plan, verdict
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Metric, Outcome, Report
from tests.support.program_reports import row

NET, BERT = "net/8a8w/SM8650", "bert/fp16/SM8650"
LOWERING, EMULATOR = "test_lowering", "test_emulator"
PLANNED = Planned(
    "7.1",
    {
        "validate": PlannedJob("reports-validate", "validate"),
        **{f"programs {n}/2": PlannedJob(f"reports-programs-{n}-of-2", "gate") for n in (1, 2)},
    },
    {LOWERING: [NET, BERT], EMULATOR: [NET, BERT]},
)


def report_of(stage: str, *passed: str, run: str = "7.1", **verdicts: str) -> Report:
    """With a row of each program that passed, and of others with these verdicts."""
    rows: dict[str, Metric] = {name: row(name, "pass", stage) for name in passed}
    rows |= {name: row(name, word, stage) for name, word in verdicts.items()}
    outcome = Outcome.FAIL if "fail" in verdicts.values() else Outcome.PASS
    metrics: dict[str, Metric] = {"programs": rows} if rows else {}
    return Report(stage, "wheels", "", outcome, "2026-11-30T12:00:00Z", 1.0, (), (), metrics, "", run=run)


@dataclass
class Job:
    """What GitHub knows of a run: how its jobs ended, and their artifacts."""

    folder: Path
    plan: str = "success"
    jobs: str = "success"
    now: str = "7.1"
    planned: str = PLANNED.packed()
    reports: dict[str, list[Report]] = field(default_factory=dict)

    def give(self) -> int:
        for artifact, reports in self.reports.items():
            for report in reports:
                report.write(self.folder / "jobs" / artifact)
        return verdict({
            "GITHUB_WORKSPACE": str(self.folder),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "QNN_CI_PLAN": self.plan,
            "QNN_CI_LIGHTS": self.jobs,
            "QNN_CI_PLANNED": self.planned,
            "QNN_CI_REPORTS": "jobs",
            "QNN_CI_RUN": self.now,
        })  # fmt: skip

    def shard(self, number: int) -> list[Report]:
        return self.reports[f"reports-programs-{number}-of-2"]


@pytest.fixture
def run(tmp_path: Path) -> Job:
    """One of which all is well."""
    shards = {
        f"reports-programs-{number}-of-2": [
            report_of("gate"), report_of(LOWERING, name), report_of(EMULATOR, name),
        ]
        for number, name in ((1, NET), (2, BERT))
    }  # fmt: skip
    return Job(tmp_path, reports={"reports-validate": [report_of("validate")], **shards})


def errors(capfd: pytest.CaptureFixture[str]) -> str:
    return "\n".join(line for line in capfd.readouterr().out.splitlines() if line.startswith("::error"))


def test_a_run_in_which_each_planned_program_passed_is_green(run: Job) -> None:
    assert run.give() == 0


def test_a_job_that_ran_nothing_is_red_by_its_name_and_its_programs_though_its_light_is_green(
    run: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a poisoned cache does that overwrites the tools of a job."""
    run.shard(2).clear()
    assert run.give() == 1
    said = errors(capfd)
    assert "programs 2/2" in said and said.count(BERT) == 2 and NET not in said


def test_a_run_without_any_report_is_red(run: Job) -> None:
    run.reports.clear()
    assert run.give() == 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_program_that_one_stage_says_nothing_of_is_missing(
    run: Job, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    stage = run.shard(1).pop(number).stage
    assert run.give() == 1
    assert (f"programs 1/2: uploaded no report of {stage}" if stage == "gate" else NET) in errors(capfd)


@pytest.mark.parametrize(
    ("run_of_report", "plan", "now", "green"),
    [
        ("7.1", "7.1", "7.1", True),
        ("7.2", "7.1", "7.2", True),
        ("7.1", "7.1", "7.2", True),
        ("7.1", "7.2", "7.2", False),
        ("7.3", "7.1", "7.2", False),
        ("6.1", "7.1", "7.1", False),
        ("", "7.1", "7.1", False),
        ("20261130-120000-7", "7.1", "7.1", False),
        ("7.1", "", "7.1", False),
    ],
)
def test_a_report_counts_from_the_attempt_of_the_plan_to_this_one(
    run: Job, capfd: pytest.CaptureFixture[str], run_of_report: str, plan: str, now: str, green: bool
) -> None:
    """After `Re-run failed jobs` the plan and the green jobs are of an earlier attempt, and after `Re-run all
    jobs` none is."""
    for artifact, reports in run.reports.items():
        mine = "7.2" if now == plan == "7.2" else now
        other = run_of_report if artifact == "reports-programs-1-of-2" else mine
        run.reports[artifact] = [replace(report, run=other) for report in reports]
    run.planned, run.now = replace(PLANNED, run=plan).packed(), now
    assert (run.give() == 0) == green
    assert green or not plan or ("programs 1/2" in (said := errors(capfd)) and NET in said)


@pytest.mark.parametrize("number", [1, 2])
def test_a_program_that_did_not_pass_is_red_whatever_the_rest_of_its_report_says(
    run: Job, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    stage = run.shard(1)[number].stage
    run.shard(1)[number] = replace(report_of(stage, **{NET: "fail"}), outcome=Outcome.PASS)
    assert run.give() == 1
    assert NET in errors(capfd)


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.ERROR])
def test_a_job_whose_report_is_red_is_red(
    run: Job, capfd: pytest.CaptureFixture[str], outcome: Outcome
) -> None:
    run.reports["reports-validate"] = [replace(report_of("validate"), outcome=outcome)]
    assert run.give() == 1
    assert "validate: " in errors(capfd)


def test_a_file_that_is_no_report_counts_as_none(run: Job, capfd: pytest.CaptureFixture[str]) -> None:
    run.give()
    (run.folder / "jobs/reports-validate/validate.json").write_text('{"stage": "validate"}')
    run.reports.clear()
    assert run.give() == 1
    assert "validate: " in errors(capfd)


@pytest.mark.parametrize("light", ["failure", "cancelled", "skipped", ""])
def test_green_reports_do_not_outweigh_a_red_job(run: Job, light: str) -> None:
    run.jobs = light
    assert run.give() == 1


@pytest.mark.parametrize("light", ["failure", "cancelled", "skipped", ""])
def test_without_a_plan_nothing_is_green(run: Job, light: str) -> None:
    run.plan = light
    with pytest.raises(CheckFailed, match="plan"):
        run.give()


NOTHING = Planned("7.1", {}, {}, ("docs/x.md", "docs/<b>y.md"))


def test_a_change_of_unrelated_files_is_green_with_their_list_though_no_job_ran(
    run: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    run.reports.clear()
    run.planned, run.jobs = NOTHING.packed(), "skipped"
    assert run.give() == 0
    assert "docs/x.md" in capfd.readouterr().out and "<b>" not in (run.folder / "summary").read_text()


@pytest.mark.parametrize("light", ["success", "failure", "cancelled", ""])
@pytest.mark.parametrize("planned", [NOTHING, replace(NOTHING, unrelated=())])
def test_without_jobs_nothing_else_is_green(run: Job, light: str, planned: Planned) -> None:
    run.reports.clear()
    run.planned, run.jobs = planned.packed(), light
    assert run.give() == 1


def test_an_empty_plan_is_red_if_nothing_was_unrelated(run: Job) -> None:
    run.planned, run.jobs = replace(NOTHING, unrelated=()).packed(), "skipped"
    assert run.give() == 1


@pytest.mark.parametrize("text", ["", "nonsense", "e30="])
def test_a_plan_that_cannot_be_read_is_no_plan(run: Job, text: str) -> None:
    run.planned = text
    with pytest.raises(UsageError, match="QNN_CI_PLANNED"):
        run.give()


def test_a_plan_of_thousands_of_programs_fits_into_a_variable() -> None:
    names = [f"model-{number}/16a8w-calibrated/SM{8000 + number % 900}" for number in range(5000)]
    planned = replace(PLANNED, programs={LOWERING: names, EMULATOR: names})
    assert len(planned.packed()) < 128 << 10 and unpack_plan(planned.packed()) == planned
