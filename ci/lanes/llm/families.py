"""The families of language models that are built here, and a checkpoint's config.json, which says of which
one it is. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from provisioning.base.errors import ToolkitError, UsageError


@dataclass(frozen=True, slots=True)
class Family:
    """Says how a family of models differs from Llama."""

    models: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    """A config.json without these keys means these values."""
    always_bias: bool = False
    """Whether queries, keys and values have a bias, whatever config.json says."""
    norms: Literal["", "heads", "whole"] = ""
    """Queries and keys are normalized in each head, or across all heads at once; empty if they are not."""
    layer_norms: tuple[str, str, str, str] = ("input", "", "post_attention", "")
    """These are the checkpoint's names of the norms before and after attention, and before and after
    feed-forward."""
    gemma: bool = False
    """Whether norms multiply by 1 + weight, the embedding is scaled, the activation is another, and some
    layers have their own rope."""
    fused: bool = False
    """Whether queries, keys and values are one weight, and gate and up are one."""
    windowed: bool = False
    """Whether all layers have the sliding window."""
    partial: bool = False
    """Whether only a part of each head may be rotated, and by a longrope."""
    unrotated: bool = False
    """Whether some layers have no rope."""


TIED, WINDOW = {"tie_word_embeddings": True}, {"sliding_window": 4096}
FAMILIES: Mapping[str, Family] = {
    "llama": Family("Llama 3, SmolLM 2"),
    "qwen2": Family("Qwen 2.5", always_bias=True),
    "qwen3": Family("Qwen 3", norms="heads"),
    "mistral": Family("Mistral", WINDOW, windowed=True),
    "smollm3": Family("SmolLM 3", TIED, unrotated=True),
    "phi3": Family("Phi 3 and 4 mini", fused=True, partial=True, windowed=True),
    "olmo2": Family("OLMo 2", norms="whole", layer_norms=("", "post_attention", "", "post_feedforward")),
    "gemma3_text": Family(
        "Gemma 3",
        {**TIED, **WINDOW, "query_pre_attn_scalar": 256},
        norms="heads",
        layer_norms=("input", "post_attention", "pre_feedforward", "post_feedforward"),
        gemma=True,
        windowed=True,
    ),
}
"""Each family has the `model_type` of its config.json as its key."""


def config_of(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises UsageError if the folder has no checkpoint of these families."""
    values = _values(folder)
    kind = str(values.get("model_type"))
    if kind not in FAMILIES:
        names = ", ".join(f"{name} ({family.models})" for name, family in FAMILIES.items())
        raise UsageError(
            f"{folder}: config.json: model_type: expected {names}, found {values.get('model_type', 'none')}",
            fix="name such a model; of another one write a function, `def net(): return"
            f' transformers.AutoModel.from_pretrained("{folder}"), (tokens,)`, and name FILE.py:net, with'
            " --with transformers",
        )
    return values


def _values(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(
            f"{folder}: expected a Hugging Face checkpoint with config.json, found none",
            fix="name the folder of the checkpoint as it was published, not a conversion of it; adapters are"
            " merged into their model: PeftModel.from_pretrained(…).merge_and_unload().save_pretrained(OUT)",
        )
    return read_object(path)


def read_object(
    path: Path, wrong: type[ToolkitError] = UsageError, *, fix: str = "download it again"
) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise wrong(f"{path}: not JSON: {error}", fix=fix) from None
    if not isinstance(config, dict):
        raise wrong(f"{path}: expected an object", fix=fix)
    return config
