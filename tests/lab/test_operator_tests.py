"""`operator_tests`: operators measured by the installed executorch on the emulator, as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.operators.table import key_of, names_of
from lab.operators.records import MeasuredTest, load_record
from lab.operators.suites import SUITES
from lab.operators.tests_verb import NAMES
from lab.operators.value_cases import cases, chains
from provisioning.base.findings import Report
from provisioning.base.settings import ROOT
from tests.support.runner import dist, file_store, runner_reports
from tests.support.sdk import sdk_root

__all__ = ["dist", "file_store", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600), pytest.mark.usefixtures("file_store")]


NAMED = """
import json
import executorch.backends.qualcomm.builders
from executorch.backends.qualcomm.builders import node_visitor_manager
from executorch.backends.qualcomm.partition import common_defs

listed = [operator for row in vars(common_defs).values() if isinstance(row, list) for operator in row]
names = [*node_visitor_manager._node_visitor_dict, *(operator.__name__ for operator in listed)]
print(json.dumps(names))
"""
"""Prints the operators that the partitioner knows: with a builder, or in one of its lists."""


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lab", "operator_tests", *words, "--reports", str(folder / "reports")]
    # The laboratory's tests begin without the user's variables.
    environment = {**os.environ, "QNN_SDK_ROOT": str(sdk_root())}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def recorded(base: Path, suite: str) -> Mapping[str, MeasuredTest]:
    """What a run measured of a suite."""
    return load_record(base / f"reports/operators/{suite}-SM8650.json").tests


@pytest.mark.whole
def test_an_operator_is_measured_and_a_second_run_is_cached(tmp_path: Path) -> None:
    words = ["operators", "-k", "test_abs.test_abs_shapes", "--flow", "8a8w"]
    for cached in (0, 1):
        done = typed(tmp_path, *words)
        report = Report.read(tmp_path / "reports" / "operator_tests.json")
        assert (done.returncode, report.metrics["passed"], report.metrics["cached"]) == (0, 1, cached)
    (measured,) = recorded(tmp_path, "operators").values()
    assert {part.result for part in measured.parts} == {"whole"} and len(measured.parts) >= 3
    assert all((part.sqnr_db or 0) > 40 for part in measured.parts)


@pytest.mark.long("imports ExecuTorch's partitioner")
def test_every_operator_that_the_partitioner_names_has_a_row_and_a_chain() -> None:
    """By the wheel's own lists. Quantizing adds the rest to any model."""
    asked = subprocess.run([sys.executable, "-c", NAMED], capture_output=True, text=True, check=True)
    named = set(json.loads(asked.stdout.splitlines()[-1]))
    rows = {name for case in chains() for name in names_of(case.operator)}
    of_every_model = ("quantized_decomposed.", "getitem")
    missing = {
        name
        for name in named
        if not name.startswith(of_every_model) and key_of(name.removeprefix("dim_order_ops.")) not in rows
        if key_of(name.removeprefix("qnn_custom.")) not in rows
    }
    assert len(named) > 100 and missing == set()
    assert {case.operator for case in chains()} >= {case.operator for case in cases()}


def test_the_command_line_names_every_suite() -> None:
    assert set(NAMES) == set(SUITES)
