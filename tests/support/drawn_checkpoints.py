"""`python -m tests.support.drawn_checkpoints genie|executorch FOLDER SEED …`: checkpoints drawn by chance,
each compiled right and with a fault planted, and what `llm check` says of both, as lines of JSON."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.checkpoints import SMALL, write_checkpoint
from tests.support.planted_decoders import FAULTS, FEW, Way, check, compile_with, kept_by_compile

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"rope_scaling": None},
    "qwen3": {"rope_scaling": None},
    "mistral": {"rope_scaling": None, "sliding_window": None},
    "olmo2": {"rope_scaling": None, "rope_theta": 20000.0},
}
PRECISIONS = {"genie": ("u16u8", "16a4w", "fp16"), "executorch": ("16a8w", "16a4w", "fp16")}
PLANTED = [name for name in FAULTS if name != "none"]


@dataclass(frozen=True)
class Draw:
    """What a seed gives: families, precisions and faults in turn, the rest by chance."""

    family: str
    way: Way
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
        layers = chance.choice((2, 3))
        return cls(
            family=list(FAMILIES)[seed % 5],
            way=Way(through, PRECISIONS[through][seed % 3]),
            fault=PLANTED[(3 * seed + seed // 5 + 5 * (not genie)) % len(PLANTED)],
            steps=chance.choice((100, 200)) if (seed + genie) % 2 else 0,
            layers=layers,
            parts=chance.choice((1, 2, layers)) if genie else 1,
            context=chance.choice((128, 256)),
            width=chance.choice((64, 96)),
            tied=chance.random() < 0.5,
        )

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
            from ci.lanes.llm.tiny import train

            train(folder, self.steps, settings)
        else:
            write_checkpoint(folder, seed, **settings)

    def named(self, errors: Sequence[str]) -> str:
        """Whether the finding that names layers names those that have the fault; nothing where none does."""
        found = re.search(r"layers (\d+) to (\d+)", "\n".join(errors))
        wrong = {"rows of the head one off": [self.layers - 1], "GELU in place of SiLU": range(self.layers)}
        layers = wrong.get(self.fault, [FAULTS[self.fault].layer])
        if not found:
            return ""
        first, last = map(int, found.groups())
        return "right" if any(first <= layer <= last for layer in layers) else "wrong"


def run(through: str, folder: Path, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    from ci.lanes.llm import tiny, worker

    worker.start("generate" if through == "genie" else "lower")

    def ask(**order: Any) -> Any:
        return worker.facts_of({**order, "log": "", "timeout": 900.0})

    folder.mkdir(parents=True, exist_ok=True)
    calibration = folder / "calibration.txt"
    calibration.write_text(" ".join(tiny.texts().calibration))
    for seed in seeds:
        draw, model, out = Draw.of(seed, through), folder / f"model-{seed}", folder / "out"
        draw.write(model, seed)
        kept = kept_by_compile(model, calibration, through, draw.way.precision, draw.context)
        for fault, flags in (("none", ()), (draw.fault, FEW)):
            shutil.rmtree(out, ignore_errors=True)
            sizes = {"context": draw.context, "parts": draw.parts}
            compile_with(fault, draw.way, model, calibration, out, kept, **sizes)
            found = check(out, folder / "reports", ask, *flags)
            yield {"seed": seed, "fault": fault, "named": draw.named(found["errors"]), **found}


if __name__ == "__main__":
    for found in run(sys.argv[1], Path(sys.argv[2]).absolute(), list(map(int, sys.argv[3:]))):
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
