"""Models saved by torch.export.save, and the traps in them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ci.models.factory import find, make
from ci.models.inference import infer_all
from ci.models.model_samples import samples_of
from ci.models.user_model import BadFactory
from provisioning.base.commands import capture
from provisioning.base.settings import ROOT


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        y = self.drop(self.norm(x))
        return {"y": y if mask is None else y * mask}


class Keeps(Net):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        assert isinstance(self.state, torch.Tensor)
        self.state.add_(x[0])
        return {"y": self.state + x}


X = torch.randn(2, 4)


def test_a_model_in_training_mode_is_put_into_eval_mode_and_takes_tensors_by_position(tmp_path: Path) -> None:
    net, mask = Net().train(), torch.rand(2, 4)
    torch.export.save(torch.export.export(net, (X,), {"mask": mask}), tmp_path / "net.pt2")
    loaded = make("net.pt2", {}, tmp_path)
    assert "training-mode" in dict(loaded.notes)
    sample = loaded.sample(0)
    assert len(sample) == 2
    assert torch.allclose(infer_all(loaded.model, [sample])[0][0], net.eval()(X, mask=mask)["y"], atol=1e-6)


VARIES = """\
import torch
from torch import nn
class Flat(nn.Module):
    def forward(self, x):
        return x.reshape(x.shape[0] * 2, -1)
def exported(most):
    varies = {"x": {0: torch.export.Dim("count", max=most)}}
    return torch.export.export(Flat().train(), (torch.rand(2, 4),), dynamic_shapes=varies)
def net(most=8):
    module = exported(most).module()
    return nn.Sequential(module, nn.ReLU()), lambda generator: (torch.rand(2, 4, generator=generator),)
def drawn():
    def draw(generator):
        return (torch.rand(int(torch.randint(2, 900, (1,), generator=generator)), 4),)
    return exported(900).module(), draw
class Decides(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] > 4 else x
def decides():
    varies = {"x": {0: torch.export.Dim("count", max=8)}}
    return torch.export.export(Decides(), (torch.rand(2, 4),), dynamic_shapes=varies)
"""


def test_sizes_that_vary_become_those_of_the_example_and_are_reported(tmp_path: Path) -> None:
    (tmp_path / "varies.py").write_text(VARIES)
    exported: Any = find("varies:exported", tmp_path)(8)
    torch.export.save(exported, tmp_path / "net.pt2")
    for factory in ("net.pt2", "varies:net"):
        loaded = make(factory, {}, tmp_path)
        assert "dimension 0 of x" in dict(loaded.notes)["dynamic-shape"]
        fixed = torch.export.export(loaded.model, loaded.sample(0), strict=True)
        assert not fixed.range_constraints
        assert [tensor.shape for tensor in infer_all(fixed.module(), [loaded.sample(1)])[0]] == [(4, 2)]


def test_a_size_that_the_model_decides_by_is_named_with_its_line_and_a_fix(tmp_path: Path) -> None:
    (tmp_path / "varies.py").write_text(VARIES)
    with pytest.raises(BadFactory, match=r"count.*varies\.py:\d+") as caught:
        make("varies:decides", {}, tmp_path)
    assert "dynamic_shapes" in caught.value.fix


class Quantized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = 0.1, 0, 0, 255, torch.uint8
        integers = torch.ops.quantized_decomposed.quantize_per_tensor(x, *numbers)
        rounded: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor(integers, *numbers)
        return rounded


@pytest.mark.long("imports torch in a process of its own")
def test_a_quantized_model_is_loaded_by_a_process_that_has_quantized_nothing(tmp_path: Path) -> None:
    import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401

    torch.export.save(torch.export.export(Quantized(), (X,)), tmp_path / "net.pt2")
    script = (
        "import pathlib, sys; from ci.models.exported import load_exported;"
        " load_exported(pathlib.Path(sys.argv[1]))"
    )
    loaded = capture([sys.executable, "-c", script, tmp_path / "net.pt2"], cwd=ROOT)
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["half", "decomposed", "state"])
def test_refuses_what_would_compile_to_something_else(tmp_path: Path, kind: str) -> None:
    net, x = (Keeps() if kind == "state" else Net()).eval(), X
    if kind == "half":
        net, x = net.half(), X.half()
    program = torch.export.export(net, (x,))
    torch.export.save(program.run_decompositions() if kind == "decomposed" else program, tmp_path / "net.pt2")
    with pytest.raises(BadFactory):
        loaded = make("net.pt2", {}, tmp_path)
        infer_all(loaded.model, [loaded.sample(0)])


def test_samples_of_several_sizes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "varies.py").write_text(VARIES)
    loaded = make("varies:drawn", {}, tmp_path)
    loaded.sample(0)
    with pytest.raises(BadFactory):
        for number in range(1, 5):
            loaded.sample(number)


@pytest.mark.parametrize(("calibration", "calibrating"), [(None, 46), (20, 20), (0, 0)])
def test_the_example_of_a_pt2_calibrates_beside_the_users_samples(
    tmp_path: Path, calibration: int | None, calibrating: int
) -> None:
    """A quarter of 60 files is compared, and all others calibrate: the limit of 32 is of drawn ones."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    torch.export.save(torch.export.export(net, (X,)), tmp_path / "net.pt2")
    (tmp_path / "data").mkdir()
    for number in range(60):
        torch.save(torch.full((2, 4), float(number)), tmp_path / "data" / f"{number:02}.pt")
    chosen = make("net.pt2", {}, tmp_path, samples_of(tmp_path / "data")).choose(None, calibration)
    assert len(chosen.compared) == 15 and len(chosen.calibrating) == calibrating
    assert not calibrating or torch.equal(chosen.calibrating[0][0], X)
