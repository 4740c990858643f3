"""`test_emulator --reload`: a program that differs when it is loaded again, or leaks, is found."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, cast

import pytest

from ci.lanes.executorch import run_worker
from ci.lanes.executorch.emulate import neighbours_of, reload_findings
from ci.lanes.executorch.records import Loadable, Reloaded, ReloadRequest
from ci.outcome import Result
from ci.plain import as_json, read

ONE, TWO = (Loadable(name, "", "", ()) for name in ("one", "two"))


@pytest.fixture(autouse=True)
def _only_new_objects_are_collected() -> Iterator[None]:
    """As in a small process: other tests left many objects."""
    gc.freeze()
    yield
    gc.unfreeze()


class Named(NamedTuple):
    name: str
    soc: str


class Healthy:
    """Stands for a loaded program."""

    alive: list[str] = []  # noqa: RUF012
    loads = 0

    def __init__(self, program: Loadable) -> None:
        self.name = program.name
        type(self).loads += 1
        self.alive.append(self.name)

    def __del__(self) -> None:
        self.alive.remove(self.name)

    def outputs(self) -> list[bytes]:
        return [self.name.encode()]


class DiffersAfterRelease(Healthy):
    def outputs(self) -> list[bytes]:
        return [b"other" if 4 < self.loads < 9 else self.name.encode()]


class DiffersBesideAnother(Healthy):
    def outputs(self) -> list[bytes]:
        return [b"other" if {*self.alive} == {"one", "two"} and self.name == "one" else self.name.encode()]


class Dies(Healthy):
    def __del__(self) -> None:
        super().__del__()
        type(self).deleted = True

    deleted = False

    def outputs(self) -> list[bytes]:
        if self.deleted and self.alive == ["one"] and self.loads > 10:
            raise RuntimeError("DelegateHandle has been deleted")
        return super().outputs()


def _reloaded(load: type[Healthy], other: Loadable | None) -> Reloaded:
    order = as_json(ReloadRequest(ONE, other))
    return read(Reloaded, run_worker.reloaded(order, cast(Any, load)))


@pytest.mark.parametrize(
    ("program", "wrong", "released"),
    [
        (Healthy, 0, ""),
        (DiffersAfterRelease, 1, ""),
        (DiffersBesideAnother, 1, ""),
        (Dies, 0, "DelegateHandle has been deleted"),
    ],
)
def test_a_program_that_differs_when_it_is_loaded_again_is_found(
    program: type[Healthy], wrong: int, released: str
) -> None:
    program.loads = 0
    record = _reloaded(program, TWO)
    assert (len(record.wrong), record.released) == (wrong, released)
    assert len(list(reload_findings("one", "", Result(record=record)))) == wrong


@pytest.mark.parametrize(
    ("leaking", "rules"), [(range(1, 20), ["emulator-reload-memory"]), ([6], [])], ids=["each", "once"]
)
def test_memory_that_each_load_leaves_behind_is_a_leak_and_a_piece_taken_once_is_none(
    leaking: Collection[int], rules: list[str]
) -> None:
    kept: list[mmap.mmap] = []

    class Leaks(Healthy):
        loads = 0

        def __init__(self, program: Loadable) -> None:
            super().__init__(program)
            if self.loads in leaking:
                # Memory of its own: what other tests released cannot be used for it.
                kept.append(mmap.mmap(-1, 8 << 20))
                kept[-1].write(b"x" * (8 << 20))

    result = Result(record=_reloaded(Leaks, None))
    assert [finding.rule for finding in reload_findings("one", "", result)] == rules


def test_a_program_is_loaded_beside_one_of_the_same_chip() -> None:
    socs = {"a": "SM8650", "b": "SM8750", "c": "SM8650"}
    programs = [Named(name, soc) for name, soc in socs.items()]
    assert neighbours_of(cast(Any, programs)) == {"a": "c", "c": "a"}
