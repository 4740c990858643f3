"""Figures of accuracy, and thresholds that can be missed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ci.models.inputs import InputsUsed, drawn_compared
from ci.suite.accuracy import Pair, Unusable, compare, compare_with_slices, each_sample_db
from ci.suite.figures import samples_in_words
from ci.suite.findings import (
    Causes,
    Evidence,
    accuracy_fix,
    accuracy_message,
    chip_differs,
    constant_outputs,
    placeholder,
    verdict_of_one_model,
)
from ci.suite.index_choices import Among, tie_noise
from ci.suite.limits import below_floor, missed_thresholds, usual_of
from ci.suite.precision import has_16_bit_activations
from ci.suite.suite_file import Thresholds
from ci.suite.tensor_files import TensorFile, read_pairs
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import MANIFESTS
from provisioning.base.units import EXACT_DB, decibels
from tests.support.lowering import SUITE, make_program

VALUES = numpy.linspace(-1, 2, 12, dtype="float32").reshape(3, 4)


def figures(expected: Any, output: Any) -> dict[str, float]:
    return compare([Pair("y", expected, output)])


def finding(rule: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule, severity, "net/8a8w/SM8650", f"about {rule}", "")


class TestFigures:
    def test_the_same_is_exact(self) -> None:
        assert figures(VALUES, VALUES) == {
            "cosine": 1, "sqnr_db": EXACT_DB, "slice_sqnr_db": EXACT_DB,
            "max_abs": 0, "max_rel": 0, "top1": 1,
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
        measured = compare([Pair("y", VALUES, VALUES * scale) for scale in scales])
        assert (measured["sqnr_db"], measured["max_abs"]) == pytest.approx((decibels(1, 4), 4))

    @given(st.integers(-20, 20), st.integers(0, 1 << 32))
    def test_no_verdict_changes_when_all_values_are_scaled(self, exponent: int, seed: int) -> None:
        generator, scale = numpy.random.default_rng(seed), 2.0**exponent
        wanted, noise = generator.standard_normal((2, 6, 20))
        found = wanted + 0.05 * noise
        plain, scaled = figures(wanted, found), figures(wanted * scale, found * scale)
        assert scaled == pytest.approx({**plain, "max_abs": plain["max_abs"] * scale})

    @pytest.mark.parametrize(("figure", "worse"), [("sqnr_db", 1), ("top1", 1), ("max_metric_loss", -1)])
    def test_a_figure_on_its_threshold_holds_and_the_next_number_misses(
        self, figure: str, worse: int
    ) -> None:
        measured = {**figures(VALUES, VALUES * 1.1 + 0.05), "top1": 0.5, "max_metric_loss": 0.25}
        limit = measured[figure]
        beyond = math.nextafter(limit, worse * math.inf)
        assert not missed_thresholds(Thresholds.model_validate({figure: limit}), measured)
        assert missed_thresholds(Thresholds.model_validate({figure: beyond}), measured)

    @given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
    def test_the_same_reaches_a_cosine_of_one_and_nothing_exceeds_it(self, values: list[float]) -> None:
        array = numpy.array(values)
        assert figures(array, array)["cosine"] == 1
        assert figures(array, array * 3)["cosine"] <= 1


class TestNotFinite:
    @staticmethod
    def broken(value: float) -> Any:
        values = VALUES.copy()
        values[1, 1] = value
        return values

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_an_output_that_is_not_finite_cannot_be_compared(self, value: float) -> None:
        with pytest.raises(Unusable) as caught:
            figures(VALUES, self.broken(value))
        assert caught.value.rule == "not-finite"

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_a_reference_that_is_not_finite_hides_no_wrong_output(self, value: float) -> None:
        """The second output is all zeros, and its SQNR was taken for that of the first."""
        pairs = [Pair("first", VALUES, VALUES), Pair("second", self.broken(value), VALUES * 0)]
        with pytest.raises(Unusable, match="second") as caught:
            compare(pairs)
        assert caught.value.rule == "reference-not-finite"
        with pytest.raises(Unusable, match="second") as caught:
            compare(pairs, non_finite=True)
        assert caught.value.rule == "not-finite"

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_where_they_are_expected_the_rest_is_compared(self, value: float) -> None:
        wanted = self.broken(value)
        assert compare([Pair("y", wanted, wanted)], non_finite=True)["sqnr_db"] == EXACT_DB
        measured = compare([Pair("y", wanted, wanted * 1.1)], non_finite=True)
        assert measured["sqnr_db"] == pytest.approx(20, abs=0.01)

    def test_the_other_infinity_is_another_value(self) -> None:
        with pytest.raises(Unusable):
            compare([Pair("y", self.broken(math.inf), self.broken(-math.inf))], non_finite=True)


class TestFiles:
    def _pairs(self, folder: Path, shape: tuple[int, ...]) -> list[Any]:
        VALUES.tofile(folder / "float_0_0.raw")
        return list(read_pairs(folder, folder, ((TensorFile("float_0_0.raw", "float32", shape),),)))

    def test_an_output_that_was_not_written_or_is_cut_off_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(Unusable, match=r"output_0_0\.raw"):
            self._pairs(tmp_path, (3, 4))
        VALUES[:2].tofile(tmp_path / "output_0_0.raw")
        with pytest.raises(Unusable, match=r"12.*8"):
            self._pairs(tmp_path, (3, 4))

    def test_the_files_of_an_output_are_compared_across_inferences(self, tmp_path: Path) -> None:
        rows = []
        for number in range(2):
            rows.append((TensorFile(f"float_{number}.raw", "float32", (3, 4)),))
            (100 + VALUES * number).tofile(tmp_path / f"float_{number}.raw")
            (100 + VALUES * number * 2).tofile(tmp_path / f"output_{number}_0.raw")
        measured = compare(read_pairs(tmp_path, tmp_path, tuple(rows)))
        assert measured["sqnr_db"] > 30 and measured["variation_sqnr_db"] == pytest.approx(0, abs=0.01)

    def test_no_output_at_all_is_no_agreement(self) -> None:
        with pytest.raises(Unusable):
            compare([])

    def test_another_shape_is_another_output(self) -> None:
        with pytest.raises(Unusable) as caught:
            figures(VALUES, VALUES.reshape(4, 3))
        assert caught.value.rule == "shape"

    @pytest.mark.parametrize("kind", ["float32", "int64"])
    @pytest.mark.parametrize("order", [1, -1])
    def test_an_output_without_values_agrees_with_nothing(self, kind: str, order: int) -> None:
        empty = numpy.zeros((0, 4), kind)
        with pytest.raises(Unusable):
            figures(empty, empty)
        others = [Pair("y", VALUES, VALUES * 1.1), Pair("empty", empty, empty)][::order]
        assert compare(others) == figures(VALUES, VALUES * 1.1)
        with pytest.raises(Unusable, match="empty"):
            compare([Pair("y", VALUES, VALUES), Pair("empty", empty, VALUES)])


class TestThresholds:
    @pytest.mark.parametrize(
        ("wanted", "measured", "misses"),
        [
            ({"sqnr_db": 30.0}, {"sqnr_db": 30.0}, 0),
            ({"sqnr_db": 30.0}, {"sqnr_db": 29.99}, 1),
            ({"top1": 0.99, "max_metric_loss": 0.5}, {"top1": 0.9, "max_metric_loss": 0.6}, 2),
            ({"sqnr_db": 30.0, "reference_sqnr_db": 40.0}, {"sqnr_db": 31.0}, 1),
            ({"sqnr_db": 30.0}, {"sqnr_db": math.nan}, 1),
            ({}, {"sqnr_db": 9.99}, 1),
            ({}, {"sqnr_db": math.nan}, 1),
            ({}, {"sqnr_db": 10.0}, 0),
            ({"top1": 0.1}, {"sqnr_db": 9.99, "top1": 0.9}, 1),
            ({"sqnr_db": 5.0}, {"sqnr_db": 5.0}, 0),
            ({}, {"agreement": 1.0}, 0),
            ({}, {"agreement": 0.999}, 1),
            ({"agreement": 0.99}, {"agreement": 0.99}, 0),
            ({"agreement": 0.99}, {"agreement": 0.98, "sqnr_db": 30.0}, 1),
            ({"sqnr_db": 30.0}, {"agreement": 1.0}, 1),
        ],
    )
    def test_they_are_held_from_the_right_side(
        self, wanted: dict[str, float], measured: dict[str, float], misses: int
    ) -> None:
        assert len(missed_thresholds(Thresholds(**wanted), measured)) == misses
        assert wanted or len(below_floor(measured)) == misses

    @pytest.mark.parametrize(
        "wanted",
        [
            {"top1": -1},
            {"sqnr_db": -0.1},
            {"sqnr_db": math.nan},
            {"sqnr_db": 1, "max_metric_loss": math.inf},
        ],
    )
    def test_one_that_cannot_be_missed_is_refused(self, wanted: dict[str, float]) -> None:
        with pytest.raises(ValidationError):
            Thresholds(**wanted)

    @pytest.mark.parametrize(
        ("thresholds", "warned"),
        [
            ("thresholds = { sqnr_db = 0 }", True),
            ("thresholds = { top1 = 0 }", False),
            ("thresholds = { sqnr_db = 0.1 }", False),
            ("", True),
            ("thresholds = { }", True),
        ],
    )
    def test_a_placeholder_is_warned_of_until_something_was_measured(
        self, tmp_path: Path, thresholds: str, warned: bool
    ) -> None:
        text = SUITE.replace("thresholds = {{ sqnr_db = 20 }}", "{run}").replace("{run}\n{run}", "{run}")
        program = make_program(tmp_path, text=text, run=thresholds)
        findings = list(placeholder(program, {"sqnr_db": 30.0}, "write them"))
        assert [(row.rule, row.severity) for row in findings] == [
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
    misses = missed_thresholds(Thresholds(sqnr_db=bound), figures)
    assert chip_differs(misses, figures) == chip
    assert ("quantizing loses" in accuracy_message(misses, figures, Causes("quantizing loses most"))) != chip


def judged(
    kind: str,
    figures: dict[str, float],
    causes: Causes,
    *,
    suspected: bool = False,
    noise: bool = False,
    divergence: str = "divergence",
) -> tuple[str, str]:
    """Whether a model's program is red, or warned of, and what is said of it."""
    evidence = Evidence(kind, InputsUsed(2, 32, noise=noise), suspected)
    found = verdict_of_one_model("net", figures, (), divergence, "where", causes, evidence)
    said = [*(f"{row.message}; {row.fix}" for row in found.wrong), *found.warnings]
    return "red" if found.wrong else "warned" if said else "", "; ".join(said)


@pytest.mark.parametrize(
    ("kind", "figures", "more", "verdict"),
    [
        # Floats are held to more than what is quantized, of which hardly like the model's is an error.
        ("fp16", (29.9,), {}, "red"),
        ("fp16", (37.9,), {}, "warned"),
        ("fp16", (38.0,), {}, ""),
        ("fp16a8w", (29.9,), {}, ""),
        ("8a8w", (10.0,), {}, ""),
        ("8a8w", (9.9,), {}, "red"),
        ("8a8w", (math.nan,), {}, "red"),
        ("8a8w", {"agreement": 0.99}, {}, "red"),
        ("8a8w", {"agreement": 1.0, "sqnr_db": 30.0}, {}, ""),
        # RWKV's token shift: the float figure is fine, and what the chip computes is not the quantized model.
        ("16a8w", (26.8, 26.8), {}, "red"),
        ("u16u8", (26.8, 26.8), {}, "red"),
        ("fp16a8w", (26.8, 26.8), {}, "red"),
        ("16a8w", (33.0, 34.0), {}, "warned"),
        ("16a8w", (15.7, 42.4), {}, ""),
        # Each layer of 8 bits rounds in its own way: right programs have 14 dB. Not those with a known fault.
        ("8a8w", (26.8, 26.8), {}, ""),
        ("8a8w", (11.6, 11.5), {}, "warned"),
        ("8a8w", (1.0, 1.0), {}, "red"),
        ("8a8w", (15.1, 15.1), {}, "warned"),
        ("8a8w", (15.1, 15.1), {"suspected": True}, "red"),
        ("8a8w", (15.1, 33.0), {"suspected": True}, ""),
        # Noise alone makes no model red, unless the chip computes something else.
        ("8a8w", (9.0, 45.0), {"noise": True}, "warned"),
        ("8a8w", (9.0, 9.0), {"noise": True}, "red"),
        ("16a8w", (26.8, 26.8), {"noise": True}, "red"),
    ],
)
def test_one_model_is_red_or_warned_of_with_who_names_the_operator(
    kind: str, figures: Any, more: dict[str, Any], verdict: str
) -> None:
    if isinstance(figures, tuple):
        figures = dict(zip(("sqnr_db", "reference_sqnr_db"), figures, strict=False))
    found, said = judged(kind, figures, Causes(faults=["pad by a negative end"]), **more)
    by_chance = "noise" in more and verdict == "warned"
    assert found == verdict and ("--calibrate" in said) == by_chance
    is_told = bool(verdict) and not by_chance
    assert ("divergence" in said) == ("suspected: pad by a negative end" in said) == is_told


AMONG = Among(numpy.array([[0.5, 0.1, 0.9], [0.49, 0.8, 0.1], [0.0, 0.0, 0.0]]), 0.02)
"""Three values for each of three places: the first place has two that are as good."""


@pytest.mark.parametrize(
    ("found", "agreement", "choice"),
    [([0, 1, 0], 1.0, 1.0), ([1, 1, 0], 2 / 3, 1.0), ([1, 1, 1], 1 / 3, 2 / 3), ([9, 1, -1], 1 / 3, 1 / 3)],
)
def test_indices_of_equal_values_agree_and_no_others(
    found: list[int], agreement: float, choice: float
) -> None:
    pair = Pair("y", numpy.array([[0, 1, 0]]), numpy.array([found]), 0, AMONG)
    figures = compare([pair])
    assert figures == {"agreement": pytest.approx(agreement), "choice_agreement": pytest.approx(choice)}
    assert bool(missed_thresholds(Thresholds(), figures)) == (choice < 1)


def test_where_many_values_are_as_good_as_the_best_another_index_is_wrong() -> None:
    few, many = (Among(numpy.linspace(0.9, 1, 1000)[:, None], noise) for noise in (0.0039, 0.0041))
    pairs = (Pair("y", numpy.array([999]), numpy.array([997]), 0, among) for among in (few, many))
    figures = [compare([pair]) for pair in pairs]
    assert [row["choice_agreement"] for row in figures] == [1, 0]


@pytest.mark.parametrize(("shape", "chosen"), [((20, 4096), 1), ((8400, 1), 100)])
def test_a_healthy_model_of_8_bits_stays_green_where_its_classes_or_scores_are_near(
    shape: tuple[int, int], chosen: int
) -> None:
    """By figures of an untrained net, the worst case: 30 dB, and another index where values are near."""
    generator = numpy.random.default_rng(0)
    floats = generator.normal(0, 1, shape)
    quantized = floats + generator.normal(0, 10 ** (-30 / 20), shape)
    among = Among(floats, tie_noise([floats], [quantized], 0))
    wanted, found = (numpy.argsort(-values, 0)[:chosen] for values in (floats, quantized))
    figures = compare([Pair("y", wanted, found, 0, among)])
    assert figures["agreement"] < 1 and not missed_thresholds(Thresholds(), figures)


def test_values_whose_differences_are_lost_have_no_ties() -> None:
    wanted = numpy.array([[100.0, 100.1, 100.2]])
    assert tie_noise([wanted], [wanted + numpy.array([0.05, -0.05, 0.05])], 1) == 0
    assert tie_noise([wanted], [wanted + 0.001], 1) == pytest.approx(0.002)
    assert tie_noise([wanted], (), 1) == 0 and tie_noise([wanted - 100], (), 1) > 0


def test_without_thresholds_what_fails_or_has_no_floats_needs_none(
    tmp_path: Path,
) -> None:
    text = SUITE.replace("thresholds = {{ sqnr_db = 20 }}", "")
    program = make_program(tmp_path, text=text)
    for measured in ({"sqnr_db": 9.0}, {"agreement": 1.0}):
        assert not list(placeholder(program, measured, "write them"))


class TestIntegers:
    """Outputs of integers and booleans are equal or not."""

    CLASSES = numpy.array([17, 4, 20_000, 3])

    @pytest.mark.parametrize("kind", ["int32", "int64", "uint8", "bool"])
    def test_the_share_of_equal_elements_is_all_that_they_have(self, kind: str) -> None:
        wanted = numpy.array([[0, 1, 1, 0], [1, 1, 0, 0]]).astype(kind)
        found = wanted.copy()
        found[1, 3] = 1
        assert figures(wanted, wanted) == {"agreement": 1}
        assert figures(wanted, found) == {"agreement": 7 / 8}

    def test_neighbours_beyond_what_a_float_holds_differ(self) -> None:
        wanted = numpy.array([2**53, 2**62])
        assert figures(wanted, wanted + 1) == {"agreement": 0}

    def test_beside_floats_both_have_their_figures(self) -> None:
        measured = compare(
            [
                Pair("scores", VALUES, VALUES * 1.1),
                Pair("classes", self.CLASSES, self.CLASSES),
                Pair("flags", self.CLASSES > 9, self.CLASSES > 3),
            ],
            [Pair("scores", VALUES, VALUES), Pair("classes", self.CLASSES, self.CLASSES)],
        )
        assert measured["sqnr_db"] == pytest.approx(20, abs=0.01) and measured["agreement"] == 0.75
        assert (measured["reference_sqnr_db"], measured["reference_agreement"]) == (EXACT_DB, 1)

    def test_the_share_is_of_all_inferences_and_of_the_worst_output(self) -> None:
        pairs = [
            Pair(f"{name} {number}", numpy.array(7), numpy.array(7 + (number < wrong)), name)
            for number in range(4)
            for name, wrong in (("good", 0), ("bad", 1))
        ]
        assert compare(pairs) == {"agreement": 0.75}


class TestTop1:
    @pytest.mark.parametrize("dead", [0.0, 0.7])
    def test_a_dead_output_chooses_nothing(self, dead: float) -> None:
        wanted = VALUES[:, ::-1]
        assert figures(wanted, numpy.full_like(wanted, dead))["top1"] == 0
        # It would be right here, because the first is the largest.
        assert wanted.argmax(-1).tolist() == [0, 0, 0]

    def test_an_output_that_shall_be_constant_is_right(self) -> None:
        assert figures(VALUES * 0, VALUES * 0)["top1"] == 1

    @pytest.mark.parametrize("shape", [(12,), (3, 4)])
    def test_a_choice_is_among_two_or_more(self, shape: tuple[int, ...]) -> None:
        values = VALUES.reshape(*shape, 1)
        assert "top1" not in figures(values, values) and "top1" not in figures(VALUES[0, 0], VALUES[0, 0])
        assert compare([Pair("y", values, values), Pair("z", VALUES, VALUES[:, ::-1])])["top1"] == 0


class TestWhatDependsOnTheInput:
    """The error beside the part of the outputs that varies from inference to inference."""

    RANDOM = numpy.random.default_rng(0)
    MEAN = 10 + RANDOM.standard_normal(1000)

    def measured(self, varies: float, error: float, count: int = 4) -> dict[str, float]:
        wanted = [self.MEAN + varies * self.RANDOM.standard_normal(1000) for _ in range(count)]
        found = [array + error * self.RANDOM.standard_normal(1000) for array in wanted]
        return compare(Pair(f"{n}", *both, "y") for n, both in enumerate(zip(wanted, found, strict=True)))

    def test_the_mean_over_the_inferences_does_not_count(self) -> None:
        measured = self.measured(varies=0.001, error=0.01)
        assert measured["sqnr_db"] == pytest.approx(60, abs=0.5)
        assert measured["variation_sqnr_db"] == pytest.approx(-20, abs=0.5)

    def test_an_error_of_all_inferences_is_none_of_what_varies(self) -> None:
        wanted = [self.MEAN + number for number in range(3)]
        measured = compare(Pair(f"{n}", array, array + 1, "y") for n, array in enumerate(wanted))
        assert measured["sqnr_db"] < 25 and measured["variation_sqnr_db"] > 200

    def test_the_worst_output_counts_and_they_are_not_mixed(self) -> None:
        pairs = [
            Pair(
                f"{name} {number}",
                number * scale + self.MEAN,
                number * scale + self.MEAN + number * error,
                name,
            )
            for number in range(3)
            for name, scale, error in (("good", 1.0, 0.01), ("bad", 0.1, 0.1))
        ]
        assert compare(pairs)["variation_sqnr_db"] == pytest.approx(0, abs=0.01)

    @pytest.mark.parametrize(
        "pairs",
        [
            [Pair("0", VALUES, VALUES * 1.1, "y")],
            [Pair("0", VALUES, VALUES * 1.1), Pair("1", VALUES * 2, VALUES * 2.1)],
            [Pair("0", VALUES, VALUES * 1.1, "y"), Pair("1", VALUES, VALUES * 1.1, "y")],
        ],
        ids=["one inference", "other outputs", "equal inputs"],
    )
    def test_what_does_not_vary_has_no_such_figure(self, pairs: list[Pair]) -> None:
        assert "variation_sqnr_db" not in compare(pairs)

    @pytest.mark.parametrize(
        ("whole", "varying", "warned"),
        [
            (19, 9, False),
            (19.1, 9, True),
            (20.1, 10, False),
            (20.1, 9.9, True),
            (10, -1, True),
            (9.9, -1, False),
        ],
    )
    def test_of_the_mean_is_a_good_figure_more_than_10_db_above_what_is_below_10(
        self, tmp_path: Path, whole: float, varying: float, warned: bool
    ) -> None:
        """docs/accuracy.md"""
        figures = {"sqnr_db": whole, "variation_sqnr_db": varying}
        found = constant_outputs(make_program(tmp_path), figures, (), "look")
        assert [row.severity for row in found] == [Severity.WARNING] * warned

    def test_of_several_outputs_the_one_is_named_of_which_the_mean_alone_is_right(
        self, tmp_path: Path
    ) -> None:
        """Whole numbers before it do not change its number."""

        def row(mean: Any, varies: float, output: int) -> Pair:
            wanted = mean + varies * self.RANDOM.standard_normal(1000)
            return Pair("", wanted, wanted + 0.1 * self.RANDOM.standard_normal(1000), output)

        whole = Pair("", numpy.arange(4), numpy.arange(4), 0)
        pairs = [pair for _ in range(3) for pair in (whole, row(0, 10, 1), row(self.MEAN, 0.01, 2))]
        figures, lines = compare_with_slices(pairs)
        (finding,) = constant_outputs(make_program(tmp_path), figures, lines, "look")
        assert "output 2" in finding.message and "output 1" not in finding.message


def test_every_accepted_program_of_16_bits_has_what_is_usual_of_them() -> None:
    """Of the settings of a run, some let the compiler be less exact."""
    accepted = json.loads((MANIFESTS / "accepted" / "models-wheels.json").read_text())["accepted"]
    near = {
        name.removesuffix(" reference_sqnr_db"): value
        for name, value in accepted.items()
        if name.endswith(" reference_sqnr_db")
    }
    of_16_bits = {
        name: value
        for name, value in near.items()
        if has_16_bit_activations(name.split("/")[2]) and "-settings/" not in name
    }
    assert len(of_16_bits) >= 5 and min(of_16_bits.values()) > usual_of("16a8w")["reference_sqnr_db"]


def samples(*decibels: float) -> list[Pair]:
    """Of two outputs each, of which the second is exact."""
    signal = numpy.ones(8)
    pairs = ((signal, signal * (1 + 10 ** (-value / 20))) for value in decibels)
    return [
        pair
        for wanted, found in pairs
        for pair in (Pair("y", wanted, found, 0), Pair("z", wanted, wanted, 1))
    ]


def test_each_sample_has_the_figure_of_its_worst_output() -> None:
    assert each_sample_db(samples(26.0, 40.0, 35.0), 3) == pytest.approx([26.0, 40.0, 35.0], abs=0.01)
    integers = Pair("i", numpy.arange(3), numpy.arange(3), 0)
    assert each_sample_db([integers, integers], 2) == []


@pytest.mark.parametrize(
    ("each_db", "median", "outlier"),
    [
        ([35.0, 26.5, 36.0, 34.0, 35.4, 36.1, 35.2, 35.9], "35.3 dB", "sample 1 alone is 7.5 dB below"),
        ([35.0, 30.0, 36.0, 34.0, 35.4, 36.1, 35.2, 35.9], "35.3 dB", ""),
        # Two low ones are no outlier.
        ([17.0, 18.0, 33.0, 32.0, 31.0, 30.0, 33.0, 32.0], "31.5 dB", ""),
        ([17.0, 17.5, 33.0], "17.5 dB", ""),
        ([17.0, 33.0], "", ""),
        ([30.0], "", ""),
        ([], "", ""),
    ],
)
def test_beside_the_worst_sample_stand_the_median_and_one_that_is_far_below_all_others(
    each_db: list[float], median: str, outlier: str
) -> None:
    words = samples_in_words(each_db)
    assert (median in words) if median else not words
    assert (outlier in words) if outlier else "alone" not in words


CHOSEN = Causes("quantizing loses most in aten.relu", choices="aten.argmax.default at net.py:8")
TIES = {"agreement": 0.5, "choice_agreement": 0.9, "reference_choice_agreement": 1.0}
KNOWN = Causes("quantizing loses most in aten.add", faults=["cumsum is wrong"])
BEYOND = replace(KNOWN, beyond="mul has 1e6")


@pytest.mark.parametrize(
    ("figures", "causes", "divergence", "words", "absent"),
    [
        # The fix takes what chooses out of the model.
        (TIES, CHOSEN, "divergence", ("take aten.argmax.default at net.py:8 out", "CPU"), "names the"),
        # What was not tried on this program is no cause, and has no fix.
        ({"reference_sqnr_db": 3.1}, KNOWN, "divergence", ("suspected: cumsum", "; divergence"), "aten.add"),
        ({}, KNOWN, "divergence", ("suspected: cumsum", "; divergence"), "aten.add"),
        # The quantized model on the CPU has no fault of the chip's.
        ({"reference_sqnr_db": 90.0}, KNOWN, "divergence", ("suspected: quantizing", "; where"), "cumsum"),
        ({}, KNOWN, "", ("suspected: quantizing loses most in aten.add; where names",), "cumsum"),
        ({}, BEYOND, "divergence", ("mul has 1e6", "x * 0.01"), "cumsum"),
    ],
    ids=["ties", "of the chip", "without a reference", "quantizing", "the quantized model", "beyond fp16"],
)
def test_a_cause_is_told_where_it_can_be_one_with_its_own_fix(
    figures: dict[str, float], causes: Causes, divergence: str, words: tuple[str, ...], absent: str
) -> None:
    figures = figures if figures is TIES else {"sqnr_db": 3.0, **figures}
    found, said = judged("8a8w", figures, causes, divergence=divergence)
    assert found == "red" and all(word in said for word in words) and absent not in said


@pytest.mark.parametrize(("flops", "drawn"), [(17e6, 8), (300e6, 8), (450e6, 2)])
def test_more_are_drawn_of_a_model_that_takes_less_than_a_second(flops: float, drawn: int) -> None:
    assert drawn_compared(flops) == drawn


def test_a_lost_part_alone_is_cured_by_an_output_of_its_own() -> None:
    figures = {"sqnr_db": 40.0, "reference_sqnr_db": 60.0, "slice_sqnr_db": 3.0}
    assert "own output" in accuracy_fix(
        missed_thresholds(Thresholds(), figures), figures, "divergence", "where"
    )
