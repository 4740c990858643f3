"""Thresholds derived from what was measured, and suites rewritten with nothing else changed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.lanes.executorch.suite import load_suite, programs_of
from ci.pipeline.accuracy import missed, rounded
from ci.pipeline.suite import Thresholds
from ci.pipeline.thresholds import derived, low_figures, rewritten, update_suite
from provisioning.base.settings import MANIFESTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
schema = 2  # kept

[case.one]
factory = "one:net"

# why
[[case.one.run]]
lane = "executorch"
precision = "8a8w"
socs = ["SM8650"]
tags = ["pr"]
thresholds = { sqnr_db = 1 }  # said here

[[case.one.run]]
lane = "executorch"
precision = "fp16"
socs = [
  "SM8650",
]
tags = ["pr"]
  thresholds={cosine=0.5,top1=1.0}

[case."dotted.name"]
factory = "one:net"

[[case."dotted.name".run]]
lane = "executorch"
precision = "fp16"
socs = ["SM8650"]
tags = ["pr"]
thresholds = { sqnr_db = 2 }
"""


HELD = ("sqnr_db", "cosine")


class TestDerived:
    def test_the_margin_is_taken_off_and_cut_downwards(self) -> None:
        thresholds = derived((*HELD, "reference_sqnr_db"), None, [FIGURES], 1.0)
        assert thresholds["sqnr_db"] == 29.5
        assert thresholds["reference_sqnr_db"] == 59.0
        assert thresholds["cosine"] == pytest.approx(1 - 0.0005 * 10**0.1, abs=1e-6)

    def test_what_is_named_comes_on_top_of_what_is_always_held(self) -> None:
        assert set(derived(HELD, Thresholds(sqnr_db=0.0), [FIGURES], 1.0)) == set(HELD)
        thresholds = derived(("sqnr_db",), Thresholds(sqnr_db=0.0, top1=0.0, max_abs=9.0), [FIGURES], 1.0)
        assert set(thresholds) == {"sqnr_db", "top1", "max_abs"}
        assert thresholds["top1"] == 0.75 and thresholds["max_abs"] == pytest.approx(0.2 * 10**0.05, abs=1e-6)

    def test_an_exact_result_asks_for_what_round_off_leaves(self) -> None:
        thresholds = derived(HELD, None, [{"sqnr_db": 999.0, "cosine": 1.0}], 1.0)
        assert thresholds == {"sqnr_db": 99.0, "cosine": 0.999999}

    def test_integers_are_held_to_the_share_that_was_equal(self) -> None:
        held = ("sqnr_db", "agreement", "reference_sqnr_db", "reference_agreement")
        both = {"sqnr_db": 30.56, "reference_sqnr_db": 60.02, "agreement": 2 / 3, "reference_agreement": 1.0}
        integers = {name: value for name, value in both.items() if "agreement" in name}
        shares = {"agreement": 0.666666, "reference_agreement": 1.0}
        assert derived(held, None, [integers], 1.0) == shares
        assert derived(held, None, [both], 1.0) == {"sqnr_db": 29.5, "reference_sqnr_db": 59.0, **shares}
        assert derived(held, None, [FIGURES], 1.0) == {"sqnr_db": 29.5, "reference_sqnr_db": 59.0}

    def test_what_is_below_the_required_is_known_with_its_margin(self) -> None:
        for measured, low in (
            ({"sqnr_db": 10.9, "reference_sqnr_db": 60.0}, ["sqnr_db"]),
            ({"sqnr_db": 11.0, "reference_sqnr_db": 6.0}, []),
            ({"sqnr_db": 30.0, "agreement": 0.99}, ["agreement"]),
            ({"sqnr_db": math.nan, "agreement": 1.0}, ["sqnr_db"]),
        ):
            assert low_figures({"net": measured}, 1.0) == {"net": low}


FRACTIONS = sorted({Fraction(k, n) for n in range(2, 76) for k in range(1, n)})
SHARES = st.floats(0, 1)
ERRORS = st.one_of(st.floats(0, 1e300), st.floats(1e-12, 1e-3))


class TestWhatWasWrittenHolds:
    """What was measured passes the thresholds written for it, also after a baseline and a file kept it."""

    def _thresholds(self, figures: dict[str, float]) -> Thresholds:
        """Those that a suite has then."""
        named = Thresholds(**dict.fromkeys(figures, 0.0))
        wanted = derived(("sqnr_db",), named, [json.loads(json.dumps(rounded(figures)))], 1.0)
        text = rewritten(TEXT, "executorch", {("one", 0): wanted})
        assert "-0.0" not in text
        return Thresholds(**tomllib.loads(text)["case"]["one"]["run"][0]["thresholds"])

    def test_every_fraction_of_rows(self) -> None:
        assert len(FRACTIONS) > 1700
        named = Thresholds(sqnr_db=0.0, top1=0.0)
        for fraction in FRACTIONS:
            figures = {"sqnr_db": 9.0, "top1": float(fraction)}
            written = derived((), named, [rounded(figures)], 1.0)
            assert missed(Thresholds(**written), figures) == [], fraction
            assert figures["top1"] - written["top1"] < 1e-6

    @given(st.floats(0, 999), SHARES, SHARES, ERRORS, ERRORS)
    def test_any_figures(
        self, sqnr_db: float, cosine: float, top1: float, largest: float, relative: float
    ) -> None:
        names = ("sqnr_db", "cosine", "top1", "max_abs", "max_rel")
        figures = dict(zip(names, (sqnr_db, cosine, top1, largest, relative), strict=True))
        assert missed(self._thresholds(figures), figures) == []

    @pytest.mark.parametrize("error", [0.0, 5e-7, 4e-8, 1e-12, 5e-324, 1.0, 123456.789])
    def test_an_error_is_held_to_its_own_size(self, error: float) -> None:
        held = self._thresholds({"sqnr_db": 99.0, "max_abs": error, "max_rel": error})
        assert held.max_abs == held.max_rel is not None
        assert error <= held.max_rel <= max(1.13 * error, 1e-323)


class TestRewritten:
    def test_thresholds_are_replaced_and_everything_else_stays(self) -> None:
        wanted = {("one", 0): {"sqnr_db": 29.5}, ("dotted.name", 0): {"cosine": 0.99}}
        lines = set(TEXT.splitlines()) ^ set(rewritten(TEXT, "executorch", wanted).splitlines())
        assert lines == {
            "thresholds = { sqnr_db = 1 }  # said here",
            "thresholds = { sqnr_db = 29.5 }  # said here",
            "thresholds = { sqnr_db = 2 }",
            "thresholds = { cosine = 0.99 }",
        }

    @pytest.mark.parametrize(
        "layout",
        [
            "thresholds={cosine=0.5,top1=1.0}",
            "thresholds.cosine = 0.5\nthresholds.top1 = 1.0\nqat = false",
            "qat = false\n[case.one.run.thresholds]\ncosine = 0.5  # why",
            "qat = false",
            "[case.one.run.block_sizes]\n'*' = [1]",
            'cpu_nodes = ["""\nthresholds = { sqnr_db = 5 }\n"""]\nthresholds = { sqnr_db = 5 }',
        ],
    )
    def test_of_any_layout_the_thresholds_alone_change(self, layout: str) -> None:
        text = TEXT.replace("  thresholds={cosine=0.5,top1=1.0}", layout)
        wanted = {("one", 1): {"sqnr_db": 9.5, "top1": 0.75}, ("dotted.name", 0): {"cosine": 0.75}}
        expected = tomllib.loads(text)
        for (case, number), thresholds in wanted.items():
            expected["case"][case]["run"][number]["thresholds"] = thresholds
        assert tomllib.loads(rewritten(text, "executorch", wanted)) == expected

    @pytest.mark.parametrize(
        "suite", sorted((MANIFESTS / "suites").glob("*.toml")), ids=lambda path: path.stem
    )
    def test_a_suite_of_ours_stays_as_it_is_to_the_byte(self, suite: Path) -> None:
        assert rewritten(suite.read_text(), "executorch", {}) == suite.read_text()


class TestUpdate:
    text = TEXT.replace('["SM8650"]', '["SM8650", "SM8750"]', 1)

    def _update(
        self, tmp_path: Path, measured: dict[str, float], others: Mapping[str, float] = FIGURES
    ) -> dict[str, float | None]:
        path = tmp_path / "suite.toml"
        path.write_text(self.text)
        figures = {name: {**others, "sqnr_db": value} for name, value in measured.items()}
        update_suite(
            path, "executorch", programs_of, figures, 1.0, lambda program: f"type {program.run_name}"
        )
        runs = load_suite(path).cases["executorch"]["one"].runs
        return {run.name: run.thresholds.sqnr_db for run in runs if run.thresholds}

    def test_the_worst_of_a_runs_chips_is_written(self, tmp_path: Path) -> None:
        thresholds = self._update(tmp_path, {"one/8a8w/SM8650": 30.0, "one/8a8w/SM8750": 28.0})
        assert thresholds["8a8w"] == 27.0

    def test_a_run_of_which_a_chip_is_missing_keeps_what_it_has(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        thresholds = self._update(tmp_path, {"one/8a8w/SM8650": 30.0, "one/fp16/SM8650": 50.0})
        assert thresholds == {"8a8w": 1.0, "fp16": 49.0}
        kept = "one/8a8w keeps its thresholds: SM8750 was not measured; type one/8a8w\n"
        assert kept in capsys.readouterr().err

    def test_a_run_with_a_figure_that_nobody_measured_keeps_what_it_has(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for figures in ({"sqnr_db": 30.0}, {**FIGURES, "top1": math.nan}):
            self._update(tmp_path, {"one/fp16/SM8650": 30.0}, figures)
            assert (tmp_path / "suite.toml").read_text() == self.text
            said = capsys.readouterr().err
            assert "one/fp16" in said and "top1" in said and "wrote" not in said
