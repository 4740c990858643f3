"""Reads a checkpoint's weights as safetensors: finds each tensor, and checks that it is what config.json
says, and that its values can be a model's."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
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
LARGER = 1e4
"""No healthy tensor has so many times the norm of the same tensor in other layers."""
MISLABELED = 0.99
"""Read as F16, at least this share of a BF16 matrix is NEAR_ONE: the exponent's first five bits, which F16
takes for its own, are nearly the same for all values from 2^-23 to 2^9."""
NEAR_ONE = (0.25, 4.0)
SAMPLED = 1 << 16
"""This many values decide how a tensor's bytes were labeled."""


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
        kind, exponent = EXPONENTS[self.dtype]
        mask = np.array(exponent, kind)
        return not any(((block & mask) == mask).any() for block in self._blocks())

    def _blocks(self) -> Iterator[Array]:
        """Yield the bits of the values."""
        if self.begin < self.end:
            values = self.bytes().view(EXPONENTS[self.dtype][0])
            yield from (values[start : start + BLOCK] for start in range(0, len(values), BLOCK))

    @property
    def rms(self) -> float:
        """The root mean square of the values, which are finite."""
        total, count = 0.0, max(1, math.prod(self.shape))
        # A huge value's square is infinite, and so larger than any other.
        with np.errstate(over="ignore"):
            for block in self._blocks():
                values = _floats(block, self.dtype)
                total += float(np.dot(values, values))
        return math.sqrt(total / count)

    @property
    def is_mislabeled(self) -> bool:
        """Whether a matrix of F16 has the bytes of BF16: then nearly all values that are not 0 are near 1."""
        if self.dtype != "F16" or len(self.shape) < 2:
            return False
        values = self.bytes().view("<f2")
        sizes = np.abs(values[:: max(1, len(values) // SAMPLED)].astype(np.float32))
        sizes = sizes[sizes > 0]
        low, high = NEAR_ONE
        near = (sizes >= low) & (sizes < high)
        return sizes.size > 0 and float(near.mean()) >= MISLABELED


def _floats(bits: Array, dtype: str) -> Array:
    if dtype == "BF16":
        return (bits.astype("<u4") << 16).view("<f4")
    floats: Array = bits.view(bits.dtype.str.replace("u", "f"))
    return floats.astype(np.float32) if dtype == "F16" else floats


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
    _require_values(names, stored)


def _require_values(names: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]) -> None:
    """Refuse tensors whose values cannot be those that the model was trained to."""
    if integers := [name for name in names if stored[name].dtype not in EXPONENTS]:
        tensor = stored[integers[0]]
        raise CheckFailed(
            f"{tensor.path}: {_first_of(integers)} has the type {tensor.dtype}, expected one of"
            f" {', '.join(EXPONENTS)}",
            fix="take the checkpoint that was not quantized: compile quantizes it itself",
        )
    if faults := [name for name in names if not stored[name].is_finite]:
        raise CheckFailed(
            f"{stored[faults[0]].path}: {_first_of(faults)} holds NaN or infinity",
            fix="download it again; if you trained it, take an earlier checkpoint",
        )
    if mislabeled := [name for name in names if stored[name].is_mislabeled]:
        raise CheckFailed(
            f"{stored[mislabeled[0]].path}: {_first_of(mislabeled)} is labeled F16, and its bytes are"
            " those of BF16: read as F16, nearly all of its values are between 0.25 and 4",
            fix="convert the checkpoint again, and save it by save_pretrained or safetensors.torch.save_file",
        )
    _require_norms(names, stored)


def _require_norms(names: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]) -> None:
    """Refuse a tensor that is far larger than the same tensor of the other layers."""
    by_role = defaultdict[str, dict[str, float]](dict)
    for name in names:
        if LAYER.match(name):
            by_role[LAYER.sub("", name, count=1)][name] = stored[name].rms
    for sizes in by_role.values():
        for name, size in sizes.items():
            neighbor_sizes = [other for neighbor, other in sizes.items() if neighbor != name]
            typical = float(np.median(neighbor_sizes)) if neighbor_sizes else 0.0
            if typical and size > LARGER * typical:
                raise CheckFailed(
                    f"{stored[name].path}: {name} has a root mean square of {size:.3g}, and {typical:.3g} in"
                    " the other layers",
                    fix="download it again; if you converted or trained it, look at this tensor",
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
