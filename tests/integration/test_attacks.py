"""No case of the table of attacks says "cached" of work that would give another result."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attacks import CALLS, LEAVES, OF_OTHERS, World, cases, sample


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    shared = Path(tempfile.mkdtemp(prefix="qnn-ci-attack-", dir="/dev/shm"))
    world = World(tmp_path_factory.mktemp("world"), shared / "data")
    yield world
    world.close()
    shared.rmdir()


LONG = pytest.mark.long("two dozen cases of each call")


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=LONG)])
@pytest.mark.parametrize("call", CALLS)
def test_a_result_is_fresh_or_not_cached(call: str, few: bool, world: World) -> None:
    assert [wrong for case in sample(call, few=few) if (wrong := world.stale(case))] == []


@pytest.mark.parametrize("call", sorted(CALLS.keys() - LEAVES))
def test_where_nothing_changes_it_is_cached_at_last(call: str, world: World) -> None:
    assert world.settles(call)[1]


@pytest.mark.parametrize("call", sorted(OF_OTHERS))
def test_what_other_processes_decide_is_never_cached(call: str, world: World) -> None:
    assert not world.settles(call)[1]


@pytest.mark.parametrize("call", ["made if need be", "folder made if need be", "symlink", "append and tell"])
def test_the_log_names_what_work_leaves_behind(call: str, world: World) -> None:
    assert f"not remembered: {world.home}/one/repository/data/" in world.settles(call)[0]


@pytest.mark.heavy
@pytest.mark.whole
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("call", CALLS)
def test_no_case_of_the_whole_table_is_stale(call: str, world: World) -> None:
    assert [wrong for case in cases(call) if (wrong := world.stale(case))] == []
