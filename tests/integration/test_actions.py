"""The examples of the actions' READMEs, run in another repository's job."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from provisioning.manifest import load_profile
from tests.support.examples import example
from tests.support.repositories import repository
from tests.support.workflows.machine import machine
from tests.support.workflows.run import JobResult, run_steps

ACTIONS = ROOT / ".github" / "actions"

CHECKOUT = """
- uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2
  with:
    persist-credentials: false
"""
OUTPUTS = """
- run: echo "QNN $VERSION ($BUILD_ID), NDK $NDK, cached $CACHED"
  env:
    VERSION: ${{ steps.qnn.outputs.version }}
    BUILD_ID: ${{ steps.qnn.outputs.build-id }}
    NDK: ${{ steps.qnn.outputs.ndk-root }}
    CACHED: ${{ steps.qnn.outputs.cache-hit }}
"""
STAGE = """
- id: stage
  uses: somebody/qnn-ci/.github/actions/run-stage@0123456789abcdef0123456789abcdef01234567 # v0.1.0
  with:
    stage: validate
    artifact: my-reports
- run: test "$OUTCOME" = pass && test -f "$REPORT"
  env:
    OUTCOME: ${{ steps.stage.outputs.outcome }}
    REPORT: ${{ steps.stage.outputs.report }}
"""
EXPORT = """
import os, pathlib, sys
sdk = pathlib.Path(sys.argv[sys.argv.index("--sdk") + 1])
host = sdk / "lib" / "x86_64-linux-clang"
assert pathlib.Path(os.environ["QNN_SDK_ROOT"]) == sdk
assert str(host) in os.environ["LD_LIBRARY_PATH"].split(":")
print("exported with", (host / "libQnnHtp.so").stat().st_size > 0, os.environ["QNN_CI_SOC"])
"""


def run(scratch: Path, steps: str) -> JobResult:
    workflow = "on: [pull_request]\npermissions: {}\njobs:\n  job:\n    runs-on: ubuntu-24.04\n    steps:\n"
    root = repository(
        scratch / "app",
        {".github/workflows/app.yml": workflow + textwrap.indent(steps, "      "), "export.py": EXPORT},
    )
    with machine(scratch / "run", root) as github:
        return run_steps(github)


@pytest.mark.whole
@pytest.mark.heavy
def test_later_steps_have_the_environment_and_the_outputs_and_a_stage_its_reports(tmp_path: Path) -> None:
    """setup-qnn's example, and a stage after it."""
    steps = example(ACTIONS / "setup-qnn" / "README.md", "- id: qnn\n")
    done = run(tmp_path, CHECKOUT + steps + OUTPUTS + STAGE)
    assert done.result == "success", done.log[-4000:]
    log = done.log
    assert "exported with True SM8650,SM8750" in log
    pin = {str(name): component for name, component in load_profile("wheels").components.items()}["qnn-sdk"]
    assert f"QNN {pin.version} ({pin.build_id}), NDK , cached false" in log
    assert "files as my-reports" in log and "## ✅ 1 stage passed" in log


@pytest.mark.whole
def test_nox_alone_can_be_had(tmp_path: Path) -> None:
    steps = example(ACTIONS / "setup-nox" / "README.md", "- uses: ")
    done = run(tmp_path, steps + "- run: nox --version\n")
    assert done.result == "success", done.log[-4000:]
