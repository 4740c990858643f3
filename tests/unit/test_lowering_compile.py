"""Programs given to workers: one that dies, hangs or refuses takes no other with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.executorch import compile as compiling
from ci.executorch.compile import Compiled, Fault, Settings, compile_programs
from ci.executorch.stage import refusals
from ci.executorch.suite import Program, programs_of
from ci.suites.baseline import Baseline
from provisioning.base.settings import ROOT
from provisioning.environment import Environment
from tests.support.lowering import BASIS, SUITE, make_program


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiling, "WORKER", ("-m", "tests.support.lowering_worker"))
    yield


def _program(tmp_path: Path, what: str, name: str = "net", width: int = 8) -> Program:
    text = SUITE.replace("net:make", f"net:{what}").replace("case.net", f"case.{name}")
    text = text.replace("width = 8", f"width = {width}")
    return make_program(tmp_path / name, text=text)


def _compile(tmp_path: Path, *programs: Program, timeout: float = 60) -> dict[str, Compiled | Fault]:
    found = Environment("wheels", "x86_64-linux", "SM8650", {}, {}, (), (), ())
    settings = Settings(tmp_path / "store", tmp_path / "logs", jobs=2, timeout=timeout)
    settings.logs.mkdir(exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return compile_programs(programs, found, environ, settings, BASIS, lambda _: Baseline(tmp_path / "b"))


def test_a_program_is_made_once_and_then_kept(tmp_path: Path) -> None:
    one = _program(tmp_path, "make")
    first, again = _compile(tmp_path, one)[one.name], _compile(tmp_path, one)[one.name]
    assert isinstance(first, Compiled) and isinstance(again, Compiled)
    assert (first.cached, again.cached) == (False, True)
    assert again.path.read_bytes() == b"program of SM8650"


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("crash", "crash", "SIGSEGV"),
        ("killed", "crash", "when memory runs out"),
        ("refuse", "factory", "it is no model"),
    ],
)
def test_one_that_fails_is_one_fault_and_the_others_are_made(
    tmp_path: Path, what: str, kind: str, says: str
) -> None:
    bad, good = _program(tmp_path, what, "bad"), [_program(tmp_path, "make", f"good{n}") for n in range(3)]
    results = _compile(tmp_path, bad, *good)
    fault = results[bad.name]
    assert isinstance(fault, Fault) and fault.kind == kind and says in fault.message
    assert all(isinstance(results[each.name], Compiled) for each in good)


def test_one_that_hangs_is_ended_when_its_time_is_over(tmp_path: Path) -> None:
    bad, good = _program(tmp_path, "hang", "bad"), _program(tmp_path, "make", "good")
    results = _compile(tmp_path, bad, good, timeout=3)
    fault = results[bad.name]
    assert isinstance(fault, Fault) and (fault.kind, fault.message) == ("timeout", "no result after 3 s")
    assert isinstance(results[good.name], Compiled)


def test_the_log_of_a_failure_is_kept(tmp_path: Path) -> None:
    bad = _program(tmp_path, "refuse")
    fault = _compile(tmp_path, bad)[bad.name]
    assert isinstance(fault, Fault) and fault.log.read_text() == "what it printed\n"


def test_nothing_half_made_stays_in_the_store(tmp_path: Path) -> None:
    _compile(tmp_path, _program(tmp_path, "crash", "bad"))
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_two_cases_of_one_content_are_compiled_once_and_both_have_it(tmp_path: Path) -> None:
    text = SUITE + SUITE[SUITE.index("[case") :].replace("case.net", "case.twin")
    make_program(tmp_path, text=text)
    results = _compile(tmp_path, *programs_of(tmp_path / "suite.toml"))
    made = [each for each in results.values() if isinstance(each, Compiled)]
    assert len(made) == 2 and made[0].folder == made[1].folder


def test_a_worker_is_kept_from_program_to_program(tmp_path: Path) -> None:
    results = _compile(
        tmp_path, *(_program(tmp_path, "make", f"net{number}", width=number + 1) for number in range(6))
    )
    pids = {each.facts["pid"] for each in results.values() if isinstance(each, Compiled)}
    assert len(pids) <= 2 and len(results) == 6


class TestChipsThatTheSdkLacks:
    @pytest.fixture
    def old_sdk(self, tmp_path: Path) -> Path:
        for arch in (68, 73, 75, 79):
            (tmp_path / f"sdk/lib/hexagon-v{arch}/unsigned").mkdir(parents=True)
        return tmp_path / "sdk"

    def test_a_newer_arch_than_it_has_is_refused_before_anything_starts(
        self, tmp_path: Path, old_sdk: Path
    ) -> None:
        new = make_program(tmp_path / "suite", text=SUITE.replace("SM8650", "SM8850"))
        ((name, finding),) = refusals([new], old_sdk, "v2.37.0.250724175447")
        assert name == new.name
        assert finding.message == "SM8850 has HTP v81, and QNN v2.37.0.250724175447 ends at v79"

    def test_an_arch_that_it_has_is_not(self, tmp_path: Path, old_sdk: Path) -> None:
        assert not list(refusals([make_program(tmp_path / "suite")], old_sdk, "v2.37.0"))
