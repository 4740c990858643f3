"""A toy lane: a program is as many letters as its run is wide. To write a lane, begin with a copy of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from ci.suite.options import StageOptions
from ci.suite.programs import Program, SuiteCase, SuiteRun, Suites
from ci.suite.stage import (
    MeasuredValues,
    Plan,
    Verdict,
    accepted,
    choose,
    finish,
    packages_of,
    report,
    run_cached_step,
    show_list,
)
from ci.work.cached_steps import Step
from ci.work.jobs import Job, WorkOptions
from ci.work.outcome import Result
from ci.work.schedule import Home
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun


class ToyRun(SuiteRun):
    width: int

    @property
    def kind(self) -> str:
        return "toy"


class ToyCase(SuiteCase):
    runs: tuple[ToyRun, ...] = Field(min_length=1, alias="run")


@dataclass(frozen=True, slots=True)
class ToyProgram(Program):
    case: ToyCase
    run: ToyRun


SUITES = Suites(lane="toy", case=ToyCase, program=ToyProgram, stages=("test_toy",), shipped=Path("toy.toml"))


@dataclass(frozen=True, slots=True)
class ToyPlan(Plan):
    programs: tuple[ToyProgram, ...]


@dataclass(frozen=True, slots=True)
class ToyRequest:
    width: int
    soc: str
    goes_wrong: Mapping[str, object]


def compiling(plan: ToyPlan, goes_wrong: Mapping[str, object] | None = None) -> Step[ToyProgram]:
    home = Home({"PATH": "/usr/bin:/bin"}, plan.logs, "tests.support.toy_worker:prepare", "nothing", "")
    return Step(
        plan=plan,
        kind="toy",
        title="toys",
        function="tests.support.toy_worker:compiled",
        home=lambda own: home,
        request=lambda program: ToyRequest(program.run.width, program.soc, goes_wrong or {}),
        keeps_files=True,
    )


def plan_of(programs: Sequence[ToyProgram], selection: Selection, work: WorkOptions) -> ToyPlan:
    packages = packages_of(programs, selection.store)
    return ToyPlan(tuple(programs), selection, work, selection.reports / "toy", packages)


def measured_of(plan: ToyPlan, results: Mapping[str, Result]) -> MeasuredValues:
    figures = {name: {"sqnr_db": result.facts["sqnr_db"]} for name, result in results.items() if result.facts}
    width = {program.name: program.run.width for program in plan.programs}
    common = {"build_id": "v1"}
    recorded = {name: {**common, "context_bytes": width[name], "accuracy": figures[name]} for name in figures}
    return MeasuredValues(figures, recorded)


def verdict_of(program: ToyProgram, result: Result) -> Verdict:
    findings = []
    if failure := result.failure:
        rule = f"toy-{failure.rule}"
        findings = [Finding(rule, Severity.ERROR, program.name, failure.message, failure.fix)]
    return Verdict(findings, {"cached": result.cached, "width": program.run.width})


def run(options: StageOptions, goes_wrong: Mapping[str, object] | None = None) -> int:
    selection, accept = options.selection, options.accept
    programs = choose(
        SUITES, options.choice, selection, lambda every: {row.name: Job(row.name) for row in every}
    )
    if options.list_only:
        return show_list(programs)
    stage = StageRun("test_toy", selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "toy-not-run"):
        plan = plan_of(programs, selection, options.work)
        results = run_cached_step(compiling(plan, goes_wrong), programs)
        plan = accepted(accept, SUITES, plan, measured_of(plan, results), stage)
        verdicts = {program.name: verdict_of(program, results[program.name]) for program in plan.programs}
        report(stage, SUITES, plan, verdicts, {"toy": results})
    return finish(stage, selection)
