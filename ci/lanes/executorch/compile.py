"""Programs compiled in parallel by workers, and remembered by everything that they depend on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.artifacts.compiler_log import CRASHES
from ci.artifacts.program import digest_without_time
from ci.engine.inputs import python_name, search_key
from ci.engine.jobs import Job, default_slots, memory_budget
from ci.engine.memo import Memo
from ci.engine.progress import Line, failed
from ci.engine.recheck import Repeats
from ci.engine.work import Failure, Result, line_of
from ci.engine.workers.child import MEMORY, THREADS, WARM
from ci.engine.workers.parent import WorkerDied, WorkerSpec
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.pipeline.accuracy import in_words
from ci.pipeline.installed import host_libraries
from ci.pipeline.models.own_packages import OwnPackages
from ci.pipeline.stage import AnyPlan
from ci.pipeline.steps import Ask, Step, run_step
from provisioning.base.commands import session
from provisioning.base.findings import Finding, Metric

LOG = "compile.log"
COMPILED = "lowering"
"""The step whose files are programs."""

WORKER = ("-m", "ci.lanes.executorch.worker")

UNKNOWN_SECONDS, UNKNOWN_MEMORY = 8.0, 1200
LEAST_MEMORY = 4 << 30


@dataclass(frozen=True, slots=True)
class KeyContext:
    """What every program depends on beside its own case and is known before any work."""

    python: str
    sdk: dict[str, str]

    @property
    def build_id(self) -> str:
        return self.sdk["build_id"]


@dataclass(frozen=True, slots=True)
class ExecutorchPlan(AnyPlan[ExecutorchProgram]):
    environment: Mapping[str, str]
    """Of the workers."""
    sdk: Path
    basis: KeyContext
    refused: dict[str, Finding]
    """Programs that this SDK cannot compile at all."""
    left_out: tuple[ExecutorchProgram, ...] = ()
    """Those that their suite has for other versions of executorch."""
    quantize_only: bool = False
    """End with the quantized model."""
    needs: tuple[Mapping[str, Any], ...] | None = None
    """End with the float model, with these rewrites where they match."""
    errors_follow: bool = False
    """Whether the command shows each error itself, so that progress need not."""
    worker: tuple[str, ...] = WORKER


def key_context_of(sdk_root: Path, store: Path) -> KeyContext:
    return KeyContext(python_name(), host_libraries(sdk_root, store))


@dataclass(frozen=True)
class Lower(Step[ExecutorchProgram]):
    kind = COMPILED
    keeps_files = done_once = True
    log_in_folder = LOG
    # The log has times of day.
    repeats = Repeats(changing=(LOG, "without_time"), digest=digest_without_time)

    plan: ExecutorchPlan

    @property
    def title(self) -> str:
        return f"programs for QNN {self.plan.basis.build_id}"

    def environment(self, own: OwnPackages) -> Mapping[str, str]:
        return {**self.plan.environment, **own.variables}

    def worker(self, own: OwnPackages, threads: int, count: int) -> WorkerSpec:
        plan, work = self.plan, self.plan.work
        memory = work.worker_memory or max(memory_budget() or 0, LEAST_MEMORY)
        # Warming up takes as long as it saves the first program.
        variables = {**self.environment(own), MEMORY: str(memory), WARM: "1" if count > 1 else ""}
        fix, imports = session("test_lowering"), "executorch and torch"
        return setup_of(plan, plan.worker, variables, threads, work.timeout, fix, imports, own.python)

    def key(self, program: ExecutorchProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        """The inputs that are known before any work. Code and files are discovered by the work itself."""
        plan, roots = self.plan, memo.roots
        return {
            **program.request,
            "python": plan.basis.python,
            "QNN": dict(plan.basis.sdk),
            "suite": roots.name(str(program.search_path)),
            "working folder": roots.name(str(program.working_folder)),
            **search_key(roots, environ),
            **({"quantize only": True} if plan.quantize_only else {}),
            **({"needs": [*map(dict, plan.needs)]} if plan.needs is not None else {}),
        }

    def cost(self, program: ExecutorchProgram) -> Job:
        recorded = self.plan.baseline(program).of(program.name)
        seconds = recorded.cpu_seconds if recorded and recorded.cpu_seconds else UNKNOWN_SECONDS
        megabytes = recorded.peak_mb if recorded and recorded.peak_mb else UNKNOWN_MEMORY
        return Job(program.name, seconds, megabytes << 20)

    def work(self, program: ExecutorchProgram, ask: Ask) -> Mapping[str, Any]:
        plan = self.plan
        if plan.needs is not None:
            return ask(**program.order, needs=list(plan.needs))
        return ask(**program.order, keep_going=plan.work.keep_going, quantize_only=plan.quantize_only)

    def accepts(self, program: ExecutorchProgram, result: Result) -> bool:
        # A runtime may refuse a program for lack of memory, so such a result is looked at each time.
        kept = result.facts.get("kept_on_cpu") and not self.plan.work.keep_going
        return not result.facts.get("loads") and not kept

    def line(self, program: ExecutorchProgram, result: Result) -> Line:
        if result.failure and self.plan.errors_follow:
            return failed(result.failure.kind)
        if not (lacks := result.facts.get("lacks")):
            return line_of(result)
        return Line("quantized", f"{in_words(result.facts['figures'])} in PyTorch; {lacks} is missing")

    def ended(self, program: ExecutorchProgram, gone: WorkerDied, log: Path) -> Failure:
        message, fix = gone.sentence(log), ""
        if named := _dies_of(log):
            message = f"{named}; with that on the CPU {message}"
            fix = "write it in another way, or keep more around it on the CPU (cpu_nodes)"
        return Failure(gone.kind, message, fix, log)


def _dies_of(log: Path) -> str:
    """The search's result before it ended in a crash."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return next((line for line in reversed(lines) if line.startswith(CRASHES)), "")


def compile_programs(plan: ExecutorchPlan) -> dict[str, Result]:
    """Every program that is not refused, by name; its files are in the result's folder."""
    return run_step(Lower(plan), [program for program in plan.programs if program.name not in plan.refused])


def alone(environment: Mapping[str, str], log: Path, timeout: float, again: str) -> WorkerSpec:
    """The worker that lowers one program, for a command whose result is not cached. Commands that share the
    server of test_lowering need no process that imports executorch."""
    return WorkerSpec(
        command=WORKER,
        environment={**environment, THREADS: str(default_slots()), WARM: ""},
        logs=log.parent,
        timeout=timeout,
        imports="executorch and torch",
        fix=again,
        forks=True,
    )


def setup_of(
    plan: ExecutorchPlan,
    command: tuple[str, ...],
    environment: Mapping[str, str],
    threads: int,
    timeout: float,
    session: str,
    imports: str,
    python: str = sys.executable,
) -> WorkerSpec:
    return WorkerSpec(
        command=command,
        environment={**environment, THREADS: str(threads)},
        logs=plan.logs,
        timeout=timeout,
        imports=imports,
        fix=f"run it as `{session}`, which installs what it needs",
        forks=True,
        python=python,
    )
