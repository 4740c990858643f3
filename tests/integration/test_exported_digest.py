"""The digest of an exported model: one change each, and whether another model is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ci.lanes.executorch.export import cases
from ci.lanes.executorch.exporting import export
from ci.models.exported import NoDigest, digest_of
from provisioning.base.settings import ROOT


class Net(nn.Module):
    def __init__(self, factor: float = 1.5, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.register_buffer("shift", torch.ones(4))
        self.factor = factor
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(4.0 * width).reshape(width, 4))
            self.layer.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.shift, torch.Tensor)
        y: torch.Tensor = self.layer(x + self.shift) * self.factor
        return torch.stack([y, y])


class Cats(Net):
    """The same operators' results by another call, which passes of the compiler treat differently."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.shift, torch.Tensor)
        y = self.layer(torch.add(x, self.shift)) * self.factor
        return torch.stack([y, y])


Cats.__qualname__ = "Net"


def exported(net: nn.Module, *, rows: int = 2, varies: int = 0) -> torch.export.ExportedProgram:
    sizes = {"x": {0: torch.export.Dim("rows", max=varies)}} if varies else None
    return torch.export.export(net.eval(), (torch.rand(rows, 4),), dynamic_shapes=sizes, strict=True)


def with_weight(place: tuple[int, int], value: float) -> Net:
    net = Net()
    with torch.no_grad():
        net.layer.weight[place] = value
    return net


def with_shift(value: float) -> Net:
    net = Net()
    net.shift = torch.full((4,), value)
    return net


def with_strides() -> Net:
    net = Net()
    net.layer.weight = nn.Parameter(net.layer.weight.detach().t().contiguous().t())
    return net


def shared() -> nn.Module:
    """Under another name in its module, with all numbers the same."""
    net = Net()
    outer = nn.Sequential()
    outer.add_module("x", net)
    return outer


OTHERS: dict[str, Callable[[], Any]] = {
    "a weight, by its last bit": lambda: exported(with_weight((0, 1), 1.0000001)),
    "the sign of a zero": lambda: exported(with_weight((0, 0), -0.0)),
    "a buffer": lambda: exported(with_shift(2.0)),
    "a constant in the code, by its last bit": lambda: exported(Net(1.5000000000000002)),
    "the width of a layer": lambda: exported(Net(width=3)),
    "the order of a weight in memory": lambda: exported(with_strides()),
    "the size of an input": lambda: exported(Net(), rows=3),
    "a size that varies": lambda: exported(Net(), varies=8),
    "the call that a node comes from": lambda: exported(Cats()),
    "the path of a module": lambda: exported(shared()),
}


@pytest.mark.parametrize("change", OTHERS)
def test_another_model_has_another_digest(change: str) -> None:
    assert digest_of(OTHERS[change]()) != digest_of(exported(Net()))


def test_two_ranges_of_a_size_are_two_models() -> None:
    assert digest_of(exported(Net(), varies=8)) != digest_of(exported(Net(), varies=16))


FILE = """\
import torch
from torch import nn
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        self.names = {"b", "a", "c"}
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x, torch.cond(x.sum() > 0, lambda z: z + 1, lambda z: z - 1, (x,))
"""

PRINT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from ci.models.exported import digest_of
sys.path.insert(0, str(Path(sys.argv[2]).parent))
module = __import__(Path(sys.argv[2]).stem)
net = module.Attention().eval()
print(digest_of(torch.export.export(net, (torch.rand(1, 4, 8),), strict=True)))
"""


# Nightly, as each process imports torch: test_content.py has another clone, and a file with other lines.
@pytest.mark.whole
def test_the_digest_is_the_same_in_other_folders_processes_and_files_with_other_lines(tmp_path: Path) -> None:
    digests = set()
    for seed, name, text in (
        ("1", "one/net.py", FILE),
        (
            "2",
            "two/other.py",
            "# a comment\n\n" + FILE.replace("            x =", "            # more\n            x ="),
        ),
    ):
        file = tmp_path / name
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", PRINT, str(ROOT), str(file)],
            env={**os.environ, "PYTHONHASHSEED": seed, "HOME": str(file.parent)},
            cwd=file.parent,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


LIBRARY = torch.library.Library("qnn_ci_test", "DEF")
LIBRARY.define("times(Tensor x) -> Tensor")
LIBRARY.impl("times", lambda x: x * 2, "CompositeExplicitAutograd")


class CallsForeign(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.qnn_ci_test.times(x)
        return y


class CallsForeignInABranch(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda y: torch.ops.qnn_ci_test.times(y), lambda y: y + 1, (x,))


@pytest.mark.parametrize("model", [CallsForeign, CallsForeignInABranch])
def test_a_model_with_an_operator_of_somebody_elses_has_no_digest(model: type[nn.Module]) -> None:
    with pytest.raises(NoDigest):
        digest_of(torch.export.export(model(), (torch.rand(2, 4),), strict=True))


UNCACHED = """\
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return {}
def net():
    return Net().eval(), (torch.rand(2, 4),)
"""


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("decides", "x * 2 if x.sum() > 0 else x", "it cannot be exported: "),
        ("foreign", "torch.ops.qnn_ci_test.times(x)", "qnn_ci_test"),
    ],
)
def test_a_model_without_a_digest_is_not_cached_and_says_why(
    name: str, code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"uncached_{name}.py").write_text(UNCACHED.format(code), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    run, place = {"precision": "8a8w", "calibration": 2}, str(tmp_path)
    order: dict[str, Any] = {"soc": "SM8650", "runs": {"8a8w": run}, "run": run, "run_of_model": {}}
    order |= {"case": {}, "case_of_model": {"factory": f"uncached_{name}:net"}}
    order |= {"search_path": place, "working_folder": place, "log": str(tmp_path / "export.log")}
    try:
        reply: Any = export(order)
    finally:
        cases.clear()
    exported = reply["runs"]["8a8w"]
    assert reason in exported["not_cached"] and not exported["error"] and not exported["rows"]


def test_a_tensor_whose_digest_was_taken_can_still_be_resized() -> None:
    """Observers of torchao resize theirs at the first values that they see."""
    from ci.models.exported import value_line

    tensor = torch.zeros(2)
    value_line(tensor)

    assert tensor.resize_(8).numel() == 8
