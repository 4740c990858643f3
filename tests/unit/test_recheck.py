"""`--recheck`: what a user may type, what is drawn, and when two results are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from ci.artifacts.program import digest_without_time
from ci.engine.inputs import Roots
from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.recheck import CachedWork, compare, draw
from ci.engine.runs import Repeats
from ci.engine.watch import Touched
from ci.engine.work import Assessment, Finished, Result, RunOptions
from ci.engine.workers.parent import Worker
from ci.lanes.onnx import verb as onnx
from ci.lanes.upstream.process import RunTest
from ci.pipeline.flags import work_of
from ci.pipeline.steps import StepTask
from provisioning.base.errors import UsageError
from tests.support.programs import context, program
from tests.support.typed import parsed


@pytest.mark.parametrize(
    ("text", "share", "seconds"), [("20%", 0.2, 0), ("100%", 1, 0), ("0.5%", 0.005, 0), ("1.5min", 1, 90)]
)
def test_a_share_or_minutes_are_taken(text: str, share: float, seconds: float) -> None:
    part = work_of(parsed(onnx, "--recheck", text)).recheck
    assert part is not None and part.share == pytest.approx(share) and part.seconds == seconds


@pytest.mark.parametrize(
    "text",
    ["", "20", "0%", "101%", "-5%", "10m", "10 min", "0min", "0.0%", "1e3%", "٣%", "nan%", "min", "20%%"],
)
def test_anything_else_is_refused_with_an_example(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(onnx, f"--recheck={text}")
    assert ended.value.code == 2 and "10min" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--recheck", "20%", "--no-cache"], ["--recheck-seed", "3"]], ids=["no cache", "seed alone"]
)
def test_flags_that_make_no_sense_together_are_refused(flags: list[str]) -> None:
    with pytest.raises(UsageError):
        work_of(parsed(onnx, *flags))


def test_a_seed_is_drawn_or_the_users() -> None:
    def seed(*flags: str) -> int:
        part = work_of(parsed(onnx, "--recheck", "20%", *flags)).recheck
        assert part is not None
        return part.seed

    assert len({seed() for _ in range(20)}) > 1
    assert seed("--recheck-seed", "7") == 7


def cached(folder: Path, seconds: Mapping[str, float]) -> list[CachedWork]:
    """Results that took so many seconds, by name."""

    def worker(threads: int, count: int) -> Worker:
        raise AssertionError("no worker starts")

    memo = Memo(folder, "toy", Roots({}))

    def work(name: str, taken: float) -> CachedWork:
        task = StepTask(RunTest(cast(Any, None)), Job(name), memo, {"name": name}, folder)
        return CachedWork(
            "toy",
            task,
            Result({"seconds": taken}, cached=True),
            RunOptions("toys", worker),
            RunOptions("toys", worker),
            lambda scratch: task,
            Assessment(),
            folder,
        )

    return [work(name, second) for name, second in seconds.items()]


def names(works: list[CachedWork]) -> list[str]:
    return [entry.name for entry in works]


def test_a_seed_draws_the_same_share_of_the_same_results(tmp_path: Path) -> None:
    every = cached(tmp_path, {f"net{number}": 1.0 for number in range(40)})
    drawn = names(draw(every, 0.2, 1e9, seed=5))
    assert len(drawn) == 8 and drawn == names(draw(every[::-1], 0.2, 1e9, seed=5))
    assert drawn != names(draw(every, 0.2, 1e9, seed=6))
    assert len(draw(every, 0.001, 1e9, seed=5)) == 1, "a share of few results is one of them"
    assert not draw([], 1.0, 1e9, seed=5)


def test_only_what_fits_into_the_time_is_drawn(tmp_path: Path) -> None:
    every = cached(tmp_path, {"long": 700.0, **{f"net{number}": 30.0 for number in range(40)}})
    for seed in range(20):
        drawn = draw(every, 1.0, 600.0, seed)
        assert len(drawn) == 20 and "long" not in names(drawn)


def test_work_of_an_impossible_length_is_drawn_too(tmp_path: Path) -> None:
    every = cached(tmp_path, {"nan": float("nan"), "infinite": float("inf"), "negative": -1e9, "net": 1.0})
    assert len(draw(every, 1.0, float("inf"), seed=1)) == len(draw(every, 1.0, 60.0, seed=1)) == 4


FACTS = {"seconds": 3.0, "near": {"sqnr_db": 40.0}, "left": [], "ok": True}


def difference(now: Mapping[str, Any], repeats: Repeats = Repeats()) -> list[str]:  # noqa: B008
    cached = Result(FACTS, cached=True)
    return [change.field for change in compare(cached, Finished({**FACTS, **now}, Touched()), repeats)]


def test_every_fact_is_compared_but_time_and_memory() -> None:
    assert difference({}) == difference({"seconds": 9.0, "peak": 5}) == []
    assert difference({"near": {"sqnr_db": 40.001}}) == ["near.sqnr_db"]
    assert difference({"left": [{"operator": "add"}]}) == ["left", "left.0.operator"]
    assert difference({"ok": 1}) == ["ok"], "true is no number"
    assert difference({"new": None}) == ["new"]


def test_figures_may_be_off_by_what_the_step_says() -> None:
    near = Repeats(figures={"near.*": 0.01})
    assert difference({"near": {"sqnr_db": 40.3}}, near) == []
    assert difference({"near": {"sqnr_db": 41.0}}, near) == ["near.sqnr_db"]
    assert difference({"near": {"sqnr_db": float("nan")}}, near) == ["near.sqnr_db"]
    assert difference({"near": {}}, near) == ["near", "near.sqnr_db"]
    assert difference({"ok": 1.0}, near) == ["ok"]
    assert difference({"ok": False}, Repeats(changing=("o*",))) == []


def test_files_are_compared_to_the_bit(tmp_path: Path) -> None:
    for name, text in (("cached", "one"), ("now", "two")):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub/log").write_text(text)
        (tmp_path / name / "same").write_text("same")
    (tmp_path / "now/more").touch()
    results = Result({}, tmp_path / "cached"), Finished({}, Touched(), tmp_path / "now")
    assert [change.field for change in compare(*results, Repeats())] == ["more", "sub/log"]
    assert [change.field for change in compare(*results, Repeats(changing=("*/log",)))] == ["more"]
    alike = Repeats(digest=lambda path: path.name)
    assert [change.field for change in compare(*results, alike)] == ["more"]


def test_a_program_repeats_to_the_bit_but_for_the_time_of_its_context(tmp_path: Path) -> None:
    def digest(data: bytes) -> str:
        (tmp_path / "program.pte").write_bytes(data)
        return digest_without_time(tmp_path / "program.pte")

    def made(at: bytes, binary: bytes = context()) -> bytes:
        return program(data=b"\xcd\xab\x78\x56" + at + len(binary).to_bytes(8, "little") + binary)

    first = digest(made(b"12345678"))
    assert first == digest(made(b"87654321"))
    assert first != digest(made(b"12345678", context(soc="SM8750")))
    assert digest(program(data=b"12345678" + context())) != digest(program(data=b"87654321" + context()))
    assert digest(b"no program") != digest(b"another")
    (tmp_path / "one.raw").write_bytes(made(b"12345678"))
    (tmp_path / "other.raw").write_bytes(made(b"87654321"))
    assert digest_without_time(tmp_path / "one.raw") != digest_without_time(tmp_path / "other.raw")
