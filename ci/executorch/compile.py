"""Programs compiled in parallel by workers, and kept by content: what is unchanged is not compiled again."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.installed import host_libraries, packages
from ci.engine.jobs import Job, default_slots, memory_budget, run_jobs
from ci.engine.memo import VerdictCache, digest_of_files, key_of
from ci.engine.progress import Line, failed, progress
from ci.engine.workers.parent import Gone, Setup, Worker, WorkerSlot
from ci.executorch.suite import Program
from ci.executorch.worker import MEMORY
from ci.suites.baseline import Baseline
from ci.suites.imports import closure
from provisioning.base.findings import Metric
from provisioning.base.settings import ROOT
from provisioning.environment import Environment

PACKAGES = ("executorch", "torch", "torchao", "numpy")
TOOLKIT = "ci.executorch.lower"
NOT_LOWERING = ("__init__.py", "suite.py")
"""Imported by it, and without a say: what a suite asks for is in the key itself."""

JUDGED_LATER = {"thresholds", "emulator_fault", "tags", "socs", "label", "delegates", "cpu_budget"}
"""Fields of a run that decide nothing of the program's bytes."""

WORKER = ("-m", "ci.executorch.worker")

UNKNOWN_SECONDS, UNKNOWN_MEMORY = 8.0, 1200
LEAST_MEMORY = 4 << 30
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A program that was not made; `kind` is the step, and `message` says what happened."""

    kind: str
    message: str
    log: Path
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Compiled:
    folder: Path
    facts: Mapping[str, Any]
    """What the worker said of it (ci/executorch/lower.py)."""
    cached: bool
    key: str

    @property
    def path(self) -> Path:
        return self.folder / "program.pte"

    @property
    def log(self) -> Path:
        return self.folder / "compile.log"


@dataclass(frozen=True, slots=True)
class Basis:
    """What every program depends on beside its own case."""

    versions: dict[str, str]
    sdk: dict[str, str]
    toolkit: str

    @property
    def build_id(self) -> str:
        return self.sdk["build_id"]


@dataclass(frozen=True, slots=True)
class Settings:
    store: Path
    logs: Path
    jobs: int | None = None
    timeout: float = 900
    cache: bool = True
    worker_memory: int | None = None


def basis_of(sdk_root: Path) -> Basis:
    """Look at what is installed, without importing it."""
    versions = {"python": platform.python_version(), **packages(PACKAGES, "test_lowering")}
    sdk = host_libraries(sdk_root, "compiles for the HTP")
    here = Path(__file__).parent
    ours = [
        path
        for path in closure(TOOLKIT, [ROOT])
        if path.parent in (here, ROOT / "ci" / "suites") and path.name not in NOT_LOWERING
    ]
    return Basis(
        versions=versions,
        sdk=sdk,
        toolkit=digest_of_files(ROOT, ours),
    )


def key(program: Program, basis: Basis) -> str:
    """Changing anything that could change the program changes this."""
    return key_of(inputs_of(program, basis))


def inputs_of(program: Program, basis: Basis) -> dict[str, Metric]:
    roots = [program.search_path, ROOT]
    modules = [program.case.factory, *program.run.annotations]
    sources: dict[str, Metric] = {}
    for dotted in modules:
        for path in closure(dotted.partition(":")[0], roots):
            root = next(root for root in roots if path.is_relative_to(root))
            sources[path.relative_to(root).as_posix()] = _digest(path)
    files: dict[str, Metric] = {name: _digest(program.search_path / name) for name in program.case.files}
    case = program.case.model_dump(mode="json", include={"factory", "arguments", "inputs", "inferences"})
    return {
        "sources": sources,
        "files": files,
        "case": case,
        "run": program.run.model_dump(mode="json", exclude=JUDGED_LATER),
        "soc": program.soc,
        "versions": dict(basis.versions),
        "sdk": dict(basis.sdk),
        "toolkit": basis.toolkit,
    }


def _digest(path: Path) -> str:
    return digest_of_files(path.parent, [path]) if path.is_file() else "absent"


class ProgramCache:
    """Programs with their inputs and expected outputs, each in a folder; damaged ones count as absent.

    A folder's name has its content, so that none is ever replaced while another process reads it."""

    def __init__(self, store: Path, *, enabled: bool = True) -> None:
        self.folders = store / "cache" / "programs"
        self._entries = VerdictCache(store, "lowering")
        self._enabled = enabled

    def folder(self, name: str, content: object) -> Path:
        return self.folders / name[:2] / f"{name}.{content}"

    def get(self, name: str) -> Compiled | None:
        if not self._enabled or (facts := self._entries.get(name)) is None:
            return None
        folder = self.folder(name, facts.get("content"))
        if not folder.is_dir() or _content(folder) != facts.get("content"):
            return None
        opened = facts.get("opened")
        if isinstance(opened, dict) and any(_digest(Path(path)) != digest for path, digest in opened.items()):
            return None
        return Compiled(folder, facts, True, name)

    def put(self, name: str, made: Path, facts: dict[str, Any]) -> Compiled:
        """Move the folder to its place, and then say that it is there."""
        opened = {path: _digest(Path(path)) for path in facts["opened"]}
        kept = {**facts, "opened": opened, "content": _content(made)}
        folder = self.folder(name, kept["content"])
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir() or _content(folder) != kept["content"]:
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
        self._entries.put(name, kept)
        return Compiled(folder, kept, False, name)

    def prune(self) -> None:
        """Remove what nobody asked for in a long time, and what killed runs left."""
        self._entries.prune()
        for folder in (*self.folders.glob("??/*"), *self.folders.glob(".*.*")):
            # A young one may be another process's, which has yet to say that it is there.
            with contextlib.suppress(FileNotFoundError):
                name, _, content = folder.name.partition(".")
                old = time.time() - folder.stat().st_mtime > DAY
                if old and (self._entries.peek(name) or {}).get("content") != content:
                    shutil.rmtree(folder, ignore_errors=True)


def _content(folder: Path) -> str:
    return digest_of_files(folder, [path for path in folder.iterdir() if path.is_file()])


def compile_programs(
    programs: Sequence[Program],
    found: Environment,
    environ: Mapping[str, str],
    settings: Settings,
    basis: Basis,
    baseline: Callable[[Program], Baseline],
) -> dict[str, Compiled | Fault]:
    """Every program by name: from the cache, or compiled now on as many workers as cores and memory allow."""
    cache = ProgramCache(settings.store, enabled=settings.cache)
    keys = {program.name: key(program, basis) for program in programs}
    results: dict[str, Compiled | Fault] = {
        name: kept for name, each in keys.items() if (kept := cache.get(each))
    }
    # Programs of one key are the same, whatever their cases are called.
    first = {keys[program.name]: program for program in reversed(programs) if program.name not in results}
    todo = {program.name: program for program in reversed(first.values())}
    sys.stderr.write(
        f"{len(programs)} programs, QNN {basis.build_id}: {len(results)} unchanged, {len(todo)} to compile\n"
    )
    if not todo:
        return results
    jobs = [_job(program, baseline(program)) for program in todo.values()]
    slots = min(settings.jobs or default_slots(), len(jobs))
    memory = memory_budget()
    setup = Setup(
        command=WORKER,
        environment={
            **found.merged(environ),
            "OMP_NUM_THREADS": str(max(1, default_slots() // slots)),
            "PYTHONWARNINGS": "ignore",
            MEMORY: str(settings.worker_memory or max(memory or 0, LEAST_MEMORY)),
        },
        logs=settings.logs,
        timeout=settings.timeout,
        imports="executorch and torch",
        remedy="run it as `nox -s test_lowering`, which installs what it needs",
    )

    def work(job: Job, worker: LoweringWorker) -> Compiled | Fault:
        return worker.lower(todo[job.name], keys[job.name], cache)

    with progress("programs", jobs, slots, line_of) as shown:
        results |= run_jobs(
            jobs,
            lambda: WorkerSlot(lambda: LoweringWorker(setup), work),
            slots=slots,
            memory=memory,
            observer=shown,
        )
    cache.prune()
    return results | {
        program.name: results[first[keys[program.name]].name]
        for program in programs
        if program.name not in results
    }


def _job(program: Program, baseline: Baseline) -> Job:
    recorded = baseline.of(program.name)
    seconds = recorded.cpu_seconds if recorded and recorded.cpu_seconds else UNKNOWN_SECONDS
    megabytes = recorded.peak_mb if recorded and recorded.peak_mb else UNKNOWN_MEMORY
    return Job(program.name, seconds, megabytes << 20)


class LoweringWorker(Worker):
    """A worker of the pool that is given programs instead of tests."""

    def lower(self, program: Program, name: str, cache: ProgramCache) -> Compiled | Fault:
        made = cache.folders / f".{name}.{os.getpid()}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        log = made / "compile.log"
        order: dict[str, Any] = {
            "case": json.loads(program.case.model_dump_json(by_alias=True)),
            "run": json.loads(program.run.model_dump_json()),
            "soc": program.soc,
            "search_path": str(program.search_path),
            "into": str(made),
            "log": str(log),
        }
        began = time.monotonic()
        try:
            reply = self.ask(order)
            if "fault" in reply:
                kept = self._keep(program, log)
                return Fault(reply["fault"], reply["message"], kept, time.monotonic() - began)
            return cache.put(name, made, reply)
        except Gone as gone:
            seconds = time.monotonic() - began
            return Fault(gone.kind, gone.sentence(log), self._keep(program, log), seconds)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _keep(self, program: Program, log: Path) -> Path:
        kept = self.setup.logs / (program.name.replace("/", "-") + ".log")
        if log.is_file():
            shutil.copyfile(log, kept)
        return kept


def line_of(result: Compiled | Fault) -> Line:
    return failed(f"{result.kind}: {result.message}") if isinstance(result, Fault) else Line("passed")
