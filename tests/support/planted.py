"""Models and commands with one fault each, and an agent that does only what answers say."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = """\
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        x = self.layer(x)
        return x


def make():
    torch.manual_seed(0)
    net = Net()
    return net.eval(), (torch.randn(4, 8),)
"""

COMPILE = "qnn-ci compile net.py:make --precision fp16 -o out"
LEAST_DB = 10.0
STEPS = 6
"""An agent that is not done after so many goes round in circles."""


@dataclass(frozen=True)
class Planted:
    name: str
    line: str = ""
    """In place of `return x`."""
    make: str = ""
    """In place of `net = Net()`."""
    typed: str = COMPILE

    @property
    def model(self) -> str:
        model = MODEL.replace("        return x\n", f"        {self.line}\n") if self.line else MODEL
        return model.replace("net = Net()", self.make) if self.make else model


FAULTS = (
    Planted("chip", typed=f"{COMPILE} --soc SM865O"),
    Planted("function", typed=COMPILE.replace(":make", ":mak")),
    Planted("flag", typed=COMPILE.replace("--precision", "--presicion")),
    Planted("samples", typed=f"{COMPILE} --calibrate sampels"),
    Planted("lane", typed=f"{COMPILE} --per-channel"),
    Planted("gelu", line="return x * 0.5 * (1.0 + torch.erf(x * 0.70710678))"),
    Planted("product", line="return torch.cumprod(torch.sigmoid(x), dim=1)"),
    Planted("clamp", line="x[x > 1.0] = 1.0\n        return x"),
    Planted("weight norm", make="net = nn.Sequential(weight_norm(nn.Conv1d(4, 4, 3)), nn.ReLU())"),
    Planted("rounded away", line="return (x + 300.0) - 300.0", typed=COMPILE.replace("fp16", "8a8w")),
)


def place(fault: Planted, folder: Path) -> None:
    import numpy

    (folder / "samples").mkdir(parents=True)
    (folder / "net.py").write_text(fault.model, encoding="utf-8")
    for number in range(4):
        numpy.save(folder / "samples" / f"{number}.npy", numpy.full((4, 8), number, numpy.float32))


def followed(fault: Planted, folder: Path, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """The answers: each command but the first is the last answer's `next`, after its first edit."""
    command, answers = fault.typed, list[dict[str, Any]]()
    while command and len(answers) < STEPS:
        done = subprocess.run(
            [*shlex.split(command), "--json"],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        answers.append(json.loads(done.stdout))
        for finding in answers[-1]["findings"]:
            if edit := finding["edit"]:
                _edit(folder / edit["file"], edit["line"], edit["old"], edit["new"])
                break
        command = answers[-1]["next"]
    return answers


def is_green(answer: Mapping[str, Any]) -> bool:
    """Whether it is of a program that is as it should be, and leaves nothing to follow."""
    if answer["verb"] != "compile" or answer["outcome"] != "pass" or answer["next"]:
        return False
    (program,) = answer["programs"]
    return not program["on_cpu"] and float(program["accuracy"].get("sqnr_db", 0)) >= LEAST_DB


def _edit(path: Path, number: int, old: str, new: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert old in lines[number - 1], f"{path}:{number} has no {old}"
    lines[number - 1] = lines[number - 1].replace(old, new, 1)
    path.write_text("".join(lines), encoding="utf-8")
