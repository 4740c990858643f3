"""A forecast says how far off it may be, and is withheld where nothing like the model was fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import VERBS
from ci.artifacts.estimate import estimate_of, read_estimate
from ci.forecast import phones
from ci.forecast import verb as forecast_verb
from ci.lanes.onnx.budgets import over_budget
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.pipeline.forecast import BetweenChips, LaneFit, PhoneFit, by_measurement, forecast, load_fit
from ci.pipeline.phones import Forecasts, load_forecasts
from provisioning.base.command_line import parsed
from provisioning.base.errors import UsageError

BUILD = "v2.51.0.260929181845"
TABLE = Forecasts.model_validate_json(
    """{"schema": 1, "chips": ["QCS9100", "SA8797"], "models": {},
    "lanes": {"onnx": {"runtime": "onnx"}, "executorch": {"runtime": "qnn_dlc", "note": "rows of qnn_dlc"}},
    "wheel": {"version": "0.65.0", "filename": "a-0.65.0-py3-none-any.whl", "sha256": "%s", "size": 1},
    "phones": {"Galaxy S24": {"soc": "SM8650", "device": "Samsung Galaxy S24", "hexagon": "V75"},
               "Galaxy S25": {"soc": "SM8750", "device": "Samsung Galaxy S25", "hexagon": "V79"}}}"""
    % ("0" * 64)
)
FIT = LaneFit(
    BUILD,
    {
        "Galaxy S24": PhoneFit(
            BetweenChips(0, 100),
            {"float": 0.8, "w8a8": 0.9},
            {"float": 0.1, "w8a8": 0.25},
            {"Galaxy S25": 0.05},
        ),
        "Galaxy S25": PhoneFit(
            BetweenChips(0.5, 50),
            {"float": 0.5, "w8a8": 0.6},
            {"float": 0.2, "w8a8": 0.25},
            {"Galaxy S24": 0.06},
        ),
    },
    least_us=100,
    most_us=10_000,
    least_ratio=0.3,
    most_ratio=0.9,
    operators=frozenset({"Conv", "Relu", "Add"}),
)


def facts(us: int = 1000, second: int = 500, **more: Any) -> dict[str, Any]:
    def estimate(us: int) -> dict[str, int]:
        return {"graphs": 1, "us": us, "least_us": us, "most_us": us, "uncosted": 0, "ddr": 0}

    estimates = {"QCS9100": estimate(us), "SA8797": estimate(second)}
    return {
        "build_id": BUILD,
        "estimates": estimates,
        "refused": {},
        "operators": {"Conv": 9, "Relu": 9},
        **more,
    }


def test_a_forecast_is_the_scaled_estimate_and_what_surrounds_the_network() -> None:
    """1000 us, and 100 around them."""
    for precision, ms in (("fp16", 0.88), ("8a8w", 0.99)):
        found = forecast("onnx", precision, facts(), FIT, TABLE).forecasts
        assert found[0].ms == pytest.approx(ms)


def test_a_newer_phone_lies_between_the_two_chips() -> None:
    """Half way, 1000 and 490 us are 700, and 50 around them; the error is a fifth."""
    found = forecast("onnx", "fp16", facts(second=490), FIT, TABLE).forecasts[1]
    assert (found.least_ms, found.most_ms) == pytest.approx((0.3, 0.45))


@pytest.mark.parametrize(
    ("precision", "given", "named"),
    [
        ("fp16", facts(build_id="v2.52.0.270101000000"), "2.52.0"),
        ("16a16w", facts(), "16a16w"),
        ("fp16", facts(us=99), "99"),
        ("fp16", facts(us=20_000, second=10_000), "20,000"),
        ("fp16", facts(second=990), "disagree"),
        ("fp16", facts(estimates={}, refused={"QCS9100": "it has no Mod"}), "no Mod"),
        ("fp16", facts(estimates={"QCS9100": facts()["estimates"]["QCS9100"]}), "SA8797"),
        ("fp16", facts(operators={"Conv": 1, "Gelu": 1}), "Gelu"),
    ],
    ids=[
        "another QNN",
        "unfitted precision",
        "too small",
        "too large",
        "chips disagree",
        "refused",
        "refused by the newer chip",
        "other kind",
    ],
)
def test_what_is_not_like_the_fitted_models_has_no_forecast(
    precision: str, given: dict[str, Any], named: str
) -> None:
    found = forecast("onnx", precision, given, FIT, TABLE)
    assert not found.forecasts
    assert named in found.withheld


@pytest.mark.parametrize("field", ["graphs", "uncosted"])
def test_a_cut_graph_and_operators_without_a_cost_have_no_forecast(field: str) -> None:
    given = facts()
    given["estimates"]["QCS9100"][field] = 2
    assert "2" in forecast("onnx", "fp16", given, FIT, TABLE).withheld


def test_a_lane_without_a_fit_says_so_with_the_command() -> None:
    found = forecast("executorch", "fp16", facts(), None, TABLE)
    assert "not fitted for QNN 2.51.0" in found.withheld
    assert found.fix == "nox -s forecast -- fit --lane executorch --accept"


def test_a_precision_that_no_phone_has_constants_of_is_no_empty_forecast() -> None:
    found = forecast("onnx", "16a8w", facts(), FIT, TABLE)
    assert found.withheld and "fp16, 8a8w" in found.fix


def test_a_language_model_says_why_it_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what Genie is given, and of a checkpoint."""
    for name in ("genie_config.json", "config.json"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("{}")
        for more in ([], ["--simulate"]):
            assert forecast_verb.run(parsed(VERBS["forecast"], [str(folder), *more])) == 1
            assert "tokens a second" in capsys.readouterr().out


def test_one_phone_tells_the_others() -> None:
    found = forecast("onnx", "fp16", facts(), FIT, TABLE)
    (other,) = by_measurement("galaxy s24 = 1.76 ms", found, FIT, TABLE).forecasts
    assert (other.phone, other.within) == ("Galaxy S25", 0.06)
    assert other.ms == pytest.approx(2 * found.forecasts[1].ms)


@pytest.mark.parametrize("text", ["Galaxy S24", "Galaxy S24=fast", "Galaxy S24=0 ms", "Pixel 9=1 ms"])
def test_a_measurement_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        by_measurement(text, forecast("onnx", "fp16", facts(), FIT, TABLE), FIT, TABLE)


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
    assert (estimate.uncosted, estimate.graphs, estimate.ddr) == (3, 1, 6731776 + 65536)


def test_a_profile_without_an_estimate_has_none(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(PROFILE.splitlines()[0] + "\n0,FINALIZE,125563,US,BACKEND,ROOT,QNN (finalize) time\n")
    assert read_estimate(path) is None


CYCLES = [
    ("Performance Estimates", 0),
    ("Simulated (Accelerator exec cycles)", 302018),
    ("Simulated (Accelerator exec cycles (lower estimate))", 272776),
    ("Simulated (Accelerator exec cycles (upper estimate))", 347084),
]


def test_cycles_alone_are_read_by_the_chips_clock() -> None:
    """QNN 2.49.40 has no time."""
    estimate = estimate_of(CYCLES, "QCS9100")
    assert estimate is not None
    assert (estimate.us, estimate.least_us, estimate.most_us) == (201, 182, 231)
    assert estimate_of(CYCLES, "SM8750") is None


def test_a_forecast_says_what_it_cost() -> None:
    assert "took 3.2 s" in forecast("onnx", "fp16", facts(cpu_seconds=3.2), FIT, TABLE).basis
    assert "took" not in forecast("onnx", "fp16", facts(), FIT, TABLE).basis


def test_rows_that_stand_in_for_a_lane_are_named() -> None:
    assert "rows of qnn_dlc" in forecast("executorch", "fp16", facts(), FIT, TABLE).basis


def test_phones_are_found_by_their_usual_names() -> None:
    assert {TABLE.named(name) for name in ("galaxy s25", "Samsung Galaxy S25", "GalaxyS25")} == {"Galaxy S25"}


def test_what_is_shipped_fits_together() -> None:
    table, fit = load_forecasts(), load_fit("onnx")
    assert fit is not None
    assert {*fit.phones} == {*table.phones}
    best = replace(FIT, phones=fit.phones)
    assert all(row.within < 0.5 for row in forecast("onnx", "fp16", facts(), best, table).forecasts)


def in_budget(limit: str, given: dict[str, Any]) -> list[tuple[str, str]]:
    run = OnnxRun(precision="fp16", socs=("SM8750",), forecast=True, budget={"Galaxy S25": limit})
    case = OnnxCase(model="net.onnx", run=(run,))
    program = OnnxProgram(Path("/suites/models.toml"), "net", case, run, "SM8750")
    return [(finding.rule, finding.severity.value) for finding in over_budget(program, {"estimate": given})]


def test_a_budget_is_red_where_the_whole_interval_is_above_it_and_a_warning_inside() -> None:
    fit = load_fit("onnx")
    assert fit is not None
    known = facts(us=2000, second=900, build_id=fit.build_id, operators={"Conv": 1})
    found = forecast("onnx", "fp16", known, fit, load_forecasts()).forecasts
    (own,) = (row for row in found if row.phone == "Galaxy S25")
    assert in_budget(f"{own.least_ms * 0.9:.4f} ms", known) == [("forecast-budget", "error")]
    assert in_budget(f"{own.ms:.4f} ms", known) == [("forecast-budget", "warning")]
    assert in_budget(f"{own.most_ms * 1.1:.4f} ms", known) == []


def test_a_budget_that_cannot_be_held_is_no_pass_without_a_word() -> None:
    assert in_budget("2 ms", facts(estimates={})) == [("forecast-withheld", "warning")]


@pytest.mark.parametrize("budget", [{"Galaxy S25": "fast"}, {"Pixel 9": "2 ms"}, {"Galaxy S25": 2}])
def test_a_budget_names_a_phone_and_milliseconds(budget: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="budget"):
        OnnxRun(precision="fp16", socs=("SM8750",), forecast=True, budget=budget)


PERF = """\
precisions:
  w4a16:
    components:
      Llama:
        performance_metrics:
          Samsung Galaxy S25:
            genie:
              llm_metrics:
              - {context_length: 4096, tokens_per_second: 67.2, prefill_tokens_per_second: 1783.4}
            geniex_qairt:
              llm_metrics:
              - {context_length: 4096, tokens_per_second: 47.6}
"""
NUMERICS = """\
metrics:
- metric_name: Top-1 Accuracy
  metric_unit: '%'
  partial_torch_metric: 80.6
  device_metric:
    Samsung Galaxy S25:
      w8a8: {onnx: {partial_metric: 78.0}}
      float: {onnx: {partial_metric: 80.6}}
"""


def test_language_models_have_tokens_a_second_and_accuracy_the_points_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "perf.yaml").write_text(PERF)
    (folder / "numerics.yaml").write_text(NUMERICS)
    monkeypatch.setattr("ci.forecast.hub.tables", lambda table, store: tmp_path)
    words = "\n".join(phones.in_words(phones.found("llama", TABLE, tmp_path), ["Galaxy S25"], TABLE))
    assert "67.2 tokens/s" in words and "prompt 1,783 tokens/s" in words and "47.6 tokens/s" in words
    assert "78% on Samsung Galaxy S25, 80.6% in PyTorch: 2.6 points lost" in words
    assert words.count("points lost") == 1
