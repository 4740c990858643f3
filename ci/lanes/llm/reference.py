"""transformers' own float model, which everything else is compared with. Imported only by workers."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.lanes.llm.adapters import changes
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.config import old_rope, read_object
from ci.lanes.llm.weights import INDEX
from ci.models.arrays import Array
from provisioning.base.errors import CheckFailed


@dataclass(frozen=True, slots=True)
class Text:
    tokens: tuple[int, ...]
    stopped: str
    """`eos`, `length` or `context`, like Genie's texts."""
    logits: Array
    """A row for each token, and one for the token that ended it."""


def load_reference(folder: Path, adapter: Path | None = None) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    # transformers 5 writes it, and 4 would take its own default instead.
    if getattr(config, "rope_parameters", None):
        for name, value in old_rope(config.rope_parameters).items():
            setattr(config, name, value)
    # The token by which a family pads, unless the checkpoint says, may lie beyond a small vocabulary.
    if (config.pad_token_id or 0) >= config.vocab_size:
        config.pad_token_id = None
    with _with_metadata(folder) as whole:
        model = AutoModelForCausalLM.from_pretrained(
            whole, config=config, dtype=torch.float32, local_files_only=True
        ).eval()
    weights = dict(model.named_parameters())
    for name, change in changes(adapter, weights):
        weights[name].data += change
    return model


@contextlib.contextmanager
def _with_metadata(folder: Path) -> Iterator[Path]:
    """The checkpoint, or links to it where its index has no metadata: transformers reads none without."""
    index = folder / INDEX
    found = read_object(index, CheckFailed) if index.is_file() else {"metadata": {}}
    if isinstance(found.get("metadata"), dict):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="qnn-ci-llm-") as scratch:
        for file in folder.iterdir():
            if file != index:
                Path(scratch, file.name).symlink_to(file.absolute())
        Path(scratch, INDEX).write_text(json.dumps({**found, "metadata": {}}), encoding="utf-8")
        yield Path(scratch)


def ends_of(model: Any) -> tuple[int, ...]:
    """As transformers reads them, not our own reader."""
    every = (model.config.eos_token_id, model.generation_config.eos_token_id)
    ends = [end for token in every for end in (token if isinstance(token, list) else [token])]
    return tuple({end for end in ends if end is not None})


def require_rope(model: Any, shape: Architecture, context: int) -> None:
    """Our cosines and sines must be transformers' at every position: a wrong one far from the start changes
    no word near it."""
    import torch

    positions, half = np.arange(context), shape.rotary_dim // 2
    errors = []
    for rope in shape.ropes:
        rotary = model.model.rotary_emb_local if rope else model.model.rotary_emb
        theirs = rotary(torch.zeros(1), torch.from_numpy(positions)[None])
        errors += [
            np.abs(shape.rope_magnitude * ours - factors[0, :, :half].numpy()).max(1)
            for ours, factors in zip(shape.rotation(positions, rope), theirs, strict=True)
        ]
    # transformers computes angles in float32.
    allowed = 1e-5 + 2 * np.finfo(np.float32).eps * positions
    wrong = np.flatnonzero(~(np.max(errors, axis=0) <= allowed))
    if wrong.size:
        raise CheckFailed(
            f"rope differs from transformers' at position {wrong[0]} of {context}",
            fix="report it, with the checkpoint's config.json",
        )


def logits_of(model: Any, tokens: Sequence[int], last: int = 0) -> Array:
    """After each token, or after so many of the last: those of a long text would fill the memory."""
    import torch

    with torch.no_grad():
        rows: Array = model(torch.tensor([list(tokens)]), logits_to_keep=last).logits[0].numpy()
    return rows


def text_of(model: Any, prompt: Sequence[int], most: int, ends: Collection[int], context: int) -> Text:
    """`prompt` begins with the token that begins a text."""
    import torch

    result: Any = None

    def read(tokens: Sequence[int]) -> Array:
        nonlocal result
        past = result.past_key_values if result else None
        with torch.no_grad():
            result = model(torch.tensor([list(tokens)]), past_key_values=past, use_cache=True)
        row: Array = result.logits[0, -1].numpy()
        return row

    return greedy_text(read, prompt, most, ends, context)


def greedy_text(
    read: Callable[[Sequence[int]], Array],
    prompt: Sequence[int],
    most: int,
    ends: Collection[int],
    context: int,
) -> Text:
    """The text that a model says, taking its first choice each time. `read` gives the logits after the tokens
    that it gets, beside those that it got before."""
    tokens: list[int] = []
    rows = [read(prompt)]
    while (token := int(rows[-1].argmax())) not in ends:
        tokens.append(token)
        if len(prompt) + len(tokens) >= context:
            return Text(tuple(tokens), "context", np.stack(rows))
        if len(tokens) == most:
            return Text(tuple(tokens), "length", np.stack(rows))
        rows.append(read([token]))
    return Text(tuple(tokens), "eos", np.stack(rows))
