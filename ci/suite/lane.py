"""A lane: a way from a model to the NPU. What each says of itself, and the stage that is made of it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from ci.jobs import Job
from ci.models.own_packages import record
from ci.outcome import Result
from ci.suite.findings import not_passed, one_a_cause
from ci.suite.installed import source_of_executorch
from ci.suite.options import Choice, StageOptions
from ci.suite.programs import AnyProgram, Suites
from ci.suite.recheck import Rechecked, metrics, recheck
from ci.suite.recheck import findings as recheck_findings
from ci.suite.stage import AnyPlan, accepted, chosen, counts, finish, row_of, write_accepted
from provisioning.base.findings import Finding, Metric
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun

P = TypeVar("P", bound=AnyProgram[Any, Any])
L = TypeVar("L", bound=AnyPlan[Any])

Results = Mapping[str, Mapping[str, Result]]
"""By step, and then by program; the last step is the one that a program's verdict is about."""
Mine = Mapping[str, Result]
"""Of one program, by step: of those that it came to."""


class Lane(ABC, Generic[P, L]):
    stage: ClassVar[str]
    rules: ClassVar[str]
    """How the rules of its findings begin."""
    suites: Suites[P]

    def require_installed(self) -> None:
        """Raise EnvironmentLacking if this Python lacks what the lane imports."""

    def jobs(self, programs: Sequence[P], profile: str) -> Mapping[str, Job]:
        """By program its job, for --shard: programs of one job stay together."""
        return {program.name: Job(program.name) for program in programs}

    @abstractmethod
    def plan(self, programs: Sequence[P], options: StageOptions) -> L: ...

    @abstractmethod
    def do(self, plan: L, *, new_baseline: bool) -> Results:
        """The results of all steps. With `new_baseline`, a cached result that is worse than the baseline
        counts: it becomes the baseline."""

    @abstractmethod
    def findings(self, plan: L, program: P, mine: Mine) -> Iterable[Finding]:
        """What is wrong with a program, and what is to be said of it."""

    @abstractmethod
    def row(self, plan: L, program: P, mine: Mine) -> Mapping[str, Metric]:
        """What its row of the report has beside what all lanes' rows have."""

    def compared(self, plan: L, results: Results) -> L:
        """The plan with what only all results together say of a program."""
        return plan

    def reached(self, mine: Mine) -> bool:
        """Whether there is a verdict on a program; else what it needs has failed, which `close` says."""
        return True

    def figures(self, program: P, mine: Mine) -> Mapping[str, float] | None:
        """Its accuracy, which --accept writes as thresholds; None where nothing was measured."""
        return None

    def recorded(self, plan: L, program: P, mine: Mine) -> Mapping[str, object] | None:
        """What --accept writes of it to the baseline."""
        return None

    def close(self, stage: StageRun, plan: L, results: Results) -> None:
        """What is to be said of all programs together."""

    def lacking(self, findings: Sequence[Finding]) -> bool:
        """Whether the only errors are that something is not installed."""
        return False


def run(lane: Lane[P, L], options: StageOptions) -> int:
    """The stage of a lane; returns the exit code."""
    selection, accept = options.selection, options.accept
    if options.list_only:
        for program in chosen_programs(lane, options.choice, selection):
            sys.stdout.write(f"{program.name}  [{', '.join(program.run.tags)}]\n")
        return 0
    stage = StageRun.as_typed(lane.stage, selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, f"{lane.rules}-not-run"):
        lane.require_installed()
        programs = chosen_programs(lane, options.choice, selection)
        plan = lane.plan(programs, options)
        results = lane.do(plan, new_baseline=accept.values)
        rechecked: list[Rechecked] = []
        if share := options.work.recheck:
            rechecked = recheck(plan.repeatable, share)
            stage.metrics |= metrics(rechecked)
        figures = {
            program.name: dict(values)
            for program in plan.programs
            if (values := lane.figures(program, mine_of(program, results))) is not None
        }
        recorded = recorded_values(lane, plan, results)
        plan = replace(plan, programs=accepted(accept, lane.suites, plan, figures, recorded, stage))
        plan = lane.compared(plan, results)
        judge(stage, lane, plan, results, rechecked)
        lane.close(stage, plan, results)
        record(stage, {row.needs: row.suite for row in plan.programs if row.needs}, selection)
    return finish(stage, selection, lacking=lane.lacking(stage.findings))


def chosen_programs(lane: Lane[P, Any], choice: Choice, selection: Selection) -> list[P]:
    return chosen(lane.suites, choice, selection, lambda every: lane.jobs(every, selection.profile))


def mine_of(program: AnyProgram[Any, Any], results: Results) -> Mine:
    return {step: result[program.name] for step, result in results.items() if program.name in result}


def judge(
    stage: StageRun, lane: Lane[P, L], plan: L, results: Results, rechecked: Sequence[Rechecked]
) -> None:
    """Put each program's findings and row into the report."""
    rows: dict[str, Metric] = {}
    commands = {program.name: lane.suites.repeat(program, lane.stage) for program in plan.programs}
    differences = list(recheck_findings(rechecked, lambda work: commands[work.name]))
    for program in plan.programs:
        mine = mine_of(program, results)
        findings = [finding for finding in differences if finding.subject == program.name]
        if lane.reached(mine):
            findings += lane.findings(plan, program, mine)
        findings = one_a_cause(findings)
        stage.findings += findings
        if not lane.reached(mine):
            continue
        shown = row_of(program, findings, commands[program.name], lane.stage)
        rows[program.name] = {**shown, **lane.row(plan, program, mine)}
    for result in results.values():
        stage.findings += not_passed(plan.programs, result)
    *_, last = results.values()
    stage.metrics |= counts(rows, last.values())
    stage.metrics |= {"selected": len(plan.programs), **source_of_executorch()}


def update(lane: Lane[P, L], plan: L, results: Results) -> None:
    """Replace what the baselines have of programs by what was measured, cached or not."""
    write_accepted(lane.suites, plan, recorded_values(lane, plan, results), {})


def recorded_values(lane: Lane[P, L], plan: L, results: Results) -> dict[str, Mapping[str, object]]:
    return {
        program.name: values
        for program in plan.programs
        if (values := lane.recorded(plan, program, mine_of(program, results))) is not None
    }
