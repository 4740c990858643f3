"""What a worker makes of a test, without torch: outcomes, absent modules and scratch files."""

from __future__ import annotations

import importlib
import os
import random
import sys
import tempfile
import types
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.upstream import shims, worker

SEED_ALL = worker._seed
"""Before it is taken away below."""


class Sample(unittest.TestCase):
    """Material for the tests below, not for pytest."""

    __test__ = False

    def test_passes(self) -> None:
        self.assertTrue(True)

    def test_fails(self) -> None:
        self.assertEqual(1, 2, "numbers differ")

    def test_raises(self) -> None:
        raise RuntimeError("Failed to generate\nanything")

    def test_subtests(self) -> None:
        for number in range(3):
            with self.subTest(i=number):
                self.assertNotEqual(number, 1)

    def test_skips(self) -> None:
        raise unittest.SkipTest("needs QNN 2.99")

    @unittest.expectedFailure
    def test_expected(self) -> None:
        self.fail("known upstream")

    @unittest.expectedFailure
    def test_unexpected(self) -> None:
        self.assertTrue(True)

    def test_reaches(self) -> None:
        importlib.import_module("qnn_ci_absent").load("model")

    def test_swallows(self) -> None:
        try:
            importlib.import_module("qnn_ci_absent").load("model")
        except shims.NotAvailableHere:
            self.fail("no model")

    def test_survives(self) -> None:
        with self.assertRaises(shims.NotAvailableHere):
            importlib.import_module("qnn_ci_absent").load("model")

    def test_writes(self) -> None:
        Path("etrecord.bin").write_text("x", encoding="utf-8")
        self.assertEqual(Path(tempfile.gettempdir()), Path.cwd())


@pytest.fixture(autouse=True)
def quiet_surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No torch here; and whatever a run changes in this process is put back."""
    monkeypatch.setattr(worker, "_seed", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.setenv("QNN_ARTIFACT_DIR", "")
    before = Path.cwd()
    shims.install(["qnn_ci_absent"])
    yield
    shims.remove()
    os.chdir(before)


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("passes", "passed", ""),
        ("fails", "failed", "AssertionError: 1 != 2 : numbers differ"),
        ("raises", "failed", "anything"),
        ("subtests", "failed", "(i=1) AssertionError: 1 == 1"),
        ("skips", "not_run", "needs QNN 2.99"),
        ("expected", "expected_failure", "AssertionError: known upstream"),
        ("unexpected", "failed", "ExecuTorch marks this test as failing, and it passed"),
        ("reaches", "not_run", "qnn_ci_absent.load is used, and qnn_ci_absent is not installed here"),
        ("swallows", "not_run", "qnn_ci_absent.load is used, and qnn_ci_absent is not installed here"),
        ("survives", "passed", ""),
    ],
)
def test_every_way_to_end_has_its_outcome(name: str, outcome: str, reason: str, tmp_path: Path) -> None:
    result = worker.run_one(Sample(f"test_{name}"), tmp_path)
    assert (result["outcome"], result["reason"]) == (outcome, reason)


def test_subtests_are_counted_and_only_the_bad_ones_told(tmp_path: Path) -> None:
    result = worker.run_one(Sample("test_subtests"), tmp_path)
    assert result["subtests"] == 3
    assert result["problems"] == [{"where": "(i=1)", "what": "AssertionError: 1 == 1"}]


def test_a_test_has_a_directory_of_its_own(tmp_path: Path) -> None:
    assert worker.run_one(Sample("test_writes"), tmp_path / "scratch")["outcome"] == "passed"
    assert (tmp_path / "scratch" / "etrecord.bin").is_file()


def test_a_test_that_was_not_touched_by_the_one_before(tmp_path: Path) -> None:
    worker.run_one(Sample("test_survives"), tmp_path)
    assert worker.run_one(Sample("test_fails"), tmp_path)["outcome"] == "failed"


def test_files_of_temporary_directories_stay_for_the_pool(tmp_path: Path) -> None:
    with worker._Kept(dir=tmp_path) as name:
        (Path(name) / "model.pte").write_text("x", encoding="utf-8")
    assert (Path(name) / "model.pte").is_file()


def test_every_test_of_a_module_is_found_once() -> None:
    module = types.ModuleType("suite")
    module.Sample = Sample  # type: ignore[attr-defined]
    names = [worker.name_of(test) for test in worker.tests_of(module)]
    assert len(names) == len(set(names)) == len([name for name in dir(Sample) if name.startswith("test_")])


def test_the_source_of_a_test_decides_its_digest() -> None:
    one, other = Sample("test_passes"), Sample("test_fails")
    assert worker.source_digest(one) == worker.source_digest(Sample("test_passes"))
    assert worker.source_digest(one) != worker.source_digest(other)


def test_every_test_begins_with_the_same_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[tuple[str, int]] = []
    torch = types.SimpleNamespace(manual_seed=lambda seed: seeds.append(("torch", seed)))
    numpy = types.SimpleNamespace(
        random=types.SimpleNamespace(seed=lambda seed: seeds.append(("numpy", seed)))
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    drawn: list[float] = []

    def seeded() -> None:
        SEED_ALL()
        drawn.append(random.random())

    monkeypatch.setattr(worker, "_seed", seeded)
    for _ in range(2):
        worker.run_one(Sample("test_passes"), tmp_path)
    assert drawn[0] == drawn[1]
    assert seeds == [("numpy", worker.SEED), ("torch", worker.SEED)] * 2
