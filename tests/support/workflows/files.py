"""Workflow and action files as typed objects. A key that the runner does not implement is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tests.support.workflows.expression import Unknown, Value, as_text

LEVELS = ("none", "read", "write")

Permissions = Mapping[str, Literal["none", "read", "write"]]
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda names: (names,) if isinstance(names, str) else names)
]
OrEmpty = BeforeValidator(lambda mapping: mapping or {})
"""A key that has nothing after it."""


class Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
    )


class Input(Part):
    required: bool = False
    default: Any = None
    type: Literal["string", "boolean"] = "string"
    description: str = ""


class Secret(Part):
    required: Literal[False] = False
    description: str = ""


class Output(Part):
    """An action's, or a called workflow's."""

    value: str
    description: str = ""


class Step(Part):
    id: str = ""
    name: str = ""
    condition: str = Field("", alias="if")
    uses: str = ""
    run: str = ""
    inputs: Mapping[str, Any] = Field({}, alias="with")
    env: Mapping[str, Any] = {}
    shell: str = ""
    continue_on_error: bool = False

    @property
    def title(self) -> str:
        return self.name or self.uses.partition("@")[0] or self.run.strip().splitlines()[0]


class Strategy(Part):
    fail_fast: Literal[False]
    matrix: Mapping[Literal["include"], Any]


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
    strategy: Strategy | None = None
    concurrency: Mapping[str, Any] = {}
    timeout_minutes: Any = 360
    continue_on_error: Literal[False] = False
    runs_on: Any = None
    """Of no meaning here, as are protected environments: the job runs on this machine, as this user."""
    environment: Any = None


class Call(Part):
    """What `workflow_call` says."""

    inputs: Annotated[Mapping[str, Input], OrEmpty] = {}
    secrets: Annotated[Mapping[str, Secret], OrEmpty] = {}
    outputs: Annotated[Mapping[str, Output], OrEmpty] = {}


class Workflow(Part):
    path: str = Field(alias="(its path)")
    name: str = ""
    events: Mapping[str, Any] = Field(alias="on")
    call: Annotated[Call, OrEmpty] = Field(Call(), alias="on.workflow_call")
    permissions: Permissions | None = None
    """None if the file has no such key: the repository's settings then decide."""
    concurrency: Mapping[str, Any] = {}
    env: Mapping[str, Any] = {}
    jobs: Mapping[str, Job]


class Runs(Part):
    using: Literal["composite"]
    steps: tuple[Step, ...]


class Action(Part):
    name: str = ""
    description: str = ""
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


class _Loader(yaml.CSafeLoader):
    """With YAML 1.2's booleans: `on` is a name and `yes` a text. In C, as PyYAML's own
    takes a third of a second for ours in each worker of the tests."""


_BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|false)$"), list("tf"))


def _read(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    return data


def complete_inputs(
    what: str, declared: Mapping[str, Input], passed: Mapping[str, Value], *, typed: bool
) -> dict[str, Value]:
    """The inputs passed, and defaults for the others. Inputs of actions become text."""
    if unknown := set(passed) - set(declared):
        raise Unknown(f"{what}: with.{unknown.pop()}: expected one of {', '.join(declared) or 'nothing'}")
    empty = {name: False if row.type == "boolean" else "" for name, row in declared.items()}
    defaults = {name: row.default for name, row in declared.items() if row.default is not None}
    values = {**empty, **defaults, **passed}
    return values if typed else {name: as_text(value) for name, value in values.items()}


def allowed_in(workflow: Workflow, job: Job) -> Mapping[str, str] | None:
    """The rights of a job's token."""
    return workflow.permissions if job.permissions is None else job.permissions


def check_permissions(where: str, allowed: Mapping[str, str] | None, called: Workflow) -> None:
    """Refuse a called workflow that asks for more rights than its caller has, as GitHub does."""
    for job in called.jobs.values() if allowed is not None else ():
        for scope, level in (allowed_in(called, job) or {}).items():
            has = (allowed or {}).get(scope, "none")
            if LEVELS.index(level) > LEVELS.index(has):
                raise Unknown(f"{where}: {scope}: {has}, but {called.path} has {level} in its job {job.id}")
