"""Load a model from a .pt2 that torch.export.save wrote (loading one may run code in it), and take the digest
by which the cache knows an exported model.

The digest covers values, never paths or times: the graph with its nodes' names, the signature, the ranges of
sizes, and each tensor. Source lines are left out: a comment or a move of the file changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule
from torch.utils import _pytree

from ci.models.user_model import EXPORTED, BadFactory

FLOATS = (torch.float16, torch.bfloat16, torch.float64)

SAVE_AGAIN = "torch.export.save(torch.export.export(model.eval(), example_inputs), file)"


class Positional(nn.Module):
    """Passes every tensor by position, whatever structure the exported model's inputs have."""

    def __init__(self, model: nn.Module, example: object) -> None:
        super().__init__()
        self.model = model
        self.leaves, self.spec = torch.utils._pytree.tree_flatten(example)
        self.places = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]

    def forward(self, *tensors: Tensor) -> object:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, self.spec)
        return self.model(*args, **kwargs)


def load_exported(path: Path) -> tuple[nn.Module, list[Tensor], list[tuple[str, str]]]:
    """Return the model, its example inputs, and notes as rule and message."""
    program = _load(path)
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
    """Put a model with exported modules into eval mode, and return what the author should know about them."""
    from torchao.quantization.pt2e import move_exported_model_to_eval

    notes = []
    for module in model.modules():
        if EXPORTED not in vars(module) or not isinstance(module, GraphModule):
            continue
        graph = module.graph
        if _is_training(graph):
            notes.append(
                ("training-mode", f"{name} was exported in training mode, but compiled in eval mode")
            )
            _drop_counters(module)
        move_exported_model_to_eval(module)
        if dimensions := [
            f"dimension {index} of {node.name}"
            for node in graph.find_nodes(op="placeholder")
            if isinstance(node.meta.get("val"), Tensor)
            for index, size in enumerate(node.meta["val"].shape)
            if isinstance(size, torch.SymInt)
        ]:
            notes.append(
                (
                    "dynamic-shape",
                    f"{name} has variable sizes ({', '.join(dimensions)}), but a compiled program has fixed"
                    " ones: those of the example inputs. For others, export with such an example",
                )
            )
    # Their training flags mean nothing, and their eval() raises.
    for module in model.modules():
        module.training = False
    return notes


def _load(path: Path) -> ExportedProgram:
    # A quantized model's operators are registered by it.
    import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401

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


def _drop_counters(model: GraphModule) -> None:
    """Remove the nodes by which batch norms count their calls in training mode; eval mode does not need
    them."""
    for node in list(model.graph.nodes):
        if node.op == "call_function" and node.args and str(node.args[0]).endswith("num_batches_tracked"):
            node.replace_all_uses_with(node.args[0])
            model.graph.erase_node(node)
    model.recompile()


def _is_training(graph: Graph) -> bool:
    """Whether a batch norm or a dropout was exported in training mode."""
    places = {torch.ops.aten.batch_norm.default: 5, torch.ops.aten.dropout.default: 2}
    calls = [(node.args, places[node.target]) for node in graph.nodes if node.target in places]
    return any(len(args) > place and args[place] is True for args, place in calls)


SEEN = frozenset({"aten", "prim", "prims", "quantized_decomposed", "higher_order"})
"""These are the namespaces of torch's own operators. The name of another operator does not say what it
computes."""

PLAIN_MODULES = ("_operator", "builtins", "math", "torch", "torch.sym")
"""Functions of these modules may be in a graph without being operators: they compute sizes, or read an
element."""


class NoDigest(Exception):
    """Two different models could have the same digest, so no cached program is looked up for this one."""


def digest_of(program: torch.export.ExportedProgram) -> str:
    """Return the model's digest. Raises NoDigest."""
    digest = hashlib.sha256()
    for line in _lines(program):
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _lines(program: ExportedProgram) -> Iterator[str]:
    yield from _graph_lines(program.graph_module, "")
    signature = program.graph_signature
    yield f"signature {signature.input_specs} {signature.output_specs}"
    ranges = {str(symbol): str(span) for symbol, span in program.range_constraints.items()}
    yield f"ranges {json.dumps(ranges, sort_keys=True)}"
    yield f"call {program.call_spec.in_spec} {program.call_spec.out_spec}"
    for kind, values in (("state", program.state_dict), ("constant", program.constants)):
        for name, value in sorted(values.items()):
            yield f"{kind} {name} {value_line(value)}"


def node_line(node: fx.Node, path: str) -> str:
    words = [node.op, node.name, _target(node), *map(_argument, (node.args, dict(node.kwargs)))]
    return f"node {path}{json.dumps(words)} {_shown_value(node.meta.get('val'))} {_origin(node)}"


def _graph_lines(module: fx.GraphModule, path: str) -> Iterator[str]:
    for node in module.graph.nodes:
        yield node_line(node, path)
    for name, child in module.named_children():
        if not isinstance(child, fx.GraphModule):
            raise NoDigest(f"{path}{name} is a {type(child).__name__}, and no graph")
        yield from _graph_lines(child, f"{path}{name}.")


def _target(node: fx.Node) -> str:
    target = node.target
    if node.op != "call_function":
        return str(target)
    namespace = getattr(target, "namespace", None)
    if namespace is None:
        module = getattr(target, "__module__", "")
        if module not in PLAIN_MODULES:
            raise NoDigest(f"{node.name} calls {module}.{getattr(target, '__name__', target)}")
        return f"{module}.{getattr(target, '__name__', target)}"
    if namespace not in SEEN or not _is_known(target):
        raise NoDigest(f"{node.name} calls {target}, whose code no graph shows")
    return str(target)


known_operators: frozenset[str] | None = None
"""The dispatcher had these operators before this process ran a user's code; None if nobody has asked it."""


def remember_operators() -> None:
    global known_operators
    known_operators = frozenset(torch._C._dispatch_get_all_op_names())


def _is_known(target: object) -> bool:
    """Whether an operator is no user's, whatever its namespace is. A higher-order one is not in the
    dispatcher."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return type(target).__module__.partition(".")[0] == "torch"
    if known_operators is None:
        return True
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return name in known_operators


def _argument(value: object) -> str:
    """Format an argument: `repr` keeps each float to its last bit, and nodes appear by their names."""
    leaves, structure = _pytree.tree_flatten(value)
    for leaf in leaves:
        if isinstance(leaf, Tensor) or (callable(leaf) and not isinstance(leaf, fx.Node)):
            raise NoDigest(f"an argument is a {type(leaf).__name__}")
    return f"{structure} {leaves}"


def _shown_value(value: object) -> str:
    """Return the type, shape and strides of a node's result, which are known without running it."""
    return ",".join(
        f"{leaf.dtype}{list(leaf.shape)}{list(leaf.stride())}" if isinstance(leaf, Tensor) else str(leaf)
        for leaf in _pytree.tree_leaves(value)
    )


def _origin(node: fx.Node) -> str:
    """Return the modules and calls that a node comes from. Suites choose nodes by modules, and the compiler's
    passes look at calls: `torch.stack` and the operators that it consists of are lowered differently. The
    keys of the stacks are left out: they differ from one process to the next."""
    modules: Mapping[str, tuple[str, object]] = node.meta.get("nn_module_stack") or {}
    calls: Sequence[tuple[str, object]] = node.meta.get("source_fn_stack") or ()
    call = node.meta.get("torch_fn") or ()
    stacks = [
        [(path, _name(kind)) for path, kind in modules.values()],
        [(str(name), _name(kind)) for name, kind in calls],
    ]
    return json.dumps([*stacks, call])


def _name(kind: object) -> str:
    """Return a class's name without its module: a user's module is named after its folder."""
    if isinstance(kind, str):
        return kind.rpartition(".")[2]
    name = getattr(kind, "__qualname__", None) or getattr(kind, "__name__", None)
    return str(name or type(kind).__name__)


def value_line(value: object) -> str:
    if not isinstance(value, Tensor):
        raise NoDigest(f"a constant is a {type(value).__name__}, and no tensor")
    if (
        type(value) not in (Tensor, torch.nn.Parameter)
        or value.layout is not torch.strided
        or value.is_quantized
    ):
        raise NoDigest(f"a tensor is a {type(value).__name__} of layout {value.layout}")
    shape = f"{value.dtype} {list(value.shape)} {list(value.stride())}"
    if value.device.type != "cpu":
        raise NoDigest(f"a tensor is on {value.device}")
    # A copy, as numpy keeps a tensor from ever being resized, which observers do.
    values = value.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy()
    return f"{shape} {hashlib.sha256(values.data).hexdigest()}"
