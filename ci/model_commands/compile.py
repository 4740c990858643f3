"""`compile`: compile one model to a program for the NPU, run it on the emulator and compare it with float."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ci.model_commands.divergence import require_script
from ci.model_commands.typed_model import add_model, model_lane, one_model_of
from ci.models.not_models import MODEL_HELP
from ci.one_model.model import OneModel
from ci.suite.lane_head import COMPILE
from provisioning.base.errors import ToolkitError, UsageError
from provisioning.base.guard import show_error
from provisioning.base.parser import Parser

if TYPE_CHECKING:
    from ci.explain.lane import AnyModelLane
    from ci.one_model.product import History
    from ci.one_model.report import ModelReport

EXAMPLES = """\
  qnn-ci compile model.pt2 --soc SM8750 --precision 8a8w --calibrate samples/ -o out/
  qnn-ci compile net.py:model --precision 16a8w -o out/
  qnn-ci compile net.py:model --precision fp16 --precision 16a8w --precision 8a8w -o out/
  qnn-ci compile package.net:model --soc SM8650 --soc SM8750 -o out/
  qnn-ci compile model.onnx --precision 16a8w --calibrate samples/ -o out/
  qnn-ci compile net.py:model --through onnx --precision 16a8w -o out/
  qnn-ci compile Llama-3.2-1B/ --soc SM8750 --precision 16a8w --calibrate text.txt --context 1024 -o out/
  qnn-ci compile SmolLM2-135M/ --precision 16a8w --calibrate text.txt --through executorch -o out/
  qnn-ci compile net.py:model --precision 8a8w --suite models.toml -o out/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, COMPILE, f"{MODEL_HELP}; or the folder of a Hugging Face checkpoint")


def run(args: argparse.Namespace) -> int:
    model = one_model_of(args, COMPILE)
    if model.options.report_upstream:
        require_script(Parser.user_folder() / model.options.report_upstream, "--report-upstream")
    model = model_lane(model).own_form(model, model.output)
    precisions: list[str | None] = [*dict.fromkeys(model.options.precisions)] or [None]
    suite = model.options.suite
    return compile_precisions(model_lane(model), model, precisions, suite.absolute() if suite else None)


def compile_model(lane: AnyModelLane, model: OneModel, suite: Path | None, history: History) -> int:
    """Write a program for each chip; with `suite`, add the model to that suite too. What `history` already
    has is not printed again."""
    from ci.explain.explanation import explain_products
    from ci.one_model.into_suite import addition_of
    from ci.one_model.output import writing_into
    from ci.one_model.product import Product, judge_products, write_products
    from ci.one_model.report import report_work

    def work(report: ModelReport) -> int:
        # What cannot be compiled or added is refused before a folder is made.
        programs = lane.programs_of(model)
        addition = addition_of(model, lane.suites, partial(lane.programs_of, model), suite) if suite else None
        output = model.output.absolute()
        with writing_into(output, model.selection.store) as (new, publish):
            results = lane.products_of(model, programs)
            products = [product for product in results if isinstance(product, Product)]
            if len(products) == len(results):
                write_products(products, model, new, publish, report, history)
                if addition:
                    addition.write(products)
        products = explain_products(lane, model, programs, results, history)
        return judge_products(products, report)

    return report_work(COMPILE, model, model.traits, work)


def compile_precisions(
    lane: AnyModelLane, model: OneModel, precisions: Sequence[str | None], suite: Path | None
) -> int:
    """Compile for each precision. If there are several, a failure does not stop the others, and a table shows
    all."""
    from ci.one_model.product import History
    from ci.work import sharing_templates
    from provisioning.base.units import align

    several = len(precisions) > 1
    if several and model.lane.takes_text:
        raise UsageError(
            "a checkpoint is compiled for one precision at a time",
            fix="one --precision for each folder",
        )
    for precision in precisions[1:]:
        # What cannot be meant is refused before the first is compiled.
        lane.programs_of(model.use_precision(precision))
    errors: list[str] = []
    history, code = History(), 0
    with sharing_templates():
        for precision in precisions:
            try:
                code = max(code, compile_model(lane, model.use_precision(precision), suite, history))
            except ToolkitError as error:
                if not several:
                    raise
                show_error(error)
                code = max(code, error.exit_code)
                errors.append(f"{precision}: {error.message.splitlines()[0]}")
    if several and (rows := history.rows):
        print("\n".join(align([tuple(rows[0]), *(tuple(row.values()) for row in rows)])))
    if errors:
        print("\n".join(errors))
    return code
