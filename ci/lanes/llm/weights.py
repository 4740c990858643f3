"""A checkpoint's weights as safetensors, and the LoRA adapters that change them: where each tensor is, and
whether it is what config.json says. An adapter is read as peft writes it; peft is not needed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.lanes.llm.architecture import Architecture, read_object
from ci.models.arrays import Array
from provisioning.base.errors import CheckFailed, UsageError

INDEX = "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
EXPONENTS = {
    "F64": ("<u8", 0x7FF0 << 48),
    "F32": ("<u4", 0x7F80 << 16),
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
}
"""By the type of a tensor: how its values are read, and the bits that only NaN and infinity have all set."""
BLOCK = 1 << 24
"""Values looked at in one go."""


@dataclass(frozen=True, slots=True)
class Stored:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    """Of its bytes in the file."""

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
    """Where each tensor is; reads no weights. Raises CheckFailed where a file is missing or incomplete."""
    shards: dict[str, Stored] = {}
    for name in _files(folder):
        path = folder / name
        if not path.is_file():
            raise CheckFailed(f"{folder} lacks {name}", fix="download the checkpoint again")
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
    return {
        name: Stored(
            path,
            tensor["dtype"],
            tuple(tensor["shape"]),
            *(8 + length + offset for offset in tensor["data_offsets"]),
        )
        for name, tensor in header.items()
        if name != "__metadata__"
    }


def _files(folder: Path) -> list[str]:
    """Those that transformers reads: a single file rather than an index's."""
    single, index = "model.safetensors", folder / INDEX
    if (folder / single).is_file():
        return [single]
    if not index.is_file():
        if pickled := next(folder.glob("pytorch_model*.bin"), None):
            raise UsageError(
                f"{folder}: expected {single}; found {pickled.name}, weights in PyTorch's pickle format",
                fix="AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OUT) converts them;"
                " then copy the tokenizer's files to OUT",
            )
        return [single]
    found = read_object(index, CheckFailed).get("weight_map")
    names: list[Any] = list(found.values()) if isinstance(found, dict) else [found]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckFailed(
                f"{index}: weight_map: expected safetensors files of its folder; found {json.dumps(name)}",
                fix="download it again",
            )
    return sorted(set(names))


def require_tensors(folder: Path, shape: Architecture) -> None:
    """Refuse a checkpoint that lacks a weight, has one of another shape or one that nothing reads, or values
    that are no numbers."""
    names, stored = shape.tensors, shards_of(folder)
    _require_stored(folder, names, stored)
    _require_tied(folder, shape, stored)
    # The rotation is computed.
    others = set(stored) - set(names) - {HEAD}
    if unread := sorted(name for name in others if not name.endswith("rotary_emb.inv_freq")):
        raise UsageError(
            f"{folder} has the weight {_first_of(unread)}, which nothing here reads: it would be left out",
            fix=f"take a model that is built like {shape.family.models}",
        )
    if broken := [name for name in names if not stored[name].is_finite]:
        raise CheckFailed(
            f"{stored[broken[0]].path}: {_first_of(broken)} holds NaN or infinity",
            fix="download it again; if you trained it, take an earlier checkpoint",
        )


def _first_of(names: Sequence[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if names[1:] else "")


def _require_tied(folder: Path, shape: Architecture, stored: Mapping[str, Stored]) -> None:
    """A tied head is the embedding; transformers would not read another one that is stored."""
    if not shape.tied or HEAD not in stored:
        return
    head, embedding = stored[HEAD], stored[EMBEDDING]
    if head.dtype != embedding.dtype or not np.array_equal(head.bytes(), embedding.bytes()):
        raise UsageError(
            f"{folder} has a {HEAD} that is not its embedding, and config.json ties them",
            fix='if the head is its own, set "tie_word_embeddings": false in config.json; else remove it',
        )


def _require_stored(folder: Path, names: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]) -> None:
    if missing := sorted(set(names) - set(stored)):
        tied = 'if its head is the embedding, add "tie_word_embeddings": true to config.json'
        raise CheckFailed(
            f"{folder} lacks the weight {_first_of(missing)}",
            fix=tied if missing == ["lm_head.weight"] else "download it again",
        )
    for name, shape in names.items():
        if stored[name].shape != shape:
            raise CheckFailed(
                f"{stored[name].path}: {name}: expected {shape} by config.json, found {stored[name].shape}",
                fix="take config.json and weights of one model",
            )


def tensors_of(folder: Path, names: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Any]]:
    """Torch tensors in float32, by name, one at a time. `names` has their shapes."""
    import torch
    from safetensors import safe_open

    shards = shards_of(folder)
    _require_stored(folder, names, shards)
    for path in sorted({shards[name].path for name in names}):
        with safe_open(path, framework="pt") as shard:
            for name in (name for name in names if shards[name].path == path):
                yield name, shard.get_tensor(name).to(torch.float32)


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MERGE = "merge first: PeftModel.from_pretrained(…).merge_and_unload().save_pretrained(OUT)"
ONLY: Mapping[str, object] = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "fan_in_fan_out": False,
    "lora_bias": False,
    "use_qalora": False,
    "modules_to_save": [],
    "rank_pattern": {},
    "alpha_pattern": {},
    "layer_replication": [],
    "trainable_token_indices": [],
}
"""Keys of adapter_config.json that have one value here. Others change the model otherwise."""
NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def require_adapter(folder: Path, tensors: Mapping[str, tuple[int, ...]]) -> None:
    """Raises UsageError for what cannot be merged into a checkpoint with these tensors."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise UsageError(f"--adapter {folder}: there is no {name}", fix="name a folder that peft saved")
    rank, stored = _settings(folder)[0], stored_in(folder / WEIGHTS)
    if broken := [name for name, tensor in stored.items() if not tensor.is_finite]:
        raise CheckFailed(f"{folder / WEIGHTS}: {broken[0]} holds NaN or infinity", fix="train it again")
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    for name, found in shapes.items():
        match = NAME.fullmatch(name)
        target = f"{match[1]}.weight" if match else ""
        if match is None or len(tensors.get(target, ())) != 2 or "embed_tokens" in target:
            raise UsageError(
                f"{folder / WEIGHTS}: {name} changes no matrix of this checkpoint that is read here",
                fix=MERGE,
            )
        rows, columns = tensors[target]
        expected = (rank, columns) if match[2] == "A" else (rows, rank)
        if found != expected:
            raise UsageError(
                f"{folder / WEIGHTS}: {name}: expected {expected} by the checkpoint and r = {rank}, found"
                f" {found}",
                fix="take the checkpoint that the adapter was trained on",
            )
    pairs = {name.replace("lora_A", "lora_B"): name.replace("lora_B", "lora_A") for name in shapes}
    if lacking := sorted({*pairs, *pairs.values()} - set(shapes)):
        raise CheckFailed(f"{folder / WEIGHTS} lacks {lacking[0]}", fix="download it again")
    if not shapes:
        raise CheckFailed(f"{folder / WEIGHTS} has no weights", fix="download it again")


def changes(folder: Path | None, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """What an adapter adds to each of these weights that it changes, in float32."""
    if folder is None:
        return
    import torch
    from safetensors import safe_open

    rank, alpha, by_root = _settings(folder)
    scale = alpha / (math.sqrt(rank) if by_root else rank)
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        tensors = file.keys()
        for name in tensors:
            match = NAME.fullmatch(name)
            if match and match[2] == "A" and f"{match[1]}.weight" in names:
                down, up = (
                    file.get_tensor(key).to(torch.float32) for key in (name, name.replace("lora_A", "lora_B"))
                )
                yield f"{match[1]}.weight", up @ down * scale


def _settings(folder: Path) -> tuple[int, float, bool]:
    """The rank, alpha, and whether the rank's root divides (rsLoRA)."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        for key, only in ONLY.items():
            found = config.get(key) or only
            if found != only:
                raise UsageError(
                    f"{path}: {key}: expected {json.dumps(only)}; found {json.dumps(found)}, which is not"
                    " merged here",
                    fix=MERGE,
                )
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        if rank < 1:
            raise ValueError(f"r is {rank}")
        return rank, alpha, bool(config.get("use_rslora"))
    except KeyError as error:
        raise UsageError(f"{path}: {error} is missing", fix="download it again") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: {error}", fix="download it again") from None
