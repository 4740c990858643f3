"""A forecast says how far off it may be, and is withheld where nothing like the model was fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.artifacts.compiler_log import QnnEstimate, read_estimate
from ci.one_model.forecast import (
    Fit,
    FittedRange,
    Forecasted,
    Forecasts,
    ModelSize,
    PhoneFit,
    QnnEstimates,
    forecast,
)
from provisioning.base.errors import UsageError

BUILD = "v2.51.0.260929181845"
TABLE = Forecasts.model_validate_json(
    """{"schema": 2, "chip": "QCS9100", "newer": "SA8797", "runtime": "onnx",
    "wheel": {"version": "0.65.0", "filename": "a-0.65.0-py3-none-any.whl", "sha256": "%s", "size": 1},
    "phones": {"Galaxy S24": {"soc": "SM8650", "device": "Samsung Galaxy S24"},
               "Galaxy S26": {"soc": "SM8850", "device": "Samsung Galaxy S26", "newer": ["fp16"]}}}"""
    % ("0" * 64)
)
FIT = Fit(
    BUILD,
    FittedRange(100, 10_000, frozenset({"Conv", "Relu", "Add"})),
    {
        ("Galaxy S24", "float"): PhoneFit(0.8, 80, 0.1),
        ("Galaxy S24", "w8a8"): PhoneFit(0.9, 90, 0.25),
        ("Galaxy S26", "float"): PhoneFit(0.5, 25, 0.2),
        ("Galaxy S26", "w8a8"): PhoneFit(0.6, 0, 0.25),
    },
)


def asked(us: int = 1000, second: int = 500, **more: Any) -> QnnEstimates:
    usual: dict[str, Any] = {
        "build_id": BUILD,
        "estimates": {"QCS9100": estimate(us), "SA8797": estimate(second)},
        "refused": {},
        "operators": {"Conv": 9, "Relu": 9},
        "size": ModelSize(1, 1, 1),
    }
    return QnnEstimates(**{**usual, **more})


def forecasted(precision: str, estimates: QnnEstimates, *phones: str) -> Forecasted:
    return forecast(precision, estimates, FIT, TABLE, phones or TABLE.phones)


def estimate(us: int, **more: int) -> QnnEstimate:
    return replace(QnnEstimate(1, us, us, us, 0), **more)


def test_a_forecast_is_the_scaled_estimate_and_what_surrounds_the_network() -> None:
    for precision, ms in (("fp16", 0.88), ("8a8w", 0.99)):
        found = forecasted(precision, asked()).forecasts
        assert found[0].ms == pytest.approx(ms)


def test_both_chips_count_where_the_phone_wants_both() -> None:
    """Half way, 1000 and 490 us are 700, and 25 around them."""
    found = forecasted("fp16", asked(second=490)).forecasts[1]
    assert (found.ms, found.least_ms, found.most_ms) == pytest.approx((0.375, 0.375 / 1.2, 0.375 * 1.2))
    assert forecasted("8a8w", asked(second=490)).forecasts[1].ms == pytest.approx(0.6)


def test_what_concerns_the_newer_chip_alone_leaves_the_other_phones_theirs() -> None:
    older = {"QCS9100": estimate(1000)}
    given = asked(estimates=older, refused={"SA8797": "no Mod"})
    found = forecasted("fp16", given)
    assert [row.phone for row in found.forecasts] == ["Galaxy S24"]
    assert {*found.reasons} == {"Galaxy S26"} and "Galaxy S26" in "\n".join(found.summary_lines())
    assert "no Mod" in forecasted("fp16", given, "Galaxy S26").withheld
    assert len(forecasted("8a8w", given).forecasts) == 2


def test_a_second_compile_is_for_phones_that_want_it() -> None:
    assert TABLE.chips("fp16", ["Galaxy S24"]) == TABLE.chips("8a8w", TABLE.phones) == ("QCS9100",)
    assert TABLE.chips("fp16", TABLE.phones) == ("QCS9100", "SA8797")


@pytest.mark.parametrize(
    ("precision", "given", "named"),
    [
        ("fp16", asked(build_id="v2.52.0.270101000000"), "2.52.0"),
        ("fp16", asked(us=99), "99"),
        ("fp16", asked(us=10_001), "10,001"),
        ("fp16", asked(estimates={}, refused={"QCS9100": "it has no Mod"}), "no Mod"),
        ("fp16", asked(operators={"Conv": 8, "Gelu": 1}), "Gelu"),
    ],
    ids=["another QNN", "too small", "too large", "refused", "other kind"],
)
def test_what_is_not_like_the_fitted_models_has_no_forecast(
    precision: str, given: QnnEstimates, named: str
) -> None:
    found = forecasted(precision, given)
    assert not found.forecasts
    assert named in found.withheld


@pytest.mark.parametrize("given", [asked(100), asked(10_000), asked(operators={"Conv": 9, "Gelu": 1})])
def test_the_ends_of_what_was_fitted_are_like_it(given: QnnEstimates) -> None:
    assert len(forecasted("8a8w", given).forecasts) == 2


@pytest.mark.parametrize("field", ["graphs", "uncosted"])
def test_a_cut_graph_and_operators_without_a_cost_have_no_forecast(field: str) -> None:
    given = asked(estimates={"QCS9100": estimate(1000, **{field: 2}), "SA8797": estimate(500)})
    assert "2" in forecasted("fp16", given).withheld


PROFILE = """\
Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier
0,BACKEND,0,US,BACKEND,ROOT,Performance Estimates
0,BACKEND,510,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us)
0,BACKEND,431,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us (lower estimate))
0,BACKEND,611,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us (upper estimate))
0,BACKEND,6731776,BYTES,BACKEND,SUB-EVENT,Input Fill
0,BACKEND,65536,BYTES,BACKEND,SUB-EVENT,Output Spill
0,BACKEND,3,US,BACKEND,SUB-EVENT,Missing Ops (Number of Ops with no Costs associated)
"""


def test_the_compilers_estimate_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(PROFILE)
    estimate = read_estimate(path)
    assert estimate is not None
    assert (estimate.us, estimate.least_us, estimate.most_us) == (510, 431, 611)
    assert (estimate.uncosted, estimate.graphs) == (3, 1)


def test_phones_are_found_by_their_usual_names() -> None:
    assert {TABLE.phone_of(name) for name in ("galaxy s24", "Samsung Galaxy S24", "GalaxyS24")} == {
        "Galaxy S24"
    }


def test_a_model_with_a_node_on_the_cpu_has_no_forecast() -> None:
    found = forecasted("fp16", asked(on_cpu="1 of 9 nodes do not run on HTP: erf"))
    assert not found.forecasts and found.on_cpu and "erf" in found.withheld


def test_a_chip_chooses_the_phones_that_have_it() -> None:
    chips = {phone: about.soc for phone, about in TABLE.phones.items()}
    (phone, chip), *_ = chips.items()
    assert TABLE.phones_of((), (chip,)) == [name for name in chips if chips[name] == chip]
    assert TABLE.phones_of((phone,), ("SM8350",)) == [phone]
    assert TABLE.phones_of((), ()) == [*chips]
    with pytest.raises(UsageError, match="SM8350") as refused:
        TABLE.phones_of((), ("SM8350",))
    assert "--phone" in str(refused.value.fix)


def test_a_precision_that_no_phone_has_constants_of_is_no_empty_forecast() -> None:
    found = forecasted("16a8w", asked())
    assert found.withheld and "fp16, 8a8w" in found.fix


def test_a_profile_without_an_estimate_has_none(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(PROFILE.splitlines()[0] + "\n0,FINALIZE,125563,US,BACKEND,ROOT,QNN (finalize) time\n")
    assert read_estimate(path) is None
