"""Constants are found again in what they made, whatever one strange model says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ci.one_model.forecast import ACCEPTED, load_forecasts
from lab.forecast.fit import accepted_of
from lab.forecast.fitting import FittedProgram, judge, quantile
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


def test_a_model_is_judged_by_constants_that_never_saw_it() -> None:
    known = programs()
    slow = replace(known[0], model="slow")
    (found,) = judge([*known, slow], measured_of(known) | measured_of([slow], 3), TABLE)
    errors = dict(zip([row.program.model for row in found.rows], found.errors(), strict=True))
    assert errors.pop("slow") == pytest.approx(2, abs=0.05)
    assert quantile([*errors.values()], 0.8) < 0.05


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
