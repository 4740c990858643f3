"""The process that compiles and runs programs which end at a node of the quantized model."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from torch import Tensor
from torch.fx import Node

from ci.executorch.audit import module_of, source_of
from ci.executorch.guilty import restore_builtins
from ci.executorch.lower import Patterns, inputs_of, quantized_model
from ci.executorch.suite import Case, Run
from ci.suites.accuracy import Unusable, compare
from ci.suites.factory import CALIBRATION_SEED, copied, make, run_copied

QUANTIZER = "quantize_per"


@dataclass(frozen=True, slots=True)
class First:
    """The first operator that differs, though what goes into it does not."""

    operator: str
    node: str
    module: str
    source: str
    code: str
    sqnr_db: float
    operands: dict[str, float] = field(default_factory=dict)


class Cuts:
    """SQNR of the program that ends at a node, on the emulator against PyTorch on the CPU."""

    def __init__(self, module: Any, samples: Sequence[tuple[Tensor, ...]], lower: Any, run: Any) -> None:
        self.module, self.samples, self.lower, self.run = module, samples, lower, run
        self.found: dict[str, float] = {}

    def of(self, node: Node | None) -> float | None:
        """None if that program does not compile or run; without a node, the whole program's."""
        name = node.name if node else ""
        if name not in self.found:
            try:
                cut = self.module if node is None else ending_at(self.module, node)
                expected = [run_copied(cut, sample) for sample in self.samples]
                outputs = self.run(self.lower(cut), expected)
                pairs = [
                    (f"{number}.{index}", wanted.numpy(), value)
                    for number, (wants, values) in enumerate(zip(expected, outputs, strict=True))
                    for index, (wanted, value) in enumerate(zip(wants, values, strict=True))
                ]
                self.found[name] = compare(pairs, non_finite=True)["sqnr_db"]
            except Unusable:
                self.found[name] = -float("inf")
            except Exception as error:
                if node is None:
                    raise
                sys.stderr.write(f"the program that ends at {name} does not run: {error}\n")
                return None
        return self.found[name]


def ending_at(module: Any, node: Node) -> Any:
    """The model as far as this node, with what quantizes its output."""
    whole = copy.deepcopy(module)
    names = {each.name: each for each in whole.graph.nodes}
    end = names[last_of(node).name]
    (output,) = (each for each in whole.graph.nodes if each.op == "output")
    output.args = ((end,),)
    whole.graph.set_codegen(torch.fx.graph.CodeGen())
    whole.graph.eliminate_dead_code()
    whole.recompile()
    return whole


def last_of(node: Node) -> Node:
    """The dequantizer behind the node, if its output is quantized, else the node."""
    for user in node.users:
        if _quantizes(user):
            return next((each for each in user.users if _quantizes(each)), node)
    return node


def first_different(
    nodes: Sequence[Node], sqnr: Callable[[Node], float | None], least: float
) -> tuple[Node, dict[str, float]] | None:
    """The first operator whose output differs while its operands agree, and these operands."""

    def differs(node: Node) -> bool:
        value = sqnr(node)
        return value is not None and value < least

    low, high = -1, len(nodes) - 1
    if not differs(nodes[high]):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(nodes[middle]) else (middle, high)
    node = nodes[high]
    # In a model with branches, the node before it in the list need not be its operand.
    while worse := [each for each in operands_of(node) if each in nodes and differs(each)]:
        node = worse[0]
    operands = {each.name: sqnr(each) for each in operands_of(node) if each in nodes}
    return node, {name: value for name, value in operands.items() if value is not None}


def operators(module: Any) -> list[Node]:
    """The nodes at which a program can end, in order."""
    return [
        node
        for node in module.graph.nodes
        if node.op == "call_function"
        and not _quantizes(node)
        and isinstance(node.meta.get("val"), Tensor)
        and node.meta["val"].is_floating_point()
        and _depends_on_input(node)
    ]


def operands_of(node: Node) -> list[Node]:
    """The operators that compute the node's inputs, through quantizers and whatever is no operator."""
    found: dict[Node, None] = {}
    todo = list(node.all_input_nodes)
    while todo:
        each = todo.pop(0)
        if _quantizes(each) or not isinstance(each.meta.get("val"), Tensor):
            todo += each.all_input_nodes
        else:
            found[each] = None
    return list(found)


def _depends_on_input(node: Node) -> bool:
    seen, todo = set[Node](), [node]
    while todo:
        each = todo.pop()
        if each.op == "placeholder":
            return True
        todo += [one for one in each.all_input_nodes if one not in seen]
        seen.update(each.all_input_nodes)
    return False


def _quantizes(node: Node) -> bool:
    return node.op == "call_function" and QUANTIZER in str(node.target)


def _search(order: dict[str, Any], folder: Path) -> dict[str, Any]:
    case = Case.model_validate_json(json.dumps(order["case"]))
    run = Run.model_validate_json(json.dumps(order["run"]))
    place = Path(order["search_path"])
    loaded = make(case.factory, case.arguments, place, inputs_of(case, place))
    samples = [loaded.sample(seed) for seed in range(case.inferences)]
    torch.set_grad_enabled(False)
    loaded.model.requires_grad_(False)
    if run.quantizes:
        batches = [loaded.sample(CALIBRATION_SEED + index) for index in range(run.calibration)]
        module, _, _ = quantized_model(loaded, samples[0], batches, run, case.backend, order["soc"], place)
    else:
        module = torch.export.export(loaded.model, copied(samples[0]), strict=True).module()
    spec = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[order["soc"]],
        backend_options=generate_htp_compiler_spec(use_fp16=run.scheme.startswith("fp16")),
    )
    inputs = _written_inputs(folder, samples)
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

    def emulated(program: bytes, expected: Sequence[Sequence[Tensor]]) -> list[list[Any]]:
        nonlocal number
        number += 1
        return _run(Path(order["runner"]), program, folder / str(number), inputs, expected)

    cuts = Cuts(module, samples, lower, emulated)
    whole = cuts.of(None)
    assert whole is not None
    first = None
    if whole < order["least"]:
        found = first_different(operators(module), cuts.of, order["least"])
        if found is not None:
            node, operands = found
            source, code = source_of(node.meta.get("stack_trace") or "")
            first = First(
                str(node.target), node.name, module_of(node), source, code, cuts.found[node.name], operands
            )
    return {
        "reference": "the quantized model on the CPU" if run.quantizes else "the float model",
        "least": order["least"],
        "sqnr_db": whole,
        "first": asdict(first) if first else None,
        "cuts": {name: value for name, value in cuts.found.items() if name},
    }


def _written_inputs(folder: Path, samples: Sequence[tuple[Tensor, ...]]) -> Path:
    lines = []
    for number, sample in enumerate(samples):
        paths = [folder / f"input_{number}_{index}.raw" for index in range(len(sample))]
        for path, tensor in zip(paths, sample, strict=True):
            tensor.contiguous().numpy().tofile(path)
        lines.append(" ".join(f'"{path}"' for path in paths) + "\n")
    listed = folder / "inputs.txt"
    listed.write_text("".join(lines), encoding="utf-8")
    return listed


def _run(
    runner: Path, program: bytes, folder: Path, inputs: Path, expected: Sequence[Sequence[Tensor]]
) -> list[list[Any]]:
    import numpy

    folder.mkdir()
    (folder / "cut.pte").write_bytes(program)
    command = [
        str(runner),
        *("--model_path", str(folder / "cut.pte"), "--input_list_path", str(inputs)),
        *("--output_folder_path", str(folder), "--etdump_path=", "--performance_output_path="),
    ]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the runner ended with {done.returncode}")
    outputs = [
        [
            numpy.fromfile(folder / f"output_{number}_{index}.raw", dtype=tensor.numpy().dtype).reshape(
                tuple(tensor.shape)
            )
            for index, tensor in enumerate(tensors)
        ]
        for number, tensors in enumerate(expected)
    ]
    shutil.rmtree(folder)
    return outputs


if __name__ == "__main__":
    place = Path(sys.argv[1])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    answer = _search(json.loads((place / "order.json").read_text(encoding="utf-8")), place)
    (place / "answer.json").write_text(json.dumps(answer), encoding="utf-8")
