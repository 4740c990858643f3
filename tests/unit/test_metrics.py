from __future__ import annotations

import math

import numpy as np
import pytest

from ci.metrics import SAME_DB, WORST, least, nearness


def test_the_same_array_is_as_near_as_can_be() -> None:
    one = np.array([[1.0, -2.0, 3.0]])
    near = nearness(one, one)
    assert near.cosine == pytest.approx(1.0)
    assert (near.sqnr_db, near.max_abs, near.top1) == (SAME_DB, 0.0, 1.0)


def test_noise_of_a_hundredth_is_forty_decibels_away() -> None:
    one = np.array([3.0, 4.0])
    assert nearness(one, one * 1.01).sqnr_db == pytest.approx(40.0)


def test_the_opposite_has_cosine_minus_one() -> None:
    one = np.array([1.0, 2.0])
    assert nearness(one, -one).cosine == pytest.approx(-1.0)


def test_a_greater_scale_shows_in_max_rel_and_not_in_cosine() -> None:
    one = np.array([1.0, 2.0])
    near = nearness(one, 2 * one)
    assert near.cosine == pytest.approx(1.0)
    assert (near.max_rel, near.max_abs) == (1.0, 2.0)


def test_top1_counts_rows_whose_largest_is_elsewhere() -> None:
    expected = np.array([[1.0, 2.0], [5.0, 4.0]])
    assert nearness(expected, np.array([[1.0, 2.0], [4.0, 5.0]])).top1 == 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_the_worst(bad: float) -> None:
    assert nearness(np.array([1.0, 2.0]), np.array([1.0, bad])) == WORST


def test_nothing_but_zeros_where_something_was_expected_is_not_near() -> None:
    assert nearness(np.array([1.0, 2.0]), np.zeros(2)).cosine == 0.0


def test_integers_do_not_wrap_around() -> None:
    assert nearness(np.array([0], np.uint8), np.array([255], np.uint8)).max_abs == 255.0


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected shape \(2,\), found \(3,\)"):
        nearness(np.zeros(2), np.zeros(3))


def test_the_least_of_several_has_the_worst_of_each_figure() -> None:
    one, other = nearness(np.ones(2), np.ones(2)), nearness(np.ones(2), np.array([1.0, 1.5]))
    together = least([one, other])
    assert (together.sqnr_db, together.max_abs) == (other.sqnr_db, other.max_abs)
