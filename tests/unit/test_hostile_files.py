"""Files whose parts are shared cost a reader no more than their size."""

from __future__ import annotations

import contextlib
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from ci.artifacts.compiler_log import NATIVE_ERROR, refusals, traffic
from ci.artifacts.program import CompiledProgram, parse
from ci.inspect import verb
from provisioning.base.errors import CheckFailed
from tests.support import hostile
from tests.support.typed import run_here

Make = Callable[[int], bytes]


def inspected(path: Path) -> None:
    with contextlib.suppress(CheckFailed):
        run_here(verb, path)


# Each with the smallest of the three sizes, at which it is large beside what any file may cost.
ATTACKS: dict[str, tuple[Make, int]] = {
    "plans.pte": (hostile.shared_plans, 60),
    "context.pte": (hostile.shared_context, 100),
    "overlapping.pte": (hostile.overlapping_contexts, 200),
    "members.dlc": (hostile.many_members, 250),
    "fields.onnx": (hostile.empty_fields, 400),
    "names.so": (hostile.nested_names, 1000),
}
SIZES = (1, 2, 4)
BESIDE = 1 << 20
"""Bytes that reading takes, however small the file is."""


def calls_in(read: Callable[[Path], None], path: Path) -> int:
    """How many functions are called: work that no busy machine changes."""
    count = 0

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        read(path)
    finally:
        sys.setprofile(before)
    return count


def peak_of(read: Callable[[Path], None], path: Path) -> int:
    tracemalloc.start()
    try:
        read(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_file_twice_as_large_costs_twice_the_work(tmp_path: Path, name: str) -> None:
    make, smallest = ATTACKS[name]
    path, work = tmp_path / name, []
    path.write_bytes(make(1))
    inspected(path)
    for times in SIZES:
        path.write_bytes(make(times * smallest))
        work.append(calls_in(inspected, path))
    assert work[1] <= 2.5 * work[0] and work[2] <= 2.5 * work[1], work


@pytest.mark.parametrize("name", ATTACKS)
def test_a_file_takes_ten_times_its_size_in_memory_at_most(tmp_path: Path, name: str) -> None:
    make, smallest = ATTACKS[name]
    path = tmp_path / name
    path.write_bytes(make(SIZES[-1] * smallest))
    inspected(path)
    assert peak_of(inspected, path) <= 10 * path.stat().st_size + BESIDE


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "members.dlc"])
def test_it_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    make, smallest = ATTACKS[name]
    path = tmp_path / name
    path.write_bytes(make(SIZES[-1] * smallest))
    with pytest.raises(CheckFailed) as refused:
        run_here(verb, path)
    assert str(path) in refused.value.message


def test_a_file_beside_a_model_is_read_once_however_many_nodes_name_it(tmp_path: Path) -> None:
    inspected(hostile.shared_file(tmp_path / "first", 1))
    work = [
        calls_in(inspected, hostile.shared_file(tmp_path / str(count), count)) for count in (50, 100, 200)
    ]
    assert work[1] <= 2.5 * work[0] and work[2] <= 2.5 * work[1], work
    model = tmp_path / "200/model.onnx"
    with (model.parent / "context.bin").open("r+b") as stream:
        stream.truncate(20 << 20)
    began = time.process_time()
    inspected(model)
    assert time.process_time() - began < 2


def test_methods_may_share_a_context() -> None:
    program = parse(hostile.shared_context(3))
    assert isinstance(program, CompiledProgram)
    graphs = {delegate.context.graphs for delegate in program.delegates if delegate.context}
    assert len(program.delegates) == 3 and graphs == {tuple(f"graph{number:07}" for number in range(3))}


@pytest.mark.parametrize(
    ("read", "part"),
    [
        (traffic, "="),
        (traffic, "= DDR bandwidth summary =" + "\n"),
        (refusals, "for node: x "),
        (NATIVE_ERROR.search, "[ERROR] [Qnn ExecuTorch]: "),
        (NATIVE_ERROR.search, "[ERROR] [Qnn ExecuTorch]:" + " " * 40),
    ],
)
def test_a_log_of_long_lines_is_searched_once(read: Callable[[str], object], part: str) -> None:
    def seconds(count: int) -> float:
        log = "[E:onnxruntime:x" + part * count + "\n" * count
        began = time.process_time()
        read(log)
        return time.process_time() - began

    assert seconds(20_000) < 0.5


def test_a_number_too_long_for_a_number_is_no_figure() -> None:
    log = f"= DDR bandwidth summary =\nspill_bytes={'9' * 5000}\nfill_bytes=7\n"
    assert traffic(log) == []
