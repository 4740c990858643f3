"""Another repository gates its own models with the workflow that the README shows."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from textwrap import indent

import pytest

from provisioning.base.settings import ROOT
from tests.support.examples import example
from tests.support.repositories import repository
from tests.support.scripts import locked_environment
from tests.support.sdk import sdk_root
from tests.support.workflows.machine import machine
from tests.support.workflows.run import ANNOTATION, JobRun, failures, results, run_gate

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
    """A repository with a suite, and the README's workflow, with a few lines more."""
    more = "      comment: true\n      variables: SIZE=small\n      prepare: echo prepared ci/*\n"
    workflow = example(ROOT / "README.md", "name: QNN\n") + more
    return repository(folder, {".github/workflows/qnn.yml": workflow, "ci/models.toml": SUITE})


STAND_IN = """\
case "$*" in
  "-m ci gate "*)
    shift 3
    echo "the gate of $QNN_CI_SOC: $*"
    echo "a model of size $SIZE"
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
        "report": "success",
        "verdict": "failure",
    }, failures(jobs)
    assert re.search(r"uploaded 1 files as qnn-ci-comment-reports-wheels-models-\w{8}", jobs["report"].log)
    log = jobs["programs"].log
    assert "prepared ci/models.toml" in log and "a model of size small" in log
    assert "the gate of SM8650,SM8750: --target x86_64-linux --suite ci/models.toml" in log
    (error,) = [line for line in ANNOTATION.findall(log) if line.startswith("::error")]
    assert "fails-one" in error and "subject" in error
    assert re.search(r"files as reports-wheels-models-\w{8}-programs", log)


NET = """\
import torch
def net():
    return torch.nn.Linear(4, 4), lambda generator: (torch.rand(1, 4, generator=generator),)
"""

FIVE_LINES = """\
name: QNN
on: [pull_request]
permissions: {}
jobs:
  qnn:
    runs-on: ubuntu-24.04
    permissions: {contents: read}
    steps:
"""


def test_the_five_line_action_gates_two_suites_of_one_job(tmp_path: Path) -> None:
    first = example(ROOT / "docs" / "github.md", "- uses: actions/checkout")
    *_, uses, _, suite = first.splitlines()
    assert suite.strip() == "suite: ci/models.toml"
    second = "\n".join([uses, "  if: ${{ !cancelled() }}", "  with:", "    suite: other/models.toml"])
    files = {
        ".github/workflows/qnn.yml": FIVE_LINES + indent(first + second, " " * 6),
        "ci/models.toml": SUITE,
        "ci/net.py": NET,
        "other/models.toml": SUITE.replace("cosine = 0.99", "sqnr_db = 200.0").replace(
            "case.net", "case.another"
        ),
        "other/net.py": NET,
    }
    env = stand_ins(tmp_path) | {"QNN_SDK_ROOT": str(sdk_root())}
    with machine(tmp_path / "run", repository(tmp_path / "models", files), env=env) as github:
        job = JobRun(github, github.own, ".github/workflows/qnn.yml", "qnn").run()
        found = sorted((github.folder / "artifacts").glob("*/test_emulator.json"))
        reports = [json.loads(file.read_text(encoding="utf-8")) for file in found]
    rows = {
        name: row["verdict"]
        for report in reports
        for name, row in report["metrics"].get("programs", {}).items()
    }
    # Each suite is the workspace's, and has an artifact of its own.
    assert rows == {"net/fp16/SM8550": "pass", "another/fp16/SM8550": "fail"}, job.log[-4000:]
    assert job.result == "failure"
