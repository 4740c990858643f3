"""The picture of forecasts over measurements."""

from __future__ import annotations

import pytest

from ci.site.phones import plots_of

ACCEPTED = {
    "phones/Galaxy S25/float": {"programs": 1},
    "phones/Galaxy S24/float": {"programs": 1},
    "measured/Galaxy S25/net/float": {"measured_us": 1000, "forecast_us": 1100},
    "measured/Galaxy S25/net/w8a8": {"measured_us": 1500, "forecast_us": 500},
    "measured/Galaxy S25/far/w8a8": {"measured_us": 1500},
    "measured/Galaxy S24/net/float": {"measured_us": 2000, "forecast_us": 1000},
}


def test_each_phone_has_its_programs_and_the_farthest_off_first() -> None:
    plots = {plot.phone: plot for plot in plots_of(ACCEPTED)}
    assert {phone: len(plot.dots) for phone, plot in plots.items()} == {"Galaxy S25": 2, "Galaxy S24": 1}
    far, near = plots["Galaxy S25"].worst_first
    assert (far.precision, far.named, near.precision, near.named) == ("w8a8", True, "float", False)
    assert (far.off, near.off) == pytest.approx((2, 0.1))


def test_a_program_that_is_forecast_rightly_lies_on_the_diagonal() -> None:
    same = {"measured_us": 1000, "forecast_us": 1000}
    (plot,) = plots_of({"phones/X Elite/float": {}, "measured/X Elite/net/float": same})
    across, up = (plot.x(1.0) - 46) / (640 - 92), (440 - 46 - plot.y(1.0)) / (440 - 92)
    assert across == pytest.approx(up, abs=0.01) and 0 < across < 1
