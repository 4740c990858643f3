"""Read manifests/gate.toml: the gate's stages, the jobs on GitHub, and the files that affect none of them.

`gate_stages` gives the stages that the verb `gate` runs, in order; `gate_table` also has the rows that
`ci/github/plan.py` makes jobs of."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ci.gate import GATE_ENVIRONMENT, GATE_TABLE
from ci.lanes.registry import lanes_by_gate_stage
from ci.suite.lane_head import LaneHead
from provisioning.base.documents import Model, load


class GateStage(Model):
    name: str
    program: str
    """The package that `python -m` runs; the stage's name is the verb."""
    needs: tuple[str, ...] = ()
    """Earlier stages that must pass, or be skipped on purpose, before this one runs."""
    lane: str = ""
    """The stage only runs if a suite has runs of this lane; the gate passes these suites and --tag on to it.
    Set from the registry of lanes."""
    environment: str = ""
    """The locked environment that the stage needs, if it is not the gate's. Set from the registry of
    lanes."""
    flags: tuple[str, ...] = ()
    """More arguments for the stage, after those of the selection."""


class IgnoredChanges(Model):
    """Files whose change does not matter to some rows, and why."""

    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    reason: Annotated[str, Field(min_length=1)]


class CiJob(Model):
    """A row of the table: a job on GitHub. The table itself explains each field."""

    stage: str
    minutes: Annotated[int, Field(gt=0, le=360)]
    arguments: str = ""
    ignores: tuple[str, ...] = ()
    shards: Annotated[int, Field(ge=1)] = 1
    suite: Annotated[int, Field(ge=0)] = 0
    provision: bool = False
    runner: bool = False
    targets: str = "x86_64-linux"
    executorch: bool = False
    submodules: bool = False
    packages: tuple[str, ...] = ()
    variables: dict[Annotated[str, Field(pattern="^[A-Z][A-Z0-9_]*$")], str] = Field(default_factory=dict)
    root: bool = False
    remembers: bool = False
    own: bool = False
    profiles: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    when: Literal["gate", "nightly"] = "gate"
    sooner: tuple[str, ...] = ()


class GateTable(Model):
    stage: tuple[GateStage, ...] = ()
    ignored_changes: dict[str, IgnoredChanges] = Field(default_factory=dict)
    row: dict[str, CiJob] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_exist(self) -> GateTable:
        for name, row in self.row.items():
            for group in row.ignores:
                if group not in self.ignored_changes:
                    raise ValueError(f"row.{name}.ignores: there is no ignored_changes.{group}")
            if unknown := set(row.replaces) - set(self.row):
                raise ValueError(f"row.{name}.replaces: there is no row {', '.join(sorted(unknown))}")
        names: list[str] = []
        for stage in self.stage:
            if late := set(stage.needs) - set(names):
                raise ValueError(
                    f"stage {stage.name} needs {', '.join(sorted(late))}, which is no earlier stage"
                )
            names.append(stage.name)
        return self

    def ignored_by(self, row: CiJob) -> tuple[str, ...]:
        """The patterns of files that a row does not depend on."""
        return tuple(pattern for group in row.ignores for pattern in self.ignored_changes[group].paths)


@functools.cache
def gate_table(path: Path = GATE_TABLE) -> GateTable:
    return load(path, GateTable)


def gate_stages(path: Path = GATE_TABLE) -> list[GateStage]:
    """Return the stages in order. Stages of lanes without a row of their own come last."""
    rows = {stage.name: stage for stage in gate_table(path).stage}
    heads = lanes_by_gate_stage()
    for name in heads:
        rows.setdefault(name, GateStage(name=name, program="ci"))
    return [_bind_to_lane(stage, heads[name]) if name in heads else stage for name, stage in rows.items()]


def _bind_to_lane(stage: GateStage, head: LaneHead) -> GateStage:
    environment = "" if head.environment == GATE_ENVIRONMENT else head.environment
    return stage.model_copy(update={"lane": head.name, "environment": environment})


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Match a path from the root: `*` stays within a folder, `**` does not."""
    return any(_pattern(pattern).fullmatch(name) for pattern in patterns)


@functools.cache
def _pattern(pattern: str) -> re.Pattern[str]:
    parts = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(parts.get(part) or re.escape(part) for part in re.split(r"(\*\*|\*)", pattern)))
