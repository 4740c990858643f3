"""What caching costs: the gate's models lowered as always, and by the same forks without watching.

Beside them, where the rest of the time goes: what each of the workers does before its first program.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ci.dev.bench.frame import Aim, Benchmark, Contender, default_selection, run_whole
from ci.engine.workers.child import THREADS, WARM
from ci.engine.workers.parent import Worker, WorkerSpec
from ci.lanes.executorch.compile import WORKER
from ci.lanes.executorch.suite import all_programs, choose
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.base.settings import ROOT
from provisioning.components import QNN_SDK
from provisioning.environment import resolve

WATCHED, UNWATCHED = "watched and remembered", "neither"
IMPORTS, WARM_UP = "a worker's imports", "its imports and warm-up"
AIMS = (Aim(WATCHED, UNWATCHED, 0.92),)
STAGE = "test_lowering"
QUICK = ("op_gelu", "op_topk", "op_where")

_SET_NO_NEW_PRIVILEGES, _SECCOMP, _SET_FILTER, _NEW_LISTENER = 38, 317, 1, 8
_RETURN, _ALLOW = 0x06, 0x7FFF0000


@contextmanager
def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
    """`quick` takes a few programs of the pr tag."""
    words = QUICK if quick else ()
    programs = choose(all_programs([]), tags=["pr"], words=words)
    environment = resolve(default_selection(work / "reports"), os.environ)
    ours = {**os.environ, "QNN_SDK_ROOT": str(environment.root(QNN_SDK).path)}
    plain = environment.merged(os.environ)
    yield Benchmark(
        contenders=(
            Contender(WATCHED, lambda into: _lower(words, ours, into), _check(len(programs), watched=True)),
            Contender(
                UNWATCHED,
                lambda into: _lower(words, ours, into, "-m", "ci.dev.bench.caching"),
                _check(len(programs), watched=False),
            ),
            Contender(IMPORTS, lambda into: _start(plain, into, warm=False)),
            Contender(WARM_UP, lambda into: _start(plain, into, warm=True)),
        ),
        aims=AIMS,
        facts={"programs": len(programs), "sdk": environment.root(QNN_SDK).version or "directory"},
    )


def _lower(words: Sequence[str], environment: Mapping[str, str], into: Path, *before: str) -> None:
    chosen = [part for word in words for part in ("-k", word)]
    places = ["--store", str(into / "store"), "--reports", str(into)]
    command = [sys.executable, *(before or ("-m", "ci")), STAGE, "--tag", "pr", *chosen, *places]
    run_whole(command, into / "ours.log", cwd=ROOT, environment=environment)


def _start(environment: Mapping[str, str], into: Path, *, warm: bool) -> None:
    variables = {**environment, THREADS: "1", WARM: "1" if warm else ""}
    spec = WorkerSpec(WORKER, variables, into, 60, "executorch and torch", session(STAGE), forks=True)
    Worker(spec).end()


def _check(programs: int, *, watched: bool) -> Callable[[Path], None]:
    def check(into: Path) -> None:
        report = json.loads((into / f"{STAGE}.json").read_text(encoding="utf-8"))
        metrics = report["metrics"]
        kept = [not row["not_cached_because"] for row in metrics.get("programs", {}).values()]
        if metrics.get("failed") != 0 or kept != [watched] * programs:
            wanted = "all" if watched else "none"
            raise CheckFailed(
                f"expected {programs} good programs, {wanted} remembered, found {metrics}",
                fix=session(STAGE, "--tag", "pr"),
            )

    return check


def _run_unwatched(arguments: Sequence[str]) -> None:
    """A process has one listener at most: beside this one, which is told of nothing, workers install none."""
    libc = ctypes.CDLL(None, use_errno=True)
    step = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW), 8)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(step)), 16)
    libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener = int(libc.syscall(_SECCOMP, _SET_FILTER, _NEW_LISTENER, program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    os.set_inheritable(listener, True)
    os.execv(sys.executable, [sys.executable, "-m", "ci", *arguments])  # noqa: S606


if __name__ == "__main__":
    _run_unwatched(sys.argv[1:])
