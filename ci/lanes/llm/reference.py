"""transformers' own float model, which everything else is compared with. Imported only by workers."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ci.lanes.llm.adapters import changes
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.config import old_rope, read_object
from ci.lanes.llm.weights import INDEX
from ci.models.arrays import Array
from provisioning.base.errors import CheckFailed


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


def require_ends(model: Any, shape: Architecture) -> None:
    """A text must end where transformers ends it."""
    every = (model.config.eos_token_id, model.generation_config.eos_token_id)
    ends = {end for tokens in every for end in (tokens if isinstance(tokens, list) else [tokens])} - {None}
    if ends != set(shape.eos):
        raise CheckFailed(
            f"texts end with {sorted(shape.eos)} here, and with {sorted(ends)} by transformers",
            fix="report it, with the checkpoint's config.json and generation_config.json",
        )


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


def greedy_text(
    read: Callable[[Sequence[int]], Array],
    prompt: Sequence[int],
    most: int,
    ends: Collection[int],
    context: int,
) -> tuple[list[int], str]:
    """The tokens that a model says, taking its first choice each time, and what stopped it: `eos`, `length`
    or `context`. `read` gives the logits after the tokens that it gets, beside those that it got before."""
    tokens: list[int] = []
    row = read(prompt)
    while (token := int(row.argmax())) not in ends:
        tokens.append(token)
        if len(prompt) + len(tokens) >= context:
            return tokens, "context"
        if len(tokens) == most:
            return tokens, "length"
        row = read([token])
    return tokens, "eos"
