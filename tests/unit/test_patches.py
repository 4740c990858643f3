"""Tests give the product what it works with as arguments. What is replaced in it instead is named here, with
the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from provisioning.base.settings import ROOT
from tests.support.sources import OURS, nodes

PLANTED = "a fault is planted in our own code, and must be found"
PROCESS = "it stands in for a process: a worker, Genie, a download"
SHORTER = "a limit is made small, so that reaching it takes no minutes"
SHIPPED = "what is shipped lies in one place, which no flag and no variable may move"
ELSEWHERE = "what a stand-in of ExecuTorch lacks is left out"

REGISTERED = "a toy lane is registered, as a new lane would be"

REASONS = {
    "conformance/conftest.py": REGISTERED,
    "conformance/examples.py": PROCESS,
    "integration/test_build_wheel.py": PROCESS,
    "integration/test_compile.py": PROCESS,
    "integration/test_content.py": PROCESS,
    "integration/test_executorch_work.py": PROCESS,
    "integration/test_llm.py": PLANTED,
    "integration/test_making_environments.py": "uv is taken away where it is installed",
    "integration/test_outdated.py": PROCESS,
    "integration/test_pytest_plugin.py": PROCESS,
    "integration/test_rewrites.py": PLANTED,
    "support/own_manifests.py": SHIPPED,
    "unit/test_operator_advice.py": SHIPPED,
    "unit/test_api.py": PROCESS,
    "unit/test_archive.py": SHORTER,
    "unit/test_build.py": "CMake's answer of a configured project is written by hand",
    "unit/test_build_tools.py": SHORTER,
    "unit/test_cli.py": SHORTER,
    "unit/test_distributions.py": "it is counted how often a file is read, which no result shows",
    "unit/test_doors.py": SHORTER,
    "unit/test_foreign.py": SHORTER,
    "unit/test_keys.py": SHIPPED,
    "unit/test_llm.py": PROCESS,
    "unit/test_lowering_judge.py": PROCESS,
    "unit/test_onnx_commands.py": PROCESS,
    "unit/test_onnx_model_file.py": PLANTED,
    "unit/test_onnx_stage.py": PROCESS,
    "unit/test_printed_commands.py": "whether this is a clone is known to the process alone",
    "unit/test_cause.py": "a search for a cause answers at once",
    "unit/test_results.py": "a disk without room, a time long ago, mounts, and a toolkit of four files",
    "unit/test_upstream_verdicts.py": PROCESS,
    "unit/test_work.py": SHORTER,
}


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


def replaced(file: Path) -> Iterator[str]:
    """What of ours the file sets, as it names it."""
    own = {
        alias.asname or alias.name
        for node in nodes(file)
        if isinstance(node, ast.ImportFrom) and is_ours(node.module or "")
        for alias in node.names
    }
    for node in nodes(file):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "setattr"
        ):
            target = node.args[0]
            named = target.value if isinstance(target, ast.Attribute) else target
            if isinstance(named, ast.Name) and named.id in own:
                yield ast.unparse(target)
            if isinstance(target, ast.Constant) and is_ours(str(target.value)):
                yield str(target.value)


def test_what_tests_replace_in_the_product_has_a_reason() -> None:
    tests = ROOT / "tests"
    files = [file for file in tests.rglob("*.py") if ".setattr(" in file.read_text(encoding="utf-8")]
    found = {file.relative_to(tests).as_posix(): [*replaced(file)] for file in files}
    assert {name for name, targets in found.items() if targets} == REASONS.keys(), found
