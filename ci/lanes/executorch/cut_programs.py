"""In the worker that lowers: it compiles and runs programs which end at a node of the quantized model."""

from __future__ import annotations

import copy
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.utils.utils import to_edge_transform_and_lower_to_qnn
from torch import Tensor
from torch.fx import Interpreter, Node

from ci.engine.workers.child import doing
from ci.lanes.executorch.accuracy_losses import described
from ci.lanes.executorch.export import exported_case
from ci.lanes.executorch.lower import Patterns, compiler_spec, prepared_model, save_raw
from ci.lanes.executorch.suite import parse_request
from ci.operators.partition.decisions import is_quantizer, varying
from ci.operators.partition.parts import restore_builtins
from ci.operators.partition.traits import constants_of, traits_of
from ci.pipeline.accuracy import Pair, in_files
from ci.pipeline.divergence import FLOAT_MODEL, Cuts, keep_partial
from ci.pipeline.models.factory import copied, run_copied
from ci.pipeline.runner import Runner
from provisioning.base.files import empty_folder

MOST_SHOWN = 2**25
"""Values, of all samples."""


def ending_at(module: Any, node: Node) -> Any:
    """The model as far as this node, with what quantizes its output."""
    whole = copy.deepcopy(module)
    names = {node.name: node for node in whole.graph.nodes}
    end = names[last_of(node).name]
    (output,) = whole.graph.find_nodes(op="output")
    output.args = ((end,),)
    # An operator that works in place is never dead code: behind the end, it would change the output.
    while (last := output.prev) is not end:
        whole.graph.erase_node(last)
    whole.graph.set_codegen(torch.fx.graph.CodeGen())
    whole.graph.eliminate_dead_code()
    whole.recompile()
    return whole


def showing(module: Any, nodes: Sequence[Node]) -> Any:
    """The model that returns what these nodes give, too."""
    whole = copy.deepcopy(module)
    names = {node.name: node for node in whole.graph.nodes}
    (output,) = whole.graph.find_nodes(op="output")
    given = list(output.all_input_nodes)
    for end in (names[last_of(node).name] for node in nodes):
        with whole.graph.inserting_after(end):
            given.append(whole.graph.call_function(torch.ops.aten.clone.default, (end,)))
    output.args = (tuple(given),)
    whole.graph.set_codegen(torch.fx.graph.CodeGen())
    whole.recompile()
    return whole


def last_of(node: Node) -> Node:
    """The dequantizer behind the node, if its output is quantized, else the node."""
    for user in node.users:
        if is_quantizer(user):
            return next((quantizer for quantizer in user.users if is_quantizer(quantizer)), node)
    return node


class _Given(Interpreter):
    """The model on the CPU, of which some nodes have given values."""

    def __init__(self, module: Any, given: Mapping[str, Tensor]) -> None:
        super().__init__(module)
        self.given = given

    def run_node(self, n: Node) -> Any:
        return self.given[n.name].clone() if n.name in self.given else super().run_node(n)

    def outputs(self, sample: tuple[Tensor, ...]) -> list[Tensor]:
        leaves = torch.utils._pytree.tree_leaves(self.run(*copied(sample)))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class _Watched(Interpreter):
    """The model on the CPU; `values` has what a node gave."""

    def __init__(self, module: Any, node: Node) -> None:
        super().__init__(module)
        self.node, self.values = node.name, list[Tensor]()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.name == self.node and isinstance(value, Tensor) and value.numel():
            self.values.append(value.double())
        return value


def range_seen(module: Any, node: Node, samples: Sequence[tuple[Tensor, ...]]) -> list[float] | None:
    """The least and the largest value that the node gives; None of what is no tensor."""
    watched = _Watched(module, node)
    for sample in samples:
        watched.run(*copied(sample))
    if not watched.values:
        return None
    return [
        min(float(value.min()) for value in watched.values),
        max(float(value.max()) for value in watched.values),
    ]


def _everywhere(node: Node, values: Any) -> dict[str, Tensor]:
    """The values for all that reads the node: each reader has a dequantizer of its own."""
    behind = [reader for user in node.users if is_quantizer(user) for reader in user.users]
    tensor = torch.as_tensor(values).to(node.meta["val"].dtype)
    return {place.name: tensor for place in (node, *filter(is_quantizer, behind))}


def with_error(
    module: Any,
    node: Node,
    operands: Sequence[Node],
    found: Mapping[str, Sequence[Any]],
    samples: Sequence[tuple[Tensor, ...]],
) -> Iterator[Pair]:
    """The model's outputs on the CPU without and with the error that was found at a node, less what the error
    of operands is there: `found` is the output of programs that end at a node, sample by sample."""
    ending = ending_at(module, node)
    for number, sample in enumerate(samples):
        given: dict[str, Tensor] = {}
        for operand in operands:
            given |= _everywhere(operand, found[operand.name][number])
        (wanted,), (passed_on,) = (_Given(ending, values).outputs(sample) for values in ({}, given))
        seen = torch.as_tensor(found[node.name][number])
        floats = wanted.is_floating_point()
        wrong = wanted + (seen - passed_on) if floats else torch.where(seen == passed_on, wanted, seen)
        every = [_Given(module, values) for values in ({}, _everywhere(node, wrong))]
        for exact, changed in zip(*(model.outputs(sample) for model in every), strict=True):
            yield Pair(node.name, exact.numpy(), changed.numpy())


def operators(module: Any) -> list[Node]:
    """The nodes at which a program can end, in order."""
    outputs, live = ends(module), varying(module.graph)
    return [
        node
        for node in module.graph.nodes
        if node.op == "call_function"
        and not is_quantizer(node)
        and isinstance(node.meta.get("val"), Tensor)
        and (node.meta["val"].is_floating_point() or node in outputs)
        and node in live
    ]


def ends(module: Any) -> list[Node]:
    """The operators that compute the model's outputs."""
    (output,) = module.graph.find_nodes(op="output")
    return operands_of(output)


def operands_of(node: Node) -> list[Node]:
    """The operators that compute the node's inputs, through quantizers and whatever is no operator."""
    operands: dict[Node, None] = {}
    todo = list(node.all_input_nodes)
    while todo:
        source = todo.pop(0)
        if is_quantizer(source) or not isinstance(source.meta.get("val"), Tensor):
            todo += source.all_input_nodes
        else:
            operands[source] = None
    return list(operands)


def model_of(order: dict[str, Any]) -> tuple[Any, Sequence[tuple[Tensor, ...]]]:
    """The quantized model, or the float one where nothing is quantized, and the samples that are compared."""
    case, run, soc, place = parse_request(order)
    exported = exported_case(case, place)
    samples, batches, _ = exported.chosen(case, run)
    if run.quantizes:
        arguments = (exported, samples[0], batches, run, case.backend, soc, place)
        module, _ = prepared_model(*arguments).quantized()
    else:
        module = exported.program(samples[0]).module()
    return module, samples


def searched(order: dict[str, Any], folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    _, run, soc, _ = parse_request(order)
    module, samples = model_of(order)
    spec = compiler_spec(soc, run)
    runner = Runner.ordered(order["runner"])
    listed = ((folder / row["file"] for row in rows) for rows in save_raw(folder, "input", samples))
    inputs = runner.write_inputs(folder / "inputs.txt", listed)
    number = 0

    def lower(cut: Any) -> bytes:
        nodes = Patterns("cpu_nodes", run.cpu_nodes), Patterns("cpu_operators", run.cpu_operators)
        try:
            edge = to_edge_transform_and_lower_to_qnn(
                cut, copied(samples[0]), spec, skip_node_id_set=nodes[0], skip_node_op_set=nodes[1]
            )
        finally:
            restore_builtins()
        return bytes(edge.to_executorch().buffer)

    def shown() -> tuple[list[Pair], dict[str, list[Pair]]]:
        doing("operators")
        pairs = on_chip(showing(module, nodes))
        count = len(pairs) // len(samples)
        own = count - len(nodes)
        by_node = {node.name: pairs[own + place :: count] for place, node in enumerate(nodes)}
        return [pair for place, pair in enumerate(pairs) if place % count < own], by_node

    def pairs(node: Node | None) -> list[Pair]:
        nonlocal number
        number += 1
        doing(f"cut {number}")
        return on_chip(module if node is None else ending_at(module, node))

    def on_chip(cut: Any) -> list[Pair]:
        program = folder / "cut.pte"
        program.write_bytes(lower(cut))
        expected = save_raw(folder, "expected", [run_copied(cut, sample) for sample in samples])
        outputs = empty_folder(folder / "outputs")
        done = subprocess.run(runner.command(program, inputs, outputs), capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the runner ended with {done.returncode}")
        return [*in_files(outputs, folder, expected)]

    def outputs(node: Node, operands: Sequence[Node], found: Mapping[str, Sequence[Any]]) -> list[Pair]:
        return [*with_error(module, node, operands, found, samples)]

    nodes = operators(module)
    few = sum(node.meta["val"].numel() for node in nodes) * len(samples) <= MOST_SHOWN
    cuts = Cuts[Node](lambda node: node.name, pairs, outputs, order["whole"], shown if few else None)
    reference = "the quantized model on the CPU" if run.quantizes else FLOAT_MODEL

    def keep(result: Mapping[str, Any]) -> None:
        keep_partial(folder, {"reference": reference, **result})

    seconds = order["seconds"] - (time.monotonic() - began)

    def described_here(node: Node) -> dict[str, Any]:
        return _described(node, module, samples)

    result = cuts.search(
        lambda: nodes, lambda: ends(module), operands_of, described_here, order["least"], seconds, keep
    )
    return {"reference": reference, **result}


def _described(node: Node, module: Any, samples: Sequence[tuple[Tensor, ...]]) -> dict[str, Any]:
    made_by = node.args[0] if node.target is getitem else node
    constants = constants_of(module)
    traits = {near.name: traits_of(near, constants) for near in (made_by, *operands_of(made_by))}
    if made_by.all_input_nodes:
        traits[made_by.name]["range"] = range_seen(module, made_by.all_input_nodes[0], samples)
    # A cast alone may be right, and be wrong with what reads it: the compiler makes one of them.
    around = {name: row for name, row in traits.items() if name == made_by.name or "kinds" in row}
    return {**described(node), "operator": str(made_by.target), "traits": around}
