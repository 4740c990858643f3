"""A checkpoint's config.json, and the other files of it that say what it computes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ci.lanes.llm.architecture import FAMILIES, SCALING, Architecture, Family
from ci.lanes.llm.beginning import first_token, tokenizer_decides
from provisioning.base.errors import ToolkitError, UsageError

ONLY = {"hidden_act": "silu", "use_sliding_window": False}
"""Keys that have one value here. Others compute something else."""
GEMMA_ONLY = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": False,
}
PUBLISHED = "take the file as it was published"
ANOTHER = "take another model: this one computes what is not built here"
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


Size = Annotated[int, Field(ge=1)]
Token = Annotated[int, Field(ge=0)]
Number = Annotated[int | float, Field(gt=0)]


class Llama3Rope(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    factor: Number
    low_freq_factor: Number
    high_freq_factor: Number
    original_max_position_embeddings: Number

    @model_validator(mode="after")
    def _rises(self) -> Llama3Rope:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(f"high_freq_factor: expected more than {self.low_freq_factor}")
        return self


class Config(BaseModel):
    """Of config.json what all families or some are built by; null stands for no key."""

    model_config = ConfigDict(strict=True, frozen=True)

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    intermediate_size: Size
    max_position_embeddings: Size
    original_max_position_embeddings: Size | None = None
    rms_norm_eps: Number
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    bos_token_id: Token | None = None
    eos_token_id: Token | list[Token] | None = None
    rope_theta: Number = 10000.0
    rope_local_base_freq: Number = 10000.0
    rope_scaling: dict[str, Any] = Field(default_factory=dict)
    partial_rotary_factor: Annotated[int | float, Field(gt=0, le=1)] = 1.0
    sliding_window: Size | None = None
    sliding_window_pattern: Size = 6
    layer_types: list[str] | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Size = 4
    query_pre_attn_scalar: Number = 256

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rotary(self) -> int:
        return int(self.head * self.partial_rotary_factor)

    @property
    def ends(self) -> list[int]:
        ends = self.eos_token_id
        return ends if isinstance(ends, list) else [ends] if ends is not None else []

    @property
    def local(self) -> frozenset[int]:
        """Layers with a rope of their own, of Gemma 3."""
        layers, every = range(self.num_hidden_layers), self.sliding_window_pattern
        kinds = self.layer_types or ["sliding_attention" if (n + 1) % every else "" for n in layers]
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")

    @property
    def unrotated(self) -> frozenset[int]:
        """Layers without a rope, of SmolLM 3: by a list with a 0 for each, or each n-th layer."""
        every = self.no_rope_layer_interval
        rotated = self.no_rope_layers
        if rotated is None:
            rotated = [(layer + 1) % every for layer in range(self.num_hidden_layers)]
        return frozenset(layer for layer, is_rotated in enumerate(rotated) if not is_rotated)

    @model_validator(mode="after")
    def _fits(self) -> Config:
        layers = self.num_hidden_layers
        tokens = [*self.ends, *([] if self.bos_token_id is None else [self.bos_token_id])]
        for wrong, message in (
            (
                self.num_attention_heads % self.kv_heads,
                "num_attention_heads: no multiple of num_key_value_heads",
            ),
            (not self.head, "head_dim: hidden_size has no room for so many heads"),
            (self.rotary % 2 or not self.rotary, f"partial_rotary_factor: no even share of {self.head}"),
            (
                any(token >= self.vocab_size for token in tokens),
                "bos_token_id or eos_token_id: no token of vocab_size",
            ),
            (len(self.layer_types or range(layers)) != layers, f"layer_types: expected {layers}"),
            (
                self.no_rope_layers is not None and len(self.no_rope_layers) != layers,
                f"no_rope_layers: expected {layers}",
            ),
        ):
            if wrong:
                raise ValueError(message)
        return self


def read_architecture(folder: Path, adapter: str = "") -> Architecture:
    """Raises UsageError if it is no checkpoint of these families."""
    values = _with_old_keys(folder, _values(folder))
    kind = str(values.get("model_type"))
    if kind not in FAMILIES:
        known = ", ".join(f"{name} ({family.models})" for name, family in FAMILIES.items())
        raise UsageError(f"{folder}: expected the model_type {known}; found {kind}", fix="name such a model")
    family = FAMILIES[kind]
    _require_built(folder, values, family)
    config = _parsed(Config, folder / "config.json", values)
    scaling, magnitude, longest = _rope(folder, config, kind)
    window = config.sliding_window if "sliding_window" in values else family.window
    ends = [config.max_position_embeddings, longest, window if family.windowed else None]
    # Models are trained with the tokenizer's tokens, and config.json may name another.
    bos = first_token(folder, config.vocab_size) if tokenizer_decides(folder) else config.bos_token_id
    return Architecture(
        model_type=kind,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.kv_heads,
        head_dim=config.head,
        intermediate_size=config.intermediate_size,
        rms_norm_eps=float(config.rms_norm_eps),
        rope_theta=float(config.rope_theta),
        rope_scaling=scaling,
        tied=family.tied if config.tie_word_embeddings is None else config.tie_word_embeddings,
        bias=family.bias or config.attention_bias,
        context=min(end for end in ends if end),
        bos=bos,
        eos=tuple(dict.fromkeys([*config.ends, *_ends_of_chats(folder, values)])),
        rotary_dim=config.rotary,
        rope_magnitude=magnitude,
        score_scale=float(config.query_pre_attn_scalar if family.gemma else config.head) ** -0.5,
        local=config.local if family.gemma else frozenset(),
        local_theta=float(config.rope_local_base_freq),
        unrotated=config.unrotated if kind == "smollm3" else frozenset(),
        adapter=Path(adapter) if adapter else None,
    )


def _require_built(folder: Path, values: Mapping[str, Any], family: Family) -> None:
    """Refuse what would be computed otherwise than here."""
    if quantization := values.get("quantization_config"):
        raise UsageError(
            f"{folder} is quantized already ({quantization.get('quant_method', 'unknown')}), and its weights"
            " cannot be quantized again",
            fix="take the checkpoint that it was made from",
        )
    only: dict[str, Any] = GEMMA_ONLY if family.gemma else ONLY
    if not family.partial:
        only = {**only, "partial_rotary_factor": 1}
    for key, expected in only.items():
        if values.get(key) not in (None, expected):
            raise _unexpected(folder, key, json.dumps(expected), values[key], ANOTHER)
    for kind in values.get("layer_types") or ():
        if kind != "full_attention" and not family.gemma:
            raise _unexpected(folder, "layer_types", "full_attention alone", kind, ANOTHER)


def _parsed(model: type[Any], path: Path, values: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        [first, *_] = error.errors()
        place = ": ".join(map(str, first["loc"][:1]))
        found = f"; found {json.dumps(first['input'])}" if place and first["type"] != "missing" else ""
        words = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{path}: {f'{place}: ' if place else ''}{words}{found}", fix=PUBLISHED) from None


def _ends_of_chats(folder: Path, values: Mapping[str, Any]) -> list[int]:
    """They are in generation_config.json."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return []
    generation: Config = _parsed(
        Config, path, {**values, "eos_token_id": read_object(path).get("eos_token_id")}
    )
    return generation.ends


def _rope(folder: Path, config: Config, kind: str) -> tuple[Mapping[str, Any] | None, float, int | None]:
    """The scaling that Genie computes, the magnitude, and where these end to be the model's."""
    scaling = config.rope_scaling
    name = scaling.get("rope_type", scaling.get("type", "default"))
    if name == "default":
        return None, 1.0, None
    if name == "longrope" and kind == "phi3":
        return None, *_longrope(folder, config)
    if name != "llama3":
        raise _unexpected(folder, "rope_scaling", "llama3 or none", name, ROPE_FIXES.get(str(name), ANOTHER))
    rope: Llama3Rope = _parsed(Llama3Rope, folder / "config.json: rope_scaling", scaling)
    return {key: getattr(rope, key) for key in SCALING}, 1.0, None


def _longrope(folder: Path, config: Config) -> tuple[float, int]:
    """Up to the length of training the short factors act. Where all are 1, as Phi 4 mini's, the frequencies
    are plain, and their magnitude alone differs."""
    trained, longest = config.original_max_position_embeddings, config.max_position_embeddings
    short, half = config.rope_scaling.get("short_factor"), config.rotary // 2
    if trained is None:
        raise _unexpected(folder, "original_max_position_embeddings", "a whole number above 0", None)
    if short != [1.0] * half:
        raise _unexpected(folder, "rope_scaling: short_factor", f"{half} times 1.0", short, ANOTHER)
    default = math.sqrt(1 + math.log(longest / trained) / math.log(trained)) if longest > trained else 1.0
    return float(config.rope_scaling.get("attention_factor") or default), trained


def upstream_name(folder: Path, kind: str) -> str:
    """qnn_llama_runner's --decoder_model_version, or nothing where it has none for the model."""
    words = (folder / "tokenizer.json").read_text(encoding="utf-8")
    names = (name for family, word, name in UPSTREAM_NAMES if family == kind and word in words)
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
