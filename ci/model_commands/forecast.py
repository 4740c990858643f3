"""`forecast`: what a phone will take for one model, without a phone."""

from __future__ import annotations

import argparse

from ci.models.not_models import MODEL_HELP
from ci.one_model.model import PRECISION_HELP, add_model, add_option, one_model_of
from ci.suite.options import add_work
from provisioning.base import answer
from provisioning.base.command_line import count, repeatable

EXAMPLES = """\
  qnn-ci forecast model.onnx --precision 8a8w
  qnn-ci forecast model.onnx --precision 16a8w --calibrate samples/ --phone 'Galaxy S25'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_option(add_model(parser, MODEL_HELP))
    parser.add_argument("--precision", help=PRECISION_HELP)
    repeatable(parser, "--phone", "NAME", "only this phone: 'Galaxy S25', 'X Elite' [all fitted ones]")
    group = parser.add_argument_group("how")
    group.add_argument("--jobs", "-j", type=count, metavar="N", help="models to compile in parallel [cores]")
    add_work(group, "a step")


def run(args: argparse.Namespace) -> int:
    from ci.one_model.forecast import load_forecasts

    table = load_forecasts()
    phones = [table.phone_of(name) for name in args.phone] or [*table.phones]
    model = one_model_of(args)
    forecast = model.lane.product.forecasted(model, phones)
    answer.add(model=model.typed, forecasts=[row.as_dict() for row in forecast.forecasts])
    answer.add(withheld=forecast.withheld, fix=forecast.fix)
    print("\n".join(forecast.in_words()))
    return int(bool(forecast.withheld))
