"""A checkpoint's config.json, and the other files of it that say what it computes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ci.lanes.llm.architecture import FAMILIES, NOT_BUILT, Architecture
from ci.lanes.llm.beginning import first_token, tokenizer_decides
from provisioning.base.errors import ToolkitError, UsageError

PUBLISHED = "take the file as it was published"
ANOTHER = "take another model: this one computes what is not built here"
ROPE_FIXES = {
    "dynamic": "remove rope_scaling, which changes only prompts longer than the model was trained for, and"
    " keep --context within that length",
    "yarn": "if you added it to a model that was trained without it, remove it and keep --context within the"
    " length of training; a model published with it needs it at every position, so take another one",
}
"""Others, linear and longrope, act at every position: without them the model says something else."""
RUNNER_VERSIONS = (
    ("llama", "<|start_header_id|>", "llama3"),
    ("llama", "<|im_start|>", "smollm2_135m"),
    ("qwen2", "<|im_start|>", "qwen2_5"),
    ("qwen3", "<|im_start|>", "qwen3"),
)
"""By `model_type` and a word of the tokenizer: the chat template of qnn_llama_runner."""


def read_architecture(folder: Path, adapter: str = "") -> Architecture:
    """Raises UsageError if it is no checkpoint of these families."""
    values = _with_old_keys(folder, _values(folder))
    kind = str(values.get("model_type"))
    if kind not in FAMILIES:
        known = ", ".join(f"{name} ({family.models})" for name, family in FAMILIES.items())
        raise UsageError(f"{folder}: expected the model_type {known}; found {kind}", fix="name such a model")
    if quantization := values.get("quantization_config"):
        raise UsageError(
            f"{folder} is quantized already ({quantization.get('quant_method', 'unknown')}), and its weights"
            " cannot be quantized again",
            fix="take the checkpoint that it was made from",
        )
    shape = _parsed(folder / "config.json", values)
    changes: dict[str, Any] = {"adapter": Path(adapter) if adapter else None}
    generation = folder / "generation_config.json"
    if generation.is_file():
        ends = read_object(generation).get("eos_token_id")
        changes["ends_of_chats"] = _parsed(generation, {**values, "eos_token_id": ends}).ends
    if tokenizer_decides(folder):
        # Models are trained with the tokenizer's tokens, and config.json may name another.
        changes["bos"] = first_token(folder, shape.vocab_size)
    return shape.model_copy(update=changes)


NULLS = ("sliding_window",)
"""Keys whose null says something else than no key."""


def _parsed(path: Path, values: Mapping[str, Any]) -> Architecture:
    known = {name: value for name, value in values.items() if value is not None or name in NULLS}
    try:
        return Architecture.model_validate({**FAMILIES[values["model_type"]].defaults, **known})
    except ValidationError as error:
        [first, *_] = error.errors()
    place = ": ".join(str(part) for part in first["loc"] if part not in ROPES)
    found = f"; found {json.dumps(first['input'])}" if place and first["type"] != "missing" else ""
    words, fix = first["msg"].removeprefix("Value error, "), PUBLISHED
    if first["type"] in (NOT_BUILT, "literal_error", "none_required", "union_tag_invalid"):
        fix = ROPE_FIXES.get(str(first.get("ctx", {}).get("tag")), ANOTHER)
    raise UsageError(f"{path}: {f'{place}: ' if place else ''}{words}{found}", fix=fix)


ROPES = ("default", "llama3", "longrope")
"""Names of kinds, which stand in the place of an error."""


def runner_version(folder: Path, kind: str) -> str:
    """qnn_llama_runner's --decoder_model_version, or nothing where it has none for the model."""
    words = (folder / "tokenizer.json").read_text(encoding="utf-8")
    names = (name for family, word, name in RUNNER_VERSIONS if family == kind and word in words)
    return next(names, "")


def beginning_warning(folder: Path, shape: Architecture) -> str:
    """What contradicts what the tokenizer puts first, or nothing."""
    named = _values(folder).get("bos_token_id")
    path = folder / "tokenizer_config.json"
    settings = read_object(path) if path.is_file() else {}
    if named in (None, shape.bos) or (shape.bos is None and settings.get("add_bos_token") is False):
        return ""
    puts = "no token" if shape.bos is None else f"token {shape.bos}"
    return (
        f"{folder / 'config.json'} names bos_token_id {named}, and the tokenizer of"
        f" {folder / 'tokenizer.json'} puts {puts} before a text: the tokenizer is right here"
    )


def _values(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if (folder / "adapter_config.json").is_file() and not path.is_file():
        raise UsageError(
            f"{folder} holds adapters alone, without the model that they change",
            fix=f"name the model's folder, and --adapter {folder}",
        )
    if not path.is_file():
        gguf = next(folder.glob("*.gguf"), None) if folder.is_dir() else None
        listing = f"found {gguf.name}" if gguf else "found none"
        raise UsageError(
            f"{folder}: expected a Hugging Face checkpoint with config.json; {listing}",
            fix="name the folder of the checkpoint as it was published, not a conversion of it",
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


def _with_old_keys(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 writes rope_parameters, and 4 reads rope_theta and rope_scaling."""
    new = values.get("rope_parameters")
    if new is None:
        return values
    try:
        old = old_rope(new)
    except (AttributeError, KeyError, TypeError):
        raise _unexpected(folder, "rope_parameters", "an object with rope_theta", new) from None
    for name, value in old.items():
        if values.get(name) not in (None, value):
            raise UsageError(
                f"{folder}/config.json: {name} is {json.dumps(values[name])}, and by rope_parameters it is "
                f"{json.dumps(value)}",
                fix="remove the wrong one",
            )
    return values | old


def old_rope(new: Mapping[str, Any]) -> dict[str, Any]:
    """The rope_parameters of transformers 5 by the names of version 4; Gemma 3 has some by kind of layer."""
    if "sliding_attention" in new:
        local = new["sliding_attention"]["rope_theta"]
        return {**old_rope(new["full_attention"]), "rope_local_base_freq": local}
    old = {"rope_theta": new["rope_theta"]}
    if "partial_rotary_factor" in new:
        old["partial_rotary_factor"] = new["partial_rotary_factor"]
    return {**old, "rope_scaling": {name: value for name, value in new.items() if name not in old}}


def _unexpected(folder: Path, key: str, expected: str, found: object, fix: str = PUBLISHED) -> UsageError:
    text = found if isinstance(found, str) else json.dumps(found)
    return UsageError(f"{folder / 'config.json'}: {key}: expected {expected}; found {text}", fix=fix)
