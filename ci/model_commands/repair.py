"""`repair`: a model rewritten where known faults meet it, each rewrite proved, compiled, run and compared."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ci.one_model.model import PRECISION_HELP, add_model, add_option, one_model_of, require_one_chip
from ci.suite.options import add_work
from provisioning.base.command_line import repeatable
from provisioning.base.errors import UnknownName, UsageError

EXAMPLES = """\
  qnn-ci repair net.py:model --soc SM8650 --precision 16a8w -o out/
  qnn-ci repair model.pt2 --precision 8a8w --only bias-used-twice -o out/
  qnn-ci repair model.onnx --precision 16a8w --calibrate samples/ -o out/
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_option(add_model(parser))
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="the folder for the rewritten model"
    )
    parser.add_argument("--precision", help=PRECISION_HELP)
    repeatable(parser, "--only", "RULE", "what to repair, by the names in manifests/fixes.toml [all]")
    add_work(parser.add_argument_group("how"), "a step")


def run(args: argparse.Namespace) -> int:
    from ci.explain.repair import repair_model
    from ci.one_model.report import reported
    from provisioning.base.commands import Fix
    from provisioning.known_faults import load_fixes

    model = one_model_of(args)
    require_one_chip(model.selection)
    fixes = {fix.rule: fix for fix in load_fixes()}
    for rule in args.only:
        if rule not in fixes:
            raise UnknownName(f"{rule} is not a fault that repair knows", rule, list(fixes))
        if why := fixes[rule].none:
            why = Fix(why, *fixes[rule].commands)
            raise UsageError(f"{rule} has no rewrite: {why}", fix=fixes[rule].words)
    only = tuple(args.only) or None
    model = replace(model, output=args.output)
    return reported("repair", model, model.traits, lambda report: repair_model(model, only, report))
