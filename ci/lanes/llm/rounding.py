"""Runs transformers' own float model, which everything else is compared with, and measures what rounding
alone costs it: the same model with a precision's numbers. The compiled graph is never used for that, because
its errors would hide in the limits. Only workers import this."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ci.lanes.llm.architecture import Architecture, old_rope
from ci.lanes.llm.graphs import FAR, LEAST, MARGIN, widen_range
from ci.lanes.llm.orders import EXECUTORCH, GENIE
from ci.lanes.llm.suite import FOUR_BITS
from ci.models.inputs import Array
from provisioning.base.errors import CheckFailed


def load_reference(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    # transformers 5 writes it, and 4 would take its own default instead.
    if getattr(config, "rope_parameters", None):
        for name, value in old_rope(config.rope_parameters).items():
            setattr(config, name, value)
    # The token by which a family pads, unless the checkpoint says, may lie beyond a small vocabulary.
    if (config.pad_token_id or 0) >= config.vocab_size:
        config.pad_token_id = None
    return AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, local_files_only=True
    ).eval()


def require_rope(model: Any, shape: Architecture, context: int) -> None:
    """Require that our cosines and sines equal transformers' at every position: a wrong one far from the
    start changes no word near it."""
    positions, half = np.arange(context), shape.rotary_dim // 2
    errors = []
    for rope in shape.ropes:
        rotary = model.model.rotary_emb_local if rope else model.model.rotary_emb
        theirs = rotary(torch.zeros(1), torch.from_numpy(positions)[None])
        errors += [
            np.abs(shape.rope_magnitude * ours - factors[0, :, :half].numpy()).max(1)
            for ours, factors in zip(shape.rotation(positions, rope), theirs, strict=True)
        ]
    # transformers computes angles in float32.
    limits = 1e-5 + 2 * np.finfo(np.float32).eps * positions
    wrong = np.flatnonzero(~(np.max(errors, axis=0) <= limits))
    if wrong.size:
        raise CheckFailed(
            f"rope differs from transformers' at position {wrong[0]} of {context}",
            fix="report it, with the checkpoint's config.json",
        )


def logits_of(model: Any, tokens: Sequence[int], last: int = 0) -> Array:
    """Return the logits after each token, or only the last of them: all those of a long text would fill the
    memory."""
    with torch.no_grad():
        rows: Array = model(torch.tensor([list(tokens)]), logits_to_keep=last).logits[0].numpy()
    return rows


ATTENTION = "qnn_ci_rounded"
SCORES = 1 << 24
"""This many scores are computed at a time: those of all heads of a long row would fill the memory."""
PROVIDERS_FACTORS = 8
"""onnxruntime-qnn converts the second of two activations that MatMul multiplies to this many bits."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Says how `compile` rounds. If `bits` is 0, all numbers are fp16."""

    bits: int = 0
    """Activations have this many bits."""
    weights: int = 0
    cache: int = 0
    """Keys and values have this many bits."""
    factors: int = 0
    """Keys and values have this many bits in products, if that is less than in the cache."""
    by_channel: float = 0.0
    """If not 0, each row of weights has its own scale around zero, and its largest weight becomes this
    number."""
    head: int = 0
    """The head has this many bits if one scale holds for all its weights."""
    norm_in_steps: bool = True
    """Whether RMSNorm is several operators instead of one."""
    far: float = FAR
    """This hides a place; the range of the scores includes it."""
    wider: bool = False
    """Whether activations get wider ranges than calibration saw."""
    least: float = 1e-9
    """Integers stand for a range of values that is at least this wide."""


SCHEMES = {
    (GENIE, "fp16"): Scheme(),
    (GENIE, "16a8w"): Scheme(16, 8, 8, factors=PROVIDERS_FACTORS, wider=True, least=LEAST),
    (GENIE, FOUR_BITS): Scheme(
        16, 4, 8, factors=PROVIDERS_FACTORS, by_channel=7.5, head=8, wider=True, least=LEAST
    ),
    (EXECUTORCH, "fp16"): Scheme(norm_in_steps=False),
    (EXECUTORCH, "16a8w"): Scheme(16, 8, 16, by_channel=127, far=-100.0),
    (EXECUTORCH, FOUR_BITS): Scheme(16, 4, 16, by_channel=7, far=-100.0),
    (EXECUTORCH, "8a8w"): Scheme(8, 8, 8, by_channel=127, far=-100.0),
}
"""Each scheme has a runtime and a precision as its key."""


Ranges = dict[str, tuple[float, float]]
"""Maps the name of each activation to its lowest and highest value."""


@dataclass
class Rounding:
    """Passes values on unchanged while it sees their ranges and while the float model reads; afterwards it
    rounds them by the scheme."""

    scheme: Scheme
    ranges: Ranges = field(default_factory=dict)
    phase: Literal["see", "pass", "round"] = "see"
    outputs: dict[str, Tensor] = field(default_factory=dict)
    """Holds the latest values that each part of the layers handed on."""
    inputs: Mapping[int, Tensor] = field(default_factory=dict)
    """Maps the number of a layer to the values that replace its input."""

    def __call__(self, name: str, values: Tensor, bits: int = 0, *, cache: bool = False) -> Tensor:
        """Take an activation by its name. `bits` are its own, if not the scheme's."""
        if self.phase == "see":
            self._widen(name, values, cache=cache)
        if self.phase == "round":
            return self._round(name, values, bits or self.scheme.bits, cache=cache)
        return values

    def _widen(self, name: str, values: Tensor, *, cache: bool) -> None:
        """Widen the range of the activation to hold these values."""
        low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
        if cache:
            high = max(-low, high) * MARGIN
            low = -high
        before = self.ranges.get(name, (low, high))
        self.ranges[name] = min(low, before[0]), max(high, before[1])

    def _round(self, name: str, values: Tensor, bits: int, *, cache: bool) -> Tensor:
        low, high = self.ranges.get(name, (0.0, 0.0))
        if self.scheme.wider and not cache:
            low, high = widen_range(low, high)
        # Ranges of caches are our own.
        least = 1e-9 if cache else self.scheme.least
        return round_values(values, low, high, bits, least)


def round_values(values: Tensor, low: float, high: float, bits: int, least: float) -> Tensor:
    """Round values to integers of so many bits, which stand for a range; to fp16 if there are no bits."""
    if not bits:
        return values.half().float()
    most = 2**bits - 1
    scale = max(high - low, least) / most
    zero = round(-low / scale)
    integers: Tensor = ((values / scale).round() + zero).clamp(0, most)
    return integers.sub(zero).mul(scale)


def rounded_weight(name: str, weight: Tensor, scheme: Scheme) -> Tensor:
    """Round a matrix as the scheme does: with one scale for all of it, or with one for each of its rows."""
    bits = scheme.head if scheme.head and name == "lm_head" else scheme.weights
    if bits and (not scheme.by_channel or bits == scheme.head):
        low, high = min(0.0, float(weight.min())), max(0.0, float(weight.max()))
        return round_values(weight, low, high, bits, scheme.least)
    if not bits:
        return weight.half().float()
    # A range around zero is twice its largest value.
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=scheme.least / 2) / scheme.by_channel
    lowest = -(2 ** (bits - 1)) if scheme.by_channel % 1 else -scheme.by_channel
    return (weight / scale).round().clamp(lowest, 2 ** (bits - 1) - 1) * scale


@dataclass(frozen=True)
class RoundedModel:
    """Holds a model that was rounded, with what it and the float model computed."""

    reference: Any
    """This is transformers' model; its weights are rounded."""
    rounding: Rounding
    exact: list[Array]
    """The float model gave these logits for each row."""
    rounded: list[Array]
    """The rounded model gave these."""
    row: Sequence[int]
    """All that the layers hand on is known of this row."""
    outputs: Mapping[str, Array]
    """The float model's layers handed this on. Keys, values and hidden values are named as the graphs'
    outputs."""

    def outputs_from(self, cuts: Sequence[int]) -> dict[str, Array]:
        """Return the rounded model's outputs if each layer of `cuts` gets what the float model's layer
        gets."""
        inputs = {cut: torch.from_numpy(self.outputs[f"hidden_{cut}"]) for cut in cuts if cut}
        self.rounding.inputs = inputs
        return _outputs(self.reference, self.rounding, self.row)


def rounded_model(
    reference: Any,
    rows: Sequence[Sequence[int]],
    row: Sequence[int],
    scheme: Scheme,
    *,
    last: Sequence[int] = (),
    calibration: Sequence[Sequence[int]] = (),
) -> RoundedModel:
    """Measure the model in float, then round it in place: `reference` is not float's afterwards. All outputs
    of `row` are kept. `last` says how many of each row's last logits are wanted; 0 stands for all. The ranges
    of activations come from the rows of `calibration`, or else from the rows themselves."""
    rounding = Rounding(scheme)
    linear = _hook_rounding(reference, rounding)
    tied = reference.get_input_embeddings().weight
    with torch.no_grad():
        for sample in calibration:
            _logits(reference, sample)
        if calibration:
            rounding.phase = "pass"
        pairs = list(zip(rows, last or [0] * len(rows), strict=True))
        exact = [_logits(reference, tokens, count) for tokens, count in pairs]
        outputs = _outputs(reference, rounding, row)
        for name, module in linear.items():
            weight = rounded_weight(name, module.weight, scheme)
            if module.weight is tied:
                module.weight = nn.Parameter(weight)
            else:
                # In its place: a whole 1B beside its checkpoint's pages would be 10 GB.
                module.weight.copy_(weight)
        rounding.phase = "round"
        readings = [_logits(reference, tokens, count) for tokens, count in pairs]
    return RoundedModel(reference, rounding, exact, readings, row, outputs)


def _hook_rounding(reference: Any, rounding: Rounding) -> dict[str, nn.Linear]:
    """Let everything that the model computes go through `rounding`, and return its linear modules by name."""
    from transformers import AttentionInterface
    from transformers.activations import SiLUActivation
    from transformers.modeling_layers import GradientCheckpointingLayer

    AttentionInterface.register(ATTENTION, functools.partial(_attention, rounding))
    reference.config._attn_implementation = ATTENTION

    def round_output(name: str, _module: object, _inputs: object, output: Tensor) -> Tensor:
        return rounding(name, output)

    def round_input(name: str, _module: object, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rounding(f"{name} input", inputs[0]), *inputs[1:])

    def replace_input(layer: int, _module: object, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rounding.inputs.get(layer, inputs[0]), *inputs[1:])

    def keep_hidden(layer: int, _module: object, _inputs: object, output: Any) -> Any:
        # Gemma 3's layers give a tuple.
        first, *rest = output if isinstance(output, tuple) else (output,)
        hidden = rounding(f"layer {layer}", first)
        rounding.outputs[f"hidden_{layer + 1}"] = hidden
        return (hidden, *rest) if isinstance(output, tuple) else hidden

    linear: dict[str, nn.Linear] = {}
    for name, module in reference.named_modules():
        if isinstance(module, nn.Linear):
            linear[name] = module
            module.register_forward_pre_hook(functools.partial(round_input, name))
        if isinstance(module, nn.Linear | nn.Embedding):
            module.register_forward_hook(functools.partial(round_output, name))
        elif isinstance(module, GradientCheckpointingLayer):
            layer = int(name.rpartition(".")[2])
            module.register_forward_pre_hook(functools.partial(replace_input, layer))
            module.register_forward_hook(functools.partial(keep_hidden, layer))
        elif type(module).__name__.endswith("Norm"):
            module.register_forward_hook(functools.partial(_norm, rounding, name))
        elif isinstance(module, nn.SiLU | SiLUActivation):
            module.register_forward_hook(functools.partial(_silu, rounding, name))
    return linear


def _outputs(reference: Any, rounding: Rounding, row: Sequence[int]) -> dict[str, Array]:
    with torch.no_grad():
        logits = _logits(reference, row)
    return {**{name: tensor.numpy() for name, tensor in rounding.outputs.items()}, "logits": logits}


def _logits(reference: Any, row: Sequence[int], last: int = 0) -> Array:
    result: Array = (
        reference(torch.tensor([list(row)]), use_cache=False, logits_to_keep=last).logits[0].numpy()
    )
    return result


def _norm(rounding: Rounding, name: str, module: Any, inputs: tuple[Tensor, ...], _output: Tensor) -> Tensor:
    """Compute RMSNorm in the same steps as the compiled graph: a square has the widest range of all."""
    llama = hasattr(module, "variance_epsilon")
    eps, weight = (module.variance_epsilon, module.weight) if llama else (module.eps, 1 + module.weight)
    x = rounding(f"{name} input", inputs[0])
    if rounding.scheme.norm_in_steps:
        squares = rounding(f"{name} squares", x * x)
        mean = rounding(f"{name} mean", squares.mean(-1, keepdim=True) + eps)
        # A root that is rounded to nothing makes the largest quotient, and of nothing none.
        root = rounding(f"{name} root", mean.sqrt())
        quotient = rounding(f"{name} quotient", (x / root).nan_to_num(0.0, torch.inf, -torch.inf))
    else:
        quotient = x / ((x * x).mean(-1, keepdim=True) + eps).sqrt()
    return rounding(name, quotient * rounding(f"{name} weight", weight))


def _silu(
    rounding: Rounding, name: str, _module: object, inputs: tuple[Tensor, ...], _output: Tensor
) -> Tensor:
    gate = inputs[0]
    return rounding(name, gate * rounding(f"{name} sigmoid", torch.sigmoid(gate)))


def _attention(
    rounding: Rounding,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **_: object,
) -> tuple[Tensor, None]:
    """Compute attention as transformers does without a cache. Hidden places are as far away as in the
    runtime, because the range of the scores must hold them, too."""
    scheme, layer = rounding.scheme, module.layer_idx
    name = f"layer {layer}"
    query = rounding(f"{name} query", query)
    # What is computed has integers of its own first.
    key = rounding(f"{name} keys", rounding(f"{name} new keys", key), scheme.cache, cache=True)
    value = rounding(f"{name} values", value, scheme.cache, cache=True)
    rounding.outputs |= {f"past_key_{layer}_out": key, f"past_value_{layer}_out": value}
    if scheme.factors:
        key = rounding(f"{name} keys", key, scheme.factors, cache=True)
        value = rounding(f"{name} values", value, scheme.factors, cache=True)
    group, count = query.shape[1] // key.shape[1], query.shape[2]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    hidden, mixed = torch.full((count, count), scheme.far).triu(1), list[Tensor]()
    heads = (tensor.split(max(1, SCORES // count**2), 1) for tensor in (query, key, value))
    for queries, keys, values in zip(*heads, strict=True):
        # Places after a token are empty where decode reads it, and so is their product.
        products = (queries @ keys.transpose(2, 3)).tril()
        scores = rounding(f"{name} products", products) * scaling
        weights = torch.softmax(rounding(f"{name} scores", scores + hidden), -1)
        mixed.append(rounding(f"{name} mixed", rounding(f"{name} weights", weights) @ values))
    return torch.cat(mixed, 1).transpose(1, 2).contiguous(), None
