"""Workflow and action files as typed objects. A key that rehearsals do not implement is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ci.github.rehearse import availability
from provisioning.base.errors import UsageError

_ONLY_ON_GITHUB = {"concurrency", "run-name", "runs-on", "environment"}
"""Keys about GitHub's machines and rights. A rehearsal runs on this machine as this user and ignores them."""

_WORKFLOW = {"name", "on", "env", "jobs", "defaults", "permissions"} | _ONLY_ON_GITHUB
_JOB = {
    "name", "needs", "if", "steps", "uses", "with", "secrets", "outputs", "env", "strategy",
    "timeout-minutes", "continue-on-error", "permissions",
} | _ONLY_ON_GITHUB  # fmt: skip
_STEP = {
    "id", "name", "if", "uses", "run", "with", "env", "shell", "working-directory",
    "timeout-minutes", "continue-on-error",
}  # fmt: skip
_ACTION = {"name", "description", "author", "branding", "inputs", "outputs", "runs"}
_INPUT = {"description", "required", "default", "type", "deprecationMessage", "options"}


@dataclass(frozen=True, slots=True)
class Input:
    required: bool
    default: object
    type: str


@dataclass(frozen=True, slots=True)
class Step:
    id: str
    name: str
    condition: str
    uses: str
    run: str
    inputs: Mapping[str, object]
    env: Mapping[str, object]
    shell: str
    working_directory: str
    timeout_minutes: object
    continue_on_error: object

    @property
    def title(self) -> str:
        return self.name or self.uses.partition("@")[0] or self.run.strip().splitlines()[0]


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    name: str
    needs: tuple[str, ...]
    condition: str
    steps: tuple[Step, ...]
    uses: str
    inputs: Mapping[str, object]
    outputs: Mapping[str, str]
    permissions: Mapping[str, str] | None
    env: Mapping[str, object]
    matrix: object
    fail_fast: object
    max_parallel: object
    passes_secrets: bool
    timeout_minutes: object
    continue_on_error: object


@dataclass(frozen=True, slots=True)
class Workflow:
    path: str
    name: str
    events: Mapping[str, Mapping[str, object]]
    inputs: Mapping[str, Input]
    """Of `workflow_call`."""
    outputs: Mapping[str, str]
    permissions: Mapping[str, str] | None
    """None if the file has no such key: the repository's settings then decide."""
    env: Mapping[str, object]
    jobs: Mapping[str, Job]


@dataclass(frozen=True, slots=True)
class Action:
    path: str
    inputs: Mapping[str, Input]
    outputs: Mapping[str, str]
    steps: tuple[Step, ...] = field(default=())


def read_workflow(root: Path, name: str) -> Workflow:
    """`name` is relative to `root`."""
    data = _read(root, name)
    _known(name, data, _WORKFLOW)
    availability.check(name, data, availability.WORKFLOW)
    events = data.get("on")
    if isinstance(events, str):
        events = [events]
    if isinstance(events, list):
        events = dict.fromkeys(events)
    events = {str(event): _event(value) for event, value in _mapping(f"{name}: on", events).items()}
    call = _mapping(f"{name}: on.workflow_call", events.get("workflow_call", {}))
    _known(f"{name}: on.workflow_call", call, {"inputs", "outputs", "secrets"})
    jobs = {
        str(key): _job(f"{name}: jobs.{key}", str(key), value)
        for key, value in _mapping(f"{name}: jobs", data.get("jobs")).items()
    }
    for job in jobs.values():
        for need in job.needs:
            if need not in jobs:
                raise _wrong(f"{name}: jobs.{job.id}.needs", f"one of {', '.join(jobs)}", need)
    if data.get("defaults"):
        raise _wrong(f"{name}: defaults", "none: each step says what it needs", data["defaults"])
    return Workflow(
        path=name,
        name=str(data.get("name", name)),
        events=events,
        inputs=_inputs(f"{name}: on.workflow_call", call.get("inputs")),
        outputs=_output_values(f"{name}: on.workflow_call", call.get("outputs")),
        permissions=_permissions(f"{name}: permissions", data.get("permissions")),
        env=_mapping(f"{name}: env", data.get("env", {})),
        jobs=jobs,
    )


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
    _known(where, data, _ACTION)
    availability.check(where, data, availability.ACTION)
    runs = _mapping(f"{where}: runs", data.get("runs"))
    if runs.get("using") != "composite":
        raise _wrong(f"{where}: runs.using", "composite", runs.get("using"))
    steps = _steps(f"{where}: runs.steps", runs.get("steps"), composite=True)
    outputs = _output_values(where, data.get("outputs"))
    availability.check_step_ids(f"{where}: outputs", outputs, [step.id for step in steps if step.id])
    return Action(path=name, inputs=_inputs(where, data.get("inputs")), outputs=outputs, steps=steps)


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


def _event(value: object) -> object:
    """The settings of an event. Those of `schedule` are a list."""
    return {"schedule": value} if isinstance(value, list) else value or {}


def _job(where: str, key: str, value: object) -> Job:
    data = _mapping(where, value)
    _known(where, data, _JOB)
    strategy = _mapping(f"{where}.strategy", data.get("strategy", {}))
    steps = _steps(f"{where}.steps", data.get("steps", []), composite=False)
    outputs = _mapping(f"{where}.outputs", data.get("outputs", {}))
    availability.check_step_ids(f"{where}.outputs", outputs, [step.id for step in steps if step.id])
    _known(f"{where}.strategy", strategy, {"matrix", "fail-fast", "max-parallel"})
    needs = data.get("needs", [])
    if bool(data.get("uses")) == bool(data.get("steps")):
        raise _wrong(where, "either uses or steps", sorted(data))
    return Job(
        id=key,
        name=str(data.get("name", "")),
        needs=(needs,) if isinstance(needs, str) else tuple(needs),
        condition=_condition(data.get("if", "")),
        steps=steps,
        uses=str(data.get("uses", "")),
        inputs=_mapping(f"{where}.with", data.get("with", {})),
        outputs={str(k): str(v) for k, v in outputs.items()},
        permissions=_permissions(f"{where}.permissions", data.get("permissions")),
        env=_mapping(f"{where}.env", data.get("env", {})),
        matrix=strategy.get("matrix"),
        fail_fast=strategy.get("fail-fast", True),
        max_parallel=strategy.get("max-parallel"),
        passes_secrets="secrets" in data,
        timeout_minutes=data.get("timeout-minutes", 360),
        continue_on_error=data.get("continue-on-error", False),
    )


def _steps(where: str, value: object, *, composite: bool) -> tuple[Step, ...]:
    if not isinstance(value, list):
        raise _wrong(where, "a list of steps", value)
    steps: list[Step] = []
    for number, one in enumerate(value, 1):
        place = f"{where}[{number}]"
        data = _mapping(place, one)
        _known(place, data, _STEP - {"timeout-minutes"} if composite else _STEP)
        if bool(data.get("uses")) == bool(data.get("run")):
            raise _wrong(place, "either uses or run", sorted(data))
        earlier = [step.id for step in steps if step.id]
        rest = {key: each for key, each in data.items() if key != "if"}
        availability.check_step_ids(place, rest, earlier, condition=str(data.get("if", "")))
        if composite and data.get("run") and not data.get("shell"):
            raise _wrong(place, "a shell, as in every step of an action that runs something", sorted(data))
        steps.append(
            Step(
                id=str(data.get("id", "")),
                name=str(data.get("name", "")),
                condition=_condition(data.get("if", "")),
                uses=str(data.get("uses", "")),
                run=str(data.get("run", "")),
                inputs=_mapping(f"{place}.with", data.get("with", {})),
                env=_mapping(f"{place}.env", data.get("env", {})),
                shell=str(data.get("shell", "")),
                working_directory=str(data.get("working-directory", "")),
                timeout_minutes=data.get("timeout-minutes"),
                continue_on_error=data.get("continue-on-error", False),
            )
        )
    named = [step.id for step in steps if step.id]
    for name in named:
        if named.count(name) > 1:
            raise _wrong(where, "each id once", name)
    return tuple(steps)


def _inputs(where: str, value: object) -> dict[str, Input]:
    inputs: dict[str, Input] = {}
    for name, one in _mapping(f"{where}.inputs", value or {}).items():
        data = _mapping(f"{where}.inputs.{name}", one or {})
        _known(f"{where}.inputs.{name}", data, _INPUT)
        inputs[name] = Input(bool(data.get("required")), data.get("default"), str(data.get("type", "string")))
    return inputs


def _output_values(where: str, value: object) -> dict[str, str]:
    return {
        name: str(_mapping(f"{where}.outputs.{name}", one)["value"])
        for name, one in _mapping(f"{where}.outputs", value or {}).items()
    }


LEVELS = ("none", "read", "write")


def _permissions(where: str, value: object) -> dict[str, str] | None:
    if value is None:
        return None
    found = {scope: str(level) for scope, level in _mapping(where, value).items()}
    for scope, level in found.items():
        if level not in LEVELS:
            raise _wrong(f"{where}.{scope}", f"one of {', '.join(LEVELS)}", level)
    return found


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


def _condition(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


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


def _known(where: str, data: Mapping[str, object], known: set[str]) -> None:
    for key in data:
        if key not in known:
            raise _wrong(where, f"one of {', '.join(sorted(known))}", key)


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
