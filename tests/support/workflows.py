"""Workflow and action files as typed objects, and the files that their steps write outputs to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Permissions = Mapping[str, Literal["none", "read", "write"]]
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda names: (names,) if isinstance(names, str) else names)
]
OrEmpty = BeforeValidator(lambda mapping: mapping or {})
"""A key that has nothing after it."""


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=lambda name: name.replace("_", "-"))


class Input(Part):
    required: bool = False
    default: Any = ""
    type: str = "string"
    description: str = ""


class Output(Part):
    """An action's, or a called workflow's."""

    value: str


class Step(Part):
    id: str = ""
    name: str = ""
    condition: str = Field("", alias="if")
    uses: str = ""
    run: str = ""
    inputs: Mapping[str, Any] = Field({}, alias="with")
    env: Mapping[str, Any] = {}
    working_directory: str = ""
    continue_on_error: bool = False

    @property
    def title(self) -> str:
        return self.name or self.uses.partition("@")[0] or self.run.strip().splitlines()[0]


class Job(Part):
    id: str = Field("", alias="(its key)")
    name: str = ""
    needs: Names = ()
    condition: str = Field("", alias="if")
    steps: tuple[Step, ...] = ()
    uses: str = ""
    inputs: Mapping[str, Any] = Field({}, alias="with")
    secrets: Mapping[str, Any] = {}
    outputs: Mapping[str, str] = {}
    permissions: Permissions | None = None
    env: Mapping[str, Any] = {}
    concurrency: Mapping[str, Any] = {}
    continue_on_error: bool = False
    runs_on: Any = None
    environment: Any = None


class Call(Part):
    """What `workflow_call` says."""

    inputs: Annotated[Mapping[str, Input], OrEmpty] = {}
    secrets: Annotated[Mapping[str, Any], OrEmpty] = {}
    outputs: Annotated[Mapping[str, Output], OrEmpty] = {}


class Workflow(Part):
    path: str = Field(alias="(its path)")
    name: str = ""
    events: Mapping[str, Any] = Field(alias="on")
    call: Annotated[Call, OrEmpty] = Field(Call(), alias="on.workflow_call")
    permissions: Permissions | None = None
    """None if the file has no such key: the repository's settings then decide."""
    env: Mapping[str, Any] = {}
    jobs: Mapping[str, Job]


class Runs(Part):
    steps: tuple[Step, ...]


class Action(Part):
    inputs: Annotated[Mapping[str, Input], OrEmpty] = {}
    outputs: Annotated[Mapping[str, Output], OrEmpty] = {}
    runs: Runs

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.runs.steps


def read_workflow(root: Path, name: str) -> Workflow:
    """`name` is relative to `root`."""
    data = _read(root / name)
    events = data["on"]
    if not isinstance(events, dict):
        events = dict.fromkeys([events] if isinstance(events, str) else events)
    own = {"(its path)": name, "on": events, "on.workflow_call": events.get("workflow_call", {})}
    workflow = Workflow.model_validate({"name": name, **data, **own})
    jobs = {key: job.model_copy(update={"id": key}) for key, job in workflow.jobs.items()}
    return workflow.model_copy(update={"jobs": jobs})


def read_action(root: Path, name: str) -> Action:
    """A composite action's folder, relative to `root`."""
    return Action.model_validate(_read(root / name / "action.yml"))


def _read(file: Path) -> dict[str, Any]:
    # In C, as PyYAML's own takes a third of a second for ours in each worker of the tests.
    data: dict[Any, Any] = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    # YAML 1.1 takes `on` for a boolean.
    return {("on" if key is True else key): value for key, value in data.items()}


def pairs(path: Path) -> dict[str, str]:
    """The names and values of a GITHUB_ENV or GITHUB_OUTPUT file."""
    return pairs_in(path.read_text(encoding="utf-8"))


def pairs_in(text: str) -> dict[str, str]:
    """Of lines NAME=value, or NAME<<DELIMITER and lines up to one that is only the delimiter."""
    values: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for line in filter(None, lines):
        match = re.fullmatch(r"(.+?)(=|<<)(.*)", line)
        assert match is not None, f"expected NAME=value or NAME<<DELIMITER, found {line!r}"
        name, separator, value = match.groups()
        if separator == "<<":
            value = "\n".join(itertools.takewhile(lambda inner, end=value: inner != end, lines))  # type: ignore[misc]
        values[name] = value
    return values


def filled_in(value: object, **contexts: Mapping[str, object]) -> str:
    """A value of a step with each plain name of these contexts in it; any other expression is empty here."""

    def known(match: re.Match[str]) -> str:
        context, _, name = match[1].partition(".")
        member = contexts.get(context, {}).get(name, "")
        return str(member).lower() if isinstance(member, bool) else str(member)

    return re.sub(r"\$\{\{ (.*?) \}\}", known, str(value))
