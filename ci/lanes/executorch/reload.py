"""`test_emulator --reload`: load each program twice, and beside another one, in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ci.cached_steps import Step
from ci.jobs import Job
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.compile import ExecutorchPlan
from ci.lanes.executorch.records import Loadable, Reloaded, ReloadRequest, compiled_in, reloaded_in
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.outcome import Failure, Result
from ci.plain import as_json
from ci.results import CachedResults, Key
from ci.suite.stage import run_cached_step
from ci.work import Home
from provisioning.base.commands import Fix, session
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.units import size

SECONDS, MEMORY = 4.0, 1200 << 20
LEAST_GROWTH = 1 << 20
"""How many bytes each load may add without being a leak: the allocator's own."""


def reloading(plan: ExecutorchPlan, compiled: Mapping[str, Result], neighbours: Mapping[str, str]) -> Step:
    """By program, `neighbours` has another one of the same chip, because an app may have several models."""
    plan = replace(plan, logs=plan.logs / "reload")

    def key(program: ExecutorchProgram, results: CachedResults) -> Key:
        names = [program.name, neighbours.get(program.name, program.name)]
        programs: dict[str, Metric] = {
            name: {
                "program": compiled_in(compiled[name]).without_time,
                "inputs": [results.digest(path) for path in sorted(folder.glob("input*.raw"))],
            }
            for name in dict.fromkeys(names)
            if (folder := compiled[name].folder)
        }
        return {"programs": programs, "QNN": dict(plan.qnn)}

    def request(program: ExecutorchProgram) -> Mapping[str, object]:
        other = neighbours.get(program.name)
        beside = _loadable(other, compiled[other]) if other else None
        return as_json(ReloadRequest(_loadable(program.name, compiled[program.name]), beside))

    home = Home(
        {**plan.environment, "OPENBLAS_NUM_THREADS": "1"},
        plan.logs,
        "ci.lanes.executorch.reload_worker:prepare",
        "executorch.runtime",
        session("test_emulator", "--reload"),
    )
    return Step(
        plan=plan,
        kind="reload",
        title="programs loaded again",
        function="ci.lanes.executorch.reload_worker:reloaded",
        home=lambda own: home,
        request=request,
        key=key,
        reply=Reloaded,
        own_packages=False,
        timeout=plan.work.run_timeout,
        flag="--run-timeout",
        cost=lambda program: Job(program.name, SECONDS, MEMORY),
        accepts=lambda program, result: not list(findings_of(program.name, "", result)),
        ended=lambda program, gone, log: Failure(gone.kind, gone.sentence(log), log=log),
    )


def _loadable(name: str, compiled: Result) -> Loadable:
    assert compiled.folder is not None
    folder = str(compiled.folder)
    return Loadable(name, folder, f"{folder}/{PROGRAM}", compiled_in(compiled).inputs)


def reloads(plan: ExecutorchPlan, compiled: Mapping[str, Result]) -> dict[str, Result]:
    """The result of every program that ran and can be loaded, by name."""
    programs = [
        row for row in plan.programs if row.name in compiled and not absent_kernels(compiled[row.name])
    ]
    return run_cached_step(reloading(plan, compiled, neighbours_of(programs)), programs)


def absent_kernels(compiled: Result) -> list[str]:
    """The operators on the CPU that the runner can compute, and Python's runtime cannot."""
    on_cpu = {operator.operator for operator in compiled_in(compiled).left}
    return sorted(name for name in on_cpu if name.startswith("quantized_decomposed."))


def neighbours_of(programs: Sequence[ExecutorchProgram]) -> dict[str, str]:
    """By program the next one of the same chip, in a ring; none for one that is alone."""
    rings: dict[str, list[str]] = {}
    for program in programs:
        rings.setdefault(program.soc, []).append(program.name)
    pairs = [pair for ring in rings.values() for pair in zip(ring, [*ring[1:], ring[0]], strict=True)]
    return {name: other for name, other in pairs if name != other}


def findings_of(name: str, again: str, result: Result) -> Iterator[Finding]:
    def wrong(rule: str, message: str) -> Finding:
        return Finding(f"emulator-reload-{rule}", Severity.ERROR, name, message, again)

    if result.failure:
        yield wrong(result.failure.rule, f"loading it again: {result.failure.message}")
        return
    record = reloaded_in(result)
    for message in record.wrong:
        yield wrong("outputs", message)
    if record.growth > max(LEAST_GROWTH, record.one_load // 2):
        left, taken = size(record.growth), size(record.one_load)
        message = f"each load leaves {left} of memory behind after its release (one more load takes {taken})"
        yield wrong("memory", message)


def judged(
    plan: ExecutorchPlan, programs: Mapping[str, Result], results: Mapping[str, Result]
) -> list[Finding]:
    """One note says how the runtime handles a program that is loaded twice."""
    names, findings = {program.name: program for program in plan.programs}, list[Finding]()
    for name, result in results.items():
        findings += findings_of(name, f"{SUITES.repeat(names[name], 'test_emulator')} --reload", result)
    look = Fix("change what leaves it on the CPU: {} names it", ("test_lowering",))
    for name, compiled in programs.items():
        if absent := absent_kernels(compiled):
            message = f"not loaded again: Python's runtime has no kernel of {', '.join(absent)}"
            findings.append(Finding("emulator-reload-not-run", Severity.WARNING, name, message, look))
    loaded = {name: reloaded_in(result) for name, result in results.items() if not result.failure}
    if broken := {name: record.released for name, record in loaded.items() if record.released}:
        first = ": ".join(next(iter(broken.items())))
        message = (
            f"{len(broken)} of {len(results)} programs, loaded twice in one process, fail once one of the two"
            f" is released; {first}. executorch keeps one QNN context for both"
        )
        fix = "load a program once and share it, or keep both until neither runs (released-twin)"
        findings.append(Finding("emulator-reload-release", Severity.NOTE, "test_emulator", message, fix))
    return findings
