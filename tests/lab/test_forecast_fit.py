"""Constants are found again in what they made, whatever one strange model says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ci.forecast.forecasts import ACCEPTED
from ci.forecast.phones import load_forecasts
from lab.__main__ import run
from lab.forecast.fit import accepted_of
from lab.forecast.fitting import FittedProgram, fitted, judge, quantile, ratio
from lab.forecast.hub import measurements
from provisioning.accepted_file import load_accepted

TABLE = load_forecasts()


def programs(count: int = 20) -> list[FittedProgram]:
    draw = Random(1)
    return [
        FittedProgram(
            f"m{number}",
            "float",
            {TABLE.chip: first, TABLE.newer: first * draw.uniform(0.4, 0.6)},
            {"Conv": 9},
            5,
            5,
            5,
        )
        for number in range(count)
        if (first := draw.uniform(300, 9000))
    ]


def measured_of(known: list[FittedProgram], factor: float = 1) -> dict[tuple[str, str, str], float]:
    """On a phone of the older chip's estimate: half of it, and 100 around."""
    return {
        ("Galaxy S24", row.model, row.precision): factor * (0.5 * row.estimates[TABLE.chip] + 100)
        for row in known
    }


def test_the_constants_that_made_the_rows_are_found_whatever_one_strange_model_says() -> None:
    known = programs()
    (found,) = judge(known, measured_of(known), TABLE)
    assert tuple(found.constants) == pytest.approx((0.5, 100))
    strange = replace(known[0], model="strange")
    measured = measured_of(known) | measured_of([strange], 6)
    (found,) = judge([*known, strange], measured, TABLE)
    assert found.constants[0] == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("count", [0, 1])
def test_one_model_alone_is_compiled_and_not_judged(count: int) -> None:
    known = programs()[:count]
    assert judge(known, measured_of(known), TABLE) == []


def test_a_constant_is_not_negative() -> None:
    assert fitted([(100, 1), (200, 1), (300, 1)], [40, 90, 140]).min() == 0


def test_a_model_is_judged_by_constants_that_never_saw_it() -> None:
    known = programs()
    slow = replace(known[0], model="slow")
    (found,) = judge([*known, slow], measured_of(known) | measured_of([slow], 3), TABLE)
    errors = dict(zip([row.program.model for row in found.rows], found.errors(), strict=True))
    assert errors.pop("slow") == pytest.approx(2, abs=0.05)
    assert quantile([*errors.values()], 0.8) < 0.05


def test_the_limits_are_chosen_without_the_model_too() -> None:
    known = programs()
    far = replace(known[0], model="far", estimates={TABLE.chip: 90_000, TABLE.newer: 45_000})
    odd = replace(known[0], model="odd", operators={"Mod": 9})
    every = [*known, far, odd]
    (found,) = judge(every, measured_of(every), TABLE)
    assert {row.program.model for row in found.rows if not row.guesses} == {"far", "odd"}


def test_of_few_models_nothing_is_fitted() -> None:
    few = programs(9)
    assert judge(few, measured_of(few), TABLE) == []


def test_twice_too_long_is_as_far_off_as_twice_too_short() -> None:
    assert ratio(2, 1) == ratio(1, 2) == 1


def test_the_80th_percentile_holds_80_of_100() -> None:
    assert quantile([number / 100 for number in range(1, 101)], 0.8) == 0.8
    assert quantile([0.3], 0.8) == 0.3


@pytest.mark.long("fits the constants without each model once")
def test_what_is_shipped_is_what_the_shipped_programs_and_measurements_give() -> None:
    accepted, found, measured = (
        load_accepted(ACCEPTED).subjects,
        list[FittedProgram](),
        dict[tuple[str, str, str], float](),
    )
    for subject, values in accepted.items():
        kind, *names = subject.split("/")
        if kind == "programs":
            estimates = {
                chip: float(str(values[chip])) for chip in (TABLE.chip, TABLE.newer) if chip in values
            }
            counts = dict(pair.split("=") for pair in str(values["operators"]).split())
            size = (int(str(values[name])) for name in ("macs", "weights", "values"))
            operators = {name: int(count) for name, count in counts.items()}
            found.append(FittedProgram(names[0], names[1], estimates, operators, *size))
        elif kind == "measured":
            measured[names[0], names[1], names[2]] = float(str(values["measured_us"]))
    again = accepted_of(str(accepted["fit"]["qnn"]), found, judge(found, measured, TABLE), TABLE)
    assert again == accepted


def test_some_programs_are_not_accepted_in_place_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["forecast", "-k", "vit", "--accept"]) == 2
    assert "-k" in capsys.readouterr().err


PERF = """\
precisions:
  float:
    components:
      Encoder:
        performance_metrics:
          Samsung Galaxy S25:
            onnx: {inference_time_milliseconds: 1.5, layer_counts: {total: 90, npu: 88}}
            tflite: {inference_time_milliseconds: null}
      Decoder:
        performance_metrics:
          Samsung Galaxy S25:
            genie: {llm_metrics: [{context_length: 4096, tokens_per_second: 67.2}]}
"""


def test_what_phones_measured_is_read_by_component(tmp_path: Path) -> None:
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "perf.yaml").write_text(PERF)
    (row,) = measurements(tmp_path, "whisper")
    assert (row.name, row.device, row.runtime) == ("whisper Encoder", "Samsung Galaxy S25", "onnx")
    assert (row.precision, row.milliseconds, row.off_npu) == ("float", 1.5, 2)
    assert not [*measurements(tmp_path, "none")]
