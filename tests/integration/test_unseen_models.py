"""Models of kinds that no suite has, at a chip and a precision that are drawn: what `compile` says is
true, or the fix that it prints gives a program of which that holds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from provisioning.base.settings import ROOT
from tests.support import unseen_models
from tests.support.typed import typed

pytestmark = [pytest.mark.whole, pytest.mark.heavy, pytest.mark.timeout(3600)]

SEED = 44
CHIPS = ("SM8550", "SM8650", "SM8750", "SA8295", "QCS9100")
PRECISIONS = ("fp16", "8a8w", "16a8w")
MODELS = (
    "deformable",
    "codebook",
    "generator",
    "spectral",
    "recommender",
    "keypoints",
    "echo",
    "router",
    "windowed_unet",
    "speech",
    "neighbours",
    "flow",
    "hashes",
)
FIXED = {
    "generator": "conv2d(x * read",
    "keypoints": "register_buffer",
    "windowed_unet": "x.reshape(",
    "neighbours": ".to(torch.int32).to(torch.int64)",
    "flow": "register_buffer",
    "hashes": "from_pretrained(table.weight[rows])",
}
"""Of those that give no program, or one that is not whole on HTP: what the printed fix says, by which
NAME_fixed is written."""
AS_ONNX = {"speech": "export the model as an .onnx"}
"""Of those whose printed fix is the other lane."""
COMPARED = 2
"""Samples of a folder that the command compares on."""
Arrays = Sequence[np.ndarray[Any, Any]]


def chosen(name: str) -> tuple[str, str]:
    drawn = random.Random(f"{SEED} {name}")
    return drawn.choice(CHIPS), drawn.choice(PRECISIONS)


def compiled(name: str, folder: Path, *, as_onnx: bool = False) -> dict[str, Any]:
    """The answer; the samples and the program lie in the folder."""
    soc, precision = chosen(name.removesuffix("_fixed"))
    model, given = f"{ROOT}/tests/support/unseen_models.py:{name}", folder / f"samples-{as_onnx}"
    given.mkdir(exist_ok=True)
    for number, sample in enumerate(samples(name, 10)):
        if as_onnx:
            np.save(given / f"{number}.npy", sample[0].numpy())
        else:
            torch.save(sample, given / f"{number}.pt")
    if as_onnx:
        (sample,), model = samples(name, 1), f"{folder}/{name}.onnx"
        net, _ = getattr(unseen_models, name)()
        torch.onnx.export(net, sample, model, opset_version=17, dynamo=False)
    words = ("--soc", soc, "--precision", precision, "--calibrate", given, "-o", folder / "out")
    done = typed("compile", model, *words, "--json", folder / "answer.json")
    assert "Traceback" not in done.stderr, done.stderr
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    assert answer["exit_code"] == done.returncode
    return answer


def samples(name: str, count: int) -> Iterator[tuple[torch.Tensor, ...]]:
    _, draw = getattr(unseen_models, name)()
    for seed in range(count):
        yield draw(torch.Generator().manual_seed(seed))


def outputs(program: str, name: str, folder: Path) -> Iterator[tuple[Arrays, Arrays]]:
    """Those of the float model and of the program, for each sample that the command compared on."""
    model, _ = getattr(unseen_models, name)()
    for number, sample in enumerate(samples(name, COMPARED)):
        with torch.no_grad():
            wanted = model(*sample)
        words: list[str | Path] = ["run", program, "-o", folder / f"ran{number}"]
        for index, tensor in enumerate(sample):
            np.save(folder / f"{number}-{index}.npy", tensor.numpy())
            words += ["--input", folder / f"{number}-{index}.npy"]
        done = typed(*words)
        assert done.returncode == 0, done.stderr
        rows = json.loads((folder / f"ran{number}" / "run.json").read_text(encoding="utf-8"))["outputs"]
        found = [np.load(folder / f"ran{number}" / row["file"]) for row in rows]
        yield [tensor.numpy() for tensor in (wanted if isinstance(wanted, tuple) else (wanted,))], found


def figures(pairs: Sequence[tuple[Arrays, Arrays]]) -> dict[str, float]:
    """The worst over outputs and samples, by the formulas of docs/concepts.md, written once more."""
    sqnr, variation, agreement = [], [], []
    for row in zip(*(list(zip(wanted, found, strict=True)) for wanted, found in pairs), strict=True):
        if row[0][0].dtype.kind in "bi":
            agreement.append(float(np.mean([wanted == found for wanted, found in row])))
            continue
        errors = [found - wanted for wanted, found in row]
        sqnr += [_decibels(wanted, error) for (wanted, _), error in zip(row, errors, strict=True)]
        variation.append(_decibels(row[1][0] - row[0][0], errors[1] - errors[0]))
    worst = {"sqnr_db": sqnr, "variation_sqnr_db": variation, "agreement": agreement}
    return {figure: min(values) for figure, values in worst.items() if values}


def _decibels(signal: Any, noise: Any) -> float:
    return float(
        10 * np.log10(np.square(signal, dtype=np.float64).sum() / np.square(noise, dtype=np.float64).sum())
    )


# torch calls its older exporter to ONNX so.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_what_is_said_of_a_model_is_true_or_the_printed_fix_works(name: str, tmp_path: Path) -> None:
    answer = compiled(name, tmp_path)
    if name in AS_ONNX:
        assert answer["outcome"] == "fail"
        assert any(AS_ONNX[name] in finding["fix"] for finding in answer["findings"])
        answer = compiled(name, tmp_path, as_onnx=True)
    if name in FIXED:
        assert answer["outcome"] == "fail" or answer["programs"][0]["on_cpu"]
        assert any(FIXED[name] in finding["fix"] for finding in answer["findings"])
        name = f"{name}_fixed"
        answer = compiled(name, tmp_path)
        assert answer["programs"][0]["on_cpu"] == []
    (program,) = answer["programs"]
    (file,) = (path for path in program["files"] if path.endswith((".pte", ".onnx")))
    measured = figures(list(outputs(file, name, tmp_path)))
    for figure, value in measured.items():
        assert program["accuracy"][figure] == pytest.approx(value, abs=0.05), figure
    # A part may have less than the whole, down to 20 dB.
    lost = program["accuracy"].get("slice_sqnr_db", 20) < min(20, measured["sqnr_db"] - 0.05)
    assert (answer["outcome"] == "pass") == (measured["sqnr_db"] >= 10 and not lost), answer["findings"]
