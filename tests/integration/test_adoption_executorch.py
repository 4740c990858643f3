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
    permissions: {{contents: read}}
    uses: OWNER/qnn-ci/.github/workflows/gate.yml@COMMIT # VERSION
    with:
      executorch: true
      profile: {profile}
      stages: {stages}
"""


def workflow(stages: str, profile: str) -> dict[str, str]:
    return {".github/workflows/qnn.yml": filled(WORKFLOW.format(stages=stages, profile=profile))}


BESIDE = {
    "backends/transforms": "decompose_sdpa",
    "backends/xnnpack": "xnnpack_backend_static",
    "examples/models/llama/runner": "runner_static",
    "extension/data_loader": "file_data_loader file_data_loader_static",
    "extension/evalue_util": "print_evalue",
    "extension/llm/custom_ops": "model_sharding_py",
    "extension/llm/runner": "stats",
    "extension/module": "module module_static",
    "extension/pybindings": "aten_lib portable_lib",
    "extension/runner_util": "inputs inputs_static",
    "extension/tensor": "tensor tensor_static",
    "extension/threadpool": "threadpool threadpool_static",
    "extension/training/module": "training_module_static",
    "runtime/backend": "interface",
    "runtime/core/exec_aten/util": "scalar_type_util",
    "runtime/executor": "program",
}
"""What a whole checkout has beside the miniature: packages, with the targets that the miniature names."""


@pytest.mark.whole
@pytest.mark.parametrize("forgotten", [False, True])
def test_its_buck_and_cmake_files_are_compared(tmp_path: Path, forgotten: bool) -> None:
    files = miniature_tree.files() | workflow("buck_parity", "wheels")
    for package, names in BESIDE.items():
        files[f"{package}/BUCK"] = "".join(f'filegroup(name = "{name}")\n' for name in names.split())
    targets = "backends/qualcomm/runtime/targets.bzl"
    assert '"backends/lpai/*.cpp",' in files[targets]
    if forgotten:
        files[targets] = files[targets].replace('"backends/lpai/*.cpp",', "")
    with machine(tmp_path / "run", repository(tmp_path / "my-executorch", files)) as github:
        jobs = run_gate(github)
    expected = dict.fromkeys(("plan", "buck-parity", "report", "verdict"), "success")
    if forgotten:
        expected |= dict.fromkeys(("buck-parity", "verdict"), "failure")
        assert any("lpai" in line for line in ANNOTATION.findall(jobs["buck-parity"].log))
    assert results(jobs) == expected, failures(jobs)
