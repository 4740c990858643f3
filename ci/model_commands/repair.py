"""`repair`: rewrite a model where known faults affect it; each rewrite is proved, compiled, run and
compared."""

from __future__ import annotations

import argparse

from ci.model_commands.typed_model import add_model, model_lane, one_model_of
from ci.one_model.model import require_one_chip
from ci.suite.lane_head import REPAIR
from provisioning.base.errors import UnknownName, UsageError

EXAMPLES = """\
  qnn-ci repair net.py:model --soc SM8650 --precision 16a8w -o out/
  qnn-ci repair model.pt2 --precision 8a8w --only bias-used-twice -o out/
  qnn-ci repair model.onnx --precision 16a8w --calibrate samples/ -o out/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, REPAIR)


def run(args: argparse.Namespace) -> int:
    from ci.explain.repair import repair_model
    from ci.one_model.report import report_work
    from provisioning.base.commands import Fix
    from provisioning.known_faults import load_fixes

    model = one_model_of(args, REPAIR)
    require_one_chip(model.selection)
    fixes = {fix.rule: fix for fix in load_fixes()}
    for rule in model.options.only:
        if rule not in fixes:
            raise UnknownName(f"{rule} is not a fault that repair knows", rule, list(fixes))
        if why := fixes[rule].none:
            why = Fix(why, *fixes[rule].commands)
            raise UsageError(f"{rule} has no rewrite: {why}", fix=fixes[rule].words)
    only = model.options.only or None
    lane = model_lane(model)
    return report_work(REPAIR, model, model.traits, lambda report: repair_model(lane, model, only, report))
