"""`compile`: one model from a file or a function, written as a program and compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ci.suites.factory import CALIBRATION_SEED, BadFactory, make
from ci.suites.samples import samples_of
from provisioning.base.settings import ROOT

NET = """\
import torch
from torch import nn
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).eval(), (torch.randn(1, 3, 8, 8),)
"""


def compile_model(
    *arguments: str | Path, code: int = 0, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    # As `qnn-ci` starts it: in our folder, with the user's in a variable.
    done = subprocess.run(
        [sys.executable, "-m", "ci", "compile", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "QNN_CI_STARTED_IN": str(cwd)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("target", ["net:net", "ci.models:net"])
def test_a_module_of_the_users_own_even_in_a_package_called_ci(target: str, tmp_path: Path) -> None:
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "__init__.py").touch()
    (tmp_path / "ci" / "models.py").write_text(NET)
    (tmp_path / "net.py").write_text(NET)
    model = make(target, {}, tmp_path).model
    assert [type(each).__name__ for each in model.children()] == ["Conv2d", "ReLU"]
    assert Path(str(sys.modules["ci"].__file__)).is_relative_to(ROOT)


def test_samples_of_a_folder_compare_on_some_and_calibrate_by_others(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.full((1, 3, 8, 8), number, np.float32))
    loaded = make("net:net", {}, tmp_path, samples_of(tmp_path))
    compared = [float(loaded.sample(number)[0].max()) for number in range(2)]
    calibrating = {float(loaded.sample(CALIBRATION_SEED + number)[0].max()) for number in range(32)}
    assert (compared, calibrating) == ([0.0, 1.0], {2.0, 3.0, 4.0})
    np.save(tmp_path / "1.npy", np.full((1, 3, 8, 8), np.nan, np.float32))
    with pytest.raises(BadFactory, match="NaN"):
        loaded.sample(1)


def test_writes_the_program_and_what_is_known_of_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    done = compile_model("net.py:net", "--soc", "SM8750", "--verify", "none", "-o", "out", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "net-SM8750-fp16.json",
        "net-SM8750-fp16.pte",
    ]
    record = json.loads((tmp_path / "out" / "net-SM8750-fp16.json").read_text())
    assert (record["delegates"], record["on_cpu"], record["accuracy"]) == (1, [], {})
    assert "1 delegate" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("gone.pt2", "-o", "out"), 2),
        (("net.onnx", "-o", "out"), 2),
        (("nothing", "-o", "out"), 2),
        (("net.py:net", "--precision", "7a7w", "-o", "out"), 2),
        (("net.py:net", "--calibrate", "gone", "-o", "out"), 2),
        (("net.py:net", "-o", "/proc/out"), 2),
        pytest.param(("net.py:gone", "-o", "out"), 1, marks=pytest.mark.whole),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_program(
    arguments: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(NET)
    done = compile_model(*arguments, code=code, cwd=tmp_path)
    assert "error: " in done.stderr and "try: " in done.stderr
    assert not list((tmp_path / "out").glob("*.pte"))
