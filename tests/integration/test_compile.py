"""`compile`: one model from a file or a function, written as a program and compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ci.__main__ import VERBS
from ci.lanes.executorch import steps
from ci.models.factory import find, make
from ci.models.inputs import InputsUsed
from ci.models.model_samples import samples_of
from ci.models.user_model import BadFactory, search_first
from provisioning.base.command_line import main
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import ROOT
from tests.support.typed import typed

NET = """\
import torch
from torch import nn
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).eval(), (torch.randn(1, 3, 8, 8),)
"""


def ci(*arguments: str | Path, code: int = 0, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # As `qnn-ci` starts it: in our folder, with the user's in a variable.
    done = typed(*arguments, env={**os.environ, "QNN_CI_STARTED_IN": str(cwd)})
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def test_samples_of_a_folder_compare_on_some_and_calibrate_by_others(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.full((1, 3, 8, 8), number, np.float32))
    loaded = make("net:net", {}, tmp_path, samples_of(tmp_path))
    compared, calibrating, used = loaded.choose(2, None)
    values = [float(sample[0].max()) for sample in [*compared, *calibrating[1:]]]
    assert sorted(values) == [0, 1, 2, 3, 4] and used == InputsUsed(2, 3, 5)
    assert float(calibrating[0][0].std()) > 0.5, "the model's own example calibrates, too"
    np.save(tmp_path / "1.npy", np.full((1, 3, 8, 8), np.nan, np.float32))
    with pytest.raises(BadFactory, match="NaN"):
        loaded.sample(1)


LATE = """\
import importlib
import torch
from ci.layers import WIDTH
class Net(torch.nn.Module):
    def forward(self, x):
        from ci import values
        return x * values.one(WIDTH) + values.HALF
def net():
    def draw(generator):
        from ci import values
        return (values.one(WIDTH),)
    return Net(), draw
def annotation(graph):
    importlib.import_module("ci.late")
"""


def test_a_models_imports_of_their_package_called_ci_are_theirs_for_its_whole_life(tmp_path: Path) -> None:
    (tmp_path / "ci").mkdir()
    for name, text in (
        ("__init__", ""),
        ("layers", "WIDTH = 3\n"),
        ("late", ""),
        (
            "values",
            "import torch\nfrom ci import layers\nHALF = 0.5\n"
            "def one(n): return torch.ones(n, layers.WIDTH)\n",
        ),
    ):
        (tmp_path / "ci" / f"{name}.py").write_text(text)
    (tmp_path / "late.py").write_text(LATE)
    try:
        loaded = make("late:net", {}, tmp_path)
        sample = loaded.sample(1)
        exported = torch.export.export(loaded.model, sample, strict=True).module()
        assert torch.equal(exported(*sample), torch.full((3, 3), 1.5))
        find("late:annotation", tmp_path)(exported)
        # Ours are ours in our own code, which imports late, too.
        with pytest.raises(BadFactory, match=r"net\.pt2"):
            make("net.pt2", {"width": 3}, tmp_path)
    finally:
        search_first(ROOT)
    assert Path(str(sys.modules["ci"].__file__)).is_relative_to(ROOT)


@pytest.mark.whole
def test_a_quantized_model_is_loaded_by_torch_alone_and_compiled_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    done = ci("quantize", "net.py:net", "--precision", "8a8w", "-o", "out", cwd=tmp_path)
    assert "dB SQNR against float" in done.stdout
    product = tmp_path / "out" / "net-SM8650-8a8w.pt2"
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED, product], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    assert 25 < float(loaded.stdout) < 80
    compiled = ci("compile", product, "-o", "again", cwd=tmp_path)
    assert "nothing on the CPU" in compiled.stdout
    record = json.loads((tmp_path / "again" / "net-sm8650-8a8w-SM8650-qdq.json").read_text())
    assert record["accuracy"]["sqnr_db"] > 30
    ci("compile", product, "--precision", "8a8w", "-o", "out", code=2, cwd=tmp_path)


LOADED = """\
import sys
import torch
import torchao.quantization.pt2e.quantize_pt2e
from net import net
model, (x,) = net()
quantized = torch.export.load(sys.argv[1]).module()
wanted, outputs = model(x), quantized(x)
print(float(10 * torch.log10(wanted.square().sum() / (wanted - outputs).square().sum())))
"""


def test_a_program_that_nothing_here_can_run_is_written_where_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What would import torch and lower is a stand-in.
    monkeypatch.setattr(steps, "WORKER", "tests.support.lowering_worker")
    monkeypatch.setattr(steps, "EXPORT", "tests.support.lowering_worker:export")
    (tmp_path / "net.py").write_text("from tests.support.programs import program as net\n")
    # As on a machine without a C++ compiler, which the runner is built by.
    monkeypatch.setenv("QNN_EXECUTOR_RUNNER", str(tmp_path / "none"))

    def compiled(*flags: str) -> int:
        monkeypatch.setenv("QNN_CI_STARTED_IN", str(tmp_path))
        return main(
            "qnn-ci", "", {"compile": VERBS["compile"]}, ["compile", "net.py:net", "-o", "out", *flags]
        )

    assert compiled() == EnvironmentLacking.exit_code and not list(tmp_path.glob("out/*.pte"))
    assert "--verify none" in capsys.readouterr().err
    assert compiled("--verify", "none", "--no-cache") == 0
    assert (tmp_path / "out" / "net-SM8650-fp16.pte").is_file() and "not run" in capsys.readouterr().out


RECURRENT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]

def net():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(1, 5, 8),)
"""


@pytest.mark.whole
def test_what_the_compiler_dies_of_is_on_the_cpu_only_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(RECURRENT)
    words = ("compile", "net.py:net", "--precision", "8a8w", "--no-search", "-o", "out")
    died = ci(*words, code=1, cwd=tmp_path)
    assert "--keep-on-cpu aten_full_default" in died.stderr and not list(tmp_path.glob("out/*"))
    done = ci(*words, "--keep-on-cpu", "aten_full_default", cwd=tmp_path)
    assert "aten.full.default" in done.stdout and list(tmp_path.glob("out/*.pte"))


@pytest.mark.whole
def test_without_the_compiler_for_the_lpai_a_model_is_quantized_for_it_and_measured(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    done = ci("quantize", "net.py:net", *ON_LPAI, "--soc", "SM8850", "-o", "out", cwd=tmp_path)
    assert "dB SQNR" in done.stdout and list((tmp_path / "out").glob("*.pt2"))


ON_LPAI = ("--backend", "lpai", "--precision", "8a8w")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("gone.pt2", "-o", "out"), 2),
        (("net.py:net", "--embed", "-o", "out"), 2),
        (("net.py:net", "--suite", "gone/models.toml", "-o", "out"), 2),
        (("net.py:net", "--suite", "models.toml", "--backend", "lpai", "-o", "out"), 2),
        (("net.py:net", "--calibrate", "gone", "-o", "out"), 2),
        (("net.py:net", "-o", "/proc/out"), 2),
        (("net.py:net", *ON_LPAI, "-o", "out"), 1),
        (("net.py:net", *ON_LPAI, "--soc", "SM8850", "-o", "out"), 3),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_program(
    arguments: tuple[str, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.setenv("QNN_CI_STARTED_IN", str(tmp_path))
    assert main("qnn-ci", "", {"compile": VERBS["compile"]}, ["compile", *arguments]) == code
    text = capsys.readouterr().err
    assert "error: " in text and "try: " in text and "Traceback" not in text
    assert not list((tmp_path / "out").glob("*.pte"))
