"""Constants are found again in what they made, whatever one strange model says."""

from __future__ import annotations

from random import Random

import pytest

from ci.forecast.fitting import Row, errors_of, fitted, left_out, quantile, rank_correlation


def rows(*, noise: float = 0.0) -> list[Row]:
    draw = Random(1)
    return [
        Row(f"m{number}", precision, us, scale * us * (1 + draw.uniform(-noise, noise)))
        for number in range(20)
        for precision, scale in (("float", 0.5), ("w8a8", 0.7))
        for us in [draw.uniform(300, 9000)]
    ]


def test_the_constants_that_made_the_rows_are_found() -> None:
    assert fitted(rows()) == pytest.approx({"float": 0.5, "w8a8": 0.7})


def test_one_model_that_is_far_off_moves_nothing() -> None:
    strange = Row("swin", "float", 330_000, 10_000)
    assert fitted([*rows(noise=0.05), strange])["float"] == pytest.approx(0.5, rel=0.05)


def test_a_model_is_judged_by_constants_that_never_saw_it() -> None:
    known = rows()
    strange = [Row("strange", "float", 4000, 9000), Row("strange", "w8a8", 4000, 9000)]
    errors = dict(
        zip([*known, *strange], errors_of([*known, *strange], left_out([*known, *strange])), strict=True)
    )
    assert all(
        errors[row] == pytest.approx(1 - made / 9000, abs=0.02)
        for row, made in zip(strange, (2000, 2800), strict=True)
    )
    assert quantile([errors[row] for row in known], 0.8) < 0.05


def test_the_80th_percentile_holds_80_of_100() -> None:
    assert quantile([number / 100 for number in range(1, 101)], 0.8) == 0.8
    assert quantile([0.3], 0.8) == 0.3


def test_ranks_are_compared_and_not_sizes() -> None:
    assert rank_correlation([1, 2, 30], [5, 6, 7]) == pytest.approx(1)
    assert rank_correlation([1, 2, 30], [7, 6, 5]) == pytest.approx(-1)
