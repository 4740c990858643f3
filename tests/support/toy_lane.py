"""A toy lane: a program repeats a text as often as its run is wide. To write a lane, begin with a copy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from ci.explain.lane import ModelLane
from ci.lanes.registry import Registered
from ci.one_model.model import OneModel
from ci.one_model.options import ModelOptions
from ci.one_model.product import Product
from ci.suite.lane import LaneStep, StageJudgement
from ci.suite.lane_head import COMPILE, LaneHead, LaneStage
from ci.suite.options import Choice, StageOptions
from ci.suite.programs import NO_SUITE, MixedRun, Program, SuiteCase, Suites
from ci.suite.running import run_cached_step
from ci.suite.stage import MeasuredValues, Plan, Results, Verdict, packages_of
from ci.suite.stage_command import SuiteCommand
from ci.work import File, Home, Job, Result, Step, require_done
from provisioning.base.findings import Finding, Severity
from provisioning.base.option_fields import option


class ToyRun(MixedRun):
    width: int
    precision: str = ""
    calibration: int | None = None

    @property
    def kind(self) -> str:
        return "toy"


class ToyCase(SuiteCase):
    text: str = ""
    """A file, relative to the suite."""
    samples: str = ""
    inferences: int | None = None
    runs: tuple[ToyRun, ...] = Field(min_length=1, alias="run")


@dataclass(frozen=True, slots=True)
class ToyProgram(Program):
    case: ToyCase
    run: ToyRun


SUITES = Suites(lane="toy", case=ToyCase, program=ToyProgram, stages=("test_toy",), shipped=Path("toy.toml"))


@dataclass(frozen=True, slots=True)
class ToyPlan(Plan):
    programs: tuple[ToyProgram, ...]
    goes_wrong: str = ""


@dataclass(frozen=True, slots=True)
class ToyRequest:
    width: int
    soc: str
    text: File | None
    non_finite: bool
    goes_wrong: str


def compiling(plan: ToyPlan) -> Step[ToyProgram]:
    home = Home({"PATH": "/usr/bin:/bin"}, plan.logs, "tests.support.toy_worker:prepare", "nothing", "")

    def request(program: ToyProgram) -> ToyRequest:
        text = File(str(program.search_path / program.case.text)) if program.case.text else None
        return ToyRequest(program.run.width, program.soc, text, program.case.non_finite, plan.goes_wrong)

    return Step(
        plan=plan,
        kind="toy",
        title="toys",
        function="tests.support.toy_worker:compiled",
        home=lambda own: home,
        request=request,
        keeps_files=True,
    )


def plan_of(programs: Sequence[ToyProgram], options: StageOptions, stages: tuple[str, ...]) -> ToyPlan:
    selection = options.selection
    packages = packages_of(programs, selection.store)
    return ToyPlan(tuple(programs), selection, options.work, selection.reports / "toy", packages)


def jobs_of(programs: Sequence[ToyProgram]) -> dict[str, Job]:
    return {program.name: Job(program.name) for program in programs}


def compiled_results(plan: ToyPlan, results: Results) -> Mapping[str, Result]:
    return run_cached_step(compiling(plan), plan.programs)


def measured_of(plan: ToyPlan, results: Results) -> MeasuredValues:
    compiled = results["toy"].items()
    figures = {name: {"sqnr_db": result.facts["sqnr_db"]} for name, result in compiled if result.facts}
    width = {program.name: program.run.width for program in plan.programs}
    recorded = {
        name: {"build_id": "v1", "context_bytes": width[name], "accuracy": figures[name]} for name in figures
    }
    return MeasuredValues(figures, recorded)


def verdict_of(plan: ToyPlan, program: ToyProgram, results: Mapping[str, Result]) -> Verdict:
    findings, result = [], results["toy"]
    if failure := result.failure:
        rule = f"toy-{failure.rule}"
        findings = [Finding(rule, Severity.ERROR, program.name, failure.message, failure.fix)]
    costs = {"context_bytes": program.run.width}
    return Verdict(findings, {"cached": result.cached, "width": program.run.width, "costs": {**costs}})


@dataclass(frozen=True)
class ToyOptions(ModelOptions):
    embed: bool = option(False, "--embed", "write a record", verbs=("compile",), suite="run.width")


def programs_of(model: OneModel, suite: Path | None) -> list[ToyProgram]:
    run = ToyRun(width=int(model.typed), socs=model.selection.socs)
    suite, case = suite or Path(NO_SUITE).absolute(), ToyCase(run=(run,))
    return [ToyProgram(suite, "net", case, run, soc) for soc in run.socs]


def plan_to_compile(model: OneModel, programs: Sequence[ToyProgram]) -> ToyPlan:
    return plan_of(programs, StageOptions(model.selection, Choice(), model.work, False, False), ())


def product_of(model: OneModel, plan: ToyPlan, program: ToyProgram, results: Mapping[str, Result]) -> Product:
    folder = require_done(results["toy"]).folder
    assert folder
    files: dict[str, Path | str] = {f"net-{program.soc}": folder / "program"}
    if model.own(ToyOptions).embed:
        files["net.json"] = json.dumps({"schema": 1})
    return Product(files, [f"made for {program.soc}"], warnings=["it is a toy"], chips=program.soc)


HEAD = LaneHead(
    name="toy",
    environment="executorch",
    stages=(LaneStage("test_toy", "tests.support.toy_lane:VERB", "compile toys", "suites.md"),),
    models="toys",
    verbs=(COMPILE,),
)
STEPS = (LaneStep("toy", compiled_results),)
LANE = ModelLane(
    head=HEAD,
    suites=SUITES,
    jobs=jobs_of,
    plan=plan_of,
    steps=STEPS,
    judgements=(
        StageJudgement(
            stage="test_toy",
            rule="toy-not-run",
            last_step="toy",
            verdict=verdict_of,
            measured=measured_of,
        ),
    ),
    programs=programs_of,
    model_plan=plan_to_compile,
    model_steps=STEPS,
    product=product_of,
)


VERB = SuiteCommand("  nox -s test_toy\n", HEAD, "test_toy", lambda: LANE)
REGISTERED = Registered(HEAD, lambda: LANE, lambda: SUITES, lambda: LANE, lambda: ToyOptions)


# What tests alone need: a lane in which work goes wrong.
def lane_in_which(goes_wrong: str) -> ModelLane[ToyProgram, ToyPlan]:
    def plan(programs: Sequence[ToyProgram], options: StageOptions, stages: tuple[str, ...]) -> ToyPlan:
        return replace(plan_of(programs, options, stages), goes_wrong=goes_wrong)

    return replace(LANE, plan=plan)
