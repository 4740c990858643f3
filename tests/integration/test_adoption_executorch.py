"""A checkout of ExecuTorch gates its own build files and builds with the toolkit's workflow."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import miniature_tree
from tests.support.examples import filled
from tests.support.miniature_executorch import make_sdk, make_tree
from tests.support.repositories import IDENTITY, repository
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


@pytest.mark.whole
@pytest.mark.needs("aarch64-linux-gnu-g++")
def test_its_tree_is_built_with_the_sdk_of_the_job(tmp_path: Path) -> None:
    root, sdk = make_tree(tmp_path, name="fork"), make_sdk(tmp_path / "sdk")
    for name, text in workflow("build_linux_arm64", "qnn-2.37").items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text, encoding="utf-8")
    for command in (["add", "-A"], [*IDENTITY, "commit", "-qm", "Gate"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    with machine(tmp_path / "run", root, env={"QNN_SDK_ROOT": str(sdk)}) as github:
        jobs = run_gate(github)
    names = ("plan", "build-linux-arm64", "verdict")
    assert results(jobs) == dict.fromkeys(names, "success"), failures(jobs)
