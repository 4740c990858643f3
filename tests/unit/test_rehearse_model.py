"""Workflow files are read strictly: what would not be honoured is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.github.rehearse.model import (
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
        (f"on: push\njobs: {{a: {{needs: b, {STEP}}}}}", "found b"),
        (f"on: push\ndefaults: {{run: {{shell: sh}}}}\njobs: {{a: {{{STEP}}}}}", "defaults"),
        ("on: push\njobs: {a: {steps: [{run: '${{ steps.z.outputs.x }}'}]}}", "steps.z"),
        ("on: push\njobs: {a: {steps: [{if: steps.b.outcome, run: a}, {id: b, run: b}]}}", "steps.b"),
        (f"on: push\njobs: {{a: {{outputs: {{x: '${{{{ steps.z.outputs.x }}}}'}}, {STEP}}}}}", "steps.z"),
        (f"on: {{workflow_call: {{inputs: {{a: {{tpye: x}}}}}}}}\njobs: {{a: {{{STEP}}}}}", "tpye"),
    ],
)
def test_what_would_not_be_honoured_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_workflow(workflow(tmp_path, text), "w.yml")
    assert says in caught.value.message


def test_only_composite_actions_are_run(tmp_path: Path) -> None:
    (tmp_path / "action.yml").write_text("runs: {using: node20, main: x.js}")
    with pytest.raises(UsageError, match="composite', found 'node20"):
        read_action(tmp_path, ".")


@pytest.mark.parametrize(
    ("matrix", "rows"),
    [
        ({"a": [1, 2], "exclude": [{"a": 1}]}, [{"a": 2}]),
        ({"a": [1, 2], "include": [{"a": 1, "b": 3}]}, [{"a": 1, "b": 3}, {"a": 2}]),
        ({"a": [1], "include": [{"c": 5}, {"a": 9}]}, [{"a": 1, "c": 5}, {"a": 9}]),
        ({"a": [1, 2], "b": ["x"]}, [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]),
    ],
)
def test_a_matrix_has_githubs_combinations(matrix: object, rows: list[object]) -> None:
    assert matrix_rows(matrix) == rows
