"""A checkout of ExecuTorch gates its own build files and builds with the toolkit's workflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import miniature_tree
from tests.support.examples import filled
from tests.support.repositories import repository
from tests.support.workflows.machine import machine
from tests.support.workflows.run import ANNOTATION, failures, results, run_gate

WORKFLOW = """\
name: QNN
on: [pull_request]
permissions: {{}}
jobs:
  qnn:
    permissions: {{contents: read, actions: read}}
    uses: OWNER/qnn-ci/.github/workflows/gate.yml@COMMIT # VERSION
    with:
      executorch: true
      profile: {profile}
      stages: {stages}
"""


def workflow(stages: str, profile: str) -> dict[str, str]:
    return {".github/workflows/qnn.yml": filled(WORKFLOW.format(stages=stages, profile=profile))}


BESIDE = {
    "backends/transforms/BUCK": "decompose_sdpa",
    "runtime/backend/BUCK": "interface",
    "runtime/core/exec_aten/util/BUCK": "scalar_type_util",
}
"""What a whole checkout has beside the miniature: the package, and the target that the miniature names."""


@pytest.mark.whole
@pytest.mark.parametrize("forgotten", [False, True])
def test_its_buck_and_cmake_files_are_compared(tmp_path: Path, forgotten: bool) -> None:
    files = miniature_tree.files() | workflow("buck_parity", "wheels")
    files |= {path: f'filegroup(name = "{name}")\n' for path, name in BESIDE.items()}
    targets = "backends/qualcomm/runtime/targets.bzl"
    assert '"backends/lpai/*.cpp",' in files[targets]
    if forgotten:
        files[targets] = files[targets].replace('"backends/lpai/*.cpp",', "")
    with machine(tmp_path / "run", repository(tmp_path / "my-executorch", files)) as github:
        jobs = run_gate(github)
    names = ("plan", "buck-parity", "verdict")
    expected = dict.fromkeys(names, "success")
    if forgotten:
        expected |= dict.fromkeys(names[1:], "failure")
        assert any("lpai" in line for line in ANNOTATION.findall(jobs["buck-parity"].log))
    assert results(jobs) == expected, failures(jobs)
