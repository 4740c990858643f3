"""Describes what a model of the Llama family computes, by a table of families, the checkpoint's config.json
and other files, and how a model is cut into parts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from ci.lanes.llm.families import FAMILIES, Family, config_of, read_object
from ci.lanes.llm.tokenizer import first_token, tokenizer_decides
from ci.models.inputs import Array
from provisioning.base.errors import UsageError

LOCAL = "local_"
"""The inputs with the cosines and sines of layers that have their own rope begin with this prefix."""
HIDDEN = "hidden"
"""What one part of a model hands to the next has this name with `_` and the number of the layer."""
NOT_BUILT = "not_built"
"""An error of this type reports a model that is well-formed, but computed in a way that is not built here."""

Size = Annotated[int, Field(ge=1)]
Token = Annotated[int, Field(ge=0)]
Tokens = Annotated[list[Token], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]
Number = Annotated[int | float, Field(gt=0)]


def _not_built(message: str) -> PydanticCustomError:
    return PydanticCustomError(NOT_BUILT, "{message}", {"message": message})


class Rope(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    rope_type: Literal["default"] = "default"


class Llama3Rope(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    rope_type: Literal["llama3"]
    factor: Number
    low_freq_factor: Number
    high_freq_factor: Number
    original_max_position_embeddings: Number

    @model_validator(mode="after")
    def _rises(self) -> Llama3Rope:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(f"high_freq_factor: expected more than {self.low_freq_factor}")
        return self


class LongRope(BaseModel):
    """The short factors act up to the length of training. If all are 1, as in Phi 4 mini, the frequencies are
    plain, and only their magnitude differs."""

    model_config = ConfigDict(strict=True, frozen=True)

    rope_type: Literal["longrope"]
    short_factor: list[Number]
    attention_factor: Number | None = None


def _new_rope(rope: object) -> object:
    """Translate `type`, which old files have, to `rope_type`."""
    if isinstance(rope, dict):
        return {**rope, "rope_type": rope.get("rope_type", rope.get("type", "default"))}
    return rope


Scaling = Annotated[
    Annotated[Rope | Llama3Rope | LongRope, Field(discriminator="rope_type")], BeforeValidator(_new_rope)
]


class Architecture(BaseModel):
    """Holds a model's config.json, and what other files say. A null counts as a missing key."""

    model_config = ConfigDict(strict=True, frozen=True, populate_by_name=True)

    model_type: str
    vocab_size: Size
    hidden_size: Size
    num_layers: Size = Field(alias="num_hidden_layers")
    num_heads: Size = Field(alias="num_attention_heads")
    key_value_heads: Size | None = Field(None, alias="num_key_value_heads")
    size_of_head: Size | None = Field(None, alias="head_dim")
    intermediate_size: Size
    longest: Size = Field(alias="max_position_embeddings")
    trained: Size | None = Field(None, alias="original_max_position_embeddings")
    """The model was trained with this length, before a rope was scaled."""
    rms_norm_eps: Number
    tied: bool = Field(False, alias="tie_word_embeddings")
    """Whether the output head is the embedding."""
    attention_bias: bool = False
    bos: Token | None = Field(None, alias="bos_token_id")
    """This token begins a text, unless the tokenizer puts none there, as Qwen's."""
    ends: Tokens = Field([], alias="eos_token_id")
    ends_of_chats: Tokens = []
    """generation_config.json has these."""
    rope_theta: Number = 10000.0
    rope: Scaling = Field(Rope(), alias="rope_scaling")
    partial_rotary_factor: Annotated[int | float, Field(gt=0, le=1)] = 1.0
    sliding_window: Size | None = None
    layer_types: list[str] = []
    quantization_config: None = None
    hidden_act: Literal["silu"] = "silu"
    hidden_activation: Literal["gelu_pytorch_tanh"] | None = None
    use_sliding_window: Literal[False] = False
    use_bidirectional_attention: Literal[False] = False
    attn_logit_softcapping: None = None
    final_logit_softcapping: None = None
    query_pre_attn_scalar: Number | None = None
    sliding_window_pattern: Size = 6
    """One in this many layers has no window, and uses the rope of the whole context."""
    rope_local_base_freq: Number = 10000.0
    no_rope_layers: list[int] | None = None
    """The list has a 0 for each layer without a rope."""
    no_rope_layer_interval: Size = 4

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and of values."""
        return self.key_value_heads or self.num_heads

    @property
    def head_dim(self) -> int:
        return self.size_of_head or self.hidden_size // self.num_heads

    @property
    def bias(self) -> bool:
        return self.family.always_bias or self.attention_bias

    @property
    def eos(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys([*self.ends, *self.ends_of_chats]))

    @property
    def beginning(self) -> tuple[int, ...]:
        return () if self.bos is None else (self.bos,)

    @property
    def window(self) -> int | None:
        """Some layers look back at most this many tokens; no mask is built for that."""
        return self.sliding_window if self.family.windowed else None

    @property
    def context(self) -> int:
        """The model is right for at most this many tokens."""
        window = self.window
        trained = self.trained if isinstance(self.rope, LongRope) else None
        return min(length for length in (self.longest, window, trained) if length)

    @property
    def rotary_dim(self) -> int:
        """This much of each head is rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def rope_magnitude(self) -> float:
        """Cosines and sines are multiplied by this."""
        if not isinstance(self.rope, LongRope) or self.trained is None:
            return 1.0
        times = self.longest / self.trained
        default = math.sqrt(1 + math.log(times) / math.log(self.trained)) if times > 1 else 1.0
        return float(self.rope.attention_factor or default)

    @property
    def score_scale(self) -> float:
        # Other families have no such key, and transformers passes it over.
        scalar = self.query_pre_attn_scalar if self.family.gemma else None
        return math.pow(scalar or self.head_dim, -0.5)

    @property
    def local(self) -> frozenset[int]:
        """Layers with a rope of their own."""
        layers, period = range(self.num_layers), self.sliding_window_pattern
        if not self.family.gemma:
            return frozenset()
        kinds = self.layer_types or ["sliding_attention" if (n + 1) % period else "" for n in layers]
        return frozenset(layer for layer in layers if kinds[layer] == "sliding_attention")

    @property
    def unrotated(self) -> frozenset[int]:
        """Layers without a rope."""
        layers, period = range(self.num_layers), self.no_rope_layer_interval
        if not self.family.unrotated:
            return frozenset()
        rotated = self.no_rope_layers or [(layer + 1) % period for layer in layers]
        return frozenset(layer for layer in layers if not rotated[layer])

    @model_validator(mode="after")
    def _fits(self) -> Architecture:
        if self.num_heads % self.num_kv_heads:
            raise ValueError("num_attention_heads: no multiple of num_key_value_heads")
        if not self.head_dim:
            raise ValueError("head_dim: hidden_size has no room for so many heads")
        if self.rotary_dim % 2 or not self.rotary_dim:
            raise ValueError(f"partial_rotary_factor: no even share of {self.head_dim}")
        if max([*self.eos, *self.beginning], default=0) >= self.vocab_size:
            raise ValueError("bos_token_id or eos_token_id: no token of vocab_size")
        for name in ("layer_types", "no_rope_layers"):
            if len(getattr(self, name) or range(self.num_layers)) != self.num_layers:
                raise ValueError(f"{name}: expected {self.num_layers}")
        if not self.family.gemma and {*self.layer_types} - {"full_attention"}:
            raise _not_built("layer_types: expected full_attention alone")
        if not self.family.partial and self.partial_rotary_factor != 1:
            raise _not_built("partial_rotary_factor: expected 1")
        if isinstance(self.rope, LongRope):
            if not self.family.partial:
                raise _not_built("rope_scaling: expected llama3 or none; found longrope")
            if self.trained is None:
                raise ValueError("original_max_position_embeddings: expected beside a longrope")
            if self.rope.short_factor != [1.0] * (self.rotary_dim // 2):
                raise _not_built(f"rope_scaling: short_factor: expected {self.rotary_dim // 2} times 1.0")
        return self

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Map the checkpoint's names of tensors to their shapes."""
        width, hidden = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        parts: dict[str, tuple[int, ...]] = {
            **{f"{name}_layernorm.weight": (width,) for name in self.family.layer_norms if name},
            "mlp.down_proj.weight": (width, hidden),
            "self_attn.o_proj.weight": (width, queries),
        }
        for tensor, rows in self._fused_rows.items():
            counts = {tensor: sum(rows.values())} if self.family.fused else rows
            parts |= {f"{name}.weight": (count, width) for name, count in counts.items()}
        if self.bias:
            attention = self._fused_rows["self_attn.qkv_proj"]
            parts |= {f"{name}.bias": (count,) for name, count in attention.items()}
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
    def _fused_rows(self) -> dict[str, dict[str, int]]:
        """Map the weights that some families store as one to the number of rows that each has."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
        feed_forward = dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), self.intermediate_size)
        return {"self_attn.qkv_proj": attention, "mlp.gate_up_proj": feed_forward}

    def stored(self, name: str) -> tuple[str, slice]:
        """Return the checkpoint's tensor that holds a weight of the decoder, and the weight's rows in it."""
        if name == "lm_head.weight":
            return "model.embed_tokens.weight" if self.tied else name, slice(None)
        for tensor, rows in self._fused_rows.items() if self.family.fused else ():
            start = 0
            for part, count in rows.items():
                if name.endswith(f"{part}.weight"):
                    return f"model.{name.replace(part, tensor)}", slice(start, start + count)
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
        """The embedding has this many weights, and so has the head."""
        return self.vocab_size * self.hidden_size

    def part(self, number: int, parts: int) -> tuple[int, int]:
        """Return the first layer of a part, and the one after its last. The embedding is in the first part
        and the head in the last, which therefore have fewer layers."""
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
        """Return the prefixes of the names of the ropes' inputs."""
        return ("", LOCAL) if self.local else ("",)

    def rotation(self, positions: Array, rope: str = "") -> tuple[Array, Array]:
        """Return cosines and sines as Genie hands them over, one row for each position."""
        angles = np.outer(positions.astype(np.float64), self.frequencies(rope))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def frequencies(self, rope: str = "") -> Array:
        plain: Array = float(self.rope_local_base_freq if rope else self.rope_theta) ** (
            -np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        )
        scaling = self.rope
        if not isinstance(scaling, Llama3Rope) or rope:
            return plain
        low, high = float(scaling.low_freq_factor), float(scaling.high_freq_factor)
        turns = float(scaling.original_max_position_embeddings) * plain / (2 * math.pi)
        share = np.clip((turns - low) / (high - low), 0, 1)
        scaled: Array = plain * share + plain / float(scaling.factor) * (1 - share)
        return scaled


PUBLISHED = "take the file as it was published"
ANOTHER = (
    "take another model: this one computes what is not built here; of one that is quantized already, the"
    " checkpoint that it was made from"
)


OTHER_ROPE = (
    "take a model with one of these, or without rope_scaling: it changes every frequency, so without the key"
    " it is another model"
)


def read_architecture(folder: Path) -> Architecture:
    """Read and check config.json. Raises UsageError if the folder has no checkpoint of these families."""
    values = _add_old_keys(folder, config_of(folder))
    shape = _shape_of(folder / "config.json", values)
    changes = dict[str, Any]()
    generation = folder / "generation_config.json"
    if generation.is_file():
        ends = read_object(generation).get("eos_token_id")
        changes["ends_of_chats"] = _shape_of(generation, {**values, "eos_token_id": ends}).ends
    if tokenizer_decides(folder):
        # Models are trained with the tokenizer's tokens, and config.json may name another.
        changes["bos"] = first_token(folder)
    return shape.model_copy(update=changes)


NULLS = ("sliding_window",)
"""For these keys a null differs from a missing key."""


def _shape_of(path: Path, values: Mapping[str, Any]) -> Architecture:
    fields = {name: value for name, value in values.items() if value is not None or name in NULLS}
    try:
        return Architecture.model_validate({**FAMILIES[values["model_type"]].defaults, **fields})
    except ValidationError as error:
        [first, *_] = error.errors()
    place = ": ".join(str(part) for part in first["loc"] if part not in ROPES)
    note = f"; found {json.dumps(first['input'])}" if place and first["type"] != "missing" else ""
    words = first["msg"].removeprefix("Value error, ")
    if first["type"] == "union_tag_invalid":
        words, note = f"expected {', '.join(ROPES)}", f"; found {first['ctx']['tag']}"
    another = first["type"] in (NOT_BUILT, "literal_error", "none_required", "union_tag_invalid")
    fix = ANOTHER if another else PUBLISHED
    raise UsageError(
        f"{path}: {f'{place}: ' if place else ''}{words}{note}",
        fix=OTHER_ROPE if first["type"] == "union_tag_invalid" else fix,
    )


ROPES = ("default", "llama3", "longrope")
"""These kinds of rope are built; pydantic puts the kind into the place of an error."""


def _add_old_keys(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Add the keys of transformers 4, rope_theta and rope_scaling, if the file has rope_parameters, which
    transformers 5 writes."""
    new = values.get("rope_parameters")
    if new is None:
        return values
    try:
        return values | old_rope(new)
    except (AttributeError, KeyError, TypeError):
        raise UsageError(
            f"{folder / 'config.json'}: rope_parameters: expected an object with rope_theta; found"
            f" {json.dumps(new)}",
            fix=PUBLISHED,
        ) from None


def old_rope(new: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the rope_parameters of transformers 5 to the names of version 4; Gemma 3 has some by kind of
    layer."""
    if "sliding_attention" in new:
        local = new["sliding_attention"]["rope_theta"]
        return {**old_rope(new["full_attention"]), "rope_local_base_freq": local}
    old = {"rope_theta": new["rope_theta"]}
    if "partial_rotary_factor" in new:
        old["partial_rotary_factor"] = new["partial_rotary_factor"]
    return {**old, "rope_scaling": {name: value for name, value in new.items() if name not in old}}
