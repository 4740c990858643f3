"""LoRA adapters as peft writes them, merged into the weights that they change. peft is not needed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ci.lanes.llm.weights import stored_in
from provisioning.base.errors import CheckFailed, UsageError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MERGE = "merge first: PeftModel.from_pretrained(…).merge_and_unload().save_pretrained(OUT)"
ONLY: Mapping[str, Any] = {
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
