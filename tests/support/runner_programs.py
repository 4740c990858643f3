"""Small programs for the runner, exported in a fork of a process that has imported torch.

`make` writes each NAME.pte with NAME_in<i>.raw, NAME.txt (the input list) and NAME_ref<i>.raw (what eager
PyTorch gives).
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from torch.export import Dim, export

from provisioning.base.settings import DEFAULT_SOC


class AddAndDouble(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y, x * 2


class Subtract(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x - y


class Convolve(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.linear(torch.relu(self.convolution(x)).mean((2, 3)))


class Pair(torch.nn.Module):
    """Two inputs and two outputs, all of other shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        # Most of its context are weights.
        self.second = torch.nn.Sequential(torch.nn.Linear(3, 512), torch.nn.ReLU(), torch.nn.Linear(512, 6))

    def forward(self, x: Any, y: Any) -> Any:
        first, second = self.first(x), self.second(y)
        return torch.relu(second), first.sum(0, keepdim=True) * second


class Count(torch.nn.Module):
    def forward(self) -> Any:
        return torch.arange(6).reshape(2, 3) + 1


class Types(torch.nn.Module):
    def forward(self, long: Any, flag: Any, byte: Any, half: Any) -> Any:
        return long + 1, flag.logical_not(), byte * 2, half.to(torch.float64)


class LookUp(torch.nn.Module):
    """Fails when it runs, for an index beyond the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(4, 2)

    def forward(self, index: Any) -> Any:
        return self.table(index)


class Permute(torch.nn.Module):
    """Keeps the dim order of its input, so that the raw bytes show it."""

    def forward(self, x: Any) -> Any:
        return x * x


class Numbers(torch.nn.Module):
    """Gives plain numbers beside a tensor."""

    def forward(self, x: Any) -> Any:
        return x * 2, 3, 2.5, True


class CountUp(torch.nn.Module):
    """Has state: each run gives one more."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return x + self.count


UNPLANNED = ExecutorchBackendConfig(
    memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
)


def save(
    into: Path,
    name: str,
    models: torch.nn.Module | dict[str, torch.nn.Module],
    example: tuple[Any, ...],
    *,
    xnnpack: bool = False,
    dynamic: Any = None,
    config: Any = None,
) -> None:
    methods = models if isinstance(models, dict) else {"forward": models}
    exported = {
        method: export(model, example, dynamic_shapes=dynamic, strict=False)
        for method, model in methods.items()
    }
    # Where no backend takes a part, `to_edge` decomposes each method once instead of twice.
    if xnnpack:
        edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    else:
        edge = to_edge(exported)
    keep(into, name, edge.to_executorch(config), next(iter(methods.values())), example)


def keep(into: Path, name: str, program: Any, model: torch.nn.Module, example: tuple[Any, ...]) -> None:
    (into / f"{name}.pte").write_bytes(program.buffer)
    results = model(*example)
    for kind, tensors in (("in", example), ("ref", results if isinstance(results, tuple) else (results,))):
        for index, tensor in enumerate(tensors):
            # In memory order: what the runner reads and writes.
            flat = tensor.detach().as_strided((tensor.numel(),), (1,))
            flat.numpy().tofile(into / f"{name}_{kind}{index}.raw")
    names = [f"{name}_in{index}.raw" for index in range(len(example))]
    (into / f"{name}.txt").write_text(" ".join(names) + "\n", encoding="utf-8")


def save_for_htp(into: Path, name: str, model: torch.nn.Module, example: tuple[Any, ...]) -> None:
    spec = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[DEFAULT_SOC], backend_options=generate_htp_compiler_spec(use_fp16=True)
    )
    program = to_edge_transform_and_lower_to_qnn(model, example, spec).to_executorch()
    keep(into, name, program, model, example)


def make(request: Mapping[str, object]) -> dict[str, object]:
    into = Path(str(request["into"]))
    torch.manual_seed(0)
    into.mkdir(parents=True, exist_ok=True)
    pair = (torch.randn(2, 3), torch.randn(2, 3))
    image = torch.randn(1, 3, 8, 8)
    size = Dim("size", min=1, max=8)
    save(into, "add", AddAndDouble(), pair)
    save(into, "two", {"add": AddAndDouble(), "subtract": Subtract()}, pair)
    save(into, "unplanned", AddAndDouble(), pair, config=UNPLANNED)
    save(into, "conv", Convolve().eval(), (image,), xnnpack=True)
    save(into, "last", Permute(), (image.to(memory_format=torch.channels_last),))
    convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
    unlike = torch.rand(2, 4), torch.rand(5, 3)
    save_for_htp(into, "pair", Pair().eval(), unlike)
    save_for_htp(into, "htp", torch.nn.Sequential(convolution, torch.nn.ReLU()).eval(), (image,))
    save(into, "count", Count(), ())
    save(into, "state", CountUp(), (torch.ones(1),))
    numbers = to_edge(export(Numbers(), (torch.ones(1),))).to_executorch()
    (into / "numbers.pte").write_bytes(numbers.buffer)
    save(into, "lookup", LookUp(), (torch.tensor([1, 3]),))
    save(
        into,
        "dynamic",
        AddAndDouble(),
        (torch.randn(4, 3), torch.randn(4, 3)),
        dynamic=({0: size}, {0: size}),
    )
    save(
        into,
        "types",
        Types(),
        (
            torch.arange(12).reshape(3, 4),
            torch.tensor([True, False]),
            torch.tensor([1, 2, 100], dtype=torch.uint8),
            torch.randn(3).to(torch.float16),
        ),
    )
    return {}
