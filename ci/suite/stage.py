"""The parts that all stages that run a suite share: they choose programs, prepare the environment, accept
measurements and write the report.

A lane's stage calls these in turn (CONTRIBUTING.md, "Add a lane")."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from ci.models.own_packages import OF_LOCK, Needs, OwnPackages, install_packages, locked_versions
from ci.models.projects import PACKAGES, contradictions, dependencies_of, nearest_project, version_at_hand
from ci.suite.accepted import (
    accepted_path,
    derive_thresholds,
    load_baseline,
    load_tolerances,
    low_figures,
    threshold_values,
)
from ci.suite.figures import METRIC, describe_figures
from ci.suite.findings import not_passed, one_a_cause, verdict
from ci.suite.limits import below_floor
from ci.suite.options import Choice, shard_named
from ci.suite.programs import P, Program, Suites, add_accepted
from ci.suite.task_metric import MetricFigures
from ci.work import (
    MACHINE,
    ChildTask,
    Digests,
    Failure,
    Home,
    Job,
    Line,
    Result,
    Step,
    TaskOutcome,
    WorkPlan,
    digest_of,
    failed_line,
    read,
    run_step,
    run_tasks,
)
from provisioning.accepted_file import Values
from provisioning.base import rendering
from provisioning.base.commands import Fix, quote_command
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Finding, Metric, Report, Severity
from provisioning.base.settings import BUILDS_TREE, DEFAULT_TARGET, Selection, profile_flags
from provisioning.base.stage_run import RAN_WITH, StageRun, require_stage
from provisioning.build_ids import build_ids
from provisioning.dist import description_of
from provisioning.environment import HOST_LIBRARIES, Environment, resolve, selecting_flags
from provisioning.executorch import PYTHON_PATH, Executorch

L = TypeVar("L", bound="Plan")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Plan(WorkPlan):
    """The work on programs of suites. A lane adds what its steps need."""

    programs: tuple[Program, ...]
    packages: Mapping[Needs, OwnPackages]
    """The installed packages that each program's suite needs."""


EXECUTORCH = "executorch"
"""The name of the package, and of the report's metric that says which one ran."""

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


def accept_values(is_asked: bool, suites: Suites[P], plan: L, values: MeasuredValues, stage: StageRun) -> L:
    """Accept the measured values if the user asks for it; returns the plan with the accepted values. Runs
    that their suites no longer have are dropped."""
    if not is_asked:
        return plan

    def again(program: Program) -> Fix:
        return suites.repeat(program, stage.stage, every_chip=True).plus("--accept")

    profile, margin_db = plan.selection.profile, load_tolerances().sqnr_margin_db
    _require_enough(plan.programs, values.figures, margin_db)
    now = list[Program]()
    for suite in dict.fromkeys(program.suite for program in plan.programs):
        programs = [program for program in plan.programs if program.suite == suite]
        all_programs = suites.programs_of(suite, profile=profile)
        thresholds = thresholds_of(all_programs, _of(programs, values.figures), margin_db, again)
        runs = {program.run_name for program in all_programs}
        baseline = load_baseline(suite, profile, suites.lane)
        baseline.rewritten(_of(programs, values.recorded), thresholds, runs)
        now += add_accepted(programs)
    return replace(plan, programs=tuple(now))


def _require_enough(
    programs: Sequence[Program], figures: Mapping[str, Mapping[str, float]], margin_db: float
) -> None:
    """Refuse figures below the limits of all programs: only a person may accept those, by hand."""
    low = [
        f"{program.name} ({name} {figures[program.name][name]:g})"
        for program in programs
        if program.name in figures
        for name in low_figures(
            figures[program.name],
            margin_db,
            program.run.kind,
            demanded=program.demanded,
            accepted=program.accepted.model_dump(exclude_none=True),
        )
    ]
    if low:
        raise CheckFailed(
            f"less than is required of all programs is not accepted: {'; '.join(low)}",
            fix="find out why; if it cannot be better, write its thresholds into the suite, by hand",
        )


def _of(programs: Sequence[Program], values: Mapping[str, V]) -> dict[str, V]:
    return {program.name: values[program.name] for program in programs if program.name in values}


def thresholds_of(
    programs: Sequence[Program],
    figures: Mapping[str, Mapping[str, float]],
    margin_db: float,
    again: Callable[[Program], str],
) -> dict[str, Values]:
    """The thresholds of each run whose chips all have figures; chips that other programs of the run name
    count too. Figures that the suite itself demands get none.

    Prints the runs that get none; `again` is the command that measures each chip of a run."""
    figures_by_run: dict[str, list[Mapping[str, float]]] = {}
    for name, figure in figures.items():
        figures_by_run.setdefault(name.rpartition("/")[0], []).append(figure)
    runs: dict[str, list[Program]] = {}
    for program in programs:
        runs.setdefault(program.run_name, []).append(program)
    thresholds, notes = {}, []
    for name, programs_of_run in runs.items():
        first, of_run = programs_of_run[0], figures_by_run.get(name, [])
        if first.thresholds is None or not of_run:
            continue
        title = f"{name} keeps its thresholds"
        bounds = derive_thresholds(accepted_figures(first, of_run), of_run, margin_db)
        if socs := [program.soc for program in programs_of_run if program.name not in figures]:
            verb = "was" if len(socs) == 1 else "were"
            notes.append((f"{title}: {', '.join(socs)} {verb} not measured", again(first)))
        elif absent := ", ".join(figure for figure, value in bounds.items() if math.isnan(value)):
            place = accepted_path(first.suite, first.profile)
            notes.append((f"{title}: its programs have no {absent}", f"remove {absent} of it from {place}"))
        else:
            thresholds[name] = threshold_values(bounds)
    sys.stderr.writelines(f"{message}; {fix}\n" for message, fix in notes)
    return thresholds


def accepted_figures(program: Program, rows: Sequence[Mapping[str, float]]) -> list[str]:
    """The figures that get a threshold: those that programs with such outputs always need, and those that
    already have one, without those that the suite demands."""
    figures = {name for row in rows for name in row}
    has = [name for name in program.run.required_figures if name.removeprefix("reference_") in figures]
    low = [name for figures in rows for name in below_floor(figures, program.run.kind)]
    names = dict.fromkeys([*has, *program.accepted.model_dump(exclude_none=True), *low])
    return [name for name in names if name not in program.demanded]


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


def _subject_of(program: Program) -> str:
    suite = program.suite
    return f"{program.name} {suite.parent.name}/{suite.name} {program.model_without_suite}"


def run_cached_step(step: Step[P], programs: Iterable[P]) -> dict[str, Result]:
    """The result of each program by name."""
    results = dict[str, Result]()
    step = replace(step, subject=_subject_of)
    for own, alike in group_by_packages(step.plan, list(programs)):
        answers = run_step(step, alike, own)
        if module := next(filter(None, map(_missing_module, answers.values())), ""):
            answers = _retry_with_project(step, alike, answers, module)
        results |= answers
    return results


def _missing_module(result: Result) -> str:
    """The module that the model imports and that is not installed; empty if there is none."""
    return str(result.failure.details.get("missing") or "") if result.failure else ""


def _retry_with_project(
    step: Step[P], programs: Sequence[P], answers: dict[str, Result], module: str
) -> dict[str, Result]:
    """Return the results of a command line's model. If a module is missing, try again with the packages of
    its project; else the failure names the flag to use."""
    needs = programs[0].needs
    if needs.model is None:
        return answers
    if own := packages_of_project(needs, module, step.plan.selection.store):
        answers = run_step(step, programs, own)
        module = next(filter(None, map(_missing_module, answers.values())), "")
    fix = advice(needs, module)
    return {name: _add_advice(result, fix) for name, result in answers.items()}


def packages_of_project(needs: Needs, module: str, store: Path) -> OwnPackages | None:
    """Install what the project of a model brings, if the model lacks this module. Returns None if there is no
    such project, if the user excludes it, or if it was tried already."""
    project = nearest_project(needs.model) if needs.model and needs.takes_nearest else None
    if project is None or needs in _WITH_PROJECT:
        return None
    sys.stderr.write(f"{module} is not installed: taking the packages of {project} (or --no-project)\n")
    pins = {name: pin for name, pin in locked_versions().items() if name in OF_LOCK}
    for text, name, pin in contradictions(dependencies_of(project), pins):
        sys.stderr.write(f"its {text} does not count: {name} is {pin}\n")
    _WITH_PROJECT[needs] = install_packages(replace(needs, project=project, is_lenient=True), store)
    return _WITH_PROJECT[needs]


def modules_beside(model: Path, module: str) -> str:
    """Return the module beside a model's file that may be meant by another name; empty if there is none."""
    names = [path.stem for path in model.parent.glob("*.py") if path != model]
    return next(iter(get_close_matches(module, names, n=1, cutoff=0.8)), "")


def advice(needs: Needs, module: str) -> Fix:
    """The flag that names the package of a module that a model lacks."""
    if needs.model and (near := modules_beside(needs.model, module)):
        return Fix(f"did you mean {near}, which is beside {needs.model.name}?")
    package = version_at_hand(module, nearest_project(needs.model) if needs.model else None, os.environ)
    package = package or PACKAGES.get(module, "")
    return (
        Fix("{}", ("--with", package)) if package else Fix("{}, if that is its package", ("--with", module))
    )


def _add_advice(result: Result, fix: Fix) -> Result:
    if result.failure is None or not _missing_module(result):
        return result
    return replace(result, failure=replace(result.failure, fix=fix))


_WITH_PROJECT: dict[Needs, OwnPackages] = {}
"""The packages that this process has installed from the projects of models. Later steps use them, too."""


def group_by_packages(plan: WorkPlan, programs: Sequence[P]) -> Iterator[tuple[OwnPackages, list[P]]]:
    """Group the programs by the packages of their suites; yields each group with its packages."""
    assert isinstance(plan, Plan)
    for needs in dict.fromkeys(program.needs for program in programs):
        own = _WITH_PROJECT.get(needs) or plan.packages[needs]
        yield own, [program for program in programs if program.needs == needs]


def scores_of(
    plan: Plan,
    programs: Sequence[Program],
    outputs: Mapping[str, Path],
    home: Callable[[OwnPackages], Home],
    function: str,
    request: Callable[[Any], Mapping[str, object]],
) -> dict[str, MetricFigures | Failure]:
    """Compute the figures of each program's metric. `outputs` are the folders with each program's outputs,
    which may be cached.

    `function` is MODULE:FUNCTION; `request` builds its request from the metric and the folder."""
    results: dict[str, MetricFigures | Failure] = {}
    for own, alike in group_by_packages(plan, programs):
        tasks = [
            ChildTask(
                program.name,
                function,
                {
                    "do": METRIC,
                    "function": str(program.search_path / program.case.metric.function),
                    "outputs": str(outputs[program.name]),
                    "working_folder": str(program.working_folder),
                    **request(program),
                },
                plan.work.timeout,
                _log(plan, program.name),
            )
            for program in alike
        ]
        outcomes = run_tasks(tasks, home(own), "metrics of tasks", _line, plan.work.jobs)
        results |= {
            name: outcome if isinstance(outcome, Failure) else _metric_of(outcome, _log(plan, name))
            for name, outcome in outcomes.items()
        }
    return results


def _log(plan: Plan, name: str) -> Path:
    return plan.logs.absolute() / METRIC / f"{name}.log"


def _line(name: str, outcome: TaskOutcome) -> Line:
    if isinstance(outcome, Failure):
        return failed_line(f"{outcome.kind}: {outcome.message}")
    return Line("measured", describe_figures(read(MetricFigures, outcome).figures))


def _metric_of(reply: dict[str, object], log: Path) -> MetricFigures:
    log.unlink(missing_ok=True)
    return read(MetricFigures, reply)


def require_packages(modules: Iterable[str], fix: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise EnvironmentLacking(
                f"{module.replace('_', '-')} is not installed in {sys.executable}", fix=fix
            )


def host_libraries(sdk_root: Path, store: Path) -> dict[str, str]:
    """The QNN build, and the digest of its libraries that run on this machine. The store remembers the
    digests of files that have not changed."""
    libraries = sdk_root / "lib" / HOST_LIBRARIES
    htp = libraries / "libQnnHtp.so"
    if not htp.is_file():
        raise EnvironmentLacking(
            f"{sdk_root} has no lib/{HOST_LIBRARIES}/libQnnHtp.so, which compiles for the HTP",
            fix=Fix("{}, or set QNN_SDK_ROOT to an SDK with x86-64 Linux libraries", ("provision",)),
        )
    digests = Digests(store)
    hashes = {path.name: digests.of(path) for path in sorted(libraries.glob("*.so*"))}
    digests.save()
    return {"build_id": ", ".join(build_ids(htp)) or "unknown", "libraries": digest_of(dict(hashes))}


def use_executorch(environment: Environment) -> Executorch:
    """Let this process find the executorch that its workers find; its output and report say which it is.
    Raises EnvironmentLacking if a variable names another one."""
    executorch = environment.executorch.current()
    sys.path[:] = [entry for entry in sys.path if description_of(Path(entry)) is None]
    if executorch.overlay:
        sys.path.insert(0, str(executorch.overlay))
    _require_found(executorch)
    text = executorch.describe(version(EXECUTORCH))
    if RAN_WITH.get(EXECUTORCH) != text:
        sys.stderr.write(f"executorch {text}\n")
    RAN_WITH[EXECUTORCH] = text
    return executorch


def _require_found(executorch: Executorch) -> None:
    """Refuse another executorch that comes before it on Python's path."""
    spec, home = importlib.util.find_spec(EXECUTORCH), executorch.overlay or Path(sys.prefix)
    for place in map(Path, list(spec.submodule_search_locations or ())[:1] if spec else ()):
        if place.absolute().is_relative_to(home.absolute()):
            continue
        is_on_path = str(place.parent) in os.environ.get(PYTHON_PATH, "").split(os.pathsep)
        uninstall = quote_command(sys.executable, "-m", "pip", "uninstall", EXECUTORCH)
        raise EnvironmentLacking(
            f"Python finds executorch in {place}, expected it below {home}",
            fix=f"leave {place.parent} out of {PYTHON_PATH}"
            if is_on_path
            else f"an editable install, a .pth file or the user's site has it: {uninstall}; an installed"
            " `qnn-ci` has a Python of its own",
        )


def ready_environment(selection: Selection, environ: Mapping[str, str]) -> Environment:
    """Resolve the environment, and first provision and build what neither the store nor the user has."""
    environment = provisioned_environment(selection, environ)
    if environ.get(BUILDS_TREE) and _is_to_be_built(environment.executorch):
        sys.stderr.write("Building for this machine the tree that was just built for a device\n")
        flags = profile_flags(selection.profile, {})
        message = f"{EXECUTORCH} could not be built for this machine"
        require_stage("ci", "build_x86", flags, selection.reports, environ, message)
        environment = resolve(selection, environ)
    use_executorch(environment)
    return environment


def _is_to_be_built(executorch: Executorch) -> bool:
    try:
        executorch.current()
    except EnvironmentLacking:
        return True
    return False


def provisioned_environment(selection: Selection, environ: Mapping[str, str]) -> Environment:
    """Resolve the environment, and first provision what neither the store nor the user has."""
    try:
        return resolve(selection, environ)
    except EnvironmentLacking:
        sys.stderr.write(f"Fetching what the profile {selection.profile} names, once\n")
        host = replace(selection, named_targets=(DEFAULT_TARGET,), named_socs=())
        flags = selecting_flags(host, environ)
        failed = "QNN could not be provisioned"
        require_stage("provisioning", "provision", flags, selection.reports, environ, failed)
    return resolve(selection, environ)
