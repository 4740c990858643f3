"""What works on torch itself: the pieces that `reduce` makes of a PyTorch model; the module that a user's
Python hands over; the figures by which outputs and a language model's words are judged."""

from __future__ import annotations

import ast
import contextlib
import io
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qnn_ci
from ci.engine.watch import Touched
from ci.engine.work import Result
from ci.engine.workers.parent import Refused
from ci.lanes.executorch.pieces import TorchPieces, tensors_of
from ci.lanes.executorch.reduce import TryLowering
from ci.lanes.executorch.reproducer import reproducer
from ci.lanes.executorch.suite import ExecutorchCase, ExecutorchProgram, ExecutorchRun
from ci.lanes.llm.architecture import read_architecture
from ci.lanes.llm.genie import GeneratedText
from ci.lanes.llm.measure import choices
from ci.lanes.llm.prompts import prefix_lengths, prefixes_of
from ci.lanes.llm.verdicts import READER_NAMES
from ci.lanes.onnx.reduce import TryOnnx
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.pipeline.options import WorkOptions
from ci.pipeline.reduce import Condition, Subgraph
from ci.pipeline.reproducer import MOST_LINES, SQNR
from ci.pipeline.steps import Ask
from ci.pipeline.suite import NO_SUITE
from ci.pipeline.trial import Outcome
from provisioning.known_faults import SCRIPTS
from tests.unit.test_api import Words, answers
from tests.unit.test_llm import GOOD, checkpoint, rules
from tests.unit.test_llm import program as llm_program

__all__ = ["answers"]

# Torch takes seconds to import, which unit tests do without.
pytestmark = pytest.mark.heavy


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


def figure_of(text: str, wanted: Any, found: Any) -> float:
    """What the script, or the reproducer's line, says of these outputs."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and "log10" in ast.unparse(node):
            return float(
                eval(ast.unparse(node.value or node), {"math": math, "wanted": wanted, "found": found})
            )
    (line,) = (row.strip() for row in text.splitlines() if row.strip().startswith("print('SQNR'"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(line, {"math": math, "pairs": [(wanted, found)]})
    return float(printed.getvalue().split()[1])


TEXTS = [path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.py")]
JUDGING = [text for text in TEXTS if "log10(max" in text]


@pytest.mark.parametrize("text", [SQNR, *JUDGING])
def test_outputs_that_are_not_numbers_are_never_right(text: str) -> None:
    wanted = torch.ones(4, dtype=torch.float64)
    assert figure_of(text, wanted, wanted) > 100
    for value in (math.nan, math.inf):
        assert figure_of(text, wanted, wanted * value) < 0


@pytest.mark.parametrize("kept", [True, False])
def test_a_module_has_one_name_in_a_folder_so_that_it_is_compiled_there_again(
    kept: bool, answers: Callable[..., Words], tmp_path: Path
) -> None:
    words, places, folder = answers(programs=[{"files": []}]), [], tmp_path / "out" if kept else None
    for value in (1.0, 2.0):
        net, sample = torch.nn.Linear(2, 2), torch.full((1, 2), value)
        torch.nn.init.constant_(net.weight, value)
        qnn_ci.compile(net, (sample,), calibrate=[sample], output=folder)
        _verb, _json, _answer, named, *flags = words()
        model, samples = Path(named), Path(flags[flags.index("--calibrate") + 1])
        places.append(model)
        assert model.is_file() is (samples / "00000.pt").is_file() is kept
        if kept:
            exported = torch.export.load(model).module()
            (given,) = torch.load(samples / "00000.pt")
            torch.testing.assert_close(exported(given), net(given))
    assert (places[0] == places[1]) is kept


class Counting:
    """A float model: after a token comes the next one."""

    config = generation_config = SimpleNamespace(eos_token_id=[0, 1])

    def __call__(self, tokens: Any, logits_to_keep: int = 0) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.eye(512).roll(1, 1)[tokens][:, -logits_to_keep:])


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (lambda last: (last + 1, last + 2), []),
        (lambda last: (last + 1, last), ["llm-accuracy"]),
        (lambda last: (last + 1,), ["llm-accuracy"]),
        (lambda last: (last, last + 1), ["llm-accuracy"]),
        (lambda last: (), ["llm-accuracy"]),
    ],
    ids=["right", "decode is wrong", "decode ends always", "prefill is wrong", "prefill ends always"],
)
def test_genies_prefill_and_decode_are_both_held_to_float(
    tmp_path: Path,
    said: Callable[[int], tuple[int, ...]],
    found: list[str],
) -> None:
    """Float counts on, whatever was said before."""
    shape = read_architecture(checkpoint(tmp_path))
    prefixes = [text.prompt for text in prefixes_of(range(2, 500), prefix_lengths(20, 32, 128))]
    assert {len(prefix) for prefix in prefixes} == {20, 40}
    assert len({prefix[-1] for prefix in prefixes}) == len(prefixes)
    generated = [GeneratedText(said(prefix[-1]), "", 1, 1) for prefix in prefixes]
    facts = choices(shape, Counting(), prefixes, generated)
    good = {name: {"value": value, "error": 1e-6} for name, value in GOOD.items()}
    every = {"figures": dict.fromkeys(READER_NAMES, good), "choices": facts, "texts": []}
    assert rules(llm_program("genie-16a8w"), Result(every)) == found
