"""`compare --simulate`: one model on QNN's simulator of a chip, build by build, and what became slower."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.pipeline.simulated import CAVEAT, read_simulated, slower
from ci.upgrades.compare.stage import ComparedBuilds, Stack, folder_of, stacks, title_of, variables_for
from provisioning.base.commands import logged
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Artifact, Metric, Severity
from provisioning.base.secrets import handed_on
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun

MORE = 0.05
"""A program that the later build's simulator takes this part longer for is worse."""


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    model: str
    precision: str | None

    def command(self, selection: Selection, result: Path) -> list[str]:
        command = [sys.executable, "-m", "ci", "timing", self.model, "--simulate", "--json", str(result)]
        command += ["--store", str(selection.store), "--reports", str(result.parent)]
        command += ["--precision", self.precision] if self.precision else []
        return command + [flag for soc in selection.named_socs for flag in ("--soc", soc)]


def compare_simulated(
    selection: Selection, choice: ComparedBuilds, model: SimulatedModel, environ: Mapping[str, str]
) -> int:
    stage = StageRun.as_typed("compare", selection.profile, selection.target)
    with stage.reported(selection.reports, "compare-not-measured"):
        base, *others = stacks(choice)
        times = {
            stack.name: _times(stack, selection, choice, model, environ, stage) for stack in (base, *others)
        }
        for other in others:
            earlier, later = sorted((base, other), key=lambda stack: stack.age)
            before, now = times[earlier.name], times[later.name]
            titles = title_of(later.name), title_of(earlier.name)
            changes = list(slower(now, before))
            print(f"{titles[0]} beside {titles[1]}", *changes, sep="\n")
            old, new = sum(before.values()), sum(now.values())
            if new > (1 + MORE) * old:
                stage.add(
                    "compare-worse",
                    Severity.WARNING,
                    f"{model.model} on {titles[0]}",
                    f"beside {titles[1]}: {old:,.0f} → {new:,.0f} us simulated;"
                    f" most of it: {changes[1].strip()}",
                    f"measure both on a device, or stay with {titles[1]}",
                )
        print(CAVEAT)
        rows: dict[str, Metric] = {name: dict(found) for name, found in times.items()}
        stage.metrics |= {"simulated": rows, "basis": CAVEAT}
    return stage.close(selection.reports)


def _times(
    stack: Stack,
    selection: Selection,
    choice: ComparedBuilds,
    model: SimulatedModel,
    environ: Mapping[str, str],
    stage: StageRun,
) -> Mapping[str, float]:
    """By operator, in microseconds."""
    folder = folder_of(selection, stack)
    folder.mkdir(parents=True, exist_ok=True)
    result, log = folder / "profile.json", folder / "profile.log"
    result.unlink(missing_ok=True)
    logged(
        model.command(selection, result),
        log,
        handed_on(variables_for(stack, selection, choice.lane, environ)),
        cwd=Path.cwd(),
    )
    stage.artifacts.append(Artifact.of("stage-log", log))
    try:
        answer = json.loads(result.read_text(encoding="utf-8"))
    except FileNotFoundError:
        answer = {}
    if (build := answer.get("simulated", {}).get("build_id")) != stack.build.build_id:
        found = f"{build} answered" if build else "its simulator gave no answer"
        raise CheckFailed(f"{title_of(stack.name)}: {found}", fix=f"read {log}")
    return read_simulated(result)
