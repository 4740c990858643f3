"""transformers' own float model, which everything else is compared with. Imported only by workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.llm.arrays import Array


@dataclass(frozen=True, slots=True)
class Text:
    """The float model's text after a prompt, always taking its first choice."""

    tokens: tuple[int, ...]
    stopped: str
    """`eos`, `length` or `context`, like Genie's texts."""
    logits: Array
    """A row for each token, and one for the token that ended it."""


def load_reference(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


def logits_of(model: Any, tokens: Sequence[int]) -> Array:
    import torch

    with torch.no_grad():
        rows: Array = model(torch.tensor([list(tokens)])).logits[0].numpy()
    return rows


def text_of(model: Any, prompt: Sequence[int], most: int, ends: Collection[int], context: int) -> Text:
    """`prompt` begins with the token that begins a text."""
    import torch

    tokens: list[int] = []
    rows: list[Array] = []
    with torch.no_grad():
        result = model(torch.tensor([list(prompt)]), use_cache=True)
        while True:
            row = result.logits[0, -1]
            rows.append(row.numpy())
            token = int(row.argmax())
            if token in ends:
                stopped = "eos"
                break
            tokens.append(token)
            if len(prompt) + len(tokens) == context:
                stopped = "context"
                break
            if len(tokens) == most:
                stopped = "length"
                break
            result = model(torch.tensor([[token]]), past_key_values=result.past_key_values, use_cache=True)
    return Text(tuple(tokens), stopped, np.stack(rows))
