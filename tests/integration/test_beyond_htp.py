"""What else executorch and QNN make here than programs for the emulator: the real libraries' answers.

Our messages rest on these answers. Where a newer QNN answers otherwise, they are to be written anew."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.diagnosis import explain
from provisioning.base.settings import ROOT
from tests.support.onnx_models import conv_model, write
from tests.support.runner import Bench, dist, runner_reports
from tests.support.sdk import qnn_environment, sdk_root
from tests.support.typed import typed

__all__ = ["dist", "runner_reports"]
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    return qnn_environment()


def lowered(folder: Path, environ: dict[str, str], *names: str) -> dict[str, str]:
    """What was printed for each of the rows; programs are in the folder, as is what QNN leaves behind."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.beyond_htp", str(folder), *names],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    texts = re.split(r"^== (\w+)$", done.stdout, flags=re.MULTILINE)[1:]
    return dict(zip(texts[::2], texts[1::2], strict=True))


@pytest.mark.whole
def test_what_executorch_cannot_lower_here_it_says_in_these_words(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    logs = lowered(tmp_path, environ, "gpu", "lpai", "dynamic")

    assert "(10008)" in logs["gpu"] and "TuningMode must be enabled on x86_64-linux-clang" in logs["gpu"]
    assert "Cannot Open QNN library libQnnLpai.so" in logs["lpai"]
    assert "Tensor can only have static dimensions" in logs["dynamic"]
    assert {name: [each.id for each in explain(log)] for name, log in logs.items()} == {
        "gpu": ["gpu-not-on-host"],
        "lpai": ["qnn-backend-absent"],
        "dynamic": ["static-dimensions-only"],
    }
    assert not list(tmp_path.glob("*.pte"))


def test_no_library_for_the_lpai_or_the_cpu_is_in_the_wheels() -> None:
    names = {path.name for path in (sdk_root() / "lib" / "x86_64-linux-clang").iterdir()}
    assert "libQnnGpu.so" in names and not {"libQnnLpai.so", "libQnnCpu.so"} & names


@pytest.mark.parametrize(
    ("option", "words"),
    [("backend_type=gpu", "on a device alone"), ("backend_path=/sdk/libQnnCpu.so", "on a device alone")],
)
def test_another_backend_is_refused_for_onnx_with_the_reason(tmp_path: Path, option: str, words: str) -> None:
    model = write(conv_model(), tmp_path / "model.onnx")
    done = typed("onnx", "compile", model, "--precision", "fp16", "--option", option, "-o", tmp_path / "out")

    assert done.returncode == 2 and words in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_dynamic_shape_is_refused_for_onnx_with_its_name(tmp_path: Path) -> None:
    model = write(conv_model((None, 3, 8, 8)), tmp_path / "model.onnx")
    done = typed("onnx", "compile", model, "--precision", "fp16", "-o", tmp_path / "out")

    assert done.returncode == 1 and "x: float32[-1, 3, 8, 8]" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.whole
def test_programs_of_two_graphs_and_of_none_yet_compile_and_do_not_run_here(
    tmp_path: Path, environ: dict[str, str], dist: Path
) -> None:
    lowered(tmp_path, environ, "shared", "online")
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
