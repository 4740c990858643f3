"""A checkpoint of the Llama family in the Hugging Face format: its config.json and its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.llm.arrays import Array
from provisioning.base.errors import CheckFailed, UsageError

FAMILIES = {"llama": "Llama 3, SmolLM 2", "qwen2": "Qwen 2.5", "qwen3": "Qwen 3"}
"""By `model_type`: what is read, and what has it."""
INDEX = "model.safetensors.index.json"
ONLY = {"hidden_act": "silu", "use_sliding_window": False, "partial_rotary_factor": 1}
"""Keys of config.json that have one value here. Others compute something else."""
PUBLISHED = "take config.json as it was published"
ANOTHER = "take another model: this one computes what is not built here"
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
UPSTREAM_NAMES = (
    ("llama", "<|start_header_id|>", "llama3"),
    ("llama", "<|im_start|>", "smollm2_135m"),
    ("qwen2", "<|im_start|>", "qwen2_5"),
    ("qwen3", "<|im_start|>", "qwen3"),
)
"""By `model_type` and a word of the tokenizer: the chat template of qnn_llama_runner."""


@dataclass(frozen=True, slots=True)
class Architecture:
    kind: str
    """`model_type`."""
    words: int
    width: int
    layers: int
    heads: int
    groups: int
    """Heads of keys and of values."""
    size: int
    """Of a head."""
    hidden: int
    eps: float
    theta: float
    scaling: Mapping[str, Any] | None
    """Llama 3's scaling of rotary frequencies, by the names of config.json."""
    tied: bool
    """Whether the output head is the embedding."""
    bias: bool
    """Whether queries, keys and values have a bias."""
    head_norms: bool
    """Whether queries and keys are normalized head by head."""
    context: int
    bos: int | None
    """The token that begins a text, unless the tokenizer puts none there, as Qwen's."""
    eos: tuple[int, ...]

    @property
    def beginning(self) -> tuple[int, ...]:
        return () if self.bos is None else (self.bos,)

    @property
    def tensors(self) -> list[str]:
        """Their names in the checkpoint."""
        projections = [f"self_attn.{name}_proj" for name in "qkv"]
        parts = ["input_layernorm", "post_attention_layernorm", "self_attn.o_proj"]
        parts += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
        names = [f"{part}.weight" for part in (*parts, *projections)]
        names += [f"{part}.bias" for part in projections] if self.bias else []
        names += [f"self_attn.{part}_norm.weight" for part in "qk"] if self.head_norms else []
        ends = ["model.embed_tokens.weight", "model.norm.weight", *([] if self.tied else ["lm_head.weight"])]
        return ends + [f"model.layers.{layer}.{name}" for layer in range(self.layers) for name in names]

    @property
    def weights_of_layer(self) -> int:
        return self.width * (2 * self.heads + 2 * self.groups) * self.size + 3 * self.width * self.hidden

    @property
    def weights_of_words(self) -> int:
        """Of the embedding as of the head."""
        return self.words * self.width

    def part(self, number: int, parts: int) -> tuple[int, int]:
        """The first layer of a part, and the one after its last. The embedding is in the first part and the
        head in the last, which therefore have fewer layers."""
        layer, words = self.weights_of_layer, self.weights_of_words

        def boundary(index: int) -> int:
            share = ((2 * words + self.layers * layer) * index // parts - words) // layer
            inside = min(max(share, index), self.layers - parts + index)
            return {0: 0, parts: self.layers}.get(index, inside)

        return boundary(number), boundary(number + 1)

    def weights(self, parts: int) -> list[int]:
        """How many each part has."""
        layer, words = self.weights_of_layer, self.weights_of_words
        spans = [self.part(number, parts) for number in range(parts)]
        ends = [(first == 0) + (last == self.layers) for first, last in spans]
        return [(last - first) * layer + end * words for (first, last), end in zip(spans, ends, strict=True)]

    def rotation(self, positions: Array) -> tuple[Array, Array]:
        """Cosines and sines, one row for each position."""
        angles = np.outer(positions.astype(np.float64), self.frequencies())
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def frequencies(self) -> Array:
        plain: Array = self.theta ** (-np.arange(0, self.size, 2, dtype=np.float64) / self.size)
        if self.scaling is None:
            return plain
        low, high = float(self.scaling["low_freq_factor"]), float(self.scaling["high_freq_factor"])
        turns = float(self.scaling["original_max_position_embeddings"]) * plain / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        scaled: Array = plain * kept + plain / float(self.scaling["factor"]) * (1 - kept)
        return scaled


def read_architecture(folder: Path) -> Architecture:
    """Raises UsageError if it is no checkpoint of these families."""
    config = _config(folder)
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        known = ", ".join(f"{name} ({models})" for name, models in FAMILIES.items())
        raise UsageError(
            f"{folder}: expected the model_type {known}; found {kind}", remedy="name such a model"
        )
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unknown")
        raise UsageError(
            f"{folder} is quantized already ({method}), and its weights cannot be quantized again",
            remedy="take the checkpoint that it was made from",
        )
    config = _with_old_keys(folder, config)
    for key, only in ONLY.items():
        if config.get(key) not in (None, only):
            raise _unexpected(folder, key, json.dumps(only), config[key], ANOTHER)
    for kind_of_layer in config.get("layer_types") or ():
        if kind_of_layer != "full_attention":
            raise _unexpected(folder, "layer_types", "full_attention alone", kind_of_layer, ANOTHER)
    try:
        heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
        return Architecture(
            kind=kind,
            words=int(config["vocab_size"]),
            width=width,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            groups=int(config.get("num_key_value_heads") or heads),
            size=int(config.get("head_dim") or width // heads),
            hidden=int(config["intermediate_size"]),
            eps=float(config["rms_norm_eps"]),
            theta=float(config.get("rope_theta", 10000.0)),
            scaling=_scaling(folder, config),
            tied=bool(config.get("tie_word_embeddings", False)),
            bias=kind == "qwen2" or bool(config.get("attention_bias", False)),
            head_norms=kind == "qwen3",
            context=int(config["max_position_embeddings"]),
            bos=_beginning(folder, config),
            eos=_ends(folder, config),
        )
    except KeyError as error:
        raise UsageError(f"{folder}/config.json: {error} is missing", remedy="download it again") from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"{folder}/config.json: {error}", remedy="download it again") from None


def upstream_name(folder: Path, kind: str) -> str:
    """qnn_llama_runner's --decoder_model_version, or nothing where it has none for the model."""
    words = (folder / "tokenizer.json").read_text(encoding="utf-8")
    return next((name for each, word, name in UPSTREAM_NAMES if each == kind and word in words), "")


def _beginning(folder: Path, config: Mapping[str, Any]) -> int | None:
    path = folder / "tokenizer_config.json"
    if path.is_file() and _object(path).get("add_bos_token") is False:
        return None
    bos: int | None = config.get("bos_token_id")
    return bos


def _ends(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Of config.json and of generation_config.json, where the ends of a chat are."""
    path = folder / "generation_config.json"
    every = [config.get("eos_token_id")]
    every += [_object(path).get("eos_token_id")] if path.is_file() else []
    ends = [end for one in every for end in (one if isinstance(one, list) else [one]) if end is not None]
    return tuple(dict.fromkeys(int(end) for end in ends))


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if (folder / "adapter_config.json").is_file() and not path.is_file():
        raise UsageError(
            f"{folder} holds adapters alone, without the model that they change",
            remedy="merge first: PeftModel.from_pretrained(…).merge_and_unload().save_pretrained(OUT)",
        )
    if not path.is_file():
        gguf = next(folder.glob("*.gguf"), None) if folder.is_dir() else None
        listing = f"found {gguf.name}" if gguf else "found none"
        raise UsageError(
            f"{folder}: expected a Hugging Face checkpoint with config.json; {listing}",
            remedy="name the folder of the checkpoint as it was published, not a conversion of it",
        )
    return _object(path)


def _object(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}", remedy="download it again") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: expected an object", remedy="download it again")
    return config


def _with_old_keys(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 writes rope_parameters, and 4 reads rope_theta and rope_scaling."""
    new = config.get("rope_parameters")
    if new is None:
        return config
    if not isinstance(new, dict) or "rope_theta" not in new:
        raise _unexpected(folder, "rope_parameters", "an object with rope_theta", new)
    old = {name: new[name] for name in ("rope_theta", "partial_rotary_factor") if name in new}
    old["rope_scaling"] = {name: value for name, value in new.items() if name not in old}
    for name, value in old.items():
        if config.get(name) not in (None, value):
            raise UsageError(
                f"{folder}/config.json: {name} is {json.dumps(config[name])}, and by rope_parameters it is "
                f"{json.dumps(value)}",
                remedy="remove the wrong one",
            )
    return config | old


def _scaling(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    scaling = config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise _unexpected(folder, "rope_scaling", "an object", scaling)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        remedy = "remove rope_scaling if prompts stay within the length that the model was trained for"
        raise _unexpected(folder, "rope_scaling", "llama3 or none", kind, remedy)
    for name in SCALING:
        value = scaling.get(name)
        if not isinstance(value, int | float) or not value > 0:
            raise _unexpected(folder, f"rope_scaling: {name}", "a number above 0", value)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    if high <= low:
        raise _unexpected(folder, "rope_scaling: high_freq_factor", f"more than {low}", high)
    return scaling


def _unexpected(folder: Path, key: str, expected: str, found: object, remedy: str = PUBLISHED) -> UsageError:
    text = found if isinstance(found, str) else json.dumps(found)
    return UsageError(f"{folder}/config.json: {key}: expected {expected}; found {text}", remedy=remedy)


def shards_of(folder: Path) -> dict[str, Path]:
    """The file of each tensor. Raises CheckFailed where a file is missing or incomplete."""
    from safetensors import SafetensorError, safe_open

    index = folder / INDEX
    if index.is_file():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    shards: dict[str, Path] = {}
    for name in files:
        path = folder / name
        if not path.is_file():
            raise CheckFailed(f"{folder} lacks {name}", remedy="download the checkpoint again")
        try:
            with safe_open(path, framework="np") as shard:
                shards |= dict.fromkeys(shard.keys(), path)
        except SafetensorError as error:
            raise CheckFailed(
                f"{path} is damaged or incomplete: {error}", remedy="download it again"
            ) from None
    return shards


def require_tensors(folder: Path, shape: Architecture) -> None:
    """Raises CheckFailed where the files lack one, and UsageError where they have one that nothing reads."""
    names, stored = set(shape.tensors), set(shards_of(folder))
    _require_stored(folder, names, stored)
    # A tied head is the embedding, and the rotation is computed.
    others = stored - names - {"lm_head.weight"}
    if unread := sorted(name for name in others if not name.endswith("rotary_emb.inv_freq")):
        raise UsageError(
            f"{folder} has the weight {unread[0]} (and {len(unread) - 1} more), which nothing here reads: it "
            "would be left out",
            remedy=f"take a model that is built like {FAMILIES[shape.kind]}",
        )


def _require_stored(folder: Path, names: Collection[str], stored: Collection[str]) -> None:
    if missing := sorted(set(names) - set(stored)):
        tied = 'if its head is the embedding, add "tie_word_embeddings": true to config.json'
        raise CheckFailed(
            f"{folder} lacks the weight {missing[0]} (and {len(missing) - 1} more)",
            remedy=tied if missing == ["lm_head.weight"] else "download it again",
        )


def tensors_of(folder: Path, names: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Any]]:
    """Torch tensors in float32, by name, one at a time. `names` has their shapes."""
    import torch
    from safetensors import safe_open

    shards = shards_of(folder)
    _require_stored(folder, names, shards)
    for path in sorted({shards[name] for name in names}):
        with safe_open(path, framework="pt") as shard:
            for name in (name for name in names if shards[name] == path):
                tensor = shard.get_tensor(name)
                if tuple(tensor.shape) != names[name]:
                    raise CheckFailed(
                        f"{path}: {name}: expected {names[name]} by config.json, found {tuple(tensor.shape)}",
                        remedy="take config.json and weights of one model",
                    )
                yield name, tensor.to(torch.float32)
