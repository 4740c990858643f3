"""QNN's calls, DLC files and context binaries as files: what Saver, libQnnIr and ExecuTorch really write."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.artifacts.dlc import read_dlc
from tests.support import programs
from tests.support.onnx_models import conv_model, write
from tests.support.runner import programs as runner_programs
from tests.support.sdk import sdk_root
from tests.support.typed import typed

__all__ = ["runner_programs"]

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", autouse=True)
def provisioned() -> Path:
    return sdk_root()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(conv_model(), tmp_path_factory.mktemp("model") / "model.onnx")


FACTORY = "ci.pipeline.models.shipped.operators:convolution"


@pytest.mark.whole
@pytest.mark.parametrize("lane", ["onnx", "executorch"])
def test_calls_are_saved_with_their_parameters_and_no_program(model: Path, tmp_path: Path, lane: str) -> None:
    words = (model,) if lane == "onnx" else (FACTORY, "--scheme", "8a8w")
    done = typed("dump", "calls", *words, "-o", tmp_path / "calls")
    assert done.returncode == 0, done.stderr
    source = (tmp_path / "calls" / "saver_output.c").read_text(encoding="utf-8")
    assert "graphFinalize" in source and "Conv2d" in source
    assert (tmp_path / "calls" / "params.bin").stat().st_size > 0
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["calls"] and not list(tmp_path.rglob("*.pte"))
    assert typed("dump", "calls", *words, "-o", tmp_path / "calls").returncode == 2


@pytest.mark.whole
@pytest.mark.parametrize("lane", ["onnx", "executorch"])
def test_a_graph_becomes_a_dlc(model: Path, tmp_path: Path, lane: str) -> None:
    words = (model,) if lane == "onnx" else (FACTORY, "--scheme", "8a8w")
    done = typed("dump", "dlc", *words, "-o", tmp_path / "model.dlc")
    assert done.returncode == 0, done.stderr
    contents = read_dlc(tmp_path / "model.dlc")
    assert contents.qnn.startswith("2.") and contents.members
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["model.dlc"]


@pytest.mark.parametrize(
    ("model", "scheme", "code"),
    [
        pytest.param("no_such_module:net", "fp16", 1, marks=pytest.mark.whole),
        ("missing.onnx", "fp16", 2),
    ],
)
def test_what_cannot_be_made_into_calls_leaves_nothing(
    model: str, scheme: str, code: int, tmp_path: Path
) -> None:
    done = typed("dump", "calls", model, "--scheme", scheme, "-o", tmp_path / "calls")
    assert (done.returncode, list(tmp_path.iterdir())) == (code, []), done.stderr
    assert "Traceback" not in done.stderr and "try:" in done.stderr


@pytest.mark.whole
def test_a_context_becomes_a_program_and_is_the_same_when_taken_out_again(
    tmp_path: Path, runner_programs: Path
) -> None:
    program = runner_programs / "htp.pte"
    assert typed("inspect", program, "--extract", tmp_path / "out").returncode == 0
    context = tmp_path / "out" / "htp.forward_0.bin"
    done = typed("dump", "program", context, "-o", tmp_path / "wrapped.pte")
    assert done.returncode == 0, done.stderr
    assert typed("inspect", tmp_path / "wrapped.pte", "--extract", tmp_path / "again").returncode == 0
    (again,) = (tmp_path / "again").iterdir()
    assert again.read_bytes() == context.read_bytes()


@pytest.mark.parametrize(
    ("data", "code"),
    [(programs.context(build_id="v2.99.0.260101010101"), 1), (programs.program(), 2), (b"", 1)],
)
def test_what_cannot_be_wrapped_leaves_nothing(tmp_path: Path, data: bytes, code: int) -> None:
    (tmp_path / "context.bin").write_bytes(data)
    done = typed("dump", "program", tmp_path / "context.bin", "-o", tmp_path / "model.pte")
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (code, ["context.bin"]), (
        done.stderr
    )
