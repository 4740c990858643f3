"""Refuse models that cannot be exported or quantized as they are, each with the line to write: weights that
are computed in each run, half floats, a model that torch has compiled, scripted or quantized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ci.models.mistakes import (
    compiled_by_torch,
    quantized_by_torch,
)
from ci.models.user_model import BadFactory

QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")
"""Packages of modules that torch.ao.quantization puts in place of float ones."""


def refuse_quantized(dotted: str, model: nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module).__module__.startswith(QUANTIZED):
            raise quantized_by_torch(dotted, name, type(module).__name__)


def refuse_compiled(dotted: str, model: nn.Module) -> None:
    for name, module in model.named_modules():
        # The class that torch.compile returns is slow to import.
        if "_orig_mod" in module._modules:
            raise compiled_by_torch(dotted, name)


def refuse_script(dotted: str, model: object) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        message = f"{dotted} returns a ScriptModule, which torch.export does not support"
        raise BadFactory(message, "return the nn.Module itself, without torch.jit.script and torch.jit.trace")


def require_float32(tensors: Iterable[Tensor]) -> None:
    """Refuse types that a compiled program would read or write as another type."""
    for tensor in tensors:
        if tensor.dtype in (torch.float64, torch.bfloat16):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise BadFactory(
                f"the model has inputs or outputs in {kind}, which the compiler does not support: use float32"
                " (model.float(), and its inputs); fp16 then computes it in fp16",
                "return model.float(), tuple(x.float() for x in inputs)",
            )


def refuse_halves(model: nn.Module, precision: str) -> None:
    """Refuse a model with float16 weights: quantizing observes float32, and gives nonsense for float16."""
    halves = [name for name, weight in model.named_parameters() if weight.dtype is torch.float16]
    if halves:
        raise BadFactory(
            f"the model is in float16 (.half()): {halves[0]} is, and {precision} quantizes a float32 model",
            "return model.float(), tuple(x.float() for x in inputs); --precision fp16 computes it in float16",
        )


REMOVED_BY = {"WeightNorm": "remove_weight_norm", "SpectralNorm": "remove_spectral_norm"}
"""Maps the class of a hook that computes a weight in each run to the function that makes this weight a
constant."""


def computed_weights(model: nn.Module) -> dict[str, str]:
    """Return the weights that are computed in each run, by name, each with the call that makes it a
    constant."""
    calls = {}
    for name, module in model.named_modules():
        place = f'model.get_submodule("{name}")' if name else "model"
        for weight in module.parametrizations if parametrize.is_parametrized(module) else ():
            call = f'torch.nn.utils.parametrize.remove_parametrizations({place}, "{weight}")'
            calls[f"{name}.{weight}".lstrip(".")] = call
        for hook in module._forward_pre_hooks.values():
            if remove := REMOVED_BY.get(type(hook).__name__):
                calls[f"{name}.{hook.name}".lstrip(".")] = f"torch.nn.utils.{remove}({place})"
    return calls


def refuse_computed(calls: Mapping[str, str]) -> tuple[str, str]:
    names = list(calls)
    more = f", and the same for {', '.join(names[1:])}" if len(names) > 1 else ""
    message = (
        f"{', '.join(names)}: computed in each run (weight_norm, spectral_norm or another parametrization),"
        " but the compiler needs constant weights"
    )
    return message, f"before the model is returned, {calls[names[0]]}{more}"


def is_quantized(model: nn.Module) -> bool:
    graph = getattr(model, "graph", None) or getattr(getattr(model, "model", None), "graph", None)
    return graph is not None and any("quantized_decomposed" in str(node.target) for node in graph.nodes)
