"""What a remembered program of the ONNX lane depends on: each thing changed alone, on real small programs.

The suite is compiled once and its repository copied, for clones share what is remembered. A copy in which one
thing differs must do the work again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ci.engine.memo import CachedResult, Miss
from ci.lanes.onnx.compile import CompileOnnx, plan_of
from ci.lanes.onnx.suite import programs_of
from ci.pipeline.models.own_packages import installed
from ci.pipeline.options import WorkOptions
from ci.pipeline.steps import tasks_of
from provisioning.base.settings import ROOT, Selection
from tests.support.onnx_models import with_external_data
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.long("compiles two programs, and does work after each change")]

SUITE = """\
schema = 2
variables = ["NET_SCALE"]
[case.factory]
factory = "nets:make"
[[case.factory.run]]
lane = "onnx"
precision = "fp16"
socs = ["SM8650"]
tags = ["pr"]
thresholds = { sqnr_db = 20 }
options = { htp_performance_mode = "burst" }

[case.file]
model = "graphs/net.onnx"
samples = "samples"
[[case.file.run]]
lane = "onnx"
precision = "u8u8"
socs = ["SM8650"]
tags = ["pr"]
thresholds = { sqnr_db = 1 }
"""

NETS = """\
import os

import torch


def make():
    from blocks import Block

    torch.manual_seed(0)
    block = Block(torch.randn(8, 8) * float(os.environ.get("NET_SCALE", "1")))
    return block.eval(), lambda generator: (torch.rand(1, 8, generator=generator),)
"""

BLOCKS = """\
import torch


class Block(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = torch.nn.Parameter(weights)

    def forward(self, x):
        return torch.relu(x @ self.weights)
"""


PATH = "/usr/bin:/bin"
"""Without a folder of our clone, which is another one in some of these tests."""


def stage(repository: Path, store: Path) -> tuple[int, str]:
    flags = {
        "--suite": repository / "models/onnx.toml",
        "--store": store,
        "--reports": repository / "reports",
        "--jobs": 1,
    }
    words = [str(word) for pair in flags.items() for word in pair]
    environ = {**os.environ, "PYTHONPATH": str(repository / "src"), "PATH": PATH}
    ended = typed("test_onnx", *words, env=environ)
    return ended.returncode, ended.stderr


def cached(repository: Path) -> object:
    return json.loads((repository / "reports/test_onnx.json").read_text())["metrics"]["cached"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose two programs were compiled; its store is beside it."""
    top = tmp_path_factory.mktemp("memory")
    repository, models = top / "repository", top / "repository/models"
    (repository / ".git").mkdir(parents=True)
    (repository / "src/blocks").mkdir(parents=True)
    (models / "samples").mkdir(parents=True)
    (models / "graphs/data").mkdir(parents=True)
    (models / "onnx.toml").write_text(SUITE)
    (models / "nets.py").write_text(NETS)
    (repository / "src/blocks/__init__.py").write_text(BLOCKS)
    generator = np.random.default_rng(0)
    with_external_data(models / "graphs/net.onnx", "data/weights.bin")
    for number in range(4):
        sample = generator.standard_normal((1, 3, 8, 8)).astype(np.float32)
        np.save(models / f"samples/{number}.npy", sample)
    code, text = stage(repository, top / "store")
    assert code == 0, text
    assert cached(repository) == 0
    return repository


@pytest.fixture
def clone(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "clone"
    shutil.copytree(original, copy, symlinks=True)
    monkeypatch.setenv("PYTHONPATH", str(copy / "src"))
    monkeypatch.setenv("PATH", PATH)
    return copy


def remembered(original: Path, repository: Path) -> dict[str, CachedResult | Miss]:
    programs = programs_of(repository / "models/onnx.toml")
    selection = Selection(
        "wheels", "x86_64-linux", "SM8650", original.parent / "store", repository / "reports"
    )
    own = installed(programs[0].needs, selection.store)
    step = CompileOnnx(plan_of(programs, selection, WorkOptions()))
    tasks = tasks_of(step, own, programs, repository / "scratch")
    return {task.program.case_name: task.memo.find(task.subject, task.key) for task in tasks}


def changed(path: str) -> Callable[[Path], None]:
    def change(repository: Path) -> None:
        with (repository / path).open("ab") as stream:
            stream.write(b"\n")

    return change


def another_sample(repository: Path) -> None:
    shutil.copy(repository / "models/samples/0.npy", repository / "models/samples/9.npy")


def another_chip(repository: Path) -> None:
    suite = repository / "models/onnx.toml"
    suite.write_text(suite.read_text().replace("SM8650", "SM8750"))


CHANGES: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "a package on PYTHONPATH": (changed("src/blocks/__init__.py"), {"factory"}),
    "its external data": (changed("models/graphs/data/weights.bin"), {"file"}),
    "a calibration sample": (changed("models/samples/3.npy"), {"file"}),
    "one more calibration sample": (another_sample, {"file"}),
    "the chip": (another_chip, {"factory", "file"}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_an_input_does_the_work_again_and_no_other(
    original: Path, clone: Path, what: str
) -> None:
    before = remembered(original, clone)
    assert all(isinstance(result, CachedResult) for result in before.values()), before
    change, concerned = CHANGES[what]
    change(clone)
    after = remembered(original, clone)
    assert {case for case, result in after.items() if isinstance(result, Miss)} == concerned
    assert all(result.why for result in after.values() if isinstance(result, Miss))


def test_an_environment_variable_that_the_suite_declares_is_an_input(
    original: Path, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NET_SCALE", "2")
    programs = remembered(original, clone)
    assert isinstance(programs["factory"], Miss) and "NET_SCALE" in programs["factory"].why


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another clone of ours, to be changed."""
    copy = tmp_path / "toolkit"
    # Other tests put bytecode there at this moment, by way of files that are gone at once.
    bytecode = shutil.ignore_patterns("__pycache__")
    for folder in ("ci", "provisioning", "manifests"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=bytecode)
    # Modules that are beside them count by their names.
    for name in ("noxfile.py", "qnn_ci", "tests", "lab"):
        (copy / name).symlink_to(ROOT / name)
    monkeypatch.setattr("ci.engine.inputs.ROOT", copy)
    return copy


@pytest.mark.parametrize("file", ["manifests/onnx_options.toml", "ci/lanes/onnx/steps.py"])
def test_our_own_code_and_tables_are_inputs(original: Path, clone: Path, toolkit: Path, file: str) -> None:
    before = remembered(original, clone)
    assert all(isinstance(result, CachedResult) for result in before.values()), before
    changed(file)(toolkit)
    after = remembered(original, clone)
    assert all(isinstance(result, Miss) and file in result.why for result in after.values()), after


def inputs(store: Path) -> Iterator[tuple[str, str, str]]:
    top = store / "cache/memo"
    for path in top.glob("onnx/??/*/*.json"):
        yield from map(tuple, json.loads(path.read_text())["document"]["inputs"])
    for path in top.glob("sets/??/*.json"):
        yield from map(tuple, json.loads(path.read_text()))


def test_the_installed_provider_is_an_input_with_its_version_and_its_libraries(original: Path) -> None:
    subjects = (original.parent / "store/cache/memo/onnx/subjects").glob("*.json")
    for subject in subjects:
        packages = json.loads(subject.read_text())["document"]["parts"]["installed"]
        assert {"onnxruntime", "onnxruntime-qnn", "onnx", "torch", "onnxscript"} <= packages.keys()


def test_where_nothing_changed_nothing_is_done_in_another_clone_either(original: Path, clone: Path) -> None:
    code, text = stage(clone, original.parent / "store")
    assert code == 0, text
    assert cached(clone) == 2
