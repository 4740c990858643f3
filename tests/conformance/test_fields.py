"""Each field of a case and of a run says whether a result depends on it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from ci.lanes.registry import lane_named
from ci.work.request import key_of, sent_request
from ci.work.results import CachedResults
from provisioning.base.option_fields import declared_options, suite_names
from tests.conformance.examples import Example, Folder

PARTS = ("case", "run")


def asked(example: Example, folder: Folder, program: Any) -> tuple[Any, Any, Any]:
    """The key of the first step, and what the processes get that build the model and that work on it."""
    step = next(iter(example.steps(folder, program)))
    export = step.export(program) if step.export else None
    request = step.request(program)
    key = key_of(request, CachedResults(folder.selection.store, "any").digest)
    return json.loads(json.dumps(key)), export and export.request, sent_request(request)


def test_every_field_has_another_value_to_try(example: Example, folder: Folder) -> None:
    program = example.program(folder)
    assert {*example.case} == {*type(program.case).model_fields} - {"runs"}
    assert {*example.run} == {*type(program.run).model_fields}


@pytest.mark.parametrize("part", PARTS)
def test_another_value_of_a_field_that_the_work_gets_gives_another_key(
    example: Example, folder: Folder, part: str
) -> None:
    program = example.program(folder)
    key, export, request = asked(example, folder, program)
    for field, value in getattr(example, part).items():
        assert getattr(getattr(program, part), field) != value
        copy = getattr(program, part).model_copy(update={field: value})
        changed: Any = replace(program, **{part: copy})
        other_key, other_export, other_request = asked(example, folder, changed)
        if field in copy.judged_later:
            assert key == other_key, f"{field} is judged later, and its change runs again"
        elif field in copy.of_model:
            assert export != other_export, f"no export gets {field}"
        elif request != other_request:
            assert key != other_key, f"the work gets {field}, and its result does not depend on it"


def test_a_program_for_another_chip_has_another_key(example: Example, folder: Folder) -> None:
    program = example.program(folder)
    other = replace(program, soc="SM8850")
    assert asked(example, folder, program)[0] != asked(example, folder, other)[0]


@pytest.mark.parametrize("part", PARTS)
def test_what_an_option_says_a_suite_says_by_a_field_of_the_same_default(
    example: Example, lane: str, part: str
) -> None:
    row = lane_named(lane)
    if row.load_options is None or (lane, part) == ("llm", "case"):
        # A checkpoint is no case of a suite: its shipped suite trains a small one.
        return
    form: type[BaseModel] = {"case": example.suites.case, "run": example.suites.run}[part]
    known = form.model_fields
    absent = {*suite_names(row.options, part)} - {*known}
    assert not absent, f"a {part} of lane {lane} lacks these fields, which options of its models name"
    for option in declared_options(row.options).values():
        place, _, name = option.suite.partition(".")
        if place == part and name in known and option.default and not known[name].is_required():
            assert known[name].default == option.default
