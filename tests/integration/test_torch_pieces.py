"""`reduce` of a PyTorch model: its pieces compute what the whole does; one that is refused is remembered."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ci.engine.inputs import Touched
from ci.engine.workers.parent import Refused
from ci.lanes.executorch.pieces import TorchPieces, tensors_of
from ci.lanes.executorch.reduce import TryLowering
from ci.lanes.executorch.reproducer import reproducer
from ci.lanes.executorch.suite import ExecutorchCase, ExecutorchProgram, ExecutorchRun
from ci.lanes.onnx.reduce import TryOnnx
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.pipeline.options import WorkOptions
from ci.pipeline.reduce import Condition, Outcome, Subgraph
from ci.pipeline.reproducer import MOST_LINES
from ci.pipeline.steps import Ask
from ci.pipeline.suite import NO_SUITE

# Torch takes seconds to import, which unit tests do without.
pytestmark = [pytest.mark.heavy, pytest.mark.bare]


class Branches(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.split(self.norm(self.conv(x)), 4, 1)
        y = torch.cat([first * 2 + torch.ones(4, 4), second.neg().relu_()], 1)
        return torch.softmax(self.linear(y.mean((2, 3))), -1)


@pytest.fixture(scope="module")
def branches() -> TorchPieces:
    torch.manual_seed(0)
    samples = [(torch.rand(1, 3, 6, 6) - 0.5,) for _ in range(2)]
    exported = torch.export.export(Branches().eval(), samples[0])
    return TorchPieces(exported.module(), samples)


@pytest.mark.parametrize(
    "kinds", [("split", "mul"), ("conv2d", "batch_norm"), ("relu_", "linear", "softmax")]
)
def test_a_piece_of_a_pytorch_model_computes_what_the_whole_computes(
    branches: TorchPieces, kinds: tuple[str, ...]
) -> None:
    """With operators of several results, in place and between which others are left out."""
    piece = Subgraph(tuple(name for name in branches.operators if name.startswith(kinds)))
    module, inputs = branches.built(piece)
    for sample, whole in zip(inputs, branches.samples, strict=True):
        with torch.no_grad():
            outputs = module(*tensors_of(sample))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for name, output in zip(branches.border(piece).outputs, outputs, strict=True):
            np.testing.assert_allclose(output.numpy(), whole[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kinds", [("conv2d", "batch_norm"), ("mul", "ones", "add")])
def test_the_reproducer_of_a_pytorch_piece_has_its_operators_and_values(
    branches: TorchPieces, kinds: tuple[str, ...]
) -> None:
    piece = Subgraph(tuple(name for name in branches.operators if name.startswith(kinds)))
    border = branches.border(piece)
    piece = piece.valued(border.weights, "full").valued(border.inputs, "linspace")
    module, (sample,) = branches.built(piece)
    run = ExecutorchRun(precision="8a8w", socs=("SM8650",))
    script = reproducer("conv", "title", "executorch", module, branches.sources(piece), run, "SM8650")
    text = script.text(Condition.of("wrong"), Outcome(figures={"sqnr_db": 3.0}))
    assert len(text.splitlines()) <= MOST_LINES
    found: dict[str, Any] = {"torch": torch, "np": np}
    exec("\n".join(script.body), found)
    with torch.no_grad():
        np.testing.assert_array_equal(found["NET"](*found["INPUTS"]), module(*tensors_of(sample)))


class Refusing:
    """A worker that has read the piece, and refuses it."""

    seen = Touched(digests={"piece": "its digest"})

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        raise Refused({"kind": "compile", "message": "IndexError", "fix": "", "exit_code": 1})


def test_a_piece_that_is_refused_is_remembered_by_what_it_is(tmp_path: Path) -> None:
    """Else it would be taken for the next one, which is refused as well then."""
    onnx_case = OnnxCase(model="piece.onnx", run=(OnnxRun(precision="fp16", socs=("SM8650",)),))
    case = ExecutorchCase(factory="piece.pt2", run=(ExecutorchRun(precision="fp16", socs=("SM8650",)),))
    suite, plan = tmp_path / NO_SUITE, SimpleNamespace(work=WorkOptions(), quantize_only=False, needs=None)
    steps: list[tuple[Any, Any]] = [
        (TryOnnx(plan), OnnxProgram(suite, "one", onnx_case, onnx_case.runs[0], "SM8650")),  # type: ignore[arg-type]
        (TryLowering(plan), ExecutorchProgram(suite, "one", case, case.runs[0], "SM8650")),  # type: ignore[arg-type]
    ]
    for step, program in steps:
        ask = Ask(Refusing(), tmp_path / "log", tmp_path / "into", tmp_path / "scratch", {})  # type: ignore[arg-type]
        assert step.work(program, ask)
        assert ask.touched.digests == Refusing.seen.digests
