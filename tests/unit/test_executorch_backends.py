"""Programs for the LPAI: what is refused before any work, and what a suite may say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.lanes.executorch.findings import accuracy_in_torch, only_library_missing
from ci.lanes.executorch.steps import refusals
from ci.lanes.executorch.suite import Backend, ExecutorchCase, ExecutorchProgram
from ci.suite.suite_file import Thresholds
from provisioning.base.findings import Finding, Severity


def case_of(run: dict[str, object] | None = None, backend: str = "lpai", **more: object) -> ExecutorchCase:
    row = {"precision": "8a8w", "socs": ["SM8850"], **(run or {})}
    return ExecutorchCase.model_validate_json(
        json.dumps({"factory": "m:f", "backend": backend, "run": [row], **more})
    )


def program(soc: str, backend: Backend) -> ExecutorchProgram:
    case = case_of({"precision": "8a8w" if backend == "lpai" else "fp16", "backend": backend}, "htp")
    return ExecutorchProgram(Path("suite.toml"), "net", case, case.runs[0], soc)


@pytest.mark.parametrize(
    ("soc", "backend", "rule", "words"),
    [
        ("SM8850", "lpai", "", ""),
        ("SM8650", "lpai", "lpai-soc", "SAR2230P, SM8850"),
        ("SM8650", "htp", "", ""),
        ("CQ8725S", "htp", "lowering-soc", "CQ8725S"),
    ],
)
def test_what_no_compile_could_make_is_refused_first(
    tmp_path: Path, soc: str, backend: Backend, rule: str, words: str
) -> None:
    found = [
        finding
        for _, finding in refusals(
            [program(soc, backend)], tmp_path, "v2.49.40", {"SM8850", "SM8650", "SM8750"}
        )
    ]
    assert [finding.rule for finding in found] == ([rule] if rule else [])
    assert all(words in finding.message and finding.severity is Severity.ERROR for finding in found)


@pytest.mark.parametrize(
    "run",
    [
        {"precision": "fp16"},
        {"cpu_nodes": ["aten_add"]},
        {"cpu_budget": 1},
        {"delegates": 2},
        {"thresholds": Thresholds(sqnr_db=20, reference_sqnr_db=20).model_dump(exclude_none=True)},
    ],
)
def test_a_suite_cannot_ask_of_the_lpai_what_it_does_not_do(run: dict[str, object]) -> None:
    case_of(run, backend="htp")
    with pytest.raises(ValueError, match="LPAI"):
        case_of(run)


@pytest.mark.parametrize(("sqnr_db", "rules"), [(19.0, ["lpai-accuracy"]), (21.0, [])])
def test_a_program_for_the_lpai_is_held_to_its_thresholds_in_pytorch(
    sqnr_db: float, rules: list[str]
) -> None:
    case = case_of({"thresholds": {"sqnr_db": 20.0}})
    row = ExecutorchProgram(Path("suite.toml"), "net", case, case.runs[0], "SM8850")
    assert [finding.rule for finding in accuracy_in_torch(row, {"sqnr_db": sqnr_db})] == rules


def test_an_inaccurate_model_is_an_error_of_the_model_even_where_the_library_lacks() -> None:
    lacks = Finding("lpai-library", Severity.ERROR, "net", "", "")
    note = Finding("accuracy-usual", Severity.WARNING, "net", "", "")
    assert only_library_missing([lacks, note])
    assert not only_library_missing([lacks, Finding("lpai-accuracy", Severity.ERROR, "net", "", "")])
    assert not only_library_missing([note])
