"""Programs given to workers and to the emulator: what is done, what is cached, and what goes wrong in words.

The process that lowers and the runner are stand-ins; workers, memo and files are real.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy
import pytest

from ci.__main__ import VERBS
from ci.lanes.executorch import steps as compiling
from ci.lanes.executorch.orders import ran_in
from ci.lanes.executorch.stage import measure
from ci.lanes.executorch.steps import compile_programs
from ci.lanes.executorch.suite import ExecutorchProgram, programs_of
from ci.suite.runner import Runner
from ci.suite.tensor_files import TensorFile
from ci.work import trouble
from ci.work.jobs import WorkOptions
from ci.work.outcome import Result
from provisioning.base.command_line import main
from provisioning.base.commands import session
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Report
from provisioning.base.settings import ROOT
from provisioning.base.units import EXACT_DB
from tests.support.lowering import QNN, SUITE, compiled_as, make_program, plan_of
from tests.support.lowering_worker import FAILS
from tests.support.scripts import script

ENVIRON = dict(os.environ)
pytestmark = pytest.mark.usefixtures("one_template")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)


def use_stand_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compiling, "WORKER", "tests.support.lowering_worker")
    patch.setattr(compiling, "EXPORT", "tests.support.lowering_worker:export")


def compiled(
    folder: Path,
    *programs: ExecutorchProgram,
    timeout: float = 60,
    qnn: Mapping[str, str] = QNN,
    cache: bool = True,
) -> dict[str, Result]:
    work = WorkOptions(timeout, jobs=1, cache=cache, why=True)
    return compile_programs(plan_of(folder, programs, work, environment=ENVIRON, qnn=qnn))


def program_of(folder: Path, what: str, name: str = "net", width: int = 8) -> ExecutorchProgram:
    text = SUITE.replace("net:make", f"net:{what}").replace("case.net", f"case.{name}")
    return make_program(folder / name, text=text.replace("width = 8", f"width = {width}"))


class TestCompiling:
    def test_a_change_of_what_is_compiled_does_it_again_and_nothing_else_does(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        suite = make_program(tmp_path / "suite").suite

        def cached(qnn: Mapping[str, str] = QNN) -> bool:
            (program,) = programs_of(suite)
            return compiled(tmp_path, program, qnn=qnn)[program.name].cached

        def change(file: str, old: str, new: str) -> None:
            path = suite.with_name(file)
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))

        assert [cached(), cached()] == [False, True]
        for file, old, new, why in (
            ("layers.py", "WIDTH = 1", "WIDTH = 2", "model: 8 → 16"),
            ("suite.toml", "width = 8", "width = 9", "model: 16 → 18"),
            ("suite.toml", '"SM8650"', '"SM8750"', ""),
            ("suite.toml", "tags", "per_channel = false\ntags", "run.per_channel: True → False"),
        ):
            change(file, old, new)
            capfd.readouterr()
            assert not cached(), new
            assert f": {why}" in capfd.readouterr().err
        # What is judged later is not compiled again, nor what leads to the same model.
        change("suite.toml", "sqnr_db = 20", "sqnr_db = 30")
        change("suite.toml", '["pr"]', '["nightly"]')
        change("suite.toml", "files", "cpu_budget = 1\nfiles")
        change("layers.py", "WIDTH", "# A comment.\nWIDTH")
        change("suite.toml", "case.net", "case.other")
        assert cached()
        assert not cached({**QNN, "libraries": "ab"})

    def test_one_that_fails_is_one_failure_and_the_others_are_done(self, tmp_path: Path) -> None:
        expected = {
            "crash": ("crash", "SIGSEGV"),
            "killed": ("killed", "when memory runs out"),
            "refuse": ("factory", "it is no model"),
            "export_crash": ("crash", "its last words: what it printed"),
        }
        bad = {what: program_of(tmp_path, what, what) for what in expected}
        good = [program_of(tmp_path, "make", f"good{n}", n) for n in (1, 2)]
        results = compiled(tmp_path, *bad.values(), *good)
        for what, (kind, message) in expected.items():
            failure = results[bad[what].name].failure
            assert failure and failure.kind == kind and message in failure.message
            assert failure.exported == (what != "export_crash")
            assert failure.log and failure.log.read_text().startswith("what it printed\n")
        assert not any(results[program.name].failure for program in good)

    def test_two_cases_of_one_run_have_each_their_own_program(self, tmp_path: Path) -> None:
        """With the same options and the same chip."""
        wide = (
            SUITE[SUITE.index("[case") :].replace("case.net", "case.wide").replace("width = 8", "width = 9")
        )
        suite = make_program(tmp_path / "suite", text=SUITE + wide).suite
        for cached in (False, True):
            results = compiled(tmp_path, *programs_of(suite)).values()
            texts = [(result.folder / "program.pte").read_text() for result in results if result.folder]
            assert texts == ["8", "9"] and all(result.cached == cached for result in results)

    @pytest.mark.parametrize(
        ("what", "rule", "stays"),
        [
            ("refuse", "factory", False),
            ("crash", "crash", False),
            ("spin", "timeout", True),
            ("hang", "machine", True),
            ("hang while a processor is free", "timeout", True),
            ("killed", "machine", True),
            ("full", "machine", True),
            ("bad_alloc", "machine", True),
        ],
    )
    def test_a_failure_removes_what_was_cached_unless_the_machine_failed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, rule: str, stays: bool
    ) -> None:
        # Other tests run beside this one: they take the processor from what computes, or leave one free.
        waits, _, free = what.partition(" while ")
        monkeypatch.setattr(trouble, "BUSY", 0.0 if what == "spin" else math.inf)
        monkeypatch.setattr(trouble, "IDLE", 0 if free else math.inf)
        program = make_program(tmp_path / "suite")
        compiled(tmp_path, program)
        fails = program.suite.parent / FAILS
        fails.write_text(waits)
        failure = compiled(tmp_path, program, cache=False, timeout=1)[program.name].failure
        fails.unlink()
        assert failure and failure.rule == rule
        assert failure.exit_code == (3 if rule == "machine" else 1)
        assert not list((tmp_path / "store/cache/results/lowering/work").iterdir())
        assert compiled(tmp_path, program)[program.name].cached == stays

    @pytest.mark.parametrize("repository", [True, False])
    def test_suites_of_two_repositories_that_name_alike_what_differs_are_each_compiled(
        self, tmp_path: Path, repository: bool
    ) -> None:
        """Equal names of folder, module and factory give equal keys, in one call and one after the other."""
        programs = []
        for number in (1, 2):
            top = tmp_path / f"r{number}"
            if repository:
                (top / ".git").mkdir(parents=True)
            program = make_program(top / "ci", text=SUITE.replace("case.net", f"case.net{number}"))
            (top / "ci" / "layers.py").write_text(f"WIDTH = {number}\n")
            programs.append(program)
        for cached in (False, True):
            results = compiled(tmp_path, *programs)
            texts = [(results[program.name].folder or Path()) / "program.pte" for program in programs]
            assert [text.read_text() for text in texts] == ["8", "16"]
            assert all(result.cached == cached for result in results.values())


RUNS = """
import os, sys
from pathlib import Path
import pytest
from ci.lanes.executorch.suite import programs_of
from tests.integration.test_executorch_work import compiled, use_stand_in

use_stand_in(pytest.MonkeyPatch())
for line in sys.stdin:
    runs = []
    while len(runs) < 2:
        runs.append(os.fork())
        if not runs[-1]:
            compiled(Path(sys.argv[1]), *programs_of(Path(sys.argv[2])))
            os._exit(0)
    print(*runs, flush=True)
    print(*(os.waitpid(run, 0)[0] for run in runs), flush=True)
"""
"""Two runs for each line, in forks of one process, which imports once."""


def test_a_run_that_is_killed_beside_another_over_the_same_store_leaves_no_stale_verdict(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    program = make_program(tmp_path / "suite")
    command = [sys.executable, "-c", RUNS, str(tmp_path), str(program.suite)]
    runs = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert runs.stdin and runs.stdout
    for width in range(2, 5):
        # The same length, and the same times: only the bytes differ.
        module = tmp_path / "suite" / "layers.py"
        times = module.stat()
        module.write_text(f"WIDTH = {width}\n")
        os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))
        print(file=runs.stdin, flush=True)
        started = runs.stdout.readline()
        time.sleep(chance.uniform(0.05, 0.8))
        for run in map(int, started.split()):
            os.kill(run, signal.SIGKILL)
        assert runs.stdout.readline() == started
        result = compiled(tmp_path, program)[program.name]
        assert result.folder and (result.folder / "program.pte").read_text() == str(8 * width)
    with runs:
        runs.stdin.close()
    assert compiled(tmp_path, program)[program.name].cached


VALUES = numpy.linspace(-1, 2, 12, dtype="float32").reshape(3, 4)


class Emulator:
    """Programs that tell a stand-in of the runner what to do."""

    def __init__(self, folder: Path, whose: str = "") -> None:
        self.folder = folder
        program = ROOT / "tests/support/emulator_runner.py"
        # Without site-packages, as each file that Python looks for is watched.
        text = f'exec {sys.executable} -I -S {program} {whose} "$@"'
        self.runner = script(folder / "dist/bin/runner", text)

    def compiled(self, what: str) -> Result:
        folder = self.folder / f"compiled-{what}"
        folder.mkdir(exist_ok=True)
        (folder / "program.pte").write_text(what)
        inputs, expected = (
            tuple((TensorFile(f"{name}_{number}_0.raw", "float32", (3, 4)),) for number in range(2))
            for name in ("input", "float")
        )
        for (tensor,) in (*inputs, *expected):
            VALUES.tofile(folder / tensor.file)
        record = compiled_as(inputs=inputs, expected=expected, without_time=what)
        return Result(folder=folder, record=record)

    def run(self, *names: str) -> list[Result]:
        programs = {
            what: make_program(self.folder / what, text=SUITE.replace("case.net", f"case.{what}"))
            for what in names
        }
        work = WorkOptions(60, jobs=1, why=True)
        plan = plan_of(self.folder, list(programs.values()), work, environment=ENVIRON)
        compiled = {program.name: self.compiled(what) for what, program in programs.items()}
        results = measure(plan, Runner.at(self.runner, session("build_runner")), compiled)
        return [results[program.name] for program in programs.values()]


@pytest.fixture
def emulator(tmp_path: Path) -> Emulator:
    return Emulator(tmp_path)


class TestRunning:
    def test_a_good_run_is_not_done_again_until_something_changes(self, emulator: Emulator) -> None:
        (first,), (again,) = (emulator.run("echo") for _ in range(2))
        assert (first.cached, again.cached) == (False, True)
        assert ran_in(again).figures["sqnr_db"] == EXACT_DB
        assert not [path for path in (emulator.folder / "logs").rglob("*") if path.is_file()]
        with emulator.runner.open("a") as stream:
            stream.write("# more\n")
        (changed,) = emulator.run("echo")
        assert not changed.cached

    def test_a_run_that_gives_nothing_usable_says_why_and_is_done_again_with_its_files_kept(
        self, emulator: Emulator
    ) -> None:
        expected = {
            "crash": ("run", "SIGSEGV"),
            "refuse": ("run", "exit code 40"),
            "nan": ("not-finite", "12 of 12 values"),
            "truncated": ("shape", "expected 12 values, found 11"),
            "nothing": ("missing", "output_0_0.raw was not written"),
        }
        for (rule, message), result in zip(expected.values(), emulator.run(*expected, "zeros"), strict=False):
            assert ran_in(result).rule == rule and message in ran_in(result).message
        crash, zeros = emulator.run("crash", "zeros")
        # What it gave is there, and misses its thresholds again.
        assert not crash.cached and zeros.cached and zeros.folder
        names = {path.relative_to(zeros.folder).as_posix() for path in zeros.folder.rglob("*")}
        assert {"input_0_0.raw", "float_0_0.raw", "outputs/output_0_0.raw", "run.log"} <= names

    def test_executorchs_own_runner_is_called_in_its_own_words(self, tmp_path: Path) -> None:
        names = ("echo", "zeros", "refuse")
        ours, theirs = (
            Emulator(tmp_path / (whose or "ours"), whose).run(*names) for whose in ("", "executorchs")
        )
        assert [ran_in(result).figures for result in theirs] == [ran_in(result).figures for result in ours]
        assert ran_in(theirs[2]).rule == "run" and "no delegate" in ran_in(theirs[2]).message

    def test_one_that_is_killed_from_outside_says_nothing_of_the_program(self, emulator: Emulator) -> None:
        for result in emulator.run("killed", "killed-in-a-shell"):
            assert result.failure and result.failure.blame == "machine"
            assert result.failure.log and result.failure.log.is_file()


def test_asked_to_end_it_ends_what_it_runs_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(compiling, "ready_runner", ended)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main("python -m ci", "", VERBS, ["test_emulator", "--reports", str(tmp_path)]) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    (finding,) = Report.read(tmp_path / "test_emulator.json").findings
    assert (finding.rule, finding.message) == ("emulator-not-run", "interrupted")


def test_a_program_that_is_no_runner_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="libmissing"):
        text = "echo 'libmissing.so: cannot open' >&2; exit 127"
        Runner.at(script(tmp_path / "runner", text), session("build_runner"))
