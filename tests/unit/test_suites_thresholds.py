"""Thresholds derived from what was measured, and what programs are held to then."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.lanes.executorch.suite import programs_of
from ci.suite.accepted import (
    Baseline,
    accepted_path,
    accepted_thresholds,
    derive_thresholds,
    low_figures,
    threshold_values,
)
from ci.suite.accepting import accepted_figures, thresholds_of
from ci.suite.figures import round_figures
from ci.suite.limits import missed_thresholds
from ci.suite.suite_file import Thresholds
from provisioning.accepted_file import Accepted, Values, accept, load_accepted

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

[[case.one.run]]
lane = "executorch"
precision = "fp16"
socs = [
  "SM8650",
]
tags = ["pr"]

[case."dotted.name"]
factory = "one:net"

[[case."dotted.name".run]]
lane = "executorch"
precision = "fp16"
socs = ["SM8650"]
tags = ["pr"]
thresholds = { sqnr_db = 2.0 }
"""


HELD = ("sqnr_db", "top1")


class TestDerived:
    def test_the_margin_is_taken_off_and_cut_downwards(self) -> None:
        thresholds = derive_thresholds((*HELD, "reference_sqnr_db"), [FIGURES], 1.0)
        assert thresholds["sqnr_db"] == 29.5
        assert thresholds["reference_sqnr_db"] == 59.0

    def test_a_share_and_a_loss_are_held_as_they_are(self) -> None:
        thresholds = derive_thresholds(
            ("top1", "max_metric_loss"), [{**FIGURES, "max_metric_loss": 0.25}], 1.0
        )
        assert thresholds == {"top1": 0.75, "max_metric_loss": 0.25}
        assert derive_thresholds(("top1",), [{"top1": 0.0}], 1.0) == {}, (
            "an agreement of zero cannot be missed"
        )

    def test_an_exact_result_asks_for_what_round_off_leaves(self) -> None:
        thresholds = derive_thresholds(HELD, [{"sqnr_db": 999.0, "top1": 1.0}], 1.0)
        assert thresholds == {"sqnr_db": 99.0, "top1": 1.0}

    def test_integers_are_held_to_the_share_that_was_equal(self) -> None:
        shares = {"agreement": 2 / 3, "reference_agreement": 1.0}
        assert derive_thresholds(tuple(shares), [shares], 1.0) == {
            "agreement": 0.666666,
            "reference_agreement": 1.0,
        }

    def test_programs_are_held_by_the_figures_that_their_outputs_have(self, tmp_path: Path) -> None:
        path = tmp_path / "suite.toml"
        path.write_text(TEXT)
        quantized, floating, _ = programs_of(path)
        floats = {"sqnr_db": 30.0, "cosine": 0.9, "top1": 0.5, "reference_sqnr_db": 60.0}
        integers = {"agreement": 0.5, "reference_agreement": 1.0}
        assert accepted_figures(quantized, [floats]) == ["sqnr_db", "reference_sqnr_db"]
        assert accepted_figures(quantized, [integers]) == ["agreement", "reference_agreement"]
        assert accepted_figures(floating, [floats, integers]) == ["sqnr_db", "agreement"]

    def test_what_is_below_the_required_is_known_with_its_margin(self) -> None:
        for measured, low in (
            ({"sqnr_db": 10.9, "reference_sqnr_db": 60.0}, ["sqnr_db"]),
            ({"sqnr_db": 11.0, "reference_sqnr_db": 6.0}, []),
            ({"sqnr_db": 30.0, "agreement": 0.99}, ["agreement"]),
            ({"sqnr_db": math.nan, "agreement": 1.0}, ["sqnr_db"]),
        ):
            assert low_figures(measured, 1.0) == low
            assert low_figures(measured, 1.0, demanded=["sqnr_db", "agreement"]) == []
            assert low_figures(measured, 1.0, accepted=dict.fromkeys(measured, 0.0)) == [
                name for name in low if math.isnan(measured[name])
            ]


SHARES = st.one_of(st.floats(0, 1), st.fractions(0, 1, max_denominator=75).map(float))
ERRORS = st.one_of(st.floats(0, 1e300), st.floats(1e-12, 1e-3))


class TestWhatWasWrittenHolds:
    """What was measured passes the thresholds written for it, also after a file kept it."""

    def _thresholds(self, figures: dict[str, float]) -> Thresholds:
        """Those that a run has then."""
        wanted = derive_thresholds(tuple(figures), [json.loads(json.dumps(round_figures(figures)))], 1.0)
        with TemporaryDirectory() as folder:
            suite = Path(folder, "suite.toml")
            path = accepted_path(suite, "wheels")
            accept(path, lambda before: before.updated({"onnx/net/8a8w": threshold_values(wanted)}))
            assert "-0.0" not in path.read_text()
            return accepted_thresholds(suite, "wheels", "onnx")["net/8a8w"]

    @given(st.floats(0, 999), SHARES, SHARES, ERRORS)
    def test_any_figures(self, sqnr_db: float, agreement: float, top1: float, loss: float) -> None:
        names = ("sqnr_db", "agreement", "top1", "max_metric_loss")
        figures = dict(zip(names, (sqnr_db, agreement, top1, loss), strict=True))
        thresholds = self._thresholds(figures)
        assert missed_thresholds(thresholds, figures) == [] and top1 - (thresholds.top1 or 0) < 1e-6
        held = thresholds.max_metric_loss
        assert held is not None and held <= max(1.00001 * loss, 1e-323)


class TestUpdate:
    text = TEXT.replace('["SM8650"]', '["SM8650", "SM8750"]', 1)

    def _thresholds(
        self,
        tmp_path: Path,
        measured: dict[str, float],
        others: Mapping[str, float] = FIGURES,
        accepted: Mapping[str, Values] = {},
        profile: str = "wheels",
    ) -> dict[str, dict[str, float | None]]:
        """By run and figure, what it is held to after --accept, which is what is read again."""
        path = tmp_path / "suite.toml"
        path.write_text(self.text)
        file = accepted_path(path, profile)
        file.write_text(Accepted(file).updated(accepted).to_text())
        figures = {name: {**others, "sqnr_db": value} for name, value in measured.items()}
        programs = programs_of(path, profile=profile)
        rows = thresholds_of(programs, figures, 1.0, lambda program: f"type {program.run_name}")
        Baseline(file, lane="executorch").rewritten({}, rows, {program.run_name for program in programs})
        assert path.read_text() == self.text
        held = {program.run_name: program.thresholds for program in programs_of(path, profile=profile)}
        return {name: value.model_dump(exclude_none=True) for name, value in held.items() if value}

    def test_the_worst_of_a_runs_chips_is_written(self, tmp_path: Path) -> None:
        thresholds = self._thresholds(tmp_path, {"one/8a8w/SM8650": 30.0, "one/8a8w/SM8750": 28.0})
        assert thresholds["one/8a8w"] == {
            "sqnr_db": 27.0,
            "reference_sqnr_db": 59.0,
        }

    def test_what_the_suite_demands_stays_and_nothing_is_accepted_for_it(self, tmp_path: Path) -> None:
        before: Mapping[str, Values] = {"executorch/dotted.name/fp16": {"least.sqnr_db": 7.0}}
        thresholds = self._thresholds(tmp_path, {"dotted.name/fp16/SM8650": 50.0}, accepted=before)
        assert thresholds["dotted.name/fp16"] == {"sqnr_db": 2.0}
        assert not load_accepted(tmp_path / "suite.accepted-wheels.json").subjects

    def test_a_figure_that_has_a_threshold_keeps_one(self, tmp_path: Path) -> None:
        before: Mapping[str, Values] = {"executorch/one/fp16": {"least.top1": 0.25, "least.metric": 9.0}}
        others = {**FIGURES, "metric": 0.5}
        thresholds = self._thresholds(tmp_path, {"one/fp16/SM8650": 50.0}, others, before)
        assert thresholds["one/fp16"].keys() == {"sqnr_db", "top1", "metric"}
        assert thresholds["one/fp16"]["top1"] == 0.75

    def test_a_run_of_which_a_chip_is_missing_keeps_what_it_has(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before: Mapping[str, Values] = {"executorch/one/8a8w": {"least.sqnr_db": 1.0}}
        measured = {"one/8a8w/SM8650": 30.0, "one/fp16/SM8650": 50.0}
        thresholds = self._thresholds(tmp_path, measured, accepted=before)
        assert thresholds["one/8a8w"] == {"sqnr_db": 1.0} and thresholds["one/fp16"] == {"sqnr_db": 49.0}
        kept = "one/8a8w keeps its thresholds: SM8750 was not measured; type one/8a8w\n"
        assert kept in capsys.readouterr().err

    def test_a_run_with_a_figure_that_nobody_measured_keeps_what_it_has(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before: Mapping[str, Values] = {"executorch/one/fp16": {"least.metric": 0.5, "least.top1": 1.0}}
        for figures in ({"sqnr_db": 30.0}, {**FIGURES, "top1": math.nan}):
            thresholds = self._thresholds(tmp_path, {"one/fp16/SM8650": 30.0}, figures, before)
            assert thresholds["one/fp16"] == {"metric": 0.5, "top1": 1.0}
            said = capsys.readouterr().err
            assert "one/fp16" in said and "top1" in said

    def test_another_profile_is_held_to_the_default_ones_until_it_has_its_own(self, tmp_path: Path) -> None:
        default: Mapping[str, Values] = {
            "executorch/one/fp16": {"least.sqnr_db": 20.0, "least.top1": 0.5},
            "executorch/one/8a8w": {"least.sqnr_db": 5.0},
        }
        self._thresholds(tmp_path, {}, accepted=default)
        thresholds = self._thresholds(tmp_path, {"one/fp16/SM8650": 50.0}, profile="qnn-2.48")
        assert thresholds["one/fp16"] == {"sqnr_db": 49.0, "top1": 0.75}
        assert thresholds["one/8a8w"] == {"sqnr_db": 5.0}
