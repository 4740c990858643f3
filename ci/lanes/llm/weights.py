"""Reads a checkpoint's weights as safetensors: finds each tensor, and checks that it is what config.json
says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.families import read_object
from ci.models.inputs import Array
from provisioning.base.errors import CheckFailed, UsageError

LAYER = re.compile(r"model\.layers\.(\d+)\.")
INDEX = "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
EXPONENTS = {
    "F64": ("<u8", 0x7FF0 << 48),
    "F32": ("<u4", 0x7F80 << 16),
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
}
"""Maps the type of a tensor to the type that its values are read as, and the bits that only NaN and infinity
have all set."""
BLOCK = 1 << 24
"""This many values are checked at a time."""


@dataclass(frozen=True, slots=True)
class Stored:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    """The tensor's bytes are in the file from `begin` to here."""

    def bytes(self) -> Array:
        return np.memmap(self.path, np.uint8, "r", self.begin, (self.end - self.begin,))

    @property
    def is_finite(self) -> bool:
        if self.dtype not in EXPONENTS or self.begin == self.end:
            return True
        kind, exponent = EXPONENTS[self.dtype]
        values, mask = self.bytes().view(kind), np.array(exponent, kind)
        blocks = (values[start : start + BLOCK] for start in range(0, len(values), BLOCK))
        return not any(((block & mask) == mask).any() for block in blocks)


def shards_of(folder: Path) -> dict[str, Stored]:
    """Return where each tensor is, without reading weights. Raises CheckFailed if a file is missing or
    incomplete."""
    shards: dict[str, Stored] = {}
    for name in _files(folder):
        path = folder / name
        if not path.is_file():
            raise CheckFailed(
                f"{folder} lacks {name}",
                fix="download the checkpoint again; weights in PyTorch's pickle format are converted by"
                " AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OUT)",
            )
        shards |= stored_in(path)
    return shards


def stored_in(path: Path) -> dict[str, Stored]:
    from safetensors import SafetensorError, safe_open

    try:
        # It checks the whole header against the file.
        with safe_open(path, framework="np"), path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except SafetensorError as error:
        raise CheckFailed(f"{path} is damaged or incomplete: {error}", fix="download it again") from None
    header.pop("__metadata__", None)
    data = 8 + length
    stored = {}
    for name, tensor in header.items():
        first, end = tensor["data_offsets"]
        stored[name] = Stored(path, tensor["dtype"], tuple(tensor["shape"]), data + first, data + end)
    return stored


def _files(folder: Path) -> list[str]:
    """Return the files that transformers reads: it prefers a single file to an index's."""
    single, index = "model.safetensors", folder / INDEX
    if (folder / single).is_file() or not index.is_file():
        return [single]
    names = read_object(index, CheckFailed).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckFailed(f"{index}: weight_map: expected a file for each weight", fix="download it again")
    return sorted(set(names.values()))


def shards_named(folder: Path) -> tuple[str, ...]:
    """Return the files of weights that a checkpoint names, also those in its folders; none if its index
    cannot be read, which the compile says."""
    try:
        return tuple(_files(folder))
    except (CheckFailed, OSError):
        return ()


def require_tensors(folder: Path, shape: Architecture) -> None:
    """Refuse a checkpoint that lacks a weight, has one of another shape or one that nothing reads, or values
    that are no numbers."""
    names, stored = shape.tensors, shards_of(folder)
    _require_layers(folder, shape, stored)
    _require_stored(folder, names, stored)
    _require_tied(folder, shape, stored)
    # The rotation is computed.
    extra = set(stored) - set(names) - {HEAD}
    if unread := sorted(name for name in extra if not name.endswith("rotary_emb.inv_freq")):
        raise UsageError(
            f"{folder} has the weight {_first_of(unread)}, which nothing here reads: it would be left out",
            fix=f"take a model that is built like {shape.family.models}",
        )
    if faults := [name for name in names if not stored[name].is_finite]:
        raise CheckFailed(
            f"{stored[faults[0]].path}: {_first_of(faults)} holds NaN or infinity",
            fix="download it again; if you trained it, take an earlier checkpoint",
        )


def _require_layers(folder: Path, shape: Architecture, stored: Mapping[str, Stored]) -> None:
    numbers = [int(match[1]) for match in map(LAYER.match, stored) if match]
    count = max(numbers, default=-1) + 1
    if count and count != shape.num_layers:
        raise UsageError(
            f"{folder}: the weights have {count} layers, and num_hidden_layers of config.json is"
            f" {shape.num_layers}",
            fix=f'write "num_hidden_layers": {count} into config.json if the weights are those that you mean;'
            " else take the config.json and the weights of one model",
        )


def _first_of(names: Sequence[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if names[1:] else "")


def _require_tied(folder: Path, shape: Architecture, stored: Mapping[str, Stored]) -> None:
    """Require that a stored head equals the embedding if they are tied; transformers would not read another
    one."""
    if not shape.tied or HEAD not in stored:
        return
    head, embedding = stored[HEAD], stored[EMBEDDING]
    if head.dtype != embedding.dtype or not np.array_equal(head.bytes(), embedding.bytes()):
        raise UsageError(
            f"{folder} has a {HEAD} that is not its embedding, and config.json ties them",
            fix='if the head is its own, set "tie_word_embeddings": false in config.json; else remove it',
        )


def _require_stored(folder: Path, names: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]) -> None:
    if gaps := sorted(set(names) - set(stored)):
        tied = 'if its head is the embedding, add "tie_word_embeddings": true to config.json'
        raise CheckFailed(
            f"{folder} lacks the weight {_first_of(gaps)}",
            fix=tied if gaps == ["lm_head.weight"] else "download it again",
        )
    for name, shape in names.items():
        if stored[name].shape != shape:
            raise CheckFailed(
                f"{stored[name].path}: {name}: expected {shape} by config.json, found {stored[name].shape}",
                fix="take config.json and weights of one model",
            )


def tensors_of(folder: Path, names: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Any]]:
    """Yield torch tensors in float32 by name, one at a time. `names` has their shapes."""
    import torch
    from safetensors import safe_open

    shards = shards_of(folder)
    _require_stored(folder, names, shards)
    for path in sorted({shards[name].path for name in names}):
        with safe_open(path, framework="pt") as shard:
            for name in (name for name in names if shards[name].path == path):
                yield name, shard.get_tensor(name).to(torch.float32)
