"""A checkpoint of the Llama family in the Hugging Face format: its config.json and its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ci.lanes.llm.beginning import first_token, tokenizer_decides
from ci.pipeline.models.arrays import Array
from provisioning.base.errors import ToolkitError, UsageError


@dataclass(frozen=True, slots=True)
class Family:
    """What models of a `model_type` compute otherwise than Llama."""

    models: str
    bias: bool = False
    """Of queries, keys and values, whatever config.json says."""
    norms: Literal["", "heads", "whole"] = ""
    """Of queries and keys: of each head, or of all heads at once."""
    layer_norms: tuple[str, str, str, str] = ("input", "", "post_attention", "")
    """Before and after attention, before and after feed-forward, by the checkpoint's names."""
    gemma: bool = False
    """Norms by 1 + weight, a scaled embedding, another activation, and layers with a rope of their own."""
    fused: bool = False
    """Queries, keys and values in one weight, and gate and up in one."""
    partial: bool = False
    """Whether a part of each head may be rotated alone."""
    tied: bool = False
    """Whether the head is the embedding where config.json does not say."""
    windowed: bool = False
    window: int | None = None
    """The sliding window of all layers where config.json does not say."""


FAMILIES = {
    "llama": Family("Llama 3, SmolLM 2"),
    "qwen2": Family("Qwen 2.5", bias=True),
    "qwen3": Family("Qwen 3", norms="heads"),
    "mistral": Family("Mistral", windowed=True, window=4096),
    "smollm3": Family("SmolLM 3", tied=True),
    "phi3": Family("Phi 3 and 4 mini", fused=True, partial=True, windowed=True),
    "olmo2": Family("OLMo 2", norms="whole", layer_norms=("", "post_attention", "", "post_feedforward")),
    "gemma3_text": Family(
        "Gemma 3",
        norms="heads",
        layer_norms=("input", "post_attention", "pre_feedforward", "post_feedforward"),
        gemma=True,
        tied=True,
        windowed=True,
        window=4096,
    ),
}
"""By `model_type`."""
LOCAL = "local_"
"""Begins the names of the inputs with the cosines and sines of layers that have a rope of their own."""
HIDDEN = "hidden"
"""What one part of a model hands to the next is named `hidden_` and the number of the layer."""
ONLY = {"hidden_act": "silu", "use_sliding_window": False, "partial_rotary_factor": 1}
"""Keys of config.json that have one value here. Others compute something else."""
GEMMA_ONLY = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": False,
}
PUBLISHED = "take the file as it was published"
ANOTHER = "take another model: this one computes what is not built here"
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
ROPE_FIXES = {
    "dynamic": "remove rope_scaling, which changes only prompts longer than the model was trained for, and"
    " keep --context within that length",
    "yarn": "if you added it to a model that was trained without it, remove it and keep --context within the"
    " length of training; a model published with it needs it at every position, so take another one",
}
"""Others, linear and longrope, act at every position: without them the model says something else."""
UPSTREAM_NAMES = (
    ("llama", "<|start_header_id|>", "llama3"),
    ("llama", "<|im_start|>", "smollm2_135m"),
    ("qwen2", "<|im_start|>", "qwen2_5"),
    ("qwen3", "<|im_start|>", "qwen3"),
)
"""By `model_type` and a word of the tokenizer: the chat template of qnn_llama_runner."""


@dataclass(frozen=True, slots=True)
class Architecture:
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Heads of keys and of values."""
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    """Llama 3's scaling of rotary frequencies, by the names of config.json."""
    tied: bool
    """Whether the output head is the embedding."""
    bias: bool
    """Whether queries, keys and values have a bias."""
    context: int
    """The most tokens that it is right for."""
    bos: int | None
    """The token that begins a text, unless the tokenizer puts none there, as Qwen's."""
    eos: tuple[int, ...]
    rotary_dim: int
    """How much of each head is rotated."""
    rope_magnitude: float
    """Cosines and sines are multiplied by it."""
    score_scale: float
    local: frozenset[int]
    """Layers with a rope of their own."""
    local_theta: float
    """Its base."""
    unrotated: frozenset[int]
    """Layers without a rope."""
    adapter: Path | None
    """What peft saved, to be merged into the weights."""

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def beginning(self) -> tuple[int, ...]:
        return () if self.bos is None else (self.bos,)

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Their shapes, by their names in the checkpoint."""
        width, hidden = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        parts: dict[str, tuple[int, ...]] = {
            **{f"{name}_layernorm.weight": (width,) for name in self.family.layer_norms if name},
            "mlp.down_proj.weight": (width, hidden),
            "self_attn.o_proj.weight": (width, queries),
        }
        for whole, rows in self._fused.items():
            every = {whole: sum(rows.values())} if self.family.fused else rows
            parts |= {f"{name}.weight": (count, width) for name, count in every.items()}
        if self.bias:
            parts |= {f"{name}.bias": (count,) for name, count in self._fused["self_attn.qkv_proj"].items()}
        if self.family.norms:
            sizes = (queries, keys) if self.family.norms == "whole" else (self.head_dim, self.head_dim)
            parts |= {
                f"self_attn.{name}_norm.weight": (size,) for name, size in zip("qk", sizes, strict=True)
            }
        words = ["model.embed_tokens.weight", *([] if self.tied else ["lm_head.weight"])]
        return {
            **dict.fromkeys(words, (self.vocab_size, width)),
            "model.norm.weight": (width,),
            **{
                f"model.layers.{layer}.{name}": parts[name]
                for layer in range(self.num_layers)
                for name in parts
            },
        }

    @property
    def _fused(self) -> dict[str, dict[str, int]]:
        """Weights that some families have as one, and how many rows each has."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
        feed_forward = dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), self.intermediate_size)
        return {"self_attn.qkv_proj": attention, "mlp.gate_up_proj": feed_forward}

    def stored(self, name: str) -> tuple[str, slice]:
        """The checkpoint's tensor with a weight of the decoder, and the weight's rows there."""
        if name == "lm_head.weight":
            return "model.embed_tokens.weight" if self.tied else name, slice(None)
        for whole, rows in self._fused.items() if self.family.fused else ():
            start = 0
            for part, count in rows.items():
                if name.endswith(f"{part}.weight"):
                    return f"model.{name.replace(part, whole)}", slice(start, start + count)
                start += count
        return f"model.{name}", slice(None)

    @property
    def weights_of_layer(self) -> int:
        return (
            self.hidden_size * (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
            + 3 * self.hidden_size * self.intermediate_size
        )

    @property
    def weights_of_words(self) -> int:
        """Of the embedding as of the head."""
        return self.vocab_size * self.hidden_size

    def part(self, number: int, parts: int) -> tuple[int, int]:
        """The first layer of a part, and the one after its last. The embedding is in the first part and the
        head in the last, which therefore have fewer layers."""
        layer, words = self.weights_of_layer, self.weights_of_words

        def boundary(index: int) -> int:
            share = ((2 * words + self.num_layers * layer) * index // parts - words) // layer
            inside = min(max(share, index), self.num_layers - parts + index)
            return {0: 0, parts: self.num_layers}.get(index, inside)

        return boundary(number), boundary(number + 1)

    def weights(self, parts: int) -> list[int]:
        layer, words = self.weights_of_layer, self.weights_of_words
        spans = [self.part(number, parts) for number in range(parts)]
        ends = [(first == 0) + (last == self.num_layers) for first, last in spans]
        return [(last - first) * layer + end * words for (first, last), end in zip(spans, ends, strict=True)]

    @property
    def ropes(self) -> tuple[str, ...]:
        """How the names of their inputs begin."""
        return ("", LOCAL) if self.local else ("",)

    def rotation(self, positions: Array, rope: str = "") -> tuple[Array, Array]:
        """Cosines and sines as Genie hands them over, one row for each position."""
        angles = np.outer(positions.astype(np.float64), self.frequencies(rope))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def frequencies(self, rope: str = "") -> Array:
        plain: Array = (self.local_theta if rope else self.rope_theta) ** (
            -np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        )
        if self.rope_scaling is None or rope:
            return plain
        low, high = float(self.rope_scaling["low_freq_factor"]), float(self.rope_scaling["high_freq_factor"])
        turns = float(self.rope_scaling["original_max_position_embeddings"]) * plain / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        scaled: Array = plain * kept + plain / float(self.rope_scaling["factor"]) * (1 - kept)
        return scaled


def read_architecture(folder: Path, adapter: str = "") -> Architecture:
    """Raises UsageError if it is no checkpoint of these families."""
    config = _config(folder)
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        known = ", ".join(f"{name} ({family.models})" for name, family in FAMILIES.items())
        raise UsageError(f"{folder}: expected the model_type {known}; found {kind}", fix="name such a model")
    family = FAMILIES[kind]
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unknown")
        raise UsageError(
            f"{folder} is quantized already ({method}), and its weights cannot be quantized again",
            fix="take the checkpoint that it was made from",
        )
    config = _with_old_keys(folder, config)
    for key, only in (GEMMA_ONLY if family.gemma else ONLY).items():
        if config.get(key) not in (None, only) and not (family.partial and key == "partial_rotary_factor"):
            raise _unexpected(folder, key, json.dumps(only), config[key], ANOTHER)
    for kind_of_layer in config.get("layer_types") or ():
        if kind_of_layer != "full_attention" and not family.gemma:
            raise _unexpected(folder, "layer_types", "full_attention alone", kind_of_layer, ANOTHER)
    try:
        words, width, layers, heads, hidden, context = (_size(folder, config, key) for key in SIZES)
        groups = _size(folder, config, "num_key_value_heads", heads)
        if heads % groups:
            multiple = f"a multiple of num_key_value_heads, {groups}"
            raise _unexpected(folder, "num_attention_heads", multiple, heads)
        head = _size(folder, config, "head_dim", width // heads)
        scaling, magnitude, ends_at = _scaling(folder, config, head)
        window = config.get("sliding_window", family.window) if family.windowed else None
        ends = [context, ends_at, window and _size(folder, {"sliding_window": window}, "sliding_window")]
        bos = named_beginning(folder, config, words)
        return Architecture(
            model_type=kind,
            vocab_size=words,
            hidden_size=width,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=groups,
            head_dim=head,
            intermediate_size=hidden,
            rms_norm_eps=float(config["rms_norm_eps"]),
            rope_theta=float(config.get("rope_theta", 10000.0)),
            rope_scaling=scaling,
            tied=bool(config.get("tie_word_embeddings", family.tied)),
            bias=family.bias or bool(config.get("attention_bias", False)),
            context=min(end for end in ends if end),
            # Models are trained with the tokenizer's tokens, and config.json may name another.
            bos=first_token(folder, words) if tokenizer_decides(folder) else bos,
            eos=_ends(folder, config, words),
            rotary_dim=_rotary_dim(folder, config, head),
            rope_magnitude=magnitude,
            score_scale=float(config.get("query_pre_attn_scalar", 256) if family.gemma else head) ** -0.5,
            local=_local(folder, config, layers) if family.gemma else frozenset(),
            local_theta=float(config.get("rope_local_base_freq", 10000.0)),
            unrotated=_unrotated(folder, config, layers) if kind == "smollm3" else frozenset(),
            adapter=Path(adapter) if adapter else None,
        )
    except KeyError as error:
        raise UsageError(f"{folder}/config.json: {error} is missing", fix="download it again") from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"{folder}/config.json: {error}", fix="download it again") from None


def _rotary_dim(folder: Path, config: Mapping[str, Any], head: int) -> int:
    share = config.get("partial_rotary_factor") or 1.0
    if not isinstance(share, int | float) or not 0 < share <= 1 or int(head * share) % 2:
        raise _unexpected(folder, "partial_rotary_factor", f"an even share of a head of {head}", share)
    return int(head * share)


def _local(folder: Path, config: Mapping[str, Any], layers: int) -> frozenset[int]:
    every = _size(folder, config, "sliding_window_pattern", 6)
    default = ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    kinds = config.get("layer_types") or default
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise _unexpected(folder, "layer_types", f"a list of {layers}", kinds)
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")


def _unrotated(folder: Path, config: Mapping[str, Any], layers: int) -> frozenset[int]:
    """By a list with a 0 for each such layer, or each n-th layer."""
    rotated = config.get("no_rope_layers")
    if rotated is None:
        every = _size(folder, config, "no_rope_layer_interval", 4)
        rotated = [(layer + 1) % every for layer in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers:
        raise _unexpected(folder, "no_rope_layers", f"a list of {layers}", rotated)
    return frozenset(layer for layer, is_rotated in enumerate(rotated) if not is_rotated)


def upstream_name(folder: Path, kind: str) -> str:
    """qnn_llama_runner's --decoder_model_version, or nothing where it has none for the model."""
    words = (folder / "tokenizer.json").read_text(encoding="utf-8")
    return next(
        (name for model_type, word, name in UPSTREAM_NAMES if model_type == kind and word in words), ""
    )


def named_beginning(folder: Path, config: Mapping[str, Any], words: int) -> int | None:
    bos = config.get("bos_token_id")
    return None if bos is None else _token(folder / "config.json", "bos_token_id", bos, words)


def beginning_warning(folder: Path, shape: Architecture) -> str:
    """What contradicts what the tokenizer puts first, or nothing."""
    named = named_beginning(folder, _config(folder), shape.vocab_size)
    path = folder / "tokenizer_config.json"
    settings = read_object(path) if path.is_file() else {}
    if named in (None, shape.bos) or (shape.bos is None and settings.get("add_bos_token") is False):
        return ""
    puts = "no token" if shape.bos is None else f"token {shape.bos}"
    return (
        f"{folder / 'config.json'} names bos_token_id {named}, and the tokenizer of"
        f" {folder / 'tokenizer.json'} puts {puts} before a text: the tokenizer is right here"
    )


def _ends(folder: Path, config: Mapping[str, Any], words: int) -> tuple[int, ...]:
    """Of config.json and of generation_config.json, where the ends of a chat are."""
    generation, key = folder / "generation_config.json", "eos_token_id"
    every = {folder / "config.json": config.get(key)}
    every |= {generation: read_object(generation).get(key)} if generation.is_file() else {}
    return tuple(
        dict.fromkeys(
            _token(path, key, end, words)
            for path, ends in every.items()
            for end in (ends if isinstance(ends, list) else [ends])
            if end is not None
        )
    )


def _size(folder: Path, config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value: object = config[key] if default is None or config.get(key) is not None else default
    if type(value) is not int or value < 1:
        raise _unexpected(folder, key, "a whole number above 0", value)
    return value


def _token(path: Path, key: str, value: object, words: int) -> int:
    if type(value) is not int or not 0 <= value < words:
        expected = f"a token from 0 to {words - 1}, by vocab_size"
        raise _unexpected(path.parent, key, expected, value, file=path.name)
    return value


def _config(folder: Path) -> dict[str, Any]:
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


def _with_old_keys(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 writes rope_parameters, and 4 reads rope_theta and rope_scaling."""
    new = config.get("rope_parameters")
    if new is None:
        return config
    try:
        old = old_rope(new)
    except (AttributeError, KeyError, TypeError):
        raise _unexpected(folder, "rope_parameters", "an object with rope_theta", new) from None
    for name, value in old.items():
        if config.get(name) not in (None, value):
            raise UsageError(
                f"{folder}/config.json: {name} is {json.dumps(config[name])}, and by rope_parameters it is "
                f"{json.dumps(value)}",
                fix="remove the wrong one",
            )
    return config | old


def old_rope(new: Mapping[str, Any]) -> dict[str, Any]:
    """The rope_parameters of transformers 5 by the names of version 4; Gemma 3 has some by kind of layer."""
    if "sliding_attention" in new:
        local = new["sliding_attention"]["rope_theta"]
        return {**old_rope(new["full_attention"]), "rope_local_base_freq": local}
    old = {"rope_theta": new["rope_theta"]}
    if "partial_rotary_factor" in new:
        old["partial_rotary_factor"] = new["partial_rotary_factor"]
    return {**old, "rope_scaling": {name: value for name, value in new.items() if name not in old}}


def _scaling(
    folder: Path, config: Mapping[str, Any], head: int
) -> tuple[Mapping[str, Any] | None, float, int | None]:
    """The scaling that Genie computes, the magnitude, and where these end to be the model's."""
    scaling = config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise _unexpected(folder, "rope_scaling", "an object", scaling)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None, 1.0, None
    if kind == "longrope" and config["model_type"] == "phi3":
        return None, *_longrope(folder, config, scaling, _rotary_dim(folder, config, head))
    if kind != "llama3":
        raise _unexpected(folder, "rope_scaling", "llama3 or none", kind, ROPE_FIXES.get(str(kind), ANOTHER))
    for name in SCALING:
        value = scaling.get(name)
        if not isinstance(value, int | float) or not value > 0:
            raise _unexpected(folder, f"rope_scaling: {name}", "a number above 0", value)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    if high <= low:
        raise _unexpected(folder, "rope_scaling: high_freq_factor", f"more than {low}", high)
    return scaling, 1.0, None


def _longrope(
    folder: Path, config: Mapping[str, Any], scaling: Mapping[str, Any], rotary: int
) -> tuple[float, int]:
    """Up to the length of training the short factors act. Where all are 1, as Phi 4 mini's, the frequencies
    are plain, and their magnitude alone differs."""
    key = "original_max_position_embeddings"
    trained, longest = _size(folder, config, key), _size(folder, config, "max_position_embeddings")
    if scaling.get("short_factor") != [1.0] * (rotary // 2):
        found = scaling.get("short_factor")
        raise _unexpected(folder, "rope_scaling: short_factor", f"{rotary // 2} times 1.0", found, ANOTHER)
    default = math.sqrt(1 + math.log(longest / trained) / math.log(trained)) if longest > trained else 1.0
    return float(scaling.get("attention_factor") or default), trained


def _unexpected(
    folder: Path, key: str, expected: str, found: object, fix: str = PUBLISHED, file: str = "config.json"
) -> UsageError:
    text = found if isinstance(found, str) else json.dumps(found)
    return UsageError(f"{folder / file}: {key}: expected {expected}; found {text}", fix=fix)
