"""The picture of forecasts over measurements."""

from __future__ import annotations

import pytest

from ci.site.phones import plots_of

ACCEPTED: dict[str, dict[str, object]] = {
    "onnx/Galaxy S25": {"scale": 0.4},
    "onnx-programs/Galaxy S25/net/float": {"measured_us": 1000, "forecast_us": 1100},
    "onnx-programs/Galaxy S25/net/w8a8": {"measured_us": 500, "forecast_us": 1500},
    "executorch-programs/Galaxy S24/net/float": {"measured_us": 2000, "forecast_us": 1000},
}


def test_each_phone_has_its_programs_and_their_errors() -> None:
    plots = {plot.phone: plot for plot in plots_of(ACCEPTED)}
    assert [(plot.lane, phone, len(plot.dots)) for phone, plot in plots.items()] == [
        ("onnx", "Galaxy S25", 2),
        ("executorch", "Galaxy S24", 1),
    ]
    figures = {name: (count, round(middle, 3)) for name, count, middle, _ in plots["Galaxy S25"].figures}
    assert figures == {"float": (1, 0.1), "w8a8": (1, 2.0), "all": (2, 0.1)}
    assert [(dot.model, dot.precision, dot.named) for dot in plots["Galaxy S25"].worst_first] == [
        ("net", "w8a8", True),
        ("net", "float", False),
    ]


def test_a_program_that_is_forecast_rightly_lies_on_the_diagonal() -> None:
    (plot,) = plots_of({"onnx-programs/X Elite/net/float": {"measured_us": 1000, "forecast_us": 1000}})
    across, up = (plot.x(1.0) - 46) / (640 - 92), (440 - 46 - plot.y(1.0)) / (440 - 92)
    assert across == pytest.approx(up, abs=0.01) and 0 < across < 1
