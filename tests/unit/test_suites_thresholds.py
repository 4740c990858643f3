"""Thresholds derived from what was measured, and suites rewritten with nothing else changed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.executorch.suite import load_suite, programs_of
from ci.suites.model import Thresholds
from ci.suites.thresholds import derived, rewritten, update_suite
from provisioning.base.errors import ManifestError

FIGURES = {
    "sqnr_db": 30.56,
    "cosine": 0.9995,
    "reference_sqnr_db": 60.02,
    "reference_cosine": 0.99999,
    "top1": 0.75,
    "max_abs": 0.2,
    "max_rel": 0.1,
}

TEXT = """\
schema = 1  # kept

[case.one]
factory = "one:net"

# why
[[case.one.run]]
scheme = "8a8w"
socs = ["SM8650"]
tags = ["pr"]
thresholds = { sqnr_db = 1 }  # said here

[[case.one.run]]
scheme = "fp16"
socs = [
  "SM8650",
]
tags = ["pr"]
  thresholds={cosine=0.5,top1=1.0}

[case."dotted.name"]
factory = "one:net"

[[case."dotted.name".run]]
scheme = "fp16"
socs = ["SM8650"]
tags = ["pr"]
thresholds = { sqnr_db = 2 }
"""


HELD = ("sqnr_db", "cosine")


class TestDerived:
    def test_the_margin_is_taken_off_and_cut_downwards(self) -> None:
        found = derived((*HELD, "reference_sqnr_db"), None, [FIGURES], 1.0)
        assert found["sqnr_db"] == 29.5
        assert found["reference_sqnr_db"] == 59.0
        assert found["cosine"] == pytest.approx(1 - 0.0005 * 10**0.1, abs=1e-6) and found["cosine"] < 0.9995

    def test_what_is_named_comes_on_top_of_what_is_always_held(self) -> None:
        assert set(derived(HELD, Thresholds(sqnr_db=0.0), [FIGURES], 1.0)) == set(HELD)
        found = derived(("sqnr_db",), Thresholds(sqnr_db=0.0, top1=0.0, max_abs=9.0), [FIGURES], 1.0)
        assert set(found) == {"sqnr_db", "top1", "max_abs"}
        assert found["top1"] == 0.75 and found["max_abs"] == pytest.approx(0.2 * 10**0.05, abs=1e-6)

    def test_of_several_chips_the_worst_counts(self) -> None:
        worse = {**FIGURES, "sqnr_db": 20.0, "max_abs": 0.4}
        found = derived(("sqnr_db", "max_abs"), None, [FIGURES, worse], 1.0)
        assert found["sqnr_db"] == 19.0 and found["max_abs"] > 0.4

    def test_an_exact_result_asks_for_what_round_off_leaves(self) -> None:
        found = derived(HELD, None, [{"sqnr_db": 999.0, "cosine": 1.0}], 1.0)
        assert found == {"sqnr_db": 99.0, "cosine": 0.999999}

    @given(st.floats(-20, 90), st.floats(0.5, 0.9999995), st.floats(0.1, 6))
    @settings(max_examples=80, deadline=None)
    def test_what_was_measured_always_passes_and_twice_the_margin_never(
        self, decibels: float, cosine: float, margin: float
    ) -> None:
        found = derived(HELD, None, [{"sqnr_db": decibels, "cosine": cosine}], margin)
        assert decibels - margin - 0.1001 <= found["sqnr_db"] <= decibels - margin + 1e-6
        assert found["cosine"] <= cosine and not math.isnan(found["cosine"])


class TestRewritten:
    def test_thresholds_are_replaced_and_everything_else_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "suite.toml"
        wanted = {("one", 0): {"sqnr_db": 29.5}, ("dotted.name", 0): {"cosine": 0.99}}
        path.write_text(rewritten(TEXT, path, wanted))
        lines = set(TEXT.splitlines()) ^ set(path.read_text().splitlines())
        assert lines == {
            "thresholds = { sqnr_db = 1 }  # said here",
            "thresholds = { sqnr_db = 29.5 }  # said here",
            "thresholds = { sqnr_db = 2 }",
            "thresholds = { cosine = 0.99 }",
        }

    def test_the_second_run_of_a_case_is_told_from_the_first(self, tmp_path: Path) -> None:
        path = tmp_path / "suite.toml"
        path.write_text(rewritten(TEXT, path, {("one", 1): {"cosine": 0.75}}))
        first, second = load_suite(path).cases["one"].runs
        assert first.thresholds and first.thresholds.sqnr_db == 1
        assert second.thresholds and (second.thresholds.cosine, second.thresholds.top1) == (0.75, None)

    def test_a_name_may_be_quoted_either_way(self, tmp_path: Path) -> None:
        text = TEXT.replace('"dotted.name"', "'dotted.name'")
        assert "cosine = 0.99" in rewritten(text, tmp_path / "s.toml", {("dotted.name", 0): {"cosine": 0.99}})

    def test_what_only_looks_like_thresholds_is_not_overwritten(self, tmp_path: Path) -> None:
        text = TEXT.replace("tags", 'why = """\nthresholds = { sqnr_db = 5 }\n"""\ntags', 1)
        with pytest.raises(ManifestError, match="a layout whose thresholds can be rewritten alone"):
            rewritten(text, tmp_path / "suite.toml", {("one", 0): {"cosine": 0.99}})

    def test_thresholds_written_as_a_table_are_refused_by_name(self, tmp_path: Path) -> None:
        text = TEXT.replace(
            "thresholds = { sqnr_db = 2 }", '[case."dotted.name".run.thresholds]\nsqnr_db = 2'
        )
        with pytest.raises(ManifestError, match=r"case\.dotted\.name\.run\.0\.thresholds"):
            rewritten(text, tmp_path / "suite.toml", {("dotted.name", 0): {"cosine": 0.99}})


class TestUpdate:
    def _update(self, tmp_path: Path, measured: dict[str, float]) -> dict[str, float | None]:
        path = tmp_path / "suite.toml"
        path.write_text(TEXT.replace('["SM8650"]', '["SM8650", "SM8750"]', 1))
        figures = {name: {**FIGURES, "sqnr_db": value} for name, value in measured.items()}
        update_suite(path, programs_of, figures, 1.0)
        runs = load_suite(path).cases["one"].runs
        return {run.name: run.thresholds.sqnr_db for run in runs if run.thresholds}

    def test_the_worst_of_a_runs_chips_is_written(self, tmp_path: Path) -> None:
        found = self._update(tmp_path, {"one/8a8w/SM8650": 30.0, "one/8a8w/SM8750": 28.0})
        assert found["8a8w"] == 27.0

    def test_a_run_of_which_a_chip_is_missing_keeps_what_it_has(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = self._update(tmp_path, {"one/8a8w/SM8650": 30.0, "one/fp16/SM8650": 50.0})
        assert found == {"8a8w": 1.0, "fp16": 49.0}
        assert "one/8a8w keeps its thresholds: not all its chips were measured" in capsys.readouterr().err

    def test_a_run_that_has_none_gets_none(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "suite.toml"
        path.write_text(TEXT.replace("thresholds = { sqnr_db = 1 }", 'emulator_fault = "it crashes"'))
        update_suite(path, programs_of, {"one/8a8w/SM8650": FIGURES, "one/fp16/SM8650": FIGURES}, 1.0)
        faulty, measured = load_suite(path).cases["one"].runs
        assert faulty.thresholds is None
        assert measured.thresholds and measured.thresholds.sqnr_db == 29.5
        # Nor is a run mentioned that was not chosen.
        assert "keeps its thresholds" not in capsys.readouterr().err
