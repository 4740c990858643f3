"""The first and the last part of every stage that runs a suite: it chooses programs, and it reports the
verdict on each.

`run_suite` (`lane.py`) calls these for every lane. Between them the lane's steps do the work (`running.py`),
and `--accept` keeps what they measured (`accepting.py`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.models.own_packages import OwnPackages, install_packages
from ci.models.package_needs import Needs
from ci.suite.findings import not_passed, one_a_cause, verdict
from ci.suite.options import Choice, shard_named
from ci.suite.programs import P, Program, Suites
from ci.work import (
    MACHINE,
    Job,
    Result,
    WorkPlan,
)
from provisioning.base import rendering
from provisioning.base.findings import Finding, Metric, Report, Severity
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun


@dataclass(frozen=True, slots=True)
class Plan(WorkPlan):
    """The work on programs of suites. A lane adds what its steps need."""

    programs: tuple[Program, ...]
    packages: Mapping[Needs, OwnPackages]
    """The installed packages that each program's suite needs."""


Results = Mapping[str, Mapping[str, Result]]
"""Maps a step to the results of its programs. A program's verdict is about the last step."""


def results_of_program(program: Program, results: Results) -> dict[str, Result]:
    """The results of one program, for each step that it reached."""
    return {step: result[program.name] for step, result in results.items() if program.name in result}


@dataclass(frozen=True, slots=True)
class MeasuredValues:
    """The values that --accept writes for each program; what was not measured is absent."""

    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The accuracy of each program, from which thresholds are derived."""
    recorded: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The fields of each program that the baseline stores."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A lane's verdict on one program."""

    findings: Iterable[Finding]
    row: Mapping[str, Metric]
    """The values in its row of the report that not all lanes have."""


def choose(
    suites: Suites[P],
    choice: Choice,
    selection: Selection,
    jobs_of: Callable[[Sequence[P]], Mapping[str, Job]],
) -> list[P]:
    """Return the chosen programs. `jobs_of` gives the job of each program, for --shard: programs of one job
    stay together."""
    programs = suites.choose(
        suites.all_programs(choice.suites, selection.named_socs, profile=selection.profile),
        tags=choice.tags,
        words=choice.words,
    )
    if choice.shard:
        jobs = jobs_of(programs)
        part = shard_named(list({job.name: job for job in jobs.values()}.values()), choice.shard)
        programs = [program for program in programs if jobs[program.name] in part]
    return [replace(program, executorch=selection.executorch) for program in programs]


def packages_of(programs: Iterable[Program], store: Path) -> dict[Needs, OwnPackages]:
    """Return the packages that the suites of these programs name, and install those that are missing."""
    needed = dict.fromkeys(program.needs for program in programs)
    return {needs: install_packages(needs, store) for needs in needed}


def show_list(programs: Sequence[Program]) -> int:
    """Print the programs for --list; returns the exit code."""
    for program in programs:
        sys.stdout.write(f"{program.name}  [{', '.join(program.run.tags)}]\n")
    return 0


def report(
    stage: StageRun, suites: Suites[P], plan: Plan, verdicts: Mapping[str, Verdict], results: Results
) -> None:
    """Put the findings and the row of each program into the report. A program that `verdicts` does not have
    gets no row: something that it needs has failed."""
    rows: dict[str, Metric] = {}
    failures = 0
    stage.suite_of = {program.name: program.suite for program in plan.programs}
    for program in plan.programs:
        if own := verdicts.get(program.name):
            findings = one_a_cause([*own.findings])
            stage.findings += findings
            failures += verdict(findings) == "fail"
            rows[program.name] = {
                "suite": str(program.suite),
                "case": program.case_name,
                "run": program.run.name,
                "soc": program.soc,
                "tags": list(program.run.tags),
                "verdict": verdict(findings),
                "command": suites.repeat(program, stage.stage),
                **own.row,
            }
    for result in results.values():
        stage.findings += not_passed(plan.programs, result)
    *_, last = results.values()
    stage.metrics |= {
        "selected": len(plan.programs),
        "cached": sum(result.cached for result in last.values()),
        "failed": failures,
        "programs": rows,
    }
    suites_with_packages = {row.needs: row.suite for row in plan.programs if row.needs}
    packages: dict[str, Metric] = {
        str(suite): dict(plan.packages[needs].versions) for needs, suite in suites_with_packages.items()
    }
    if packages:
        stage.metrics["packages"] = packages


def machine_failed(findings: Iterable[Finding]) -> bool:
    """Whether the machine prevented a verdict: exit code 1 says that everything could be checked."""
    return any(
        finding.severity is Severity.ERROR and finding.rule.endswith(f"-{MACHINE}") for finding in findings
    )


def finish(stage: StageRun, selection: Selection, *, lacking: bool = False) -> int:
    """Write and show the report; returns the exit code. For `lacking` see StageRun.close."""
    lacking = lacking or machine_failed(stage.findings)

    def show(report: Report) -> None:
        figures = {name: value for name, value in report.metrics.items() if name != "programs"}
        rendering.show(replace(report, metrics=figures, artifacts=()))

    return stage.close(selection.reports, show=show, lacking=lacking)


def export_log(plan: Plan, program: Program) -> Path:
    """The log of an export. Cases of the same name in two suites get logs of their own."""
    alike = [row.suite for row in plan.programs if row.case_name == program.case_name]
    earlier = [*dict.fromkeys([*alike, program.suite])].index(program.suite)
    # No case name contains a space.
    number = f" {earlier + 1}" if earlier else ""
    return (plan.logs / f"{program.case_name}{number}.export.log").absolute()
