"""What works on torch itself: the module that a user's Python hands over; the figures by which outputs and a
language model's words are judged."""

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

import qnn_ci
from ci.explain.operator_script import SCRIPT_JUDGE
from ci.lanes.llm.architecture import read_architecture
from ci.lanes.llm.measure import genie_windows
from ci.lanes.llm.text import prefix_lengths, prefixes_of
from ci.lanes.llm.verdicts import figures_of
from provisioning.known_faults import SCRIPTS
from tests.support.checkpoints import write_config_json
from tests.unit.test_api import Words, answers

__all__ = ["answers"]

# Torch takes seconds to import, which unit tests do without.
pytestmark = pytest.mark.heavy


def figure_of(text: str, wanted: Any, found: Any) -> float:
    """What the script says of these outputs."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "sqnr_db":
            scope = {"log10": math.log10, "inf": math.inf}
            exec(ast.unparse(node), scope)
            return float(scope["sqnr_db"](wanted, found))  # type: ignore[operator]
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


@pytest.mark.parametrize("text", [SCRIPT_JUDGE, *JUDGING])
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


@pytest.mark.parametrize("wrong", [(), (0,), (1,)], ids=["right", "prefill is wrong", "decode is wrong"])
def test_genies_prefill_and_decode_are_both_held_to_float(tmp_path: Path, wrong: tuple[int, ...]) -> None:
    """Float counts on, whatever was said before."""
    shape = read_architecture(write_config_json(tmp_path))
    texts = prefixes_of(range(2, 500), prefix_lengths(20, 32, 128))
    assert {len(text.prompt) for text in texts} == {20, 40}
    assert len({text.prompt[-1] for text in texts}) == len(texts)
    rows = [np.eye(512, dtype=np.float32)[list(text.tokens)] for text in texts]
    for logits in rows:
        logits[list(wrong)] = np.roll(logits[list(wrong)], 1, -1)
    read = genie_windows(shape, Counting(), texts, rows)
    assert [figures_of(windows)["top1"].value for windows in read.values()] == [
        float(place not in wrong) for place in (0, 1)
    ]
