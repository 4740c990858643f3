"""`audit`: show how much of a model HTP takes at each precision, what stays on the CPU, why, and at what
cost."""

from __future__ import annotations

import argparse

from ci.model_commands.typed_model import add_model, model_lane, one_model_of
from ci.one_model.model import require_one_chip
from ci.suite.lane_head import AUDIT
from provisioning.base import answer

EXAMPLES = """\
  qnn-ci audit net.py:model --soc SM8750
  qnn-ci audit model.pt2 --precision fp16 --precision 16a8w
  qnn-ci audit model.onnx --calibrate samples/ --json audit.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, AUDIT)


def run(args: argparse.Namespace) -> int:
    from ci.explain.audit import document, fails, text_lines
    from ci.one_model.report import ModelReport, report_work

    model = one_model_of(args, AUDIT)
    require_one_chip(model.selection)

    def work(report: ModelReport) -> int:
        rows = model_lane(model).audit(model, model.options.precisions)
        answer.add(model=model.typed, soc=model.selection.soc, precisions=document(rows))
        print("\n".join(text_lines(rows)))
        if failed := [scheme for scheme, row in rows.items() if fails(row)]:
            report.fail(f"does not give a program that runs at {', '.join(failed)}")
        return int(bool(failed))

    return report_work(AUDIT, model, model.traits, work)
