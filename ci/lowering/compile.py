"""Programs compiled in parallel by workers, and kept by content: what is unchanged is not compiled again."""

from __future__ import annotations

import importlib.metadata
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

from ci.cache import VerdictCache, digest_of_files, key_of
from ci.delegate.pool import RECYCLE_AT, Setup, Verdict, Worker, tail
from ci.delegate.progress import Lines
from ci.lowering.baseline import Baseline
from ci.lowering.imports import closure
from ci.lowering.suite import Program
from ci.lowering.worker import MEMORY
from ci.scheduler import Job, default_slots, memory_budget, run_jobs
from provisioning.build_id import build_ids
from provisioning.environment import HOST_LIBRARIES, Environment
from provisioning.errors import EnvironmentLacking
from provisioning.findings import Metric
from provisioning.settings import ROOT

PACKAGES = ("executorch", "torch", "torchao", "numpy")
TOOLKIT = "ci.lowering.lower"
NOT_LOWERING = ("__init__.py", "suite.py")
"""Imported by it, and without a say: what a suite asks for is in the key itself."""

JUDGED_LATER = {"thresholds", "emulator_fault", "tags", "socs", "label", "delegates", "cpu_budget"}
"""Fields of a run that decide nothing of the program's bytes."""

WORKER = ("-m", "ci.lowering.worker")

UNKNOWN_SECONDS, UNKNOWN_MEMORY = 8.0, 1200
LEAST_MEMORY = 4 << 30


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
    """What the worker said of it (ci/lowering/lower.py)."""
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
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            raise EnvironmentLacking(
                f"{package} is not installed in {sys.executable}",
                remedy="nox -s test_lowering, which installs it",
            ) from None
        # RECORD has the hash of every file of the package.
        versions[package] = f"{found.version} {key_of({'record': found.read_text('RECORD') or ''})[:16]}"
    libraries = sdk_root / "lib" / HOST_LIBRARIES
    htp = libraries / "libQnnHtp.so"
    if not htp.is_file():
        raise EnvironmentLacking(
            f"{sdk_root} has no lib/{HOST_LIBRARIES}/libQnnHtp.so, which compiles for the HTP",
            remedy="nox -s provision, or set QNN_SDK_ROOT to an SDK with x86-64 Linux libraries",
        )
    here = Path(__file__).parent
    ours = [
        path for path in closure(TOOLKIT, [ROOT]) if path.parent == here and path.name not in NOT_LOWERING
    ]
    return Basis(
        versions=versions,
        sdk={
            "build_id": ", ".join(build_ids(htp)) or "unknown",
            "libraries": digest_of_files(sdk_root, sorted(libraries.glob("*.so*"))),
        },
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
    case = program.case.model_dump(mode="json", include={"factory", "arguments", "inferences"})
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
    """Programs with their inputs and expected outputs, each in a folder; damaged ones count as absent."""

    def __init__(self, store: Path, *, enabled: bool = True) -> None:
        self.folders = store / "cache" / "programs"
        self._entries = VerdictCache(store, "lowering")
        self._enabled = enabled

    def folder(self, name: str) -> Path:
        return self.folders / name[:2] / name

    def get(self, name: str) -> Compiled | None:
        if not self._enabled or (facts := self._entries.get(name)) is None:
            return None
        folder = self.folder(name)
        if not folder.is_dir() or _content(folder) != facts.get("content"):
            return None
        opened = facts.get("opened")
        if isinstance(opened, dict) and any(_digest(Path(path)) != digest for path, digest in opened.items()):
            return None
        return Compiled(folder, facts, True, name)

    def put(self, name: str, made: Path, facts: dict[str, Any]) -> Compiled:
        """Move the folder to its place, and then say that it is there."""
        folder = self.folder(name)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
        opened = {path: _digest(Path(path)) for path in facts["opened"]}
        kept = {**facts, "opened": opened, "content": _content(folder)}
        self._entries.put(name, kept)
        return Compiled(folder, kept, False, name)


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
        {
            **found.merged(environ),
            "OMP_NUM_THREADS": str(max(1, default_slots() // slots)),
            "PYTHONWARNINGS": "ignore",
            MEMORY: str(settings.worker_memory or max(memory or 0, LEAST_MEMORY)),
        },
        settings.logs,
        settings.timeout,
        command=WORKER,
    )

    def work(job: Job, worker: LoweringWorker) -> Compiled | Fault:
        return worker.lower(todo[job.name], keys[job.name], cache)

    with Lines(jobs, slots, {}) as shown:
        results |= run_jobs(
            jobs,
            lambda: Slot(setup, work),
            slots=slots,
            memory=memory,
            observer=_Shown(shown),
        )
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
        reply = self._ask(order, self.setup.timeout)
        seconds = time.monotonic() - began
        try:
            if reply is None:
                return self._gone(program, log, seconds)
            self.resident = int(reply["resident"])
            if "fault" in reply:
                return Fault(reply["fault"], reply["message"], self._keep(program, log), seconds)
            return cache.put(name, made, reply)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    resident: int = 0
    """Bytes that the worker holds after the last program; more than all when it is gone."""

    def _gone(self, program: Program, log: Path, seconds: float) -> Fault:
        self.resident = RECYCLE_AT + 1
        if seconds >= self.setup.timeout:
            self.end()
            return Fault(
                "timeout", f"no result after {self.setup.timeout:g} s", self._keep(program, log), seconds
            )
        ended = self.end(grace=5)
        last = tail(log, 400).strip().splitlines()[-1:]
        message = (
            f"the process was {ended}" if ended.startswith("ended") else f"the process ended with {ended}"
        )
        if "SIGKILL" in ended:
            message += ", as the system does when memory runs out"
        kept = self._keep(program, log)
        return Fault("crash", message + (f"; its last words: {last[0]}" if last else ""), kept, seconds)

    def _keep(self, program: Program, log: Path) -> Path:
        kept = self.setup.logs / (program.name.replace("/", "-") + ".log")
        if log.is_file():
            shutil.copyfile(log, kept)
        return kept


class Slot:
    """A slot of the scheduler: one worker, replaced when a program took it down or it holds too much."""

    def __init__(self, setup: Setup, work: Callable[[Job, LoweringWorker], Compiled | Fault]) -> None:
        self._setup, self._work = setup, work
        self._worker: LoweringWorker | None = None
        self._busy = self._closed = False

    def run(self, job: Job) -> Compiled | Fault:
        self._busy = True
        try:
            if self._worker is None:
                self._worker = started(self._setup)
                if self._closed:
                    self._worker.stop()
            result = self._work(job, self._worker)
            if self._worker.resident > RECYCLE_AT:
                self._worker.end()
                self._worker = None
            return result
        finally:
            self._busy = False

    def close(self) -> None:
        self._closed = True
        if self._worker is not None:
            self._worker.stop()
            if not self._busy:
                self._worker.end()


def started(setup: Setup) -> LoweringWorker:
    try:
        return LoweringWorker(setup)
    except EnvironmentLacking as error:
        raise EnvironmentLacking(
            error.message.replace("the tests", "executorch and torch"),
            remedy="run it as `nox -s test_lowering`, which installs what it needs",
        ) from error


class _Shown:
    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def started(self, job: Job) -> None:
        self._lines.started(job)

    def ended(self, job: Job, result: Compiled | Fault, seconds: float) -> None:
        bad = isinstance(result, Fault)
        reason = f"{result.kind}: {result.message}" if isinstance(result, Fault) else ""
        shown = Verdict(job.name, "failed" if bad else "passed", reason, seconds=seconds)
        self._lines.ended(job, shown, seconds)
