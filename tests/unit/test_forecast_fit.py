"""Constants are found again in what they made, whatever one strange model says."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ci.__main__ import VERBS
from ci.forecast.compiled import Estimates
from ci.forecast.fit import Fitting, OfPrograms, errors_without, judge, together
from ci.forecast.fitting import Row, errors_of, fitted, left_out, quantile, rank_correlation
from ci.forecast.hub import Measured
from ci.pipeline.forecast import BetweenChips, load_fit
from ci.pipeline.phones import load_forecasts
from provisioning.base.command_line import main
from provisioning.base.errors import CheckFailed, UsageError

WAY = BetweenChips(0.3, 100)
SCALES = {"float": 0.5, "w8a8": 0.7}


def rows(*, noise: float = 0.0, models: int = 20) -> list[Row]:
    draw = Random(1)
    found = []
    for number in range(models):
        for precision, scale in SCALES.items():
            first = draw.uniform(300, 9000)
            second = first * draw.uniform(0.3, 0.9)
            measured = scale * WAY.of(first, second) * (1 + draw.uniform(-noise, noise))
            found.append(Row(f"m{number}", precision, first, second, measured))
    return found


def test_the_constants_and_the_way_that_made_the_rows_are_found() -> None:
    constants = fitted({"S25": rows()})
    assert constants.between == WAY
    assert constants.scales["S25"] == pytest.approx(SCALES)


def test_phones_of_one_hexagon_share_a_way_and_have_scales_of_their_own() -> None:
    slower = [Row(row.model, row.precision, row.first, row.second, 2 * row.measured) for row in rows()]
    constants = fitted({"IQ-9075": slower, "X Elite": rows()})
    assert constants.scales["IQ-9075"]["float"] == pytest.approx(2 * constants.scales["X Elite"]["float"])


def test_one_model_that_is_far_off_moves_nothing() -> None:
    strange = Row("swin", "float", 330_000, 200_000, 10_000)
    constants = fitted({"S25": [*rows(noise=0.05), strange]})
    assert constants.scales["S25"]["float"] == pytest.approx(0.5, rel=0.05)


def test_a_model_is_judged_by_constants_that_never_saw_it() -> None:
    known = rows()
    strange = [Row("strange", precision, 4000, 2000, 9000) for precision in SCALES]
    everything = [*known, *strange]
    guesses = left_out({"S25": everything})["S25"]
    errors = dict(zip(everything, errors_of(everything, guesses), strict=True))
    assert all(
        errors[row] == pytest.approx(1 - SCALES[row.precision] * WAY.of(4000, 2000) / 9000, abs=0.02)
        for row in strange
    )
    assert quantile([errors[row] for row in known], 0.8) < 0.05


def test_the_way_is_chosen_without_the_model_too() -> None:
    """With three models, one of another kind would choose the way that suits itself."""
    odd = [Row("odd", "float", 5000, 100, 0.5 * BetweenChips(1, 100).of(5000, 100))]
    few = [row for row in rows(models=3) if row.precision == "float"]
    (guess,) = left_out({"S25": [*few, *odd]}, (WAY, BetweenChips(1, 100)))["S25"][-1:]
    assert guess == pytest.approx(0.5 * WAY.of(5000, 100), rel=0.01)


def test_the_80th_percentile_holds_80_of_100() -> None:
    assert quantile([number / 100 for number in range(1, 101)], 0.8) == 0.8
    assert quantile([0.3], 0.8) == 0.3


def test_ranks_are_compared_and_not_sizes() -> None:
    assert rank_correlation([1, 2, 30], [5, 6, 7]) == pytest.approx(1)
    assert rank_correlation([1, 2, 30], [7, 6, 5]) == pytest.approx(-1)


def test_models_without_a_fit_of_their_own_are_judged_by_the_others() -> None:
    """Phones of both chips' Hexagons; one model takes twice as long as its estimates say."""
    table = load_forecasts()
    known = [*rows(), Row("slow", "float", 4000, 2000, 2 * SCALES["float"] * WAY.of(4000, 2000))]
    measured = {
        (row.model, row.precision): {
            phone: Measured(row.model, "", row.precision, about.device, "onnx", row.measured / 1000, 1, 0, "")
            for phone, about in table.phones.items()
        }
        for row in known
    }
    estimates = {(row.model, row.precision): (row.first, row.second) for row in known}
    fitting = Fitting("onnx", table, measured)
    judged = judge({name: pair for name, pair in estimates.items() if name[0] != "slow"}, fitting)
    assert [row.phone for row in judged] == [*table.phones]
    for row in judged:
        (error,) = errors_without({("slow", "float"): estimates["slow", "float"]}, row, fitting)
        assert error == pytest.approx(0.5, abs=0.02)


def test_programs_that_are_compiled_again_replace_their_own_accepted_estimates_alone() -> None:
    fit, table = load_fit("onnx"), load_forecasts()
    assert fit is not None
    kept = OfPrograms({("vit", "float"): (900.0, 500.0), ("regnet", "float"): (800.0, 400.0)}, {})
    strange = {"us": 800, "least_us": 700, "graphs": 1}
    facts = {
        "build_id": fit.build_id,
        "refused": {},
        "operators": {},
        "estimates": {chip: {**strange, "uncosted": 9} for chip in table.chips},
    }
    _, programs = together(kept, Estimates({("vit", "float"): facts}, {}), Fitting("onnx", table, {}))
    assert (set(programs.estimates), set(programs.withheld)) == ({("regnet", "float")}, {("vit", "float")})


def test_some_programs_are_not_accepted_in_place_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["forecast", "fit", "-k", "vit", "--accept"]
    assert main("qnn-ci", "", VERBS, words) == 2
    assert "--kept" in capsys.readouterr().err


KEPT = OfPrograms({("resnet50", "float"): (900.0, 500.0)}, {})
BOTH = {chip: {"us": 800, "least_us": 700, "graphs": 1, "uncosted": 0} for chip in load_forecasts().chips}


@pytest.mark.parametrize(
    ("kept", "facts", "error"),
    [
        (OfPrograms({}, {}), {}, CheckFailed),
        (OfPrograms({}, {}), {"estimates": {}}, CheckFailed),
        (KEPT, {"estimates": BOTH}, UsageError),
    ],
)
def test_nothing_is_fitted_to_no_estimate_nor_to_those_of_two_builds(
    kept: OfPrograms, facts: dict[str, Any], error: type[Exception]
) -> None:
    of_program = {"build_id": "v9.9.9.250101000000", "refused": {}, "operators": {"Conv": 1}, **facts}
    found = Estimates({("vit", "float"): of_program} if facts else {}, {})
    with pytest.raises(error):
        together(kept, found, Fitting("onnx", load_forecasts(), {}))
