"""Run contenders in turns and compare them round by round, so that a slow moment affects all of them."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ci.diagnose.logs import causes
from ci.work import cpu_seconds
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Metric
from provisioning.base.settings import ROOT


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work.

    `run` is timed and gets an empty directory. `check` is not timed and raises if the work was not done
    there."""

    name: str
    run: Callable[[Path], object]
    check: Callable[[Path], None] = lambda directory: None


def run_whole(command: Sequence[str], log: Path, *, cwd: Path, environment: Mapping[str, str]) -> None:
    """Run a contender's process and require exit code 0: one that fails early would look fast."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        ended = subprocess.run(
            command, cwd=cwd, env=dict(environment), stdout=stream, stderr=subprocess.STDOUT, check=False
        )
    if ended.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise CheckFailed(f"{' '.join(command[:4])} … ended with {ended.returncode}:\n{tail}{causes(tail)}")


def run_stage(
    stage: str,
    flags: Sequence[str],
    store: Path,
    into: Path,
    environment: Mapping[str, str] = os.environ,
    package: str = "ci",
) -> None:
    """Run a stage of ours as a contender, with this store and with its report in `into`."""
    command = [sys.executable, "-m", package, stage, *flags, "--store", str(store), "--reports", str(into)]
    run_whole(command, into / "ours.log", cwd=ROOT, environment=environment)


@dataclass(frozen=True, slots=True)
class Aim:
    """`fast` takes at most the `at_least`-th part of the time of `slow`, another contender or seconds."""

    fast: str
    slow: str | float
    at_least: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.fast} vs {self.slow}" + (" s" if isinstance(self.slow, float) else "")


@dataclass(frozen=True, slots=True)
class Benchmark:
    contenders: Sequence[Contender]
    aims: Sequence[Aim]
    facts: Mapping[str, Metric] = field(default_factory=dict)
    """Facts about the work: sizes, counts."""


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.most:.2f})"


@dataclass(frozen=True, slots=True)
class BenchTimes:
    """Seconds of each contender, in the order of the rounds: of the clock, and of the processor."""

    seconds: Mapping[str, Sequence[float]]
    cpu_seconds: Mapping[str, Sequence[float]]

    def ratio(self, aim: Aim) -> Spread:
        """How many times as long the slow one takes, by the pairs of each round."""
        fast = self.seconds[aim.fast]
        slow = [aim.slow] * len(fast) if isinstance(aim.slow, float) else self.seconds[aim.slow]
        return Spread.of([one / other for one, other in zip(slow, fast, strict=True)])


def measure(benchmark: Benchmark, rounds: int, work: Path) -> BenchTimes:
    """Each contender once a round, in the opposite order every other round."""
    seconds: dict[str, list[float]] = {contender.name: [] for contender in benchmark.contenders}
    processor: dict[str, list[float]] = {contender.name: [] for contender in benchmark.contenders}
    for number in range(rounds):
        order = list(benchmark.contenders)
        for contender in order if number % 2 == 0 else reversed(order):
            directory = work / f"{number}-{contender.name.replace(' ', '-')}"
            directory.mkdir(parents=True)
            # Write one contender's files to disk, so that the next one does not wait for that.
            os.sync()
            start, used = time.perf_counter(), cpu_seconds()
            contender.run(directory)
            duration = time.perf_counter() - start
            processor[contender.name].append(cpu_seconds() - used)
            contender.check(directory)
            empty(directory)
            seconds[contender.name].append(duration)
            sys.stderr.write(f"round {number + 1} of {rounds}: {contender.name} {duration:.2f} s\n")
    shutil.rmtree(work, ignore_errors=True)
    return BenchTimes(seconds, processor)


def empty(directory: Path) -> None:
    """Free the space of all files, but keep them.

    ext4 avoids the inodes of files that were removed within the last minute, at a cost that grows with their
    number. Removing one contender's files would therefore slow the next one down."""
    for folder, _, files in os.walk(directory):
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o600)
                os.truncate(path, 0)


def metrics_of(benchmark: Benchmark, measured: BenchTimes) -> dict[str, Metric]:
    contenders: dict[str, Metric] = {
        name: {"seconds": [*seconds], "cpu_seconds": [*measured.cpu_seconds[name]]}
        for name, seconds in measured.seconds.items()
    }
    ratios: dict[str, Metric] = {
        aim.name: {**asdict(measured.ratio(aim)), "aim": aim.at_least} for aim in benchmark.aims
    }
    return {**benchmark.facts, "contenders": contenders, "ratios": ratios}


def rendered(benchmark: Benchmark, measured: BenchTimes) -> str:
    """Two small tables: seconds of each contender, and the ratios beside their aims."""
    width = max(len(name) for name in [*measured.seconds, *(aim.name for aim in benchmark.aims)])
    lines = [f"{'seconds':<{width}}  median (spread), and of the processor"]
    lines += [
        f"{name:<{width}}  {Spread.of(seconds)}, {Spread.of(measured.cpu_seconds[name])}"
        for name, seconds in measured.seconds.items()
    ]
    if benchmark.aims:
        lines += ["", f"{'times as fast':<{width}}  median (spread)"]
    for aim in benchmark.aims:
        ratio = measured.ratio(aim)
        verdict = "reached" if ratio.median >= aim.at_least else "MISSED"
        lines.append(f"{aim.name:<{width}}  {ratio}, aim {aim.at_least:g}: {verdict}")
    return "\n".join(lines)
