"""Everyday ways round the cache with real models in each lane: a checkpoint that the factory makes, a link of
its own to the data, a file whose time decides. test_stale_cases.py has each with small work, every time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.lowering_suites import Done, environment, run

pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]

NET = """\
import os
import tempfile
from pathlib import Path

import torch

def checkpoint():
    file = Path("checkpoints/w.pt")
    file.parent.mkdir(exist_ok=True)
    if not file.exists():
        torch.manual_seed(0)
        torch.save(torch.randn(8, 8), file)
    return model(torch.load(file))

def linked():
    link = Path(tempfile.mkdtemp(), "data.pt")
    link.symlink_to(Path("data.pt").absolute())
    return model(torch.load(link))

def newest():
    return model(torch.load(max(Path("old.pt"), Path("older.pt"), key=os.path.getmtime)))

def model(weights):
    layer = torch.nn.Linear(8, 8, bias=False)
    layer.weight = torch.nn.Parameter(weights)
    return layer.eval(), lambda generator: (torch.rand(1, 8, generator=generator),)
"""
CASE = """
[case.{name}]
factory = "net:{name}"
[[case.{name}.run]]
{precision}
socs = ["SM8650"]
"""
NAMES = ("checkpoint", "linked", "newest")
LANES = {
    "test_lowering": 'lane = "executorch"\nprecision = "fp16"',
    "test_onnx": 'lane = "onnx"\nprecision = "fp16"',
}


@pytest.mark.parametrize("stage", LANES)
def test_no_stale_model_is_cached(stage: str, tmp_path: Path) -> None:
    import torch

    models = tmp_path / "models"
    models.mkdir()
    (models / "net.py").write_text(NET)
    cases = "".join(CASE.format(name=name, precision=LANES[stage]) for name in NAMES)
    (models / "suite.toml").write_text(f"schema = 2\n{cases}")
    for number, name in enumerate(("data", "older", "old")):
        torch.save(torch.eye(8) * (number + 1), models / f"{name}.pt")
        os.utime(models / f"{name}.pt", (1e9 + number, 1e9 + number))

    def done() -> Done:
        return run(stage, tmp_path, "--suite", models / "suite.toml", environ=environment())

    first = done()
    assert first.code == 0, first.out + first.err
    assert "checkpoints/w.pt" in first.err and "gettempdir" in first.err
    assert done().cached() == {"linked", "newest"}
    assert done().cached() == set(NAMES)
    torch.save(torch.eye(8), models / "checkpoints/w.pt")
    torch.save(torch.eye(8) * 5, models / "data.pt")
    os.utime(models / "older.pt", (2e9, 2e9))
    assert done().cached() == set()
