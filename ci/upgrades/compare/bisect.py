"""`compare --bisect`: the first build that differs from the earliest, by binary search, and the operator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.pipeline.baseline import COSTS, load_tolerances
from ci.pipeline.divergence import as_text
from ci.upgrades.compare.judge import FigureChange, differences
from ci.upgrades.compare.stage import (
    ComparedBuilds,
    Measurement,
    Stack,
    folder_of,
    judge,
    measure,
    stacks,
    title_of,
    variables_for,
)
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Metric
from provisioning.base.rendering.text import plural
from provisioning.base.settings import ROOT, Selection
from provisioning.base.stage_run import StageRun


def first_change(count: int, differs: Callable[[int], bool]) -> int | None:
    """Of things in order, the first that differs from the one at 0, where a later one does: each is asked
    once at most. If the last does not differ, one between may."""
    low, high = 0, count - 1
    if not differs(high):
        high = next((place for place in middle_first(1, count - 2) if differs(place)), 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(middle) else (middle, high)
    return high or None


def middle_first(low: int, high: int) -> list[int]:
    """All from low to high, each the middle of what those before leave."""
    found, spans = list[int](), [(low, high)]
    while spans:
        first, last = spans.pop(0)
        if first <= last:
            middle = (first + last) // 2
            found.append(middle)
            spans += [(first, middle - 1), (middle + 1, last)]
    return found


def bisect(
    selection: Selection,
    choice: ComparedBuilds,
    environ: Mapping[str, str],
    *,
    where: bool,
    by: Callable[[Stack, Selection, ComparedBuilds, Mapping[str, str], StageRun], Measurement] = measure,
) -> int:
    stage = StageRun.as_typed("compare", selection.profile, selection.target)
    with stage.reported(selection.reports, "compare-not-measured"):
        every = sorted(stacks(choice), key=lambda stack: stack.age)
        measured: dict[int, Measurement] = {}

        def changes(place: int) -> dict[str, list[FigureChange]]:
            for number in (0, place):
                if number not in measured:
                    measured[number] = by(every[number], selection, choice, environ, stage)
            before, after = measured[0].programs, measured[place].programs
            if not before:
                raise UsageError("nothing gave a single program", fix="read the logs below reports/compare/")
            found = {
                name: differences(row, after.get(name, {}), load_tolerances()) for name, row in before.items()
            }
            return {name: changed for name, changed in found.items() if changed}

        def answers(place: int) -> bool:
            """Costs differ in almost every build."""
            return any(change.figure not in COSTS for found in changes(place).values() for change in found)

        first = first_change(len(every), answers)
        if first is None:
            first = first_change(len(every), lambda place: bool(changes(place)))
        say(_words(every, measured, first, changes(first) if first else {}))
        stage.metrics["bisect"] = {
            "order": [stack.name for stack in every],
            "measured": [every[place].name for place in sorted(measured)],
            "first": every[first].name if first else None,
        }
        if first:
            pair = [measured[first - 1], measured[first]]
            judge(stage, pair, choice)
            if where:
                program = next(iter(changes(first)))
                stage.metrics["where"] = located(program, pair, selection, choice, environ, stage)
    return stage.close(selection.reports)


def _words(
    every: Sequence[Stack],
    measured: Mapping[int, Measurement],
    first: int | None,
    changes: Mapping[str, Sequence[FigureChange]],
) -> list[str]:
    base, count = title_of(every[0].name), f"{len(measured)} of {plural(len(every), 'version')} measured"
    builds = {stack.build.qnn for stack in every}
    if every[0].executorch and len(builds) == 1:
        count += f", all with QNN {builds.pop()}"
    if first is None:
        return [f"none differs from {base}: {count}"]
    lines = [f"the first that differs from {base} is {title_of(every[first].name)}: {count}"]
    lines += [f"  {name}: {'; '.join(map(str, changed))}" for name, changed in changes.items()]
    return lines


def located(
    program: str,
    pair: Sequence[Measurement],
    selection: Selection,
    choice: ComparedBuilds,
    environ: Mapping[str, str],
    stage: StageRun,
) -> dict[str, Metric]:
    """What `divergence` says of the program on both: where its outputs leave the quantized model's."""
    found: dict[str, Metric] = {}
    for measurement in pair:
        stack = measurement.stack
        say([f"{title_of(stack.name)}: searching the operator of {program}"])
        folder = folder_of(selection, stack)
        result, log = folder / "divergence.json", folder / "divergence.log"
        command = [sys.executable, "-m", "ci", "divergence", "-k", program, "--json", str(result)]
        command += ["--reports", str(folder), "--store", str(selection.store)]
        command += ["--lane", choice.lane, *(["--suite", str(choice.suite)] if choice.suite else [])]
        command += [flag for soc in selection.named_socs for flag in ("--soc", soc)]
        variables = variables_for(stack, selection, choice.lane, environ)
        with log.open("wb") as printed:
            subprocess.run(command, cwd=ROOT, env=variables, stdout=printed, stderr=printed, check=False)
        facts = _answer(result, log)
        found[stack.name] = facts
        say([f"  {line}" for line in as_text(facts)])
    return found


def _answer(path: Path, log: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        facts = {}
    if "cuts" not in facts:
        raise CheckFailed("divergence gave no answer", fix=f"read {log}")
    return {name: facts[name] for name in ("reference", "least", "sqnr_db", "first", "cuts", "failed")}


def say(lines: Sequence[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
