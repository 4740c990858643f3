"""`test_emulator --reload`: load each program twice, and beside another one, in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.inputs import Touched, search_key
from ci.engine.jobs import Job
from ci.engine.work import Done, Failure, How, Result, do
from ci.engine.workers.parent import Worker
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.compile import LOG, Plan, ProgramTask, started
from ci.lanes.executorch.suite import SUITES
from ci.pipeline.stage import memos_of
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.units import size

SECONDS, MEMORY = 4.0, 1200 << 20
LEAST_GROWTH = 1 << 20
"""How many bytes each load may add without being a leak: the allocator's own."""


@dataclass(frozen=True)
class Reload(ProgramTask):
    compiled: Result
    neighbour: tuple[str, Result] | None
    """The other program is one of the same chip, because an app may have several models."""
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def work(self, worker: Worker, shared: dict[str, Any]) -> Done | Failure:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        other = {"name": self.neighbour[0], **_files(self.neighbour[1])} if self.neighbour else None
        reply = worker.ask({**_files(self.compiled), "other": other, "log": str(self.log)})
        touched = Touched.of(reply.pop("touched"))
        folders = [each.folder for each in (self.compiled, *(self.neighbour or ())[1:]) if each.folder]
        return Done(reply, touched, own=(self.log.parent, *folders))


def _files(compiled: Result) -> dict[str, Any]:
    assert compiled.folder is not None
    folder = str(compiled.folder)
    return {"compiled": folder, "program": f"{folder}/{PROGRAM}", "inputs": compiled.facts["inputs"]}


def reloads(plan: Plan, programs: Mapping[str, Result]) -> dict[str, Result]:
    """The result of every program that ran and can be loaded, by name."""
    programs = {name: each for name, each in programs.items() if not absent_kernels(each)}
    known = {program.name: program for program in plan.programs}
    environment, work = plan.environment, plan.work
    memos = memos_of(plan.programs, "reload", plan.selection.store, environment, reuse=work.cache)
    tasks = []
    for name, compiled in programs.items():
        assert compiled.folder is not None
        memo = memos[known[name].suite]
        neighbour = neighbour_of(name, programs, {each: program.soc for each, program in known.items()})
        key: dict[str, Metric] = {
            "program": dict(memo.files_of(compiled.folder, without=LOG)),
            "QNN": dict(plan.basis.sdk),
            **search_key(memo.roots, environment),
        }
        if neighbour and (folder := neighbour[1].folder):
            key["beside"] = {"name": neighbour[0], **memo.files_of(folder, without=LOG)}
        cost, folder = Job(name, SECONDS, MEMORY), plan.logs / "reload"
        tasks.append(Reload(known[name], key, memo, cost, compiled, neighbour, folder))

    def worker(threads: int, count: int) -> Worker:
        command, session = ("-m", "ci.lanes.executorch.reload_worker"), "nox -s test_emulator -- --reload"
        logs, imports = plan.logs, "executorch.runtime"
        return started(command, environment, threads, logs, work.run_timeout, session, imports)

    def accept(name: str, result: Result) -> bool:
        return not list(findings_of(name, "", result))

    return do(tasks, How("programs loaded again", worker, work.jobs, work.why), accept=accept)


def absent_kernels(compiled: Result) -> list[str]:
    """The operators on the CPU that the runner can compute, and Python's runtime cannot."""
    on_cpu = {str(each["operator"]) for each in compiled.facts["left"]}
    return sorted(each for each in on_cpu if each.startswith("quantized_decomposed."))


def neighbour_of(
    name: str, programs: Mapping[str, Result], socs: Mapping[str, str]
) -> tuple[str, Result] | None:
    """The next program of the same chip, in a ring."""
    same = [each for each in programs if socs[each] == socs[name]]
    other = same[(same.index(name) + 1) % len(same)]
    return None if other == name else (other, programs[other])


def findings_of(name: str, again: str, result: Result) -> Iterator[Finding]:
    def wrong(rule: str, message: str) -> Finding:
        return Finding(f"emulator-reload-{rule}", Severity.ERROR, name, message, again)

    if result.failure:
        yield wrong(result.failure.rule, f"loading it again: {result.failure.message}")
        return
    for message in result.facts["wrong"]:
        yield wrong("outputs", message)
    growth, one_load = int(result.facts["growth"]), int(result.facts["one_load"])
    if growth > max(LEAST_GROWTH, one_load // 2):
        yield wrong(
            "memory",
            f"each load leaves {size(growth)} of memory behind after its release"
            f" (one more load takes {size(one_load)})",
        )


def judged(plan: Plan, programs: Mapping[str, Result], results: Mapping[str, Result]) -> list[Finding]:
    """The findings of all programs, and one note on how the runtime handles a program that is loaded
    twice."""
    names = {program.name: program for program in plan.programs}
    findings = [
        finding
        for name, result in results.items()
        for finding in findings_of(name, f"{SUITES.repeat(names[name], 'test_emulator')} --reload", result)
    ]
    broken = {
        name: str(result.facts["released"])
        for name, result in results.items()
        if result.facts.get("released")
    }
    findings += [
        Finding(
            "emulator-reload-not-run",
            Severity.WARNING,
            name,
            f"not loaded again: Python's runtime has no kernel of {', '.join(absent)}",
            "change what leaves it on the CPU: nox -s test_lowering names it",
        )
        for name, compiled in programs.items()
        if (absent := absent_kernels(compiled))
    ]
    return [*findings, *_release_note(broken, len(results))]


def _release_note(broken: Mapping[str, str], count: int) -> Sequence[Finding]:
    if not broken:
        return ()
    first = next(iter(broken))
    return [
        Finding(
            "emulator-reload-release",
            Severity.NOTE,
            "test_emulator",
            f"{len(broken)} of {count} programs, loaded twice in one process, fail once one of the two is"
            f" released; {first}: {broken[first]}. executorch keeps one QNN context for both",
            "load a program once and share it, or keep both until neither runs: docs/findings.md",
        )
    ]
