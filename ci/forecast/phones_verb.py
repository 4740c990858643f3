"""`phones`: what AI Hub measured on real phones, of models by name or class."""

from __future__ import annotations

import argparse

from provisioning.base import answer
from provisioning.base.command_line import repeatable
from provisioning.base.selection import add_selection, selection_of

EXAMPLES = """\
  qnn-ci phones MobileNet
  qnn-ci phones 'object detection' --phone 'Galaxy S25'
  qnn-ci phones ResNet50 --json resnet50.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL_OR_CLASS", help="a part of a model's name, or of what it is for"
    )
    repeatable(parser, "--phone", "NAME", "this phone alone: 'Galaxy S25' [those of forecasts]")
    add_selection(parser)


def run(args: argparse.Namespace) -> int:
    from ci.forecast.phones import found, in_words
    from ci.pipeline.phones import load_forecasts

    table = load_forecasts()
    phones = [table.named(name) for name in args.phone] or [*table.phones]
    models = found(args.model, table, selection_of(args).store)
    answer.add(wheel=table.wheel.version, models=[model.as_dict() for model in models])
    print("\n".join(in_words(models, phones, table)))
    return 0
