"""Another repository gates its own models with the workflow that the README shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from tests.support.examples import example
from tests.support.repositories import repository
from tests.support.scripts import locked_environment
from tests.support.workflows.machine import machine
from tests.support.workflows.run import ANNOTATION, failures, results, run_gate

pytestmark = pytest.mark.heavy

SUITE = """\
schema = 2
[case.net]
factory = "net:net"

[[case.net.run]]
lane = "executorch"
precision = "fp16"
socs = ["SM8550"]
tags = ["pr"]
thresholds = { cosine = 0.99 }
"""


def adopter(folder: Path) -> Path:
    """A repository with a suite, and the README's workflow, with one line more."""
    workflow = example(ROOT / "README.md", "name: QNN\n") + "      comment: true\n"
    return repository(folder, {".github/workflows/qnn.yml": workflow, "ci/models.toml": SUITE})


STAND_IN = """\
case "$*" in
  "-m ci gate "*)
    shift 3
    echo "the gate of $QNN_CI_SOC: $*"
    exec "{python}" -m tests.support.gate_stage gate {stages} --reports "$QNN_CI_REPORTS" "$@" ;;
esac
exec "{python}" "$@"
"""
"""This Python for all sessions of the jobs; the session `gate` has stages that take no time."""


def stand_ins(tmp_path: Path, *stages: str) -> dict[str, str]:
    """The environment of jobs whose gate has these stages."""
    environments, sdk = tmp_path / "environments", tmp_path / "hollow"
    program = STAND_IN.format(python=sys.executable, stages=" ".join(stages))
    for lock in (ROOT / "manifests" / "locks").glob("*.txt"):
        locked_environment(environments, lock.stem, program)
    (sdk / "include" / "QNN").mkdir(parents=True)
    (sdk / "include" / "QNN" / "QnnCommon.h").write_text("#define QNN_API_VERSION_MAJOR 2\n")
    return {"QNN_CI_ENVIRONMENTS": str(environments), "QNN_SDK_ROOT": str(sdk)}


def test_the_readmes_ten_lines_hand_the_suite_to_a_gate_that_decides_the_pull_request(tmp_path: Path) -> None:
    env = stand_ins(tmp_path, "passes-one", "fails-one")
    with machine(tmp_path / "run", adopter(tmp_path / "models"), env=env) as github:
        jobs = run_gate(github)
    assert results(jobs) == {
        "plan": "success",
        "programs": "failure",
        "changes": "success",
        "verdict": "failure",
    }, failures(jobs)
    assert "uploaded 1 files as qnn-ci-comment" in jobs["changes"].log
    log = jobs["programs"].log
    assert "the gate of SM8650,SM8750: --target x86_64-linux --suite ../source/ci/models.toml" in log
    (error,) = [line for line in ANNOTATION.findall(log) if line.startswith("::error")]
    assert "fails-one" in error and "subject" in error
    assert re.search(r"files as reports-wheels-models-\w{8}-programs", log)
