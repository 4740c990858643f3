"""Measure performance claims as ratios: contenders run in turns on one machine."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.findings import Report, Severity
from provisioning.base.flags import count, switch
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_TARGET, reports_path, store_path
from provisioning.base.stage_run import StageRun

if TYPE_CHECKING:
    from lab.bench.frame import Benchmark, BenchTimes

BENCHMARKS = {
    "gate": "the gate's models, cold and unchanged, against a script that does them in turn",
    "matrix": "four models, three precisions, two chips: a row that is new to a user, against such a script",
    "onnx": "a few .onnx, cold and unchanged, against a script that calls ONNX Runtime in turn",
    "provision": "QNN from wheels in a folder into an empty store, against sha256sum and unzip",
    "builds": "a second build_x86 of EXECUTORCH_ROOT, from nothing changed to an emptied folder",
    "validate": "the whole wheels tree in a second, beside readelf over its files",
}

EXAMPLES = """\
  nox -s bench -- --list
  nox -s bench -- gate
  nox -s bench -- gate --rounds 1
  nox -s bench -- validate --check
"""


class BenchmarkModule(Protocol):
    """A benchmark's module: its contenders can run while the context lasts."""

    def prepared(self, work: Path) -> AbstractContextManager[Benchmark]: ...


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the benchmark to run; --list names them")
    switch(parser, "--list", "list the benchmarks and stop")
    parser.add_argument("--rounds", type=count, default=5, help="how often each contender runs [5]")
    switch(parser, "--check", "exit 1 when an aim is missed")
    parser.add_argument("--store", type=Path, help="where provisioned trees live [QNN_CI_STORE, user cache]")
    parser.add_argument("--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]")


def run(args: argparse.Namespace) -> int:
    if args.list:
        sys.stdout.writelines(f"{name}  {summary}\n" for name, summary in BENCHMARKS.items())
        return 0
    if args.name not in BENCHMARKS:
        problem = f"there is no benchmark {args.name!r}" if args.name else "no benchmark was named"
        raise UsageError(problem, fix=f"name one of: {', '.join(BENCHMARKS)}")
    if args.store is not None:
        # Benchmarks, and the processes that they time, read it from there.
        os.environ["QNN_CI_STORE"] = str(store_path(args.store))
    module = cast(BenchmarkModule, importlib.import_module(f"{__name__}.{args.name}"))
    reports = reports_path(args.reports)
    return run_benchmark(args.name, module, args.rounds, reports, args.check)


def run_benchmark(
    name: str,
    module: BenchmarkModule,
    rounds: int,
    reports: Path,
    check: bool = False,
) -> int:
    """Measure in a temporary folder (TMPDIR), judge the aims, write the report; returns the exit code."""
    import tempfile

    from lab.bench.frame import measure, rendered

    flags = ["--check"] if check else []
    stage = StageRun(
        f"bench-{name}",
        DEFAULT_PROFILE,
        DEFAULT_TARGET,
        session("bench", name, "--rounds", str(rounds), *flags),
    )
    with stage.reported(reports, "bench-not-measured", name):
        with (
            tempfile.TemporaryDirectory(prefix="qnn-ci-bench-") as folder,
            module.prepared(Path(folder)) as benchmark,
        ):
            measured = measure(benchmark, rounds, Path(folder) / "rounds")
        _judge(stage, benchmark, measured, check=check)

    def show(report: Report) -> None:
        path = reports / f"{report.stage}.json"
        sys.stdout.write(f"{rendered(benchmark, measured)}\nreport: {path}\n")

    return stage.close(reports, show=show)


def _judge(stage: StageRun, benchmark: Benchmark, measured: BenchTimes, *, check: bool) -> None:
    from lab.bench.frame import metrics_of

    stage.metrics.update(metrics_of(benchmark, measured))
    stage.metrics["cores"] = len(os.sched_getaffinity(0))
    for aim in benchmark.aims:
        ratio = measured.ratio(aim)
        if ratio.median < aim.at_least:
            stage.add(
                "bench-aim",
                Severity.ERROR if check else Severity.NOTE,
                aim.name,
                f"expected at least {aim.at_least:g} times as fast, found {ratio}",
                "run it again on an idle machine; if it stays so, profile what became slower",
            )
