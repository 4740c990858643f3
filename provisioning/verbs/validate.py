"""`validate`: check that an environment can do its work, whether from the store or the user's own SDKs."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from provisioning.base.flags import switch
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection
from provisioning.base.units import align, columns

if TYPE_CHECKING:
    from provisioning.base.findings import Metric, Report
    from provisioning.base.stage_run import StageRun
    from provisioning.validation import Result
    from provisioning.validation.context import Context

EXAMPLES = """\
  nox -s validate
  QNN_SDK_ROOT=/opt/qairt/2.37.0.250724 nox -s validate -- --profile qnn-2.37
  nox -s validate -- --target aarch64-linux --soc SM8650 --soc SM8750 --strict
  python -m provisioning validate --rule hexagon-arch
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--rule", action="append", metavar="ID", help="apply only this rule; may be repeated")
    switch(parser, "--strict", "warnings fail too")


def run(args: argparse.Namespace) -> int:
    from provisioning.base import rendering
    from provisioning.base.stage_run import StageRun

    selection = selection_of(args)
    stage = StageRun("validate", selection.profile, ",".join(selection.targets))
    with stage.reported(selection.reports, "validate", stage.profile):
        results = _validate(stage, selection, args.rule or ())

    def show(report: Report) -> None:
        sys.stdout.write(_states(results))
        rendering.show(report)

    return stage.close(selection.reports, strict=args.strict, show=show)


def _validate(stage: StageRun, selection: Selection, only: Sequence[str]) -> list[Result]:
    from provisioning.environment import consenting
    from provisioning.validation import check, rules_named
    from provisioning.validation.context import gather

    rules = rules_named(only)
    asks_compiler = any(rule.asks_compiler for rule in rules)
    contexts = gather(selection, os.environ, asks_compiler=asks_compiler)
    results = check(contexts, rules)
    stage.findings += [
        replace(finding, fix=consenting(finding.fix, selection))
        for result in results
        for finding in result.findings
    ]
    stage.metrics |= _metrics(contexts, results)
    return results


def _metrics(contexts: Sequence[Context], results: Sequence[Result]) -> dict[str, Metric]:
    states = Counter(result.state.value for result in results)
    trees = {
        component if context is contexts[0] else f"{component} of {', '.join(context.targets)}": (
            f"{tree.path} ({tree.variable if tree.origin == 'directory' else tree.origin})"
        )
        for context in reversed(contexts)
        for component, tree in context.trees.items()
    }
    return {
        **trees,
        "libraries": sum(len(context.libraries) for context in contexts),
        "states": {**states},
        "rules": {
            result.rule.id: {"state": result.state.value, "reason": result.reason} for result in results
        },
        "compiler": {
            soc: {"step": answer.step, "build_id": answer.build_id, "code": answer.code}
            for context in reversed(contexts)
            for soc, answer in context.answers.items()
        },
    }


_MARKS = {"pass": "✓", "fail": "✗", "warn": "!", "not applicable": "–", "could not run": "∅"}


def _states(results: Sequence[Result]) -> str:
    """A line for each chapter: the number of rules that passed, and all others by name."""
    lines = []
    chapters = dict.fromkeys(result.rule.module for result in results)
    for chapter in chapters:
        parts = []
        for state, mark in _MARKS.items():
            ids = [r.rule.id for r in results if r.rule.module == chapter and r.state.value == state]
            if ids and state == "pass":
                parts.append(f"{mark} {len(ids)} passed")
            elif ids:
                parts.append(f"{mark} {state}: {', '.join(ids)}")
        lines.append((f"{chapter:<10}", "   ".join(parts)))
    return "\n".join([*align(lines, columns()), "", ""])
