"""`quantize`: write one model with its ranges and scales in it: an .onnx with QDQ nodes, or a quantized .pt2;
with --where, show what each operator loses by quantizing."""

from __future__ import annotations

import argparse

from ci.model_commands.typed_model import add_model, model_lane, one_model_of
from ci.models.not_models import MODEL_HELP
from ci.one_model.model import require_one_chip
from ci.suite.lane_head import QUANTIZE
from ci.suite.options import add_choice, choice_of
from provisioning.base.commands import Fix, add_flags, session
from provisioning.base.errors import UsageError

EXAMPLES = """\
  qnn-ci quantize model.onnx --precision 16a8w --calibrate samples/ -o out/
  qnn-ci quantize model.pt2 --soc SM8750 --precision 8a8w --calibrate samples/ -o out/
  qnn-ci quantize net.py:model --precision 16a4w -o out/
  qnn-ci quantize net.py:model --precision 8a8w --where
  qnn-ci quantize --suite models.toml -k net/8a8w/SM8650 --where
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, QUANTIZE, f"{MODEL_HELP}; with --where also none: a suite's program", optional=True)
    add_choice(parser, QUANTIZE)


def check(args: argparse.Namespace) -> None:
    """Refuse a command that says not where to write to.

    An installed copy calls it before it makes an environment."""
    options = one_model_of(args, QUANTIZE).options
    if not args.model and not options.where:
        raise UsageError("MODEL is missing", fix=session("quantize", "--help"))
    if options.output is None and not options.where:
        message = f"{args.model}: the folder to write the quantized model to is missing"
        raise UsageError(message, fix=Fix("{}; {} writes nothing", add_flags("-o", "out"), ("--where",)))


def run(args: argparse.Namespace) -> int:
    from ci.explain.losses import text_lines
    from ci.one_model.output import writing_into
    from ci.one_model.product import History, judge_products, write_products
    from ci.one_model.report import ModelReport, report_work

    model = one_model_of(args, QUANTIZE)
    options = model.options
    if model.typed and not (options.precisions or options.precision_file):
        raise UsageError(f"the precision for {model.typed} is missing", fix=add_flags("--precision", "8a8w"))
    lane = model_lane(model)
    if options.where:
        require_one_chip(model.selection)
        choice = choice_of(args)

        def losses(_: ModelReport) -> int:
            print("\n".join(text_lines(*lane.losses(model, choice))))
            return 0

        return report_work(QUANTIZE, model, ["--where", *choice.words, *model.traits], losses)
    check(args)
    output = model.output.absolute()

    def work(report: ModelReport) -> int:
        with writing_into(output, model.selection.store) as (new, publish):
            products = lane.quantized_of(model)
            write_products(products, model, new, publish, report, History())
        return judge_products(products, report)

    return report_work(QUANTIZE, model, model.traits, work)
