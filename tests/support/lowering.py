"""A suite with one case, for tests that change one thing of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ci.lanes.executorch.orders import ChipProgram
from ci.lanes.executorch.steps import ExecutorchPlan
from ci.lanes.executorch.suite import ExecutorchProgram, programs_of
from ci.models.inputs import InputsUsed
from ci.operators import CpuOperator, GraphPart
from ci.suite.stage import packages_of
from ci.work.jobs import WorkOptions
from provisioning.base.settings import Selection

SUITE = """\
schema = 2

[case.net]
factory = "net:make"
arguments = {{ width = 8 }}
files = ["weights.bin"]
{case}

[[case.net.run]]
lane = "executorch"
precision = "8a8w"
socs = ["SM8650"]
tags = ["pr"]
thresholds = {{ sqnr_db = 20 }}
{run}
"""

QNN = {"build_id": "v2.49.40.260810104044", "libraries": "aa"}


def compiled_as(*, delegates: int = 1, left: Sequence[CpuOperator] = (), **fields: Any) -> ChipProgram:
    """What a compile replies that left these operators on the CPU."""
    parts = [GraphPart(f"htp {number}", 1, {"aten.add.Tensor": 1}) for number in range(delegates)]
    usual: dict[str, Any] = {"used": InputsUsed(2, 32), "inputs": (), "expected": (), "reference": ()}
    usual["graphs"] = delegates
    return ChipProgram(left=tuple(left), partition=tuple(parts), **{**usual, **fields})


def plan_of(
    folder: Path, programs: Sequence[ExecutorchProgram], work: WorkOptions, **more: Any
) -> ExecutorchPlan:
    """Its store and its logs are in this folder."""
    store = folder / "store"
    usual: dict[str, Any] = {
        "environment": {},
        "sdk": folder,
        "qnn": QNN,
        "logs": folder / "logs",
        "refused": {},
    }
    return ExecutorchPlan(
        selection=Selection("wheels", "x86_64-linux", "SM8650", store, folder),
        programs=tuple(programs),
        work=work,
        packages=packages_of(programs, store),
        **{**usual, **more},
    )


def make_program(
    folder: Path, *, case: str = "", run: str = "", text: str = SUITE, name: str = "suite.toml"
) -> ExecutorchProgram:
    """The one program of a suite there, with its factory's module, a module that it imports, and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (
        ("net.py", "import layers\ndef make(width): return width * layers.WIDTH\n"),
        ("layers.py", "WIDTH = 1\n"),
        ("weights.bin", "0123"),
    ):
        if not (folder / file).exists():
            (folder / file).write_text(content)
    (folder / name).write_text(text.format(case=case, run=run))
    program: ExecutorchProgram = programs_of(folder / name)[0]
    return program
