"""Models saved by torch.export.save, and the traps in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ci.suites.factory import infer_all, make
from ci.suites.user_model import BadFactory


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


def test_dynamic_sizes_are_said(tmp_path: Path) -> None:
    program = torch.export.export(nn.ReLU(), (X,), dynamic_shapes=({0: torch.export.Dim("n", max=8)},))
    torch.export.save(program, tmp_path / "net.pt2")
    assert "dynamic-shape" in dict(make("net.pt2", {}, tmp_path).notes)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["half", "decomposed", "state", "another torch's"])
def test_refuses_what_would_compile_to_something_else(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "net.pt2"
    if kind == "another torch's":
        path.write_bytes(b"PK")
    else:
        net = (Keeps() if kind == "state" else Net()).eval()
        program = torch.export.export(net.half(), (X.half(),)) if kind == "half" else None
        program = program or torch.export.export(net, (X,))
        torch.export.save(program.run_decompositions() if kind == "decomposed" else program, path)
    with pytest.raises(BadFactory):
        loaded = make("net.pt2", {}, tmp_path)
        infer_all(loaded.model, [loaded.sample(0)])
