"""The small files that a page's command is about: the reader's own model, suite, samples, checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from provisioning.base.settings import ROOT
from tests.support import miniature_tree

NET = """\
import torch
from torch import nn
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).eval(), (torch.randn(1, 3, 8, 8),)
"""
SUITE = """\
schema = 2
[case.net]
factory = "net:model"
[[case.net.run]]
lane = "executorch"
precision = "8a8w"
socs = ["SM8650"]
thresholds = { sqnr_db = 20 }
"""
ONNX_CASE = 'model = "net.onnx"\nsamples = "samples"'

ROUNDED = """\
import torch
class Rounded(torch.nn.Module):
    def forward(self, x):
        return (x + 30000) - 30000
def model():
    return Rounded().eval(), (torch.randn(1, 3, 8, 8),)
"""
"""At fp16 numbers near 30,000 are 16 apart."""
IMAGES = """\
import numpy as np
def samples():
    generator = np.random.default_rng(0)
    for _ in range(4):
        yield generator.standard_normal((1, 3, 8, 8)).astype(np.float32)
"""


def _text(content: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(content, encoding="utf-8")

    return write


def _some(path: Path, shape: tuple[int, ...], scale: float = 1) -> None:
    import numpy as np

    path.mkdir()
    generator = np.random.default_rng(0)
    for number in range(4):
        np.save(path / f"{number}.npy", (scale * generator.standard_normal(shape)).astype(np.float32))


def _convolution(path: Path) -> None:
    from tests.support.onnx_models import conv_model, write

    write(conv_model(), path)


def _root_mean_square(path: Path) -> None:
    from tests.support.onnx_models import root_mean_square, write

    write(root_mean_square(), path)


def _net() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU()).eval()


def _exported(path: Path) -> None:
    import torch

    torch.export.save(torch.export.export(_net(), (torch.randn(1, 3, 8, 8),)), path)


def _checkpoint(**changes: Any) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        from tests.support.checkpoints import write_checkpoint

        write_checkpoint(path, **changes)

    return write


def _model(name: str, read: str = "") -> Callable[[Path], None]:
    """One of tests/support/lowering_models.py, which `model` makes after it has read a file beside it."""

    def write(path: Path) -> None:
        shutil.copyfile(ROOT / "tests/support/lowering_models.py", path)
        with path.open("a", encoding="utf-8") as file:
            reading = f"open({read!r}).close()" if read else "pass"
            file.write(f"\n\ndef model():\n    {reading}\n    return {name}()\n")

    return write


FAULTY = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
        return self.last(x)


def model():
    torch.manual_seed(0)
    return Net().eval(), (torch.rand(1, 3, 16, 16),)
"""

FILES: dict[str, Callable[[Path], object]] = {
    "net": _text(NET),
    "net of which fp16 leaves little": _text(ROUNDED),
    "net with a logarithm that the emulator computes wrongly": _model("logarithm", read="width.txt"),
    "net with a fault that a rewrite repairs": _text(FAULTY),
    "number": _text("1"),
    "suite": _text(SUITE),
    "suite of ONNX": _text(
        SUITE.replace('"executorch"', '"onnx"').replace('factory = "net:model"', ONNX_CASE)
    ),
    "program of torch.export": _exported,
    "images": lambda path: _some(path, (1, 3, 8, 8)),
    "function that gives images": _text(IMAGES),
    "small rows": lambda path: _some(path, (4, 16), 0.05),
    "ONNX convolution": _convolution,
    "ONNX root mean square": _root_mean_square,
    "checkpoint": _checkpoint(),
    "checkpoint of SmolLM 3": _checkpoint(
        model_type="smollm3", rope_scaling=None, num_hidden_layers=2, no_rope_layers=[1, 0]
    ),
    "text": lambda path: path.write_text((ROOT / "LICENSE").read_text()[:1400] * 2, encoding="utf-8"),
    "other text": lambda path: path.write_text((ROOT / "README.md").read_text()[:1100], encoding="utf-8"),
    "script": _text(
        "import os\nfrom pathlib import Path\nPath('sdk').write_text(os.environ['QNN_SDK_ROOT'])\n"
    ),
    "build log": _text(
        "[ERROR] [Qnn ExecuTorch]: Tensor 0 and 0 have mismatching datatypes. 0x232 != 0x408.\n"
    ),
    "miniature of ExecuTorch": lambda path: miniature_tree.write(path),
}
"""By what a file is: writes it there."""
