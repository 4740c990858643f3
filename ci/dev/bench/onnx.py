"""The ONNX suite: ours in parallel against the same orders one after another in one plain process.

The aim of the cold run is for two cores. There the plain script keeps 1.3 of them busy, since QNN's compiler
and emulator have threads of their own, so that nobody can be more than 1.5 times as fast; each of our two
workers imports torch, ONNX Runtime and the provider, which the plain script does once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.dev.bench.frame import Aim, Benchmark, Contender, run_stage, run_whole
from ci.lanes.onnx.compile import require_installed
from ci.lanes.onnx.suite import SHIPPED, choose, programs_of
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Report
from provisioning.base.settings import ROOT

COLD, WARM, PLAIN = "ours, cold", "ours, nothing changed", "plain script"
AIMS = (Aim(COLD, PLAIN, 1.4), Aim(WARM, 1.0))

QUICK = ("keywords", "resnet10")

PLAIN_RUN = """\
import sys
from pathlib import Path
from ci.lanes.onnx import steps
from ci.lanes.onnx.suite import SHIPPED, calibrating, choose, programs_of

into, log = Path(sys.argv[1]), Path(sys.argv[2])
cases = {}
for program in choose(programs_of(SHIPPED), tags=["pr"], words=sys.argv[3:]):
    cases.setdefault(program.case_name, []).append(program)
for name, programs in cases.items():
    folder = into / name
    folder.mkdir()
    most = max(calibrating(program.case, program.run) for program in programs)
    order = dict(programs[0].order, calibration=most, log=str(log), into=str(folder))
    prepared = steps.order_prepare(order)
    common = dict(log=str(log), prepared=str(folder), source=prepared["model"])
    ready = {}
    for program in programs:
        run, variant = program.run, folder / program.run.name
        order = dict(program.order, **common, quantized=str(variant))
        if run.name not in ready:
            variant.mkdir()
            quantized = steps.order_quantize(dict(order, model=prepared["model"], into=str(variant)))
            ready[run.name] = quantized["model"]
        found = steps.order_case(dict(order, model=ready[run.name], into=str(variant / program.soc)))
        assert found["beside"]["reload_equal"] and found["embedded"]["reload_equal"]
"""
"""Export, quantize, compile both forms, run and reload, as anyone would write it: one after another."""


@contextmanager
def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
    """What a pull request waits for; `quick` takes two small models."""
    require_installed()
    words = QUICK if quick else ()
    count = len(choose(programs_of(SHIPPED), tags=["pr"], words=words))
    stores: list[Path] = []

    def cold(into: Path) -> None:
        stores.append(work / f"store-{len(stores)}")
        _ours(words, stores[-1], into)

    def warm(into: Path) -> None:
        # The first round begins with the cold run, so that there is one.
        _ours(words, stores[-1], into)

    yield Benchmark(
        contenders=(
            Contender(COLD, cold, _check(count, 0)),
            Contender(PLAIN, lambda into: _plain(words, into)),
            Contender(WARM, warm, _check(count, count)),
        ),
        aims=AIMS,
        facts={"programs": count},
    )


def _ours(words: tuple[str, ...], store: Path, into: Path) -> None:
    chosen = [part for word in words for part in ("-k", f"{word}/")]
    run_stage("test_onnx", ["--tag", "pr", *chosen], store, into)


def _check(programs: int, cached: int) -> Callable[[Path], None]:
    def check(into: Path) -> None:
        metrics = Report.read(into / "test_onnx.json").metrics
        counts = metrics.get("selected"), metrics.get("failed"), metrics.get("cached")
        if counts != (programs, 0, cached):
            raise CheckFailed(
                f"expected {programs} programs, none failed and {cached} cached, found {counts}",
                fix="nox -s test_onnx -- --tag pr",
            )

    return check


def _plain(words: tuple[str, ...], into: Path) -> None:
    log, scratch = into / "plain.log", into / "made"
    scratch.mkdir()
    command = [sys.executable, "-c", PLAIN_RUN, str(scratch), str(log), *(f"{word}/" for word in words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    run_whole(command, log, cwd=into, environment=environment)
