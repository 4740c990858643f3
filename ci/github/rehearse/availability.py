"""The contexts and functions that GitHub allows at each place of a file. It refuses files that use others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ci.github.rehearse import expression
from ci.github.rehearse.expression import FUNCTIONS, STATUS_FUNCTIONS
from provisioning.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file, as a pattern of keys. Lists add no key."""

    keys: str
    contexts: frozenset[str]
    functions: frozenset[str] = frozenset()
    condition: bool = False
    """Whether the value is an expression even without `${{ }}`."""


def _names(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


_RUN = "github inputs vars"
_JOB = f"{_RUN} needs"
_ROW = f"{_JOB} strategy matrix"
_STEP = f"{_ROW} job runner env steps"
_ACTION = "github inputs strategy matrix job runner env steps"
_FILES = frozenset({"hashFiles"})

WORKFLOW = (
    FilePart("run-name", _names(_RUN)),
    FilePart("concurrency*", _names(_RUN)),
    FilePart("env.*", _names(_RUN, "secrets")),
    FilePart("on.workflow_call.inputs.*.default", _names(_RUN)),
    FilePart("on.workflow_call.outputs.*.value", _names(_RUN, "jobs")),
    FilePart("jobs.*.steps.if", _names(_STEP), STATUS_FUNCTIONS | _FILES, condition=True),
    FilePart("jobs.*.steps.*", _names(_STEP, "secrets"), _FILES),
    FilePart("jobs.*.if", _names(_JOB), STATUS_FUNCTIONS, condition=True),
    FilePart("jobs.*.strategy*", _names(_JOB)),
    FilePart("jobs.*.env.*", _names(_ROW, "secrets")),
    FilePart("jobs.*.outputs.*", _names(_STEP, "secrets")),
    FilePart("jobs.*.secrets.*", _names(_ROW, "secrets")),
    FilePart("jobs.*.with.*", _names(_ROW)),
    *(
        FilePart(f"jobs.*.{key}", _names(_ROW))
        for key in (
            "name",
            "runs-on*",
            "concurrency*",
            "environment*",
            "continue-on-error",
            "timeout-minutes",
        )
    ),
)
ACTION = (
    FilePart("inputs.*.default", _names("github strategy matrix job runner"), _FILES),
    FilePart("outputs.*.value", _names(_ACTION)),
    FilePart("runs.steps.if", _names(_ACTION), STATUS_FUNCTIONS | _FILES, condition=True),
    FilePart("runs.steps.*", _names(_ACTION), _FILES),
)


def check(file: str, data: Mapping[str, object], places: tuple[FilePart, ...]) -> None:
    """Raise unless GitHub allows what each expression uses at its place."""
    for keys, text in _texts(data, ""):
        place = next((place for place in places if fnmatchcase(keys, place.keys)), None)
        parts = expression.embedded(text)
        if place is not None and place.condition and not parts:
            parts = [text]
        for part in parts:
            if place is None:
                raise _wrong(file, keys, "no expression", part)
            used = expression.used(expression.parse(part))
            for name in sorted(used.contexts - place.contexts):
                raise _wrong(file, keys, f"one of {', '.join(sorted(place.contexts))}", name)
            known = {name.lower() for name in (*FUNCTIONS, *place.functions)}
            for name in sorted(used.functions):
                if name.lower() not in known:
                    raise _wrong(file, keys, f"one of {', '.join(sorted(known))}", f"{name}()")


def check_step_ids(where: str, value: object, ids: Collection[str], *, condition: str = "") -> None:
    """Raise where an expression names a step that is not among these. GitHub takes its outputs for empty."""
    texts = [text for _, text in _texts(value, "")]
    parts = [part for text in (*texts, condition) for part in expression.embedded(text)]
    if condition and not expression.embedded(condition):
        parts.append(condition)
    for part in parts:
        for name in expression.members(expression.parse(part), "steps"):
            if name.lower() not in {each.lower() for each in ids}:
                raise UsageError(
                    f"{where}: expected the id of an earlier step"
                    f" ({', '.join(ids) or 'there is none'}), found steps.{name}",
                    remedy="correct it: its outputs would be empty",
                )


def _texts(value: object, keys: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield keys, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(one, f"{keys}.{key}".lstrip("."))
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, keys)


def _wrong(file: str, keys: str, expected: str, found: str) -> UsageError:
    return UsageError(
        f"{file}: {keys}: expected {expected}, found {found}", remedy="GitHub refuses it too: correct it"
    )
