"""A compiled model that Genie can run, and what float would generate."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.orders import SpokenText
from tests.support.checkpoints import write_checkpoint

TIMEOUT = 300
PREFILL, DECODE = 32, 1
LENGTH = 12
NEAR_TIE = 0.05
"""In logits: if float's two best tokens are closer than this, fp16 may choose the other one."""


@dataclass(frozen=True)
class Speaker:
    """A compiled model in a folder, with its configuration, and the checkpoint that transformers reads."""

    folder: Path
    config: Path
    model: Path

    @cached_property
    def reference(self) -> Any:
        from ci.lanes.llm.rounding import load_reference

        return load_reference(self.model)

    def lost(self, lengths: Sequence[int] = (5, 33)) -> list[float]:
        """What float loses in logits by each of the tokens that Genie says after prompts of these lengths."""
        from ci.lanes.llm.genie import generate

        losses: list[float] = []
        for length in lengths:
            prompt = [60 + place % 190 for place in range(length)]
            text = generate(self.config, prompt, LENGTH, timeout=TIMEOUT)
            losses += lost_by(self.reference, read_architecture(self.model), prompt, text)
        return losses


def lost_by(reference: Any, shape: Architecture, prompt: Sequence[int], text: SpokenText) -> list[float]:
    """By each token of a text; infinite where it ends and float would not."""
    from ci.lanes.llm.rounding import logits_of

    tokens = [*text.tokens, *([shape.eos[0]] if text.stopped == "eos" else [])]
    rows = logits_of(reference, [*shape.beginning, *prompt, *tokens], len(tokens) + 1)
    return [float(row.max() - row[token]) for row, token in zip(rows, tokens, strict=False)]


def make_speaker(folder: Path) -> Speaker:
    from ci.lanes.llm.contexts import compile_context
    from ci.lanes.llm.decoder import load_decoder
    from ci.lanes.llm.genie import write_config
    from ci.lanes.llm.graphs import export
    from provisioning.manifest import soc_named

    model = write_checkpoint(folder / "model")
    shape, soc = read_architecture(model), soc_named("SM8650")
    binaries = []
    for number, count in enumerate((PREFILL, DECODE)):
        graph = folder / f"ar{count}.onnx"
        decoder = load_decoder(model, shape, count, shape.context)
        export(decoder, graph)
        binaries.append(folder / f"compiled{count}.bin")
        compile_context(graph, number, soc, binaries[-1], fp16=True)
    shutil.copy(model / "tokenizer.json", folder)
    config = write_config(folder, shape, binaries, soc, context=shape.context, most=LENGTH)
    return Speaker(folder, config, model)


def changed(speaker: Speaker, folder: Path, where: str, value: Any) -> Path:
    copy = Path(shutil.copytree(speaker.folder, folder / "copy"))
    config = json.loads((copy / speaker.config.name).read_text())
    *path, name = where.split("/")
    place = config["dialog"]
    for key in path:
        place = place[key]
    if value is None:
        del place[name]
    else:
        place[name] = value
    (copy / speaker.config.name).write_text(json.dumps(config))
    return copy / speaker.config.name
