"""`forecast`: predict the time that one model takes on a phone, without a phone."""

from __future__ import annotations

import argparse
from dataclasses import replace

from ci.model_commands.typed_model import add_model, model_lane, one_model_of
from ci.suite.lane_head import FORECAST
from provisioning.base import answer
from provisioning.base.commands import Fix

EXAMPLES = """\
  qnn-ci forecast model.onnx --precision 8a8w
  qnn-ci forecast net.py:model --precision fp16
  qnn-ci forecast model.onnx --precision 16a8w --calibrate samples/ --phone 'Galaxy S25'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, FORECAST)


def run(args: argparse.Namespace) -> int:
    from ci.one_model.forecast import load_forecasts

    table = load_forecasts()
    model = one_model_of(args, FORECAST)
    phones = table.phones_of(model.options.phones, model.selection.named_socs)
    lane = model_lane(model)
    forecast = lane.forecast_of(lane.own_form(model, model.selection.reports / "exported"), phones)
    if forecast.on_cpu:
        # Of the model as it was typed: a PyTorch model's lines, and not the nodes of its export.
        audit = model.command("audit", model.selection.soc)
        forecast = replace(
            forecast,
            fix=Fix(
                "replace these operators: {} names them all, with a replacement where one is known", audit
            ),
        )
    answer.add(model=model.typed, forecasts=[row.rounded_values() for row in forecast.forecasts])
    answer.add(withheld=forecast.withheld, fix=forecast.fix)
    print("\n".join(forecast.summary_lines()))
    return int(bool(forecast.withheld))
