"""A part of an output that is lost is seen, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from ci.suite.accepted import low_figures
from ci.suite.accuracy import Pair, compare_with_slices
from ci.suite.limits import below_floor

RANDOM = numpy.random.default_rng(1)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Whichever tests ran before."""
    RANDOM.bit_generator.state = numpy.random.default_rng(1).bit_generator.state


def in_steps(values: Any, levels: int = 256) -> Any:
    """As a quantizer with one scale for the tensor."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    scale = (high - low) / (levels - 1)
    return numpy.round(values / scale) * scale


def detector(*, scores: Any = None) -> Any:
    """Boxes in pixels with scores behind them."""
    boxes = RANDOM.uniform(0, 640, (1, 144, 4))
    if scores is None:
        scores = 1 / (1 + numpy.exp(-RANDOM.standard_normal((1, 144, 80))))
    return numpy.concatenate([boxes, scores], axis=-1)


def compare_in_steps(make: Callable[[], Any], levels: int = 256) -> tuple[dict[str, float], list[str]]:
    inferences = [make() for _ in range(2)]
    return compare_with_slices(
        Pair(f"{n}", inference, in_steps(inference, levels), 0) for n, inference in enumerate(inferences)
    )


def test_scores_that_are_lost_beside_boxes_are_below_the_floor_whatever_dimension_they_lie_along() -> None:
    for make in (detector, lambda: detector().transpose(0, 2, 1)):
        figures, slices = compare_in_steps(make)
        assert figures["sqnr_db"] > 40 and below_floor(figures) == ["slice_sqnr_db"]
        assert any("4 to 83 of 84" in line and "distinct value" in line for line in slices)


def test_with_sixteen_bits_the_scores_are_there() -> None:
    figures, slices = compare_in_steps(detector, 65536)
    assert not below_floor(figures) and not slices


def test_a_score_that_keeps_its_mean_and_nothing_else_is_lost() -> None:
    """0.5 on a step of the quantizer: the error is small, and all scores are equal."""
    scores = 0.502 + 0.02 * RANDOM.standard_normal((1, 144, 80))
    wanted = [detector(scores=scores) for _ in range(2)]
    found = [array.copy() for array in wanted]
    for array in found:
        array[..., 4:] = 0.5
    figures, slices = compare_with_slices(
        Pair(f"{n}", *both, 0) for n, both in enumerate(zip(wanted, found, strict=True))
    )
    assert below_floor(figures) == ["slice_sqnr_db"] and "1 distinct value" in slices[0]


def channels(spread: float) -> Any:
    """Channels of every size, as a trained network has them."""
    return RANDOM.standard_normal((1, 64, 16, 16)) * numpy.exp(spread * RANDOM.standard_normal((1, 64, 1, 1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: channels(1.5),
        lambda: numpy.maximum(channels(1.5), 0),
        # Logits, of which each class has two values.
        lambda: RANDOM.standard_normal((1, 100)),
        # Probabilities, of which most classes are rare.
        lambda: (
            numpy.exp(logits := 6 * RANDOM.standard_normal((1, 21, 32, 32)))
            / numpy.exp(logits).sum(1, keepdims=True)
        ),
        # Nothing to detect, by scores that are an output of their own kind.
        lambda: numpy.concatenate(
            [RANDOM.uniform(0, 1, (1, 20, 4)), RANDOM.uniform(0, 1e-4, (1, 20, 80))], axis=-1
        ),
        # A mask that is all but decided.
        lambda: (numpy.tanh(100 * RANDOM.standard_normal((1, 1, 64, 64))) + 1) / 2,
        lambda: RANDOM.standard_normal((1, 3, 40, 40)),
    ],
    ids=["channels", "relu", "logits", "probabilities", "nothing there", "mask", "image"],
)
def test_what_is_as_it_should_be_at_eight_bits_stays_green(make: Callable[[], Any]) -> None:
    figures, _ = compare_in_steps(make)
    assert not below_floor(figures) and figures["slice_sqnr_db"] == figures["sqnr_db"]


def pose(levels: int) -> tuple[dict[str, float], list[str]]:
    """A score among 55 coordinates."""

    def make() -> Any:
        joints = RANDOM.uniform(0, 640, (1, 56, 1024))
        joints[:, 4] = 1 / (1 + numpy.exp(-RANDOM.standard_normal((1, 1024))))
        return joints

    return compare_in_steps(make, levels)


def test_a_single_score_among_many_coordinates_is_judged_too() -> None:
    figures, slices = pose(256)
    assert figures["sqnr_db"] > 40 and below_floor(figures) == ["slice_sqnr_db"]
    assert "slice 4 of 56" in slices[0] and "1 distinct value " in slices[0]
    assert not below_floor(pose(65536)[0])


@pytest.mark.parametrize("largest", [1e-4, 0.04])
def test_scores_that_have_the_step_of_boxes_are_lost_however_small_they_are(largest: float) -> None:
    """Where there is something to detect, they would be lost as well."""
    figures, _ = compare_in_steps(lambda: detector(scores=RANDOM.uniform(0, largest, (1, 144, 80))))
    assert below_floor(figures) == ["slice_sqnr_db"]


@pytest.mark.parametrize("levels", [1, 7, 15])
def test_fewer_than_sixteen_values_are_below_the_floor_however_near_they_are(levels: int) -> None:
    steps = numpy.linspace(0, 1, 2000).reshape(1, 2000)
    found = (numpy.floor(steps * levels).clip(0, levels - 1) + 0.5) / levels
    figures, slices = compare_with_slices([Pair("y", steps, found, 0)])
    assert "slice_sqnr_db" in below_floor(figures) and f"{levels} distinct value" in slices[0]
    # Also beside an output that is itself below the floor of slices.
    noisy = steps + 0.1 * RANDOM.standard_normal(steps.shape)
    figures, _ = compare_with_slices([Pair("y", steps, found, 0), Pair("z", steps, noisy, 1)])
    assert figures["sqnr_db"] < 20 and "slice_sqnr_db" in below_floor(figures)


def test_one_channel_that_is_computed_wrongly_is_below_the_floor() -> None:
    wanted = RANDOM.standard_normal((1, 1000, 40))
    found = wanted + 0.001 * RANDOM.standard_normal(wanted.shape)
    found[:, 7] = 0
    figures, slices = compare_with_slices([Pair("y", wanted, found, 0)])
    assert figures["sqnr_db"] > 25 and below_floor(figures) == ["slice_sqnr_db"]
    assert len(slices) == 1 and "slice 7 of 1000 along dimension 1" in slices[0]


def weakening(strong: int, weak: int, power: float) -> Any:
    draw = numpy.random.default_rng(1).standard_normal((1, 20, strong + weak))
    return draw * numpy.sqrt(numpy.r_[numpy.ones(strong), numpy.full(weak, power)])


@pytest.mark.parametrize(("strong", "weak"), [(70, 30), (5, 3), (80, 20)])
def test_many_dead_slices_do_not_excuse_one_another(strong: int, weak: int) -> None:
    wanted = weakening(strong, weak, 0.1)
    found = wanted.copy()
    found[..., strong:] = 0
    figures, slices = compare_with_slices([Pair("y", wanted, found, 0)])
    assert figures["sqnr_db"] > 10 and below_floor(figures) == ["slice_sqnr_db"]
    assert f"slices {strong} to {strong + weak - 1}" in slices[-1]


def test_slices_that_hardly_say_anything_may_be_less_than_a_step() -> None:
    """Channels behind a ReLU, of every size down to a hundredth of the largest."""
    draw = abs(numpy.random.default_rng(1).standard_normal((1, 49, 64)))
    wanted = draw * numpy.geomspace(0.001, 1, 64)
    found = in_steps(wanted)
    assert (found[..., :5] == 0).all()
    assert not below_floor(compare_with_slices([Pair("y", wanted, found, 0)])[0])


def test_a_slice_need_not_be_nearer_than_the_worst_output_and_a_lower_threshold_needs_a_reason() -> None:
    noisy = [RANDOM.standard_normal((1, 64, 64)) for _ in range(2)]
    found = [array + 0.2 * RANDOM.standard_normal(array.shape) for array in noisy]
    figures, _ = compare_with_slices(
        Pair(f"{n}", *both, 0) for n, both in enumerate(zip(noisy, found, strict=True))
    )
    assert 10 < figures["sqnr_db"] < 20 and not below_floor(figures) and not low_figures(figures, 1.0)
    lost, _ = compare_in_steps(detector)
    assert low_figures(lost, 1.0) == ["slice_sqnr_db"]


def test_a_slice_that_is_constant_in_float_is_told_and_not_judged() -> None:
    wanted = RANDOM.standard_normal((2, 32, 3))
    wanted[..., 1] = 1e-3
    figures, slices = compare_with_slices([Pair("y", wanted, in_steps(wanted), 0)])
    assert not below_floor(figures) and len(slices) == 1 and "constant in float" in slices[0]


def test_very_large_and_empty_like_outputs_are_compared() -> None:
    huge = RANDOM.standard_normal((1, 20, 20)) * 1e200
    assert compare_with_slices([Pair("y", huge, huge * 1.01, 0)])[0]["slice_sqnr_db"] == pytest.approx(
        40, abs=0.1
    )
    zeros = numpy.zeros((1, 20, 20))
    assert not compare_with_slices([Pair("y", zeros, zeros, 0)])[1]
    assert "slice_sqnr_db" in compare_with_slices([Pair("y", numpy.float64(1), numpy.float64(1))])[0]


@pytest.mark.parametrize(
    ("largest", "step", "stays"),
    [(1 / 16, 1 / 128, True), (1.03 / 16, 1 / 128, False), (1 / 16, 1.2 / 128, False)],
    ids=["near", "not near", "error too large"],
)
def test_decisions_within_a_sixteenth_may_be_off_by_a_step_of_eight_bits(
    largest: float, step: float, stays: bool
) -> None:
    """docs/accuracy.md: near 0 everywhere, with errors of at most 1/256; the other classes are exact."""
    wanted = RANDOM.uniform(0, 1, (1, 2000, 8))
    wanted[0, :, 3] = numpy.linspace(0, largest, 2000)
    found = wanted.copy()
    found[0, :, 3] = numpy.round(wanted[0, :, 3] / step) * step
    figures, slices = compare_with_slices([Pair("y", wanted, found, 0)])
    assert ("slice_sqnr_db" not in below_floor(figures)) is stays, slices


def unit(rows: int, slices: int) -> Any:
    """Slices without a mean, whose values vary by one."""
    draw = numpy.random.default_rng(1).standard_normal((1, rows, slices))
    return (draw - draw.mean(1)) / draw.std(1)


def signs(rows: int, slices: int) -> Any:
    return numpy.where(numpy.arange(rows * slices).reshape(1, rows, slices) % 3, 1.0, -1.0)


def dead(rows: int) -> tuple[Any, Any]:
    """One of 40 slices with this many values."""
    wanted = unit(rows, 40)
    return wanted, wanted * (numpy.arange(40) != 7)


def constant(varies: float) -> tuple[Any, Any]:
    """Slices of about 1, of which one is found as 1 everywhere."""
    wanted = 1 + unit(2000, 40) * numpy.where(numpy.arange(40) == 7, varies, 0.5)
    return wanted, numpy.where(numpy.arange(40) == 7, 1.0, wanted)


def weak(times: float) -> tuple[Any, Any]:
    """A quarter of the slices varies so many times less than the others, with an error as large as theirs."""
    wanted = unit(200, 40) * numpy.where(numpy.arange(40) < 10, 1 / times, 1.0)
    return wanted, wanted + 0.07 * signs(200, 40)


def noisy(times: float) -> tuple[Any, Any]:
    """The power of one slice's error, at 17 dB, is so many times the others'."""
    wanted = unit(200, 40)
    return wanted, wanted + signs(200, 40) * numpy.sqrt(
        0.02 * numpy.where(numpy.arange(40) == 7, 1, 1 / times)
    )


def distinct(wanted: int, found: int) -> tuple[Any, Any]:
    steps = numpy.arange(wanted).reshape(1, -1) / wanted
    return steps, (numpy.floor(steps * found) + 0.5) / found


@pytest.mark.parametrize(
    ("make", "kept", "lost"),
    [
        (dead, (15,), (16,)),
        (constant, (0.0099,), (0.0101,)),
        (weak, (3.95,), (4.05,)),
        (noisy, (6.9,), (7.1,)),
        (distinct, (1001, 16), (1001, 15)),
        (distinct, (1000, 15), (1001, 15)),
    ],
)
def test_a_part_is_lost_from_the_limits_of_the_page_on(
    make: Callable[..., tuple[Any, Any]], kept: tuple[float, ...], lost: tuple[float, ...]
) -> None:
    """docs/accuracy.md, on slices and on outputs with few values."""
    for arguments, below in ((kept, []), (lost, ["slice_sqnr_db"])):
        assert below_floor(compare_with_slices([Pair("y", *make(*arguments), 0)])[0]) == below, arguments
