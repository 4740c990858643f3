"""Programs compiled in parallel by workers, and remembered by everything that they depend on."""

from __future__ import annotations

import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.artifacts.compiler_log import DIES_OF
from ci.engine.inputs import Roots, Touched, python_name, search_key
from ci.engine.installed import host_libraries
from ci.engine.jobs import Job, memory_budget
from ci.engine.memo import Memo
from ci.engine.progress import Line, failed
from ci.engine.work import Done, Failure, How, Result, do, line_of
from ci.engine.workers.child import THREADS, WARM
from ci.engine.workers.parent import Gone, Setup, Worker
from ci.lanes.executorch.suite import Program
from ci.lanes.executorch.worker import MEMORY
from ci.pipeline.baseline import Baseline
from ci.pipeline.models.own_packages import OwnPackages
from ci.pipeline.stage import AnyPlan, by_packages, memos_of
from provisioning.base.findings import Finding, Metric

LOG = "compile.log"

WORKER = ("-m", "ci.lanes.executorch.worker")

UNKNOWN_SECONDS, UNKNOWN_MEMORY = 8.0, 1200
LEAST_MEMORY = 4 << 30


@dataclass(frozen=True, slots=True)
class Basis:
    """What every program depends on beside its own case and is known before any work."""

    python: str
    sdk: dict[str, str]

    @property
    def build_id(self) -> str:
        return self.sdk["build_id"]


@dataclass(frozen=True, slots=True)
class Plan(AnyPlan[Program]):
    environment: Mapping[str, str]
    """Of the workers."""
    sdk: Path
    basis: Basis
    refused: dict[str, Finding]
    """Programs that this SDK cannot compile at all."""
    quantize_only: bool = False
    """End with the quantized model."""
    errors_follow: bool = False
    """Whether the command shows each error itself, so that progress need not."""


def basis_of(sdk_root: Path, store: Path | None = None) -> Basis:
    return Basis(python_name(), host_libraries(sdk_root, "compiles for the HTP", store))


def key(program: Program, basis: Basis, roots: Roots, environ: Mapping[str, str]) -> dict[str, Metric]:
    """The inputs that are known before any work. Code and files are discovered by the work itself."""
    return {
        **program.request,
        "python": basis.python,
        "QNN": dict(basis.sdk),
        "suite": roots.name(str(program.search_path)),
        "working folder": roots.name(str(program.working_folder)),
        **search_key(roots, environ),
    }


@dataclass(frozen=True)
class ProgramTask(ABC):
    """The fields that compiling and running a program have in common as tasks of the engine."""

    program: Program
    key: Mapping[str, Metric]
    memo: Memo
    cost: Job

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def group(self) -> str:
        return self.program.name

    @property
    @abstractmethod
    def log(self) -> Path:
        """Where the work writes what it prints."""

    def ended(self, gone: Gone, shared: Mapping[str, Any]) -> Failure:
        return Failure(gone.kind, gone.sentence(self.log), log=self.log)


@dataclass(frozen=True)
class Lowering(ProgramTask):
    """The compilation of one program."""

    logs: Path
    keep_going: bool = False
    quantize_only: bool = False

    def work(self, worker: Worker, shared: dict[str, Any]) -> Done | Failure:
        folder = shared["folder"] = self.memo.scratch()
        self.log.unlink(missing_ok=True)
        order: dict[str, Any] = {
            **self.program.order,
            "into": str(folder),
            "log": str(folder / LOG),
            "keep_going": self.keep_going,
            "quantize_only": self.quantize_only,
        }
        reply = worker.ask(order)
        if "fault" in reply:
            log = self._keep_log(folder)
            kind, fix = reply["fault"], reply.get("fix", "")
            return Failure(kind, reply["message"], fix, log)
        return Done(reply, Touched.of(reply.pop("touched")), folder)

    def ended(self, gone: Gone, shared: Mapping[str, Any]) -> Failure:
        log = self._keep_log(shared["folder"])
        message, fix = gone.sentence(log), ""
        if named := _dies_of(log):
            message = f"{named}; with that on the CPU {message}"
            fix = "write it in another way, or keep more around it on the CPU (cpu_nodes)"
        return Failure(gone.kind, message, fix, log)

    @property
    def log(self) -> Path:
        return self.logs / f"{self.name}.log"

    def _keep_log(self, folder: Path) -> Path:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            if (folder / LOG).is_file():
                shutil.copyfile(folder / LOG, self.log)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self.log


def _dies_of(log: Path) -> str:
    """The search's result before it ended in a crash."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return next((line for line in reversed(lines) if line.startswith(DIES_OF)), "")


def compile_programs(plan: Plan) -> dict[str, Result]:
    """Every program that is not refused, by name; its files are in the result's folder."""
    wanted = [program for program in plan.programs if program.name not in plan.refused]
    results: dict[str, Result] = {}
    for own, mine in by_packages(wanted, plan.selection.store):
        results |= _compile_with(own, mine, {**plan.environment, **own.variables}, plan)
    return results


def _compile_with(
    own: OwnPackages, programs: Sequence[Program], environ: Mapping[str, str], plan: Plan
) -> dict[str, Result]:
    work, basis = plan.work, plan.basis
    memos = memos_of(programs, "lowering", plan.selection.store, environ, reuse=work.cache, own=own)
    tasks = [
        Lowering(
            program,
            {
                **key(program, basis, memos[program.suite].roots, environ),
                **own.key(),
                **({"quantize only": True} if plan.quantize_only else {}),
            },
            memos[program.suite],
            cost_of(program, plan.baseline(program)),
            plan.logs,
            work.keep_going,
            plan.quantize_only,
        )
        for program in programs
    ]

    def worker(threads: int, count: int) -> Worker:
        memory = work.worker_memory or max(memory_budget() or 0, LEAST_MEMORY)
        # Warming up takes as long as it saves the first program.
        variables = {**environ, MEMORY: str(memory), WARM: "1" if count > 1 else ""}
        session, imports = "nox -s test_lowering", "executorch and torch"
        return started(WORKER, variables, threads, plan.logs, work.timeout, session, imports, own.python)

    how = How(f"programs for QNN {basis.build_id}", worker, work.jobs, work.why, share=True)

    def line(name: str, result: Result) -> Line:
        if result.failure and plan.errors_follow:
            return failed(result.failure.kind)
        if not (lacks := result.facts.get("lacks")):
            return line_of(name, result)
        return Line(
            "quantized", f"SQNR {result.facts['figures']['sqnr_db']:.1f} dB in PyTorch; {lacks} is missing"
        )

    def accept(name: str, result: Result) -> bool:
        # A runtime may refuse a program for lack of memory, so such a result is looked at each time.
        kept = result.facts.get("kept_on_cpu") and not work.keep_going
        return not result.facts.get("loads") and not kept

    return do(tasks, how, accept=accept, line=line)


def started(
    command: tuple[str, ...],
    environment: Mapping[str, str],
    threads: int,
    logs: Path,
    timeout: float,
    session: str,
    imports: str,
    python: str = sys.executable,
) -> Worker:
    """A worker that forks for each order, with this many threads."""
    return Worker(
        Setup(
            command=command,
            environment={**environment, THREADS: str(threads)},
            logs=logs,
            timeout=timeout,
            imports=imports,
            fix=f"run it as `{session}`, which installs what it needs",
            forks=True,
            python=python,
        )
    )


def cost_of(program: Program, baseline: Baseline) -> Job:
    recorded = baseline.of(program.name)
    seconds = recorded.cpu_seconds if recorded and recorded.cpu_seconds else UNKNOWN_SECONDS
    megabytes = recorded.peak_mb if recorded and recorded.peak_mb else UNKNOWN_MEMORY
    return Job(program.name, seconds, megabytes << 20)
