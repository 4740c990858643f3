"""`audit`: how much of a model HTP takes at each precision, what stays on the CPU, why, and at what cost."""

from __future__ import annotations

import argparse

from ci.one_model.model import add_model, add_option, add_precisions, one_model_of, require_one_chip
from ci.suite.options import add_work
from provisioning.base import answer
from provisioning.base.command_line import count

EXAMPLES = """\
  qnn-ci audit net.py:model --soc SM8750
  qnn-ci audit model.pt2 --precision fp16 --precision 16a8w
  qnn-ci audit model.onnx --calibrate samples/ --json audit.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_option(add_model(parser))
    add_precisions(parser, "may be repeated [fp16, 8a8w, 16a8w, and 16a4w for PyTorch models]")
    parser.add_argument("--jobs", "-j", type=count, metavar="N", help="programs in parallel [cores]")
    add_work(parser.add_argument_group("how"), "a step")


def run(args: argparse.Namespace) -> int:
    from ci.explain.audit import as_text, document, fails
    from ci.explain.lane import explainer
    from ci.one_model.report import ModelReport, reported

    model = one_model_of(args)
    require_one_chip(model.selection)
    precisions: list[str] = args.precisions or []

    def work(report: ModelReport) -> int:
        rows = explainer(model).audited(model, precisions)
        answer.add(model=model.typed, soc=model.selection.soc, precisions=document(rows))
        print("\n".join(as_text(rows)))
        if failed := [scheme for scheme, row in rows.items() if fails(row)]:
            report.fail(f"does not give a program that runs at {', '.join(failed)}")
        return int(bool(failed))

    return reported("audit", model, [*precisions, *model.traits], work)
