"""Measure the operators of the table on an earlier build, and say where it gave something else."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.engine.installed import ready_runner
from ci.lanes.upstream.ledger import SuiteRecord, load_record, locked, record_of_run
from ci.lanes.upstream.operator_cells import table_of
from ci.operators import history
from ci.operators.history import Cells, PastCell, plain
from ci.operators.onnx_page import measured_with, onnx_of
from ci.operators.onnx_tests import SUITE, node_tests
from ci.operators.table import PLAIN, read
from ci.pipeline.baseline import load_baseline
from ci.upgrades import releases
from ci.upgrades.compare.stage import Stack, chosen, in_range, own_build, run_on, title_of, variables_for
from provisioning import compat
from provisioning.base.commands import session
from provisioning.base.errors import EnvironmentLacking, UnknownName, UsageError
from provisioning.base.files import replace_text
from provisioning.base.findings import Severity
from provisioning.base.settings import DEFAULT_SOC, Selection
from provisioning.base.stage_run import StageRun

VALUES = "values"
"""The suite whose plain cases are measured on earlier versions of ExecuTorch."""

SCHEMES = ("fp16", "8a8w", "16a8w")
"""Those that differ from these in the weights alone seldom give another result."""


@dataclass(frozen=True, slots=True)
class EarlierBuilds:
    qnn: tuple[str, ...]
    executorch: tuple[str, ...]
    expressions: tuple[str, ...]
    """What of the suite alone is measured; none: all of it."""
    timeout: float
    accept: bool


@dataclass(frozen=True, slots=True)
class Earlier:
    """What one build gave, and what the same cases give now."""

    lane: history.LaneName
    measured: str
    cells: Cells
    now: Cells
    again: Callable[[str], Sequence[str]]
    """The flags that measure one operator again."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """What a suite is run with on an earlier build."""

    selection: Selection
    builds: EarlierBuilds
    environ: Mapping[str, str]
    stage: StageRun

    def suite(self, stack: Stack, folder: Path, lane: str, verb: str, flags: Sequence[str]) -> None:
        """What fails on an earlier build is its result, and no failure of this stage."""
        sys.stderr.write(f"{title_of(stack.name)}\n")
        command = [sys.executable, "-m", "ci", verb, *flags, "--reports", str(folder), "--soc", DEFAULT_SOC]
        command += ["--store", str(self.selection.store), "--timeout", f"{self.builds.timeout:g}"]
        variables = variables_for(stack, self.selection, lane, self.environ)
        run_on(stack, self.stage, verb, command, variables, folder)

    def new_folder(self, stack: Stack) -> Path:
        folder = Path(self.selection.reports).absolute() / "operator_history" / stack.name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


def measure_all(selection: Selection, builds: EarlierBuilds, environ: Mapping[str, str]) -> int:
    if bool(builds.qnn) is bool(builds.executorch):
        raise UsageError(
            "name builds of QNN, or versions of ExecuTorch", fix="--qnn 2.48.40, or --executorch 1.5.0"
        )
    if selection.named_socs not in ((), (DEFAULT_SOC,)):
        raise UsageError(f"the history is of {DEFAULT_SOC} alone", fix="leave out --soc")
    stage = StageRun.as_typed("operator_history", selection.profile, selection.target)
    with stage.reported(selection.reports, "operator-history-not-measured"):
        run = EarlierRun(selection, builds, environ, stage)
        for measure, stack in _measures(builds):
            earlier = measure(run, stack)
            differing = history.differing(earlier.cells, earlier.now)
            words = {name: _words(chips) for name, chips in differing.items()}
            stage.metrics[earlier.measured] = {"operators": len(earlier.cells), "differing": {**words}}
            for name, gave in words.items():
                again = session("operator_history", *earlier.again(name))
                subject = f"{name} with {earlier.measured}"
                stage.add("operator-history-differs", Severity.NOTE, subject, gave, again)
            if builds.accept:
                with locked():
                    table = read()
                    now = plain(table.cells) if earlier.lane == "executorch" else plain(table.onnx.cells)
                    kept = history.with_earlier(
                        history.load(), earlier.lane, earlier.measured, earlier.cells, earlier.now, now
                    )
                    replace_text(history.HISTORY, kept.as_json())
    return stage.close(selection.reports)


def _words(chips: Mapping[str, Mapping[str, PastCell]]) -> str:
    return ", ".join(f"{cell} at {scheme}" for row in chips.values() for scheme, cell in row.items())


Measure = Callable[[EarlierRun, Stack], Earlier]


def _measures(builds: EarlierBuilds) -> Iterator[tuple[Measure, Stack]]:
    if builds.qnn:
        own = set(read().onnx.measured.values())
        earlier = [build for build in chosen(builds.qnn, least=1) if measured_with(build.build_id) not in own]
        if not earlier:
            raise UsageError(
                "--qnn: the table itself is of this build", fix="name an earlier one: --qnn 2.48.40"
            )
        yield from ((_onnx, Stack(build)) for build in earlier)
    table = compat.load_builds()
    known = [release.version for release in table.executorch]
    for name in in_range(builds.executorch, known, "--executorch"):
        if name not in known:
            raise UnknownName(f"--executorch {name}: no earlier version that can be measured", name, known)
        release = releases.release_named(name, table)
        yield _executorch, Stack(own_build(table), name, release, several_builds=False)


def _onnx(run: EarlierRun, stack: Stack) -> Earlier:
    """The suite of ONNX's operators, in a copy: what is accepted of it is a file beside it."""
    folder = run.new_folder(stack)
    suite = folder / SUITE.name
    shutil.copyfile(SUITE, suite)
    chosen_alone = [flag for text in run.builds.expressions for flag in ("-k", text)]
    run.suite(stack, folder, "onnx", "test_onnx", ["--suite", str(suite), "--accept", *chosen_alone])
    build = stack.build
    programs = load_baseline(suite, run.selection.profile, "onnx").programs
    return Earlier(
        "onnx",
        measured_with(build.build_id),
        plain(onnx_of(programs, node_tests()).cells),
        plain(read().onnx.cells),
        lambda name: ("--qnn", build.qnn, "-k", f"{name}/"),
    )


def _executorch(run: EarlierRun, stack: Stack) -> Earlier:
    """The plain cases of our own suite, beside the same cases of now."""
    folder = run.new_folder(stack)
    # Of the installed release: earlier wheels have none of its CMake files.
    ready_runner(run.environ, folder)
    plain_cases = f"*-{PLAIN}]"
    words = [f"{plain_cases} and ({text})" for text in run.builds.expressions] or [plain_cases]
    flags = [flag for text in words for flag in ("-k", text)]
    flags += [flag for scheme in SCHEMES for flag in ("--flow", scheme)]
    run.suite(stack, folder, "upstream", "test_upstream", [VALUES, *flags])
    profile = run.selection.profile
    then = load_record(VALUES, profile, DEFAULT_SOC, record_of_run(folder, VALUES, DEFAULT_SOC))
    expected = f"executorch {stack.executorch}, QNN {stack.build.build_id}"
    if then.measured != expected:
        raise EnvironmentLacking(
            f"expected {expected}, and the suite ran with {then.measured}",
            fix="remove what puts another executorch or QNN before PYTHONPATH or LD_LIBRARY_PATH",
        )
    now = load_record(VALUES, profile, DEFAULT_SOC)
    return Earlier(
        "executorch",
        expected,
        _plain_cells(then),
        _plain_cells(now),
        lambda name: ("--executorch", stack.executorch, "-k", f"*-{name}-{PLAIN}]"),
    )


def _plain_cells(record: SuiteRecord) -> Cells:
    tests = [test for test in record.tests if test.endswith(f"-{PLAIN}]")]
    cells = plain(table_of({VALUES: {DEFAULT_SOC: record.only(tests)}}, {}).cells)
    return {
        name: {chip: {key: row[key] for key in SCHEMES if key in row} for chip, row in chips.items()}
        for name, chips in cells.items()
    }
