"""What a compiled program is known by, with models that torch exports: what changes it and what does not.

Only the compile itself is a stand-in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ci.lanes.executorch import steps as compiling
from ci.lanes.executorch.steps import compile_programs
from ci.lanes.executorch.suite import programs_of
from ci.work.jobs import WorkOptions
from ci.work.outcome import Result
from tests.support.journey_files import SUITE
from tests.support.lowering import plan_of

pytestmark = [pytest.mark.heavy, pytest.mark.long("exports a model for each change")]

NET = """\
import torch
from torch import nn

import layers


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) * layers.FACTOR


def make(scale: float = 1.0):
    net = Net().eval()
    return net, lambda generator: (torch.rand(1, 8, generator=generator) * scale,)
"""

ANNOTATE = """\
import rules


def annotate(graph):
    rules.none(graph)
"""


class World:
    """A repository with a suite of one model, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder / "repository", folder / "store"
        self.environ: dict[str, str] = {}

    def begin(self) -> None:
        self.folder.mkdir()
        self.write("net.py", NET)
        self.write("layers.py", "FACTOR = 2.0\n")
        self.write("annotation.py", ANNOTATE)
        self.write("rules.py", "def none(graph):\n    pass\n")
        self.write("suite.toml", SUITE.replace("net:model", "net:make"))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def change(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def results(self) -> Sequence[Result]:
        suite = self.folder / "suite.toml"
        programs = programs_of(suite)
        # Without the variable, annotating looks for an SDK on the network each time.
        environment = {"PATH": os.environ["PATH"], "QNN_SDK_ROOT": "", **self.environ}
        work = WorkOptions(jobs=1, why=True)
        plan = plan_of(self.store.parent, programs, work, environment=environment)
        results = compile_programs(plan)
        return [results[program.name] for program in programs]

    def cached(self) -> bool:
        (result,) = self.results()
        assert not result.failure, result.failure
        return result.cached


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory, one_template: None) -> Iterator[Path]:
    """A world in which the model is cached: it is exported once for all tests, and each has a copy."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(compiling, "WORKER", "tests.support.exporting_worker")
        world = World(tmp_path_factory.mktemp("world"))
        world.begin()
        assert not world.cached() and world.cached()
        yield world.store.parent


@pytest.fixture
def world(tmp_path: Path, compiled_once: Path) -> World:
    shutil.copytree(compiled_once, tmp_path, dirs_exist_ok=True)
    return World(tmp_path)


OTHERS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "a weight": [("net.py", "manual_seed(0)", "manual_seed(1)")],
    "the number of threads": [("net.py", "import layers", "import layers\n\ntorch.set_num_threads(2)")],
    "the samples": [
        ("suite.toml", 'factory = "net:make"', 'factory = "net:make"\narguments = { scale = 2.0 }')
    ],
    "how many calibrate": [("suite.toml", "socs", "calibration = 3\nsocs")],
    "a node's precision": [("suite.toml", "socs", 'nodes = { 16a8w = ["linear"] }\nsocs')],
    "a function that annotates": [("suite.toml", "socs", 'annotations = ["annotation:annotate"]\nsocs')],
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_program_is_compiled(world: World, what: str) -> None:
    for change in OTHERS[what]:
        world.change(*change)
    assert not world.cached() and world.cached()


SAME: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "a comment": [("net.py", "import layers", "import layers\n# A comment.\n\n")],
    "a name of the code": [("net.py", "def make(", "def other(): ...\n\n\ndef make(")],
    "where a factor comes from": [("net.py", "layers.FACTOR", "2.0")],
    "a metric": [("suite.toml", "factory", 'metric = { name = "right", function = "net:right" }\nfactory')],
}


@pytest.mark.parametrize("what", SAME)
def test_the_same_program_is_not_compiled_again(world: World, what: str) -> None:
    for change in SAME[what]:
        world.change(*change)
    assert world.cached()


def test_another_clone_another_file_and_another_user_have_the_same_program(
    world: World, tmp_path: Path
) -> None:
    shutil.copytree(world.folder, tmp_path / "clone")
    world.folder = tmp_path / "clone"
    (world.folder / "net.py").rename(world.folder / "model.py")
    world.change("suite.toml", "net:make", "model:make")
    world.write("README.md", "More.\n")
    world.environ = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert world.cached()


CUSTOM = """\
import torch
from torch import nn

torch.library.define("mine::times", "(Tensor x) -> Tensor")


@torch.library.impl("mine::times", "default")
def times(x):
    return x * {factor}


@torch.library.register_fake("mine::times")
def fake(x):
    return torch.empty_like(x)


class Net(nn.Module):
    def forward(self, x):
        return torch.ops.mine.times(x)


def make():
    return Net().eval(), lambda generator: (torch.rand(1, 8, generator=generator),)
"""


def test_an_operator_whose_code_no_graph_shows_is_never_looked_up(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    world.write("net.py", CUSTOM.format(factor=2))
    assert [world.cached(), world.cached()] == [False, False]
    assert "mine" in capfd.readouterr().err


def test_a_message_names_the_line_of_today(world: World) -> None:
    (before,) = world.results()
    world.change("net.py", "import layers", "import layers\n\n# Two lines.\n")
    (after,) = world.results()
    lines = [next(iter(result.facts["places"].values())) for result in (before, after)]
    numbers = [int(line.rpartition(":")[2]) for line in lines]
    assert after.cached and numbers[1] == numbers[0] + 3


def test_what_python_computes_otherwise_than_it_exports_is_another_program(world: World) -> None:
    """A model may ask whether it is exported; its float outputs are computed anew each time."""
    world.change("net.py", "* layers.FACTOR", "* (2.0 if torch.compiler.is_compiling() else 3.0)")
    assert not world.cached()
    world.change("net.py", "else 3.0", "else 4.0")
    assert not world.cached()
