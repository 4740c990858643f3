"""A toy lane: what it says of itself is all that it takes to be cached, sharded, judged and reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from ci.engine.memo import Memo
from ci.engine.workers.parent import WorkerSpec
from ci.pipeline.lane import Lane, Mine, Results, run
from ci.pipeline.models.own_packages import OwnPackages
from ci.pipeline.options import Accept, Choice, StageOptions, WorkOptions
from ci.pipeline.stage import AnyPlan, baselines_of
from ci.pipeline.steps import Ask, Step, run_step
from ci.pipeline.suite import AnyCase, AnyProgram, AnyRun, Suites
from ci.pipeline.suite_file import LaneForm
from provisioning.base.findings import Finding, Report, Severity
from provisioning.base.settings import Selection


# The lane begins here.
class ToyRun(AnyRun):
    width: int

    @property
    def kind(self) -> str:
        return "toy"


class ToyCase(AnyCase):
    runs: tuple[ToyRun, ...] = Field(min_length=1, alias="run")


@dataclass(frozen=True, slots=True)
class Program(AnyProgram[ToyCase, ToyRun]):
    pass


WORKER = """
import sys
from pathlib import Path
from ci.engine.workers.child import reporting, serve

def work(order):
    if order["width"] > 90:
        raise ValueError(f"no program is {order['width']} wide")
    (Path(order["into"]) / "program").write_text("x" * order["width"])
    return {"sqnr_db": 10.0 * order["width"]}

def error_of(error, order):
    return {"kind": "refused", "message": str(error), "fix": "make it narrower"}

serve(int(sys.argv[-1]), lambda: reporting(work, error_of), forks=True)
"""


@dataclass(frozen=True)
class Compile(Step[Program]):
    kind, title, keeps_files = "toy", "toys", True
    plan: AnyPlan[Program]

    def environment(self, own: OwnPackages) -> Mapping[str, str]:
        return {"PATH": "/usr/bin:/bin"}

    def worker(self, own: OwnPackages, threads: int, count: int) -> WorkerSpec:
        return WorkerSpec(
            ("-c", WORKER), self.environment(own), self.plan.logs, 60, "nothing", "", forks=True
        )

    def key(self, program: Program, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Any]:
        return program.request

    def work(self, program: Program, ask: Ask) -> Mapping[str, Any]:
        return ask(width=program.run.width)


class Toy(Lane[Program, AnyPlan[Program]]):
    stage, rules = "test_toy", "toy"
    suites = Suites("test_toy", Path("toy.toml"), Program, LaneForm("toy", ToyCase, ("test_toy",)))

    def plan(self, programs: Sequence[Program], options: StageOptions) -> AnyPlan[Program]:
        selection, baselines = options.selection, baselines_of(programs, options.selection.profile)
        return AnyPlan(tuple(programs), selection, options.work, selection.reports / "toy", baselines)

    def do(self, plan: AnyPlan[Program], *, new_baseline: bool) -> Results:
        return {"toy": run_step(Compile(plan), plan.programs)}

    def findings(self, plan: AnyPlan[Program], program: Program, mine: Mine) -> Iterator[Finding]:
        if failure := mine["toy"].failure:
            yield Finding(f"toy-{failure.rule}", Severity.ERROR, program.name, failure.message, failure.fix)

    def row(self, plan: AnyPlan[Program], program: Program, mine: Mine) -> Mapping[str, Any]:
        return {"cached": mine["toy"].cached, "width": program.run.width}

    def figures(self, program: Program, mine: Mine) -> Mapping[str, float] | None:
        return None if mine["toy"].failure else {"sqnr_db": mine["toy"].facts["sqnr_db"]}

    def recorded(self, plan: AnyPlan[Program], program: Program, mine: Mine) -> Mapping[str, Any] | None:
        return {"context_bytes": program.run.width, "build_id": "v1", "accuracy": self.figures(program, mine)}


# The lane ends here.
SUITE = "schema = 2\n" + "".join(
    f'[case.net{width}]\n[[case.net{width}.run]]\nlane = "toy"\nwidth = {width}\nsocs = ["SM8650"]\n'
    for width in (2, 3, 4, 99)
)


def toys(
    folder: Path, accept: Accept | None = None, listed: bool = False, **choice: Any
) -> tuple[int, dict[str, Any]]:
    suite = folder / "toy.toml"
    if not suite.exists():
        suite.write_text(SUITE)
    selection = Selection("wheels", "x86_64-linux", "SM8650", folder / "store", folder / "reports")
    chosen = Choice(suites=(suite,), **choice)
    code = run(Toy(), StageOptions(selection, chosen, WorkOptions(jobs=1), accept or Accept(), listed))
    rows = {} if listed else Report.read(folder / "reports/test_toy.json").metrics["programs"]
    assert isinstance(rows, dict)
    return code, {name.partition("/")[0]: row for name, row in rows.items()}


def test_its_programs_are_cached_and_judged_and_those_that_fail_are_done_again(tmp_path: Path) -> None:
    code, rows = toys(tmp_path)
    assert code == 1 and {name: row["verdict"] for name, row in rows.items()} == {
        "net2": "pass",
        "net3": "pass",
        "net4": "pass",
        "net99": "fail",
    }
    (finding,) = Report.read(tmp_path / "reports/test_toy.json").findings
    assert (finding.rule, finding.fix) == ("toy-refused", "make it narrower")
    code, rows = toys(tmp_path)
    assert code == 1 and [row["cached"] for row in rows.values()] == [True, True, True, False]


def test_it_is_chosen_listed_and_sharded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toys(tmp_path, words=("net2 or net3",))[1].keys() == {"net2", "net3"}
    shards = [set(toys(tmp_path, shard=f"{part}/2")[1]) for part in (1, 2)]
    assert shards[0] | shards[1] == {"net2", "net3", "net4", "net99"} and not shards[0] & shards[1]
    capsys.readouterr()
    assert toys(tmp_path, listed=True)[0] == 0 and capsys.readouterr().out.count("SM8650") == 4


def test_its_figures_become_the_expected_ones(tmp_path: Path) -> None:
    both = Accept(values=True)
    assert toys(tmp_path, both, words=("net2 or net3",))[0] == 0
    suite = Toy.suites.load(tmp_path / "toy.toml")
    held = {name: case.runs[0].thresholds for name, case in suite.cases["toy"].items()}
    assert held["net2"].sqnr_db < held["net3"].sqnr_db <= 30 and held["net4"] is None
    assert (tmp_path / "toy.baseline-wheels.json").is_file()


def test_a_toy_lane_takes_few_lines() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    lane = text.partition("# The lane begins here.")[2].partition("# The lane ends here.")[0]
    assert len([line for line in lane.splitlines() if line.strip()]) <= 80
