"""A model from a .pt2, as torch.export.save wrote it. Loading one may run code in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchao.quantization.pt2e import move_exported_model_to_eval

from ci.models.user_model import EXPORTED, BadFactory

FLOATS = (torch.float16, torch.bfloat16, torch.float64)

SAVE_AGAIN = "torch.export.save(torch.export.export(model.eval(), example_inputs), file)"


class Positional(nn.Module):
    """Passes every tensor by position, whatever structure the exported model's inputs have."""

    def __init__(self, model: nn.Module, example: Any) -> None:
        super().__init__()
        self.model = model
        self.leaves, self.spec = torch.utils._pytree.tree_flatten(example)
        self.places = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]

    def forward(self, *tensors: Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, self.spec)
        return self.model(*args, **kwargs)


def load_exported(path: Path) -> tuple[nn.Module, list[Tensor], list[tuple[str, str]]]:
    """The model, its example inputs, and notes as rule and message."""
    program = _loaded(path)
    if program.dialect == "ATEN":
        raise BadFactory(
            f"{path} was saved after run_decompositions, which leaves batch norms that HTP does not support",
            SAVE_AGAIN,
        )
    if program.example_inputs is None:
        raise BadFactory(f"{path} has no example inputs", SAVE_AGAIN)
    args, kwargs = program.example_inputs
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    for tensor in (*program.state_dict.values(), *tensors):
        if isinstance(tensor, Tensor) and tensor.dtype in FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise BadFactory(
                f"{path} computes in {kind}, which the quantizer and the compiler do not support",
                "export it in float32 (model.float()); --precision fp16 then computes it in fp16",
            )
    model: nn.Module = program.module()
    notes = into_eval(model, str(path))
    if kwargs or len(tensors) != len(args):
        model = Positional(model, (args, kwargs))
    return model, tensors, notes


def into_eval(model: nn.Module, name: str) -> list[tuple[str, str]]:
    """Put a model with exported modules into eval mode; returns what the author should know of them."""
    notes = []
    for module in model.modules():
        graph: Any = getattr(module, "graph", None)
        if EXPORTED not in vars(module):
            continue
        if _in_training(graph):
            notes.append(
                ("training-mode", f"{name} was exported in training mode, but compiled in eval mode")
            )
            _drop_counters(module)
        move_exported_model_to_eval(module)
        if varying := [
            f"dimension {index} of {node.name}"
            for node in graph.find_nodes(op="placeholder")
            if isinstance(node.meta.get("val"), Tensor)
            for index, size in enumerate(node.meta["val"].shape)
            if isinstance(size, torch.SymInt)
        ]:
            notes.append(
                (
                    "dynamic-shape",
                    f"{name} has variable sizes ({', '.join(varying)}), but a compiled program has fixed"
                    " ones: those of the example inputs. For others, export with such an example",
                )
            )
    # Their training flags mean nothing, and their eval() raises.
    for module in model.modules():
        module.training = False
    return notes


def _loaded(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            return torch.export.load(stream)
    except Exception as error:
        cause = str(error).strip().partition("\n")[0][:300]
        version = torch.__version__.partition("+")[0]
        raise BadFactory(
            f"{path}: torch {version} cannot load it ({type(error).__name__}: {cause})",
            f"save it again with that torch, of a model on the CPU: {SAVE_AGAIN}; or give file.py:function",
        ) from error


def _drop_counters(model: Any) -> None:
    """In training, batch norms count their calls. In eval mode the counters are not needed."""
    for node in list(model.graph.nodes):
        if node.op == "call_function" and node.args and str(node.args[0]).endswith("num_batches_tracked"):
            node.replace_all_uses_with(node.args[0])
            model.graph.erase_node(node)
    model.recompile()


def _in_training(graph: Any) -> bool:
    """Whether a batch norm or a dropout was exported in training mode."""
    places = {torch.ops.aten.batch_norm.default: 5, torch.ops.aten.dropout.default: 2}
    given = [(node.args, places[node.target]) for node in graph.nodes if node.target in places]
    return any(len(args) > place and args[place] is True for args, place in given)
