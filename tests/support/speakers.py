"""A compiled model that Genie can let speak, and what float would say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.checkpoints import write_checkpoint

TIMEOUT = 300
PREFILL, DECODE = 32, 1
LENGTH = 12
Plant = Callable[[Any, int], None]
"""Changes a decoder before it is exported; the number is that of the tokens that its graph reads at once."""


@dataclass
class Speaker:
    """A compiled model in a folder, with its configuration and the float model to hold it to."""

    folder: Path
    config: Path
    decoder: Any

    def logits(self, prompt: Sequence[int], tokens: Sequence[int]) -> Any:
        """Float's, at each place of the text and after it."""
        import torch

        from ci.llm.graphs import call

        context, example = self.decoder.context, self.decoder.example()
        named = dict(zip(self.decoder.inputs, example, strict=True))
        empty = {name: each.numpy() for name, each in named.items() if name.startswith("past_")}
        inputs = call(self.decoder.shape, context, context, [0, *prompt, *tokens], 0, empty)
        with torch.no_grad():
            logits = self.decoder(*(torch.from_numpy(inputs[name]) for name in self.decoder.inputs))[0][0]
        return logits.numpy()[len(prompt) : 1 + len(prompt) + len(tokens)]

    def choices(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """What float would say at each place of the text, and after it."""
        every: list[int] = self.logits(prompt, tokens).argmax(-1).tolist()
        return every

    def problems(self, config: Path | None = None, lengths: Sequence[int] = (5, 33)) -> list[str]:
        """The verdict on two texts of twelve tokens, as test_llm judges them. Near ties are left out:
        the texts are too short for a share of them."""
        from ci.llm.findings import text_problems
        from ci.llm.genie import speak
        from ci.llm.judge import compare_text

        found = []
        for length in lengths:
            prompt = [60 + place % 190 for place in range(length)]
            tokens: list[int] = []
            while len(tokens) < LENGTH and (token := self.choices(prompt, tokens)[-1]) != 1:
                tokens.append(token)
            logits = self.logits(prompt, tokens)

            def again(
                more: Sequence[int], prompt: Sequence[int] = tuple(prompt)
            ) -> tuple[Sequence[int], str]:
                [one] = speak(config or self.config, [[*prompt, *more]], timeout=TIMEOUT)
                return one.tokens, one.stopped

            stopped = "length" if len(tokens) == LENGTH else "eos"
            comparison = compare_text(prompt, tokens, stopped, logits, [1], LENGTH, again)
            texts = dict.fromkeys(("prompt_text", "found_text", "expected_text"), "")
            found.append({**comparison.as_json(), "compared": comparison.tokens, "excused": [], **texts})
        return list(text_problems(found))


def make_speaker(
    folder: Path, plant: Plant = lambda decoder, count: None, *, layers: int = 1, **changes: Any
) -> Speaker:
    from ci.llm.architecture import read_architecture
    from ci.llm.contexts import compile_context
    from ci.llm.decoder import load_decoder
    from ci.llm.genie import write_config
    from ci.llm.graphs import export
    from provisioning.manifest import soc_named

    model = write_checkpoint(folder / "model", num_hidden_layers=layers, **changes)
    shape, soc = read_architecture(model), soc_named("SM8650")
    binaries = []
    for number, count in enumerate((PREFILL, DECODE)):
        graph = folder / f"ar{count}.onnx"
        decoder = load_decoder(model, shape, count, shape.context)
        plant(decoder, count)
        export(decoder, graph)
        binaries.append(folder / f"compiled{count}.bin")
        compile_context({number: graph}, soc, binaries[-1], fp16=True)
    shutil.copy(model / "tokenizer.json", folder)
    config = write_config(folder, shape, binaries, soc, context=shape.context, most=LENGTH)
    return Speaker(folder, config, load_decoder(model, shape, shape.context, shape.context))


def changed(speaker: Speaker, folder: Path, where: str, value: Any) -> Path:
    copy = Path(shutil.copytree(speaker.folder, folder / "copy"))
    config = json.loads((copy / speaker.config.name).read_text())
    *path, name = where.split("/")
    place = config["dialog"]
    for each in path:
        place = place[each]
    if value is None:
        del place[name]
    else:
        place[name] = value
    (copy / speaker.config.name).write_text(json.dumps(config))
    return copy / speaker.config.name
