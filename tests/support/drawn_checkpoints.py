"""`python -m tests.support.drawn_checkpoints genie|executorch FOLDER SEED …`: checkpoints drawn by chance,
each compiled right and with a fault planted, and what `check` measured of both, as lines of JSON.
Such lines are kept in tests/unit/drawn_checkpoints.jsonl, so that limits are tried without another run."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.lanes.llm import tiny, worker
from ci.lanes.llm.commands import is_wrong_in_genie
from ci.lanes.llm.config import read_architecture
from ci.lanes.llm.measure import order_rounding
from ci.lanes.llm.orders import (
    CompileOrder,
    Distance,
    MeasureOrder,
    PartDistances,
    Rounded,
)
from ci.lanes.llm.prompts import windows
from ci.lanes.llm.verdicts import (
    FIGURES,
    Bounds,
    Figure,
    Figures,
    PartRow,
    cause_of,
    culprit,
    figure_problems,
    part_rows,
)
from ci.plain import as_json, read
from ci.suite.precision import written_name
from tests.support.checkpoints import SMALL, write_checkpoint
from tests.support.planted_decoders import FAULTS, check, compile_with

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"rope_scaling": None},
    "qwen3": {"rope_scaling": None},
    "mistral": {"rope_scaling": None, "sliding_window": None},
    "olmo2": {"rope_scaling": None, "rope_theta": 20000.0},
}
PRECISIONS = ("16a8w", "16a4w", "fp16")
FLAGS = ("--decode-tokens", "250")
"""Of `check`: decode takes longest by far."""
KEPT = Path(__file__).parents[1] / "unit" / "drawn_checkpoints.jsonl"
CHOSEN_BY = (None, 1479896)
"""The seeds of those by which the floors were chosen; those without one were drawn before this module."""
PLANTED = [name for name in FAULTS if name != "none"]


@dataclass(frozen=True)
class Draw:
    """What a seed gives: families, precisions and faults in turn, the rest by chance."""

    family: str
    precision: str
    fault: str
    steps: int
    """Of training; 0 for random weights."""
    layers: int
    parts: int
    context: int
    width: int
    tied: bool

    @classmethod
    def of(cls, seed: int, through: str) -> Draw:
        chance, genie = random.Random(f"{through} {seed}"), through == "genie"
        # ExecuTorch takes a minute to lower two layers.
        layers = chance.choice((2, 3 if genie else 2))
        draw = cls(
            family=list(FAMILIES)[seed % 5],
            precision=PRECISIONS[seed % 3],
            fault=PLANTED[(3 * seed + seed // 5 + 5 * (not genie)) % len(PLANTED)],
            steps=chance.choice((100, 200)) if (seed + genie) % 2 else 0,
            layers=layers,
            parts=chance.choice((1, 2, layers)) if genie else 1,
            context=chance.choice((128, 256 if genie else 128)),
            width=chance.choice((64, 96)),
            tied=chance.random() < 0.5,
        )
        return replace(draw, parts=2) if is_wrong_in_genie(draw.precision, draw.parts) else draw

    def write(self, folder: Path, seed: int) -> None:
        settings = {
            **SMALL,
            **FAMILIES[self.family],
            "model_type": self.family,
            "vocab_size": 512 if self.steps else 256,
            "hidden_size": self.width,
            "intermediate_size": self.width * 2,
            "num_hidden_layers": self.layers,
            "head_dim": 16,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
        }
        if self.steps:
            import torch

            # Lowering another one has turned it off.
            with torch.enable_grad():
                tiny.train(folder, self.steps, settings)
        else:
            write_checkpoint(folder, seed, **settings)


def drawn() -> list[dict[str, Any]]:
    return list(map(json.loads, KEPT.read_text(encoding="utf-8").splitlines()))


def replayed(line: Mapping[str, Any]) -> list[str]:
    """What `check` says by today's limits of the logits and the parts that a line holds."""
    figures, bounds, rows = _unpacked(line)
    missed = list(figure_problems(figures, bounds))
    found = culprit(rows, figures, bounds)
    return [found, *missed] if found else missed


def cause(line: Mapping[str, Any]) -> str:
    """What it says to be the reason."""
    figures, bounds, rows = _unpacked(line)
    return cause_of(rows, figures, bounds)


def _unpacked(line: Mapping[str, Any]) -> tuple[dict[str, Figures], Bounds, list[PartRow]]:
    """Its figures, limits and parts."""
    rounding, precision = line["rounding"], str(written_name(line["precision"]))
    alone = [
        {kind: Distance(held["db"], "", held["typical"]) for kind, held in kinds.items()}
        for kinds in rounding["parts"]
    ]
    bounds = Bounds(precision, _named(rounding["noise"]), alone, {})
    parts = [read(PartDistances, {"cpu": None, "number": part.get("part"), **part}) for part in line["parts"]]
    return _named(line["figures"]), bounds, part_rows(parts, bounds)


def _named(readers: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Figures]:
    """First choices are given as equal in lines that were drawn before they were counted without ties."""
    return {
        reader: {name: Figure(*pair) for name, pair in zip(FIGURES, pairs, strict=True)}
        for reader, pairs in readers.items()
    }


def layer_named(line: Mapping[str, Any]) -> str:
    """Whether the finding that names layers names one with the fault; nothing where none does."""
    found = re.search(r"layers (\d+) to (\d+)", "\n".join(replayed(line)))
    if not found:
        return ""
    fault, count = line["fault"], line["layers"]
    wrong = {"rows of the head one off": [count - 1], "GELU in place of SiLU": range(count)}
    first, last = map(int, found.groups())
    return "right" if any(first <= at <= last for at in wrong.get(fault, [FAULTS[fault].layer])) else "wrong"


def packed(value: Any) -> Any:
    """Few digits, and without the names of a reader's figures."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        rows = {name: packed(item) for name, item in value.items()}
        return list(rows.values()) if list(rows) in (["value", "error"], list(FIGURES)) else rows
    return [packed(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Here:
    """Does orders in this process. What rounding costs is the same for all checks of a checkpoint."""

    parts: list[Any] = field(default_factory=list)
    rounded: list[Rounded] = field(default_factory=list)

    def answer(self, **order: Any) -> dict[str, Any]:
        reply = worker.facts_of({**order, "log": ""})
        if order["do"] == "parts":
            self.parts.extend(reply["parts"])
        return reply

    def rounding(self, *asked: Any) -> Rounded:
        if not self.rounded:
            compiled, text, *_ = asked
            self.rounded.append(order_rounding(MeasureOrder(compiled=compiled, text=text)))
        return self.rounded[0]


def run(through: str, folder: Path, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    (worker.generate if through == "genie" else worker.lower)()
    folder.mkdir(parents=True, exist_ok=True)
    calibration = folder / "calibration.txt"
    calibration.write_text(" ".join(tiny.texts().calibration))
    for seed in seeds:
        draw, model, out = Draw.of(seed, through), folder / f"model-{seed}", folder / "out"
        draw.write(model, seed)
        shape = read_architecture(model)
        quantized = draw.precision != "fp16"
        order = CompileOrder(
            model=str(model),
            through=through,
            soc="SM8650",
            precision=draw.precision,
            context=draw.context,
            prefill=32,
            parts=draw.parts,
            calibration=windows(model, shape, calibration, draw.context) if quantized else [],
            into=str(out),
        )
        here = Here()
        for fault in ("none", draw.fault):
            shutil.rmtree(out, ignore_errors=True)
            compile_with(fault, order)
            here = replace(here, parts=[])
            found = check(out, folder / "reports", here.answer, here.rounding, *FLAGS)
            row, alone = found["row"], as_json(here.rounding())
            noise = {"noise": row["rounding"], "tie": alone["tie"], "parts": alone["parts"]}
            yield {
                "through": through,
                "seed": seed,
                "fault": fault,
                "precision": draw.precision,
                "layers": draw.layers,
                "code": found["code"],
                **packed({"rounding": noise, "figures": row["figures"], "parts": here.parts}),
            }


if __name__ == "__main__":
    for found in run(sys.argv[1], Path(sys.argv[2]).absolute(), list(map(int, sys.argv[3:]))):
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
