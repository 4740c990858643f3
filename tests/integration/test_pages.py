"""Output that pages show is what the program prints, with the real compiler and emulator."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.settings import ROOT
from tests.support.onnx_models import context_model
from tests.support.page_examples import Example, examples_of, not_printed
from tests.support.typed import FROM_ELSEWHERE, typed

pytestmark = pytest.mark.heavy

COMPILE = "docs/onnx.md: qnn-ci "
RUN = f"{COMPILE}run "
README = "README.md: qnn-ci compile net.py:scores --soc SM8750 --precision fp16 -o out"
CONFIG = "docs/environments.md: qnn-ci "
SHOWN = {README, f"{CONFIG}provision --offline", f"{CONFIG}store verify qnn-sdk"}
HELD = SHOWN | {
    f"{COMPILE}compile net.onnx --soc SM8750 --precision 16a8w --per-channel --calibrate samples -o out",
    f"{RUN}out/net_ctx.onnx --input samples/0.npy -o outputs",
    f"{RUN}out/net_ctx.onnx --input samples/0.npy",
    f"{RUN}old/m_ctx.onnx --input samples/0.npy",
}


def _printed(example: Example, folder: Path) -> str:
    # What an earlier run of this test compiled would be taken from the cache, without a word of the steps.
    anew = ["--no-cache"] * (example.words[0] == "compile")
    package = "provisioning" if example.words[0] in PROVISIONING else "ci"
    typed_here = [sys.executable, "-c", FROM_ELSEWHERE, str(ROOT), package, *example.words, *anew]
    # Both streams in the order in which a terminal shows them. The page's reader is in this folder.
    done = subprocess.run(
        typed_here, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout.replace(f"{folder}/", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert typed("example", cwd=tmp_path).returncode == 0
    context_model(tmp_path / "old", build_id="v2.49.40.260810104044")
    (tmp_path / "old" / "model_ctx.onnx").rename(tmp_path / "old" / "m_ctx.onnx")
    return tmp_path


@pytest.mark.whole
def test_the_pages_of_onnx_models_show_what_is_printed(folder: Path) -> None:
    """In the order of the pages: a later command takes what an earlier one wrote."""
    shown = [example for example in examples_of(ROOT / "docs" / "onnx.md") if example.name in HELD]
    assert {example.name for example in shown} == HELD - SHOWN
    one, run, changed, old = shown
    wrong = {example.name: not_printed(example, _printed(example, folder)) for example in (one, run)}
    binary = folder / "out" / "net_ctx_qnn.bin"
    binary.write_bytes(binary.read_bytes()[:-1] + b"!")
    wrong[changed.name] = not_printed(changed, _printed(changed, folder))
    # The old program takes smaller pictures.
    numpy.save(folder / "samples" / "0.npy", numpy.zeros((1, 3, 8, 8), numpy.float32))
    wrong[old.name] = not_printed(old, _printed(old, folder))
    assert {name: lines for name, lines in wrong.items() if lines} == {}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.whole if name == README else ()) for name in sorted(SHOWN)]
)
def test_the_first_pages_show_what_is_printed(name: str, tmp_path: Path) -> None:
    for file in (ROOT / "manifests" / "example").iterdir():
        shutil.copy(file, tmp_path)
    # The reader of docs/environments.md has provisioned before.
    assert typed("provision", package="provisioning").returncode == 0
    (example,) = (example for example in examples_of(ROOT / name.partition(":")[0]) if example.name == name)
    assert not_printed(example, _printed(example, tmp_path)) == []
