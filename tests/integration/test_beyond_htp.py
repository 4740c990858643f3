"""What executorch and QNN make here that does not run here. Our messages rest on these answers."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.diagnosis import explain
from tests.support.runner import Bench, dist, runner_reports
from tests.support.sdk import qnn_environment, sdk_root

__all__ = ["dist", "runner_reports"]
pytestmark = pytest.mark.heavy

LOWER = """\
import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils
from executorch.exir import ExecutorchBackendConfig

net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
one, four = (torch.ones(1, 8),), (torch.ones(4, 8),)

def spec(shared=False, online=False):
    options = utils.generate_htp_compiler_spec(use_fp16=True, use_weight_sharing=shared)
    return utils.generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset.SM8850, backend_options=options, online_prepare=online
    )

def save(name, model, inputs, specs):
    edge = utils.to_edge_transform_and_lower_to_qnn(model, inputs, specs)
    program = edge.to_executorch(ExecutorchBackendConfig(segment_alignment=4096))
    open(f"{name}.pte", "wb").write(program.buffer)

shared = {name: spec(shared=True) for name in ("one", "four")}
save("shared", {"one": net, "four": net}, {"one": one, "four": four}, shared)
save("online", net, one, spec(online=True))
"""


def test_no_library_for_the_lpai_or_the_cpu_is_in_the_wheels() -> None:
    names = {path.name for path in (sdk_root() / "lib" / "x86_64-linux-clang").iterdir()}
    assert "libQnnGpu.so" in names and not {"libQnnLpai.so", "libQnnCpu.so"} & names


@pytest.mark.whole
def test_programs_of_two_graphs_and_of_none_yet_compile_and_do_not_run_here(
    tmp_path: Path, dist: Path
) -> None:
    environ = qnn_environment()
    subprocess.run([sys.executable, "-c", LOWER], cwd=tmp_path, env=environ, timeout=600, check=True)
    (tmp_path / "one.raw").write_bytes(struct.pack("8f", *[1.0] * 8))
    (tmp_path / "list.txt").write_text("one.raw\n")
    bench = Bench(dist / "bin" / "qnn_executor_runner", tmp_path)
    answers = {
        "shared": (40, "shared-weights", ["--method_index", "1"]),
        "online": (51, "context-binary-unreadable", []),
    }
    for name, (code, known, method) in answers.items():
        flags = ("--model_path", f"{name}.pte", "--input_list_path", "list.txt", "--output_folder_path", name)
        ran = bench.run(*flags, *method, environ=environ)
        assert (ran.code, explain(ran.out + ran.err)[0].id) == (code, known), ran.err
        assert not list((tmp_path / name).glob("*.raw"))
