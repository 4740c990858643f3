"""Workflow files are read strictly: what would not be honoured is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.github.rehearse.model import (
    Input,
    allowed_in,
    check_permissions,
    complete_inputs,
    matrix_rows,
    read_action,
    read_workflow,
)
from provisioning.base.errors import UsageError

STEP = "steps: [{run: 'true'}]"


def workflow(tmp_path: Path, text: str) -> Path:
    (tmp_path / "w.yml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"on: push\njobs: {{a: {{{STEP}, containr: x}}}}", "containr"),
        (f"on: push\njobs: {{a: {{needs: b, {STEP}}}}}", "found b"),
        (f"on: push\njobs: {{a: {{{STEP}, uses: ./x}}}}", "either uses or steps"),
        ("on: push\njobs: {a: {steps: [{id: x, run: a}, {id: x, run: b}]}}", "each id once"),
        (f"on: push\ndefaults: {{run: {{shell: sh}}}}\njobs: {{a: {{{STEP}}}}}", "defaults"),
        ("on: push\njobs: {a: {steps: [{run: '${{ steps.z.outputs.x }}'}]}}", "steps.z"),
        ("on: push\njobs: {a: {steps: [{if: steps.b.outcome, run: a}, {id: b, run: b}]}}", "steps.b"),
        (f"on: push\njobs: {{a: {{outputs: {{x: '${{{{ steps.z.outputs.x }}}}'}}, {STEP}}}}}", "steps.z"),
        ("on: [", "no YAML"),
        (f"on: {{workflow_call: {{inputs: {{a: {{tpye: x}}}}}}}}\njobs: {{a: {{{STEP}}}}}", "tpye"),
        ("on: push\njobs: [a]", "jobs"),
        (f"on: push\npermissions: {{contents: all}}\njobs: {{a: {{{STEP}}}}}", "permissions.contents"),
    ],
)
def test_what_would_not_be_honoured_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_workflow(workflow(tmp_path, text), "w.yml")
    assert says in caught.value.message


WHOLE = """
on:
  push:
  schedule: [{cron: 0 1 * * *}]
  workflow_call:
    inputs:
      n: {type: number}
      bare:
      flag: {type: boolean, default: true}
      text: {required: true}
    outputs:
      made: {value: "${{ jobs.a.outputs.x }}"}
permissions: {contents: read}
jobs:
  a:
    strategy: {matrix: {x: [1]}}
    timeout-minutes: 5
    steps:
      - {run: "first line\\nsecond"}
      - {uses: o/r@v1, continue-on-error: true, timeout-minutes: 3, if: false}
  b: {needs: a, permissions: {}, uses: ./b.yml}
"""


def test_a_workflow_is_read_as_it_is_written(tmp_path: Path) -> None:
    read = read_workflow(workflow(tmp_path, WHOLE), "w.yml")
    assert list(read.events) == ["push", "schedule", "workflow_call"]
    assert read.inputs == {
        "n": Input(required=False, default=None, type="number"),
        "bare": Input(required=False, default=None, type="string"),
        "flag": Input(required=False, default=True, type="boolean"),
        "text": Input(required=True, default=None, type="string"),
    }
    assert read.outputs == {"made": "${{ jobs.a.outputs.x }}"}
    a, b = read.jobs["a"], read.jobs["b"]
    assert (a.strategy.matrix, a.strategy.fail_fast, a.timeout_minutes) == ({"x": [1]}, True, 5)
    assert (b.needs, b.uses, b.timeout_minutes) == (("a",), "./b.yml", 360)
    assert [allowed_in(read, job) for job in (a, b)] == [{"contents": "read"}, {}]
    assert [
        (step.title, step.timeout_minutes, step.continue_on_error, step.condition) for step in a.steps
    ] == [
        ("first line", None, False, ""),
        ("o/r", 3, True, "false"),
    ]


@pytest.mark.parametrize("name", ["action.yml", "action.yaml"])
def test_an_action_has_inputs_outputs_and_steps(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(
        "inputs: {a: {required: true}}\n"
        "outputs: {b: {value: '${{ steps.s.outputs.b }}'}}\n"
        "runs: {using: composite, steps: [{id: s, shell: sh, run: x}]}"
    )
    action = read_action(tmp_path, ".")
    assert action.inputs == {"a": Input(required=True, default=None, type="string")}
    assert action.outputs == {"b": "${{ steps.s.outputs.b }}"}
    assert [(step.id, step.shell) for step in action.steps] == [("s", "sh")]


def test_only_composite_actions_are_run(tmp_path: Path) -> None:
    (tmp_path / "action.yml").write_text("runs: {using: node20, main: x.js}")
    with pytest.raises(UsageError, match="composite', found 'node20"):
        read_action(tmp_path, ".")


@pytest.mark.parametrize(
    ("matrix", "rows"),
    [
        ({"a": [1, 2]}, [{"a": 1}, {"a": 2}]),
        ({"include": [{"x": 1}, {"x": 2}]}, [{"x": 1}, {"x": 2}]),
        ({"a": [1, 2], "exclude": [{"a": 1}]}, [{"a": 2}]),
        ({"a": [1, 2], "include": [{"a": 1, "b": 3}]}, [{"a": 1, "b": 3}, {"a": 2}]),
        ({"a": [1], "include": [{"c": 5}, {"a": 9}]}, [{"a": 1, "c": 5}, {"a": 9}]),
        ({"a": [1, 2], "b": ["x"]}, [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]),
    ],
)
def test_a_matrix_has_githubs_combinations(matrix: object, rows: list[object]) -> None:
    assert matrix_rows(matrix) == rows


DECLARED = {
    "need": Input(required=True, default=None, type="string"),
    "flag": Input(required=False, default=None, type="boolean"),
    "n": Input(required=False, default=3, type="number"),
    "m": Input(required=False, default=None, type="number"),
}


@pytest.mark.parametrize("given", [{}, {"need": "a", "other": 1}, {"need": "a", "flag": "true"}])
def test_inputs_that_do_not_fit_are_errors(given: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        complete_inputs("x", DECLARED, given, typed=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("env: {T: '${{ runner.temp }}'}\njobs: {a: {steps: [{run: x}]}}", "env.T: expected"),
        ("concurrency: '${{ matrix.x }}'\njobs: {a: {steps: [{run: x}]}}", "found matrix"),
        ("jobs: {a: {if: matrix.x, steps: [{run: x}]}}", "jobs.a.if: expected"),
        ("jobs: {a: {steps: [{if: secrets.X != '', run: x}]}}", "found secrets"),
        ("jobs: {a: {steps: [{run: 'x ${{ success() }}'}]}}", "found success()"),
        ("jobs: {a: {permissions: {contents: '${{ inputs.x }}'}, steps: [{run: x}]}}", "no expression"),
    ],
)
def test_an_expression_where_github_has_no_such_context_is_refused(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_workflow(workflow(tmp_path, f"on: push\n{text}"), "w.yml")
    assert says in caught.value.message


CALLED = "on: workflow_call\npermissions: {}\njobs: {x: {permissions: {contents: read}, steps: [{run: x}]}}"


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        ({"contents": "read"}, False),
        ({"contents": "write"}, False),
        (None, False),
        ({}, True),
        ({"actions": "read"}, True),
    ],
)
def test_a_called_workflow_may_not_do_more_than_its_caller(
    tmp_path: Path, allowed: dict[str, str] | None, refused: bool
) -> None:
    called = read_workflow(workflow(tmp_path, CALLED), "w.yml")
    if not refused:
        check_permissions("here", allowed, called)
        return
    with pytest.raises(UsageError, match=r"permissions\.contents: expected read.* found none"):
        check_permissions("here", allowed, called)
