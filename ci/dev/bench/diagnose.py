"""Reading a log of 10 MB, as a process: healthy, with some failures, and of failures alone, beside grep.

grep looks for four words and explains nothing; it shows what a pass over the log costs. The table is kept in
a cache of the benchmark's own, as it is after a user's first log.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.dev.bench.frame import Aim, Benchmark, Contender
from ci.diagnose.tables import failure_rules
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import ROOT

HEALTHY, SOME, MANY, FAILURES, GREP = "healthy", "some", "many", "failures", "grep"
SHARES = {HEALTHY: 0.0, SOME: 0.001, MANY: 0.02, FAILURES: 1.0}
"""How much of the lines is known failures."""
AIMS = (*(Aim(name, 1.0) for name in SHARES),)
WORDS = [
    "shape",
    "compile",
    "buffer",
    "tensor",
    "output",
    "decoder",
    "graph",
    "weight",
    "node",
    "step",
    "loaded",
    "pass",
    "layer",
    "module",
    "linear",
    "cache",
]


@contextmanager
def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
    """`quick` reads 1 MB of each."""
    grep = shutil.which("grep")
    if grep is None:
        raise EnvironmentLacking("expected grep on PATH, found none", fix="apt-get install grep")
    size = (1 if quick else 10) << 20
    logs = {name: work / f"{name}.log" for name in SHARES}
    for name, log in logs.items():
        log.write_text(_log(size, SHARES[name]), encoding="utf-8")
    environment = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
    # The first run of all makes what is kept of the table.
    _diagnose(logs[HEALTHY], environment, work)

    def contender(name: str) -> Contender:
        return Contender(
            name, lambda into: _diagnose(logs[name], environment, into), _check(known=name != HEALTHY)
        )

    words = [grep, "-ciE", "error|fail|cannot|not found", str(logs[HEALTHY])]
    yield Benchmark(
        contenders=(
            *map(contender, SHARES),
            Contender(GREP, lambda into: subprocess.run(words, stdout=subprocess.DEVNULL, check=False)),
        ),
        aims=AIMS,
        facts={"bytes": size, "rules": len(failure_rules())},
    )


def _log(size: int, share: float) -> str:
    chosen = random.Random(size)  # noqa: S311 -- repeatable on purpose
    lines, length = list[str](), 0
    examples = [rule.example for rule in failure_rules().values()]
    while length < size:
        if chosen.random() < share:
            line = chosen.choice(examples)
        else:
            words = " ".join(chosen.choices(WORDS, k=6))
            line = (
                f"[INFO] [Qnn ExecuTorch]: {words} {chosen.randrange(1 << 20)} took {chosen.random():.6f} s"
            )
        lines.append(line)
        length += len(line.encode()) + 1
    return "\n".join(lines)


def _diagnose(log: Path, environment: dict[str, str], into: Path) -> None:
    """Its exit code is 1 where nothing is explained."""
    command = [sys.executable, "-m", "ci", "diagnose", "--json", str(log)]
    with (into / "answer.json").open("wb") as answer:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=answer, check=False)


def _check(*, known: bool) -> Callable[[Path], None]:
    def check(directory: Path) -> None:
        (read,) = json.loads((directory / "answer.json").read_text(encoding="utf-8"))["inputs"]
        if bool(read["explanations"]) != known:
            raise CheckFailed(f"expected {'a' if known else 'no'} known failure, found {read}")

    return check
