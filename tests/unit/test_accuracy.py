"""Figures of accuracy, and thresholds that can be missed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ci.pipeline.accuracy import EXACT_DB, Unusable, compare, decibels, in_files, missed
from ci.pipeline.findings import accuracy_message, chip_differs, hardly_alike, placeholder
from ci.pipeline.suite import Thresholds
from provisioning.base.findings import Severity
from tests.support.lowering import SUITE, make_program

VALUES = numpy.linspace(-1, 2, 12, dtype="float32").reshape(3, 4)


def figures(expected: Any, output: Any) -> dict[str, float]:
    return compare([("y", expected, output)])


class TestFigures:
    def test_the_same_is_exact(self) -> None:
        assert figures(VALUES, VALUES) == {
            "cosine": 1, "sqnr_db": EXACT_DB, "max_abs": 0, "max_rel": 0, "top1": 1,
        }  # fmt: skip

    def test_a_tenth_of_noise_is_twenty_decibels(self) -> None:
        assert figures(VALUES, VALUES * 1.1)["sqnr_db"] == pytest.approx(20, abs=0.01)

    def test_top1_counts_rows(self) -> None:
        turned = VALUES.copy()
        turned[0] = turned[0][::-1]
        assert figures(VALUES, turned)["top1"] == pytest.approx(2 / 3, abs=1e-6)

    def test_zeros_against_something_are_bad_and_something_against_zeros_is_worse(self) -> None:
        result = figures(VALUES, VALUES * 0)
        assert result["cosine"] == 0 and result["sqnr_db"] == pytest.approx(0)
        assert figures(VALUES * 0, VALUES)["sqnr_db"] == -EXACT_DB

    @given(st.permutations([1.0, 1.5, 3.0]))
    def test_the_worst_of_several_outputs_counts_whatever_their_order(self, scales: list[float]) -> None:
        measured = compare([("y", VALUES, VALUES * scale) for scale in scales])
        assert (measured["sqnr_db"], measured["max_abs"]) == pytest.approx((decibels(1, 4), 4))


class TestUnrounded:
    """Figures are judged as they are."""

    def test_an_error_above_its_threshold_misses_it_however_small_both_are(self) -> None:
        output = VALUES.astype("float64")
        output[0, 0] += 4e-8
        measured = figures(VALUES, output)
        misses = missed(Thresholds(cosine=0, max_abs=1e-9, max_rel=1e-9), measured)
        assert [miss.figure for miss in misses] == ["max_abs", "max_rel"]
        assert not missed(Thresholds(cosine=0, max_abs=5e-8, max_rel=5e-8), measured)

    def test_a_cosine_just_below_its_threshold_misses_it(self) -> None:
        wanted, output = numpy.array([1.0, 0.0]), numpy.array([1.0, 2e-4])
        measured = figures(wanted, output)
        assert 1 - measured["cosine"] == pytest.approx(2e-8)
        assert missed(Thresholds(cosine=0.99999999), measured)
        assert not missed(Thresholds(cosine=0.9999999), measured)

    @given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
    def test_the_same_reaches_a_cosine_of_one_and_nothing_exceeds_it(self, values: list[float]) -> None:
        array = numpy.array(values)
        assert figures(array, array)["cosine"] == 1
        assert figures(array, array * 3)["cosine"] <= 1

    def test_a_miss_shows_two_numbers_that_differ(self) -> None:
        (miss,) = missed(Thresholds(sqnr_db=0, top1=0.666667), {"sqnr_db": 1, "top1": 2 / 3})
        wanted, found = re.findall(r"at least ([\d.]+), found ([\d.]+)", str(miss))[0]
        assert float(wanted) > float(found)


class TestNotFinite:
    @staticmethod
    def broken(value: float) -> Any:
        values = VALUES.copy()
        values[1, 1] = value
        return values

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_an_output_that_is_not_finite_cannot_be_compared(self, value: float) -> None:
        with pytest.raises(Unusable, match="y: 1 of 12 values are NaN or infinite") as caught:
            figures(VALUES, self.broken(value))
        assert caught.value.rule == "not-finite"

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_a_reference_that_is_not_finite_hides_no_wrong_output(self, value: float) -> None:
        """The second output is all zeros, and its SQNR was taken for that of the first."""
        pairs = [("first", VALUES, VALUES), ("second", self.broken(value), VALUES * 0)]
        with pytest.raises(Unusable, match="second") as caught:
            compare(pairs)
        assert caught.value.rule == "reference-not-finite"
        with pytest.raises(Unusable, match="should be NaN or infinite, and are not"):
            compare(pairs, non_finite=True)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_where_they_are_expected_the_rest_is_compared(self, value: float) -> None:
        wanted = self.broken(value)
        assert compare([("y", wanted, wanted)], non_finite=True)["sqnr_db"] == EXACT_DB
        measured = compare([("y", wanted, wanted * 1.1)], non_finite=True)
        assert measured["sqnr_db"] == pytest.approx(20, abs=0.01)

    def test_the_other_infinity_is_another_value(self) -> None:
        with pytest.raises(Unusable):
            compare([("y", self.broken(math.inf), self.broken(-math.inf))], non_finite=True)


class TestFiles:
    def _pairs(self, folder: Path, shape: list[int]) -> list[Any]:
        row = {"file": "float_0_0.raw", "dtype": "float32", "shape": shape}
        VALUES.tofile(folder / "float_0_0.raw")
        return list(in_files(folder, folder, [[row]]))

    def test_an_output_that_was_not_written_or_is_cut_off_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(Unusable, match=r"output_0_0\.raw was not written"):
            self._pairs(tmp_path, [3, 4])
        VALUES[:2].tofile(tmp_path / "output_0_0.raw")
        with pytest.raises(Unusable, match="expected 12 values, found 8"):
            self._pairs(tmp_path, [3, 4])

    def test_no_output_at_all_is_no_agreement(self) -> None:
        with pytest.raises(Unusable):
            compare([])

    def test_another_shape_is_another_output(self) -> None:
        with pytest.raises(Unusable, match="expected the shape"):
            figures(VALUES, VALUES.reshape(4, 3))

    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    @pytest.mark.parametrize("order", [1, -1])
    def test_an_output_without_rows_has_no_top1_and_no_other_output_hides_that(self, order: int) -> None:
        empty = numpy.zeros((0, 4), numpy.float32)
        measured = compare([("y", VALUES, VALUES), ("empty", empty, empty)][::order])
        assert math.isnan(measured["top1"]) and measured["cosine"] == 1
        assert len(missed(Thresholds(cosine=0.9, top1=0.5), measured)) == 1


class TestThresholds:
    @pytest.mark.parametrize(
        ("wanted", "measured", "misses"),
        [
            ({"sqnr_db": 30.0}, {"sqnr_db": 30.0}, 0),
            ({"sqnr_db": 30.0}, {"sqnr_db": 29.99}, 1),
            ({"cosine": 0.99, "max_rel": 0.5}, {"cosine": 0.9, "max_rel": 0.6}, 2),
            ({"sqnr_db": 30.0, "reference_sqnr_db": 40.0}, {"sqnr_db": 31.0}, 1),
            ({"sqnr_db": 30.0}, {"sqnr_db": math.nan}, 1),
        ],
    )
    def test_they_are_held_from_the_right_side(
        self, wanted: dict[str, float], measured: dict[str, float], misses: int
    ) -> None:
        assert len(missed(Thresholds(**wanted), measured)) == misses

    @pytest.mark.parametrize(
        "wanted",
        [
            {"cosine": -1},
            {"sqnr_db": -0.1},
            {"sqnr_db": math.nan},
            {"sqnr_db": 1, "max_abs": math.inf},
        ],
    )
    def test_one_that_cannot_be_missed_is_refused(self, wanted: dict[str, float]) -> None:
        with pytest.raises(ValidationError):
            Thresholds(**wanted)

    @pytest.mark.parametrize(
        ("thresholds", "warned"),
        [
            ("thresholds = { sqnr_db = 0 }", True),
            ("thresholds = { cosine = 0, top1 = 0 }", True),
            ("thresholds = { sqnr_db = 0, max_rel = 0.1 }", False),
            ("thresholds = { sqnr_db = 0.1 }", False),
            ("", True),
            ('emulator_fault = "known"', False),
        ],
    )
    def test_a_placeholder_is_warned_of_until_something_was_measured(
        self, tmp_path: Path, thresholds: str, warned: bool
    ) -> None:
        text = SUITE.replace("thresholds = {{ sqnr_db = 20 }}", "{run}").replace("{run}\n{run}", "{run}")
        program = make_program(tmp_path, text=text, run=thresholds)
        findings = list(placeholder(program, "write them"))
        assert [(each.rule, each.severity) for each in findings] == [
            ("threshold-placeholder", Severity.WARNING)
        ] * warned


@pytest.mark.parametrize(
    ("sqnr_db", "reference_sqnr_db", "bound", "chip"),
    [
        (4.0, 4.1, 15, True),
        (12.0, 40.0, 15, False),
        (5.0, 14.0, 15, False),
        (12.0, 18.0, 15, False),
    ],
)
def test_without_a_threshold_against_the_quantized_model_the_chip_is_blamed_where_it_is_as_far_off(
    sqnr_db: float, reference_sqnr_db: float, bound: float, chip: bool
) -> None:
    figures = {"sqnr_db": sqnr_db, "reference_sqnr_db": reference_sqnr_db}
    misses = missed(Thresholds(sqnr_db=bound), figures)
    assert chip_differs(misses, figures) == chip
    assert ("quantizing loses" in accuracy_message(misses, figures, "quantizing loses most")) != chip


@pytest.mark.parametrize(("sqnr", "warned"), [(9.9, True), (float("nan"), True), (10.0, False)])
def test_outputs_hardly_like_the_models_are_warned_of(sqnr: float, warned: bool) -> None:
    assert bool(hardly_alike({"sqnr_db": sqnr})) is warned
