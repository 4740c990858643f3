"""Workflow and action files as typed objects. A key that rehearsals do not implement is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from ci.github.rehearse import availability
from provisioning.base.documents import Model, parse
from provisioning.base.errors import UsageError

LEVELS = ("none", "read", "write")

Permissions = Mapping[str, Literal["none", "read", "write"]]
Condition = Annotated[str, BeforeValidator(lambda one: str(one).lower() if isinstance(one, bool) else one)]
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda one: tuple(one) if isinstance(one, list) else (one,))
]


def _or_empty(value: object) -> object:
    return {} if value is None else value


def _value(output: object) -> object:
    return output["value"] if isinstance(output, dict) and {*output} <= {"value", "description"} else output


class Part(Model):
    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
    )


class Input(Part):
    required: bool = False
    default: Any = None
    type: str = "string"
    description: Any = ""
    options: Any = None
    deprecation_message: Any = Field(None, alias="deprecationMessage")


Inputs = Annotated[
    Mapping[str, Annotated[Input, BeforeValidator(_or_empty)]],
    BeforeValidator(_or_empty),
]
Outputs = Annotated[
    Mapping[str, Annotated[str, BeforeValidator(_value)]],
    BeforeValidator(_or_empty),
]


class Step(Part):
    id: str = ""
    name: str = ""
    condition: Condition = Field("", alias="if")
    uses: str = ""
    run: str = ""
    inputs: Mapping[str, Any] = Field({}, alias="with")
    env: Mapping[str, Any] = {}
    shell: str = ""
    working_directory: str = ""
    timeout_minutes: Any = None
    continue_on_error: Any = False

    @model_validator(mode="after")
    def _does_one_thing(self) -> Step:
        if bool(self.uses) == bool(self.run):
            raise ValueError("either uses or run")
        return self

    @property
    def title(self) -> str:
        return self.name or self.uses.partition("@")[0] or self.run.strip().splitlines()[0]


class Strategy(Part):
    matrix: Any = None
    fail_fast: Any = True
    max_parallel: Any = None


class OnlyOnGithub(Part):
    """Keys about GitHub's machines and rights. A rehearsal runs on this machine as this user and ignores
    them."""

    concurrency: Any = None
    run_name: Any = None
    runs_on: Any = None
    environment: Any = None


class Job(OnlyOnGithub):
    id: str = Field("", alias="(its key)")
    name: str = ""
    needs: Names = ()
    condition: Condition = Field("", alias="if")
    steps: tuple[Step, ...] = ()
    uses: str = ""
    inputs: Mapping[str, Any] = Field({}, alias="with")
    secrets: Any = None
    outputs: Mapping[str, str] = {}
    permissions: Permissions | None = None
    env: Mapping[str, Any] = {}
    strategy: Strategy = Strategy()
    timeout_minutes: Any = 360
    continue_on_error: Any = False

    @model_validator(mode="after")
    def _does_one_thing(self) -> Job:
        if bool(self.uses) == bool(self.steps):
            raise ValueError("either uses or steps")
        return self


class Call(Part):
    """What `workflow_call` says."""

    inputs: Inputs = Field({})
    outputs: Outputs = Field({})
    secrets: Any = None


class Workflow(OnlyOnGithub):
    path: str = Field(alias="(its path)")
    name: str = ""
    events: Mapping[str, Any] = Field(alias="on")
    call: Call = Field(Call(), alias="on.workflow_call")
    permissions: Permissions | None = None
    """None if the file has no such key: the repository's settings then decide."""
    env: Mapping[str, Any] = {}
    jobs: Mapping[str, Job]

    @property
    def inputs(self) -> Mapping[str, Input]:
        return self.call.inputs

    @property
    def outputs(self) -> Mapping[str, str]:
        return self.call.outputs


class Runs(Part):
    using: Literal["composite"]
    steps: tuple[Step, ...]


class Action(Part):
    name: str = ""
    description: str = ""
    author: str = ""
    branding: Any = None
    inputs: Inputs = Field({})
    outputs: Outputs = Field({})
    runs: Runs

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.runs.steps


def read_workflow(root: Path, name: str) -> Workflow:
    """`name` is relative to `root`."""
    data = _read(root, name)
    availability.check(name, data, availability.WORKFLOW)
    events = data.get("on", {})
    if isinstance(events, (str, list)):
        events = dict.fromkeys([events] if isinstance(events, str) else events)
    events = {event: _settings(one) for event, one in events.items()}
    own = {"(its path)": name, "on": events, "on.workflow_call": events.get("workflow_call", {})}
    workflow = parse({"name": name, **data, **own}, Workflow, Path(name))
    for key, job in workflow.jobs.items():
        for need in job.needs:
            if need not in workflow.jobs:
                raise _wrong(f"{name}: jobs.{key}.needs", f"one of {', '.join(workflow.jobs)}", need)
        _check_ids(f"{name}: jobs.{key}", data["jobs"][key].get("steps", ()), job.outputs)
    jobs = {key: job.model_copy(update={"id": key}) for key, job in workflow.jobs.items()}
    return workflow.model_copy(update={"jobs": jobs})


def _settings(event: object) -> object:
    """Those of `schedule` are a list."""
    return {"schedule": event} if isinstance(event, list) else event or {}


def read_action(root: Path, name: str) -> Action:
    """A composite action's folder, relative to `root`."""
    file = next((f for f in ("action.yml", "action.yaml") if (root / name / f).is_file()), None)
    if file is None:
        raise UsageError(
            f"there is no action.yml in {name} of the job's workspace",
            remedy="check the repository out in an earlier step",
        )
    where = str(Path(name, file))
    data = _read(root, where)
    availability.check(where, data, availability.ACTION)
    action = parse(dict(data), Action, Path(where))
    for number, step in enumerate(action.steps, 1):
        if step.run and not step.shell:
            raise _wrong(f"{where}: runs.steps[{number}]", "a shell, as in every step of an action", step.run)
        if step.timeout_minutes is not None:
            raise _wrong(f"{where}: runs.steps[{number}]", "no timeout-minutes", str(step.timeout_minutes))
    _check_ids(f"{where}: runs", data["runs"]["steps"], action.outputs)
    return action


def _check_ids(where: str, steps: Sequence[Mapping[str, Any]], outputs: Mapping[str, str]) -> None:
    """Each id occurs once, and expressions name only ids of earlier steps."""
    ids: list[str] = []
    for number, step in enumerate(steps, 1):
        rest = {key: each for key, each in step.items() if key != "if"}
        place = f"{where}.steps[{number}]"
        availability.check_step_ids(place, rest, ids, condition=str(step.get("if", "")))
        if (name := step.get("id")) in ids:
            raise _wrong(place, "each id once", str(name))
        ids += [name] if name else []
    availability.check_step_ids(f"{where}.outputs", outputs, ids)


def complete_inputs(
    what: str, declared: Mapping[str, Input], values_passed: Mapping[str, object], *, typed: bool
) -> dict[str, Any]:
    """The inputs passed, and defaults for the others. Inputs of actions become text."""
    from ci.github.rehearse.expression import as_text

    for name in values_passed:
        if name not in declared:
            raise _wrong(f"{what}: with", f"one of {', '.join(declared) or 'nothing'}", name)
    values: dict[str, Any] = {}
    for name, one in declared.items():
        if name in values_passed:
            values[name] = values_passed[name]
        elif one.required and one.default is None:
            raise _wrong(f"{what}: with", f"{name}, which is required", "nothing")
        else:
            absent: dict[str, object] = {"boolean": False, "number": 0}
            values[name] = one.default if one.default is not None else absent.get(one.type, "")
        if not typed:
            values[name] = as_text(values[name])
        elif one.type == "boolean" and not isinstance(values[name], bool):
            raise _wrong(f"{what}: with.{name}", "a boolean", values[name])
    return values


def allowed_in(workflow: Workflow, job: Job) -> Mapping[str, str] | None:
    """The rights of a job's token."""
    return workflow.permissions if job.permissions is None else job.permissions


def check_permissions(where: str, allowed: Mapping[str, str] | None, called: Workflow) -> None:
    """Refuse a called workflow that asks for more rights than its caller has, as GitHub does."""
    for job in called.jobs.values() if allowed is not None else ():
        for scope, level in (allowed_in(called, job) or {}).items():
            has = (allowed or {}).get(scope, "none")
            if LEVELS.index(level) > LEVELS.index(has):
                raise _wrong(
                    f"{where}.permissions.{scope}",
                    f"{level}, as {called.path} has in its job {job.id}",
                    has,
                )


def _read(root: Path, name: str) -> Mapping[str, Any]:
    import yaml

    try:
        text = (root / name).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot read {name}: {error.strerror}", remedy="name a file under .github/workflows"
        ) from error
    try:
        return _mapping(name, yaml.load(text, Loader=_loader()))  # noqa: S506
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is no YAML: {error}", remedy="correct it") from error


def _loader() -> type[Any]:
    """With YAML 1.2's booleans: `on` is a name and `yes` a text. A key that occurs twice is an error."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
    )

    def mapping(loader: Loader, node: yaml.MappingNode) -> dict[object, object]:
        keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} twice", node.start_mark)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return Loader


def _mapping(where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(where, "a mapping", value)
    return cast(Mapping[str, Any], value)


def _wrong(where: str, expected: str, found: object) -> UsageError:
    shown = found if isinstance(found, str) else repr(found)
    return UsageError(f"{where}: expected {expected}, found {shown}", remedy=f"correct {where}")


def matrix_rows(matrix: object) -> Sequence[dict[str, Any]]:
    """The rows of a matrix by GitHub's rules. Its expressions must be evaluated already."""
    import itertools

    data = dict(_mapping("matrix", matrix))
    include, exclude = data.pop("include", []) or [], data.pop("exclude", []) or []
    for name, values in data.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise _wrong(f"matrix.{name}", "a list that is not empty", values)
    crossed = [dict(zip(data, row, strict=True)) for row in itertools.product(*data.values())] if data else []
    rows = [
        row for row in crossed if not any(all(row.get(k) == v for k, v in out.items()) for out in exclude)
    ]
    originals = [dict(row) for row in rows]
    for extra in include:
        fitting = [
            row
            for row, original in zip(rows, originals, strict=False)
            if all(original.get(key, value) == value for key, value in extra.items())
        ]
        for row in fitting:
            row.update(extra)
        if not fitting:
            rows.append(dict(extra))
    if not rows:
        raise _wrong("matrix", "at least one combination", matrix)
    return rows
