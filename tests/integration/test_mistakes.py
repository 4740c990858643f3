"""What is often given in place of a model, its inputs or samples: the line that is printed works."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ci.models import user_model
from ci.models.factory import ModelWithInputs, make
from ci.models.model_samples import samples_of
from ci.models.user_model import BadFactory

NETS = """\
import dataclasses, numpy, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, image, scale=1.0):
        return self.linear(image) * scale

class Wide(Net):
    def __init__(self, width):
        super().__init__()
        self.width = width

class Two(Net):
    def forward(self, text, mask):
        return self.linear(text) * mask

array, x = numpy.zeros((1, 4), "float32"), torch.ones(1, 4)
image = text = mask = x
weights = Net().state_dict()
"""

FACTORIES = {
    # By name: what is given, what the message names, and where the printed line belongs.
    "alone": ("def alone(): return Two()", ["text", "mask"], "def alone():\n    model = Two()\n    {}"),
    "Net": ("", ["Net", "image"], "{}"),
    "Wide": ("", ["Wide", "width"], "{}"),
    "wide": ("def wide(width): return Wide(width), (x,)", ["wide", "width"], "{}"),
    "module": ("module = Net()", ["module", "Net"], "{}"),
    "nothing": ("def nothing(): Net()", ["nothing", "None"], "def nothing():\n    model = Net()\n    {}"),
    "state": ("def state(): return weights", ["state"], "def state():\n    model = Net()\n    {}"),
    "numpys": (
        "def numpys(): return Net(), (array,)",
        ["input 0", "ndarray", "float32[1, 4]"],
        "def numpys():\n    model = Net()\n    {}",
    ),
    "single": ("def single(): return Net(), array", ["ndarray"], "def single():\n    model = Net()\n    {}"),
    "drawn": (
        "def drawn(): return Net(), lambda generator: (array,)",
        ["input 0", "ndarray"],
        "def drawn():\n    model = Net()\n    {}",
    ),
    "uncalled": ("def uncalled(): return Net, (x,)", ["Net", "class"], "def uncalled():\n    {}"),
    "kind": ("def kind(): return Net", ["Net", "class"], "def kind():\n    {}"),
    "empty": ("def empty(): return Net(), ()", ["tuple"], "def empty():\n    model = Net()\n    {}"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    user_model._first = None
    for name in [name for name in sys.modules if name.startswith("qnn_ci_mistake")]:
        del sys.modules[name]


def built(folder: Path, code: str, function: str, samples: Path | None = None) -> ModelWithInputs:
    """A model that runs, of a module of its own."""
    module = f"qnn_ci_mistake_{len(list(folder.glob('*.py')))}"
    (folder / f"{module}.py").write_text(code)
    loaded = make(f"{module}:{function}", {}, folder, samples_of(samples) if samples else None)
    chosen = loaded.choose(None, None)
    loaded.model.eval()
    loaded.outputs([*chosen.compared, *chosen.calibrating])
    return loaded


def line_of(error: BadFactory) -> str:
    (line, *_) = re.findall("`(.+?)`", error.fix)
    return str(line).replace("…", "4")


@pytest.mark.parametrize("name", FACTORIES)
def test_the_line_that_is_printed_for_a_factory_works_where_it_belongs(folder: Path, name: str) -> None:
    code, named, place = FACTORIES[name]
    with pytest.raises(BadFactory) as refused:
        built(folder, f"{NETS}\n{code}\n", name)
    assert all(word in str(refused.value) for word in named), refused.value
    line = line_of(refused.value)
    (made,) = re.findall(r"def (\w+)", line) or [name]
    assert made == name or f"name {made}" in refused.value.fix
    built(folder, f"{NETS}\n{code}\n{place.format(line)}\n", made)


def test_a_model_that_returns_a_number_is_told_to_return_the_tensor(folder: Path) -> None:
    code = f"{NETS}\nclass Number(Net):\n    def forward(self, image): return float(image.sum())\n"
    with pytest.raises(BadFactory) as refused:
        built(folder, f"{code}def number(): return Number(), (x,)\n", "number")
    assert "leave float()" in refused.value.fix


ROW = np.ones((1, 4), "f4")
SAMPLES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    # By what is wrong: the function, the arrays of each file, and what the message names.
    "another shape": ("one", {"": np.ones((1, 8), "f4")}, ["[1, 4]", "[1, 8]", "image"]),
    "without the batch": ("one", {"": np.ones(4, "f4")}, ["[1, 4]", "[4]", "image"]),
    "another type": ("one", {"": np.ones((1, 4))}, ["float32", "float64", "image"]),
    "other names": ("two", {"a": ROW, "b": ROW}, ["a, b", "text, mask"]),
    "too few": ("two", {"": ROW}, ["text, mask", "1"]),
    "of a model alone": ("alone", {"": ROW}, ["text, mask", "1"]),
    "by other names for a model alone": ("alone", {"a": ROW, "mask": ROW}, ["a, mask", "text, mask"]),
}
OF_SAMPLES = f"""{NETS}
def one(): return Net(), (x,)
def two(): return Two(), (x, x)
def alone(): return Two()
"""


@pytest.mark.parametrize("wrong", SAMPLES)
def test_the_line_that_is_printed_for_a_sample_makes_one_that_is_taken(folder: Path, wrong: str) -> None:
    function, arrays, named = SAMPLES[wrong]
    samples = folder / "samples"
    samples.mkdir()
    array = arrays.get("")
    path = samples / ("0.npz" if array is None else "0.npy")
    if array is None:
        np.savez(path, **arrays)
    else:
        np.save(path, array)
    with pytest.raises(BadFactory) as refused:
        built(folder, OF_SAMPLES, function, samples)
    assert all(word in str(refused.value) for word in [*named, path.name]), refused.value
    line = line_of(refused.value)
    if wrong == "another shape":
        # The model, too, has to be another one then.
        assert line == "image = torch.zeros(1, 8)"
        return
    path.unlink()
    target = samples / ("0.npz" if "savez" in line else "0.npy")
    exec(line, {"numpy": np, "array": array, "path": target, "text": ROW, "mask": ROW})
    built(folder, OF_SAMPLES, function, samples)


def test_a_folder_of_samples_that_is_nowhere_is_a_slip_of_its_name(folder: Path) -> None:
    (folder / "samples").mkdir()
    with pytest.raises(BadFactory) as refused:
        samples_of(folder / "sample")
    assert refused.value.fix == "did you mean samples?"


@pytest.mark.parametrize("files", [[], ["photo.jpg"], ["notes.txt"]])
def test_a_folder_without_samples_gets_the_line_that_writes_one(folder: Path, files: list[str]) -> None:
    samples = folder / "samples"
    samples.mkdir()
    for name in files:
        (samples / name).touch()
    with pytest.raises(BadFactory) as refused:
        samples_of(samples)
    assert all(word in str(refused.value) for word in [str(samples), *files])
    line = line_of(refused.value)
    if files == ["photo.jpg"]:
        # PIL is the user's.
        line = re.sub(r"PIL.Image.open\((.+?)\)", "numpy.ones((4, 1, 1))", line)
    exec(line, {"numpy": np, "array": np.ones((1, 4), "f4")})
    assert [path.parent for path in samples_of(samples).files] == [samples]


def test_arrays_by_name_go_where_forward_takes_them_also_of_a_model_alone(folder: Path) -> None:
    samples = folder / "samples"
    samples.mkdir()
    np.savez(samples / "0.npz", mask=np.full((1, 4), 2, "f4"), text=np.full((1, 4), 1, "f4"))
    for function in ("two", "alone"):
        text, mask = built(folder, OF_SAMPLES, function, samples).sample(0)
        assert float(text[0, 0]) == 1 and float(mask[0, 0]) == 2


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("net = Net()\n    net.linear.weight = nn.Parameter(y)\n    return net, (x,)", "linear.weight"),
        ("return Net(), (x, y)", "input 1"),
        ("return Net(), lambda generator: (y,)", "input 0"),
    ],
)
@pytest.mark.parametrize(
    ("elsewhere", "device", "fix"),
    [
        ("with FakeTensorMode(): y = torch.empty(4, 4, device='cuda')", "cuda", ".cpu()"),
        ("y = torch.empty(4, 4, device='meta')", "meta", "torch.rand(4, 4)"),
    ],
)
def test_a_tensor_that_is_not_on_the_cpu_is_named(
    folder: Path, code: str, named: str, elsewhere: str, device: str, fix: str
) -> None:
    """This torch has no GPU: a tensor without memory says that it is on one."""
    imports = "from torch._subclasses.fake_tensor import FakeTensorMode"
    with pytest.raises(BadFactory, match=rf"{re.escape(named)} is on {device}") as refused:
        built(folder, f"{NETS}\n{imports}\n{elsewhere}\ndef net():\n    {code}\n", "net")
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("async def net(): return Net(), (x,)", "async"),
        ("def net(): yield Net(), (x,)", "yield"),
        ("def net(): return Net().state_dict()", "module itself"),
        ("def net(): return Net(), [1, 2]", "torch.tensor([1, 2])"),
        ("def net(generator): return x\ndef whole(): return Net(), (x,)", ":whole"),
    ],
)
def test_what_is_no_model_is_answered_with_what_to_write(folder: Path, code: str, fix: str) -> None:
    with pytest.raises(BadFactory) as refused:
        built(folder, f"{NETS}\n{code}\n", "net")
    assert fix in refused.value.fix


RUN = """\
class ByName(Net):
    def forward(self, *, image, mask):
        return self.linear(image) * mask
class Drop(Net):
    def forward(self, x):
        return nn.functional.dropout(self.linear(x))
class Noise(Net):
    def forward(self, x):
        return self.linear(x) + torch.randn(4)
class Keeps(Net):
    count = 0
    def forward(self, x):
        self.count += 1
        return self.linear(x) + self.count
class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4)
    def forward(self, ids):
        return self.table(ids)
class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
    def forward(self, image):
        return self.conv(image)
class Stops(Net):
    def forward(self, x):
        breakpoint()
        return self.linear(x)
@dataclasses.dataclass
class Pair:
    one: torch.Tensor
    other: torch.Tensor
class Paired(Net):
    def forward(self, x):
        return Pair(self.linear(x), x)
class Detector:
    def __call__(self, x):
        return x * 2
def nan():
    model = Net()
    model.linear.weight.data[0, 0] = float("nan")
    return model, (x,)
"""
WRONG_MODELS = {
    # By the code of a function `net`: what the message names (@: the line of that code), what is replaced
    # and by what; {} is the line that is printed.
    "return ByName(), (x, x)": (["image, mask", "by name alone"], "*, ", ""),
    "return Drop(), (x,)": (
        ["dropout", "@nn.functional.dropout"],
        "linear(x))",
        "linear(x), training=self.training)",
    ),
    "return Noise(), (x,)": (["randn", "@torch.randn"], "torch.randn(4)", "torch.ones(4)"),
    "return Detector(), (x,)": (["Detector", "nn.Module"], "return Detector(),", "return Net(),"),
    "return Stops(), (x,)": (["debugger", "breakpoint()"], "breakpoint()", "pass"),
    "return Keeps(), (x,)": (["keeps state"], "self.count += 1", "pass"),
    "return nan()[0], (x,)": (["linear.weight", "1 of its 16"], 'float("nan")', "1.0"),
    "return Two(), (x,)": (
        ["text, mask", "expected 2", "found 1"],
        "return Two(), (x,)",
        "model = Two()\n    {}",
    ),
    "return Net(), (x, x, x)": (["expected 1", "found 3"], "(x, x, x)", "(x,)"),
    "x = torch.ones(1, 4).long(); return Net(), (x,)": (
        ["int64[1, 4]"],
        "return Net(), (x,)",
        "model = Net(); {}",
    ),
    "x = torch.ones(1, 4); return Table(), (x,)": (
        ["float32[1, 4]"],
        "return Table(), (x,)",
        "model = Table(); {}",
    ),
    "return Image(), (torch.ones(1, 1, 2, 2),)": (
        ["float32[1, 1, 2, 2]", "@self.conv(image)", "@return Image()"],
        "1, 1, 2, 2",
        "1, 3, 2, 2",
    ),
    "return nn.Sequential(nn.Conv2d(3, 4, 1)), (torch.ones(1, 1, 2, 2),)": (
        ["float32[1, 1, 2, 2]", "@return nn.Sequential"],
        "1, 1, 2, 2",
        "1, 3, 2, 2",
    ),
    "model = Net(); model.load_state_dict(nn.DataParallel(Net()).state_dict()); return model, (x,)": (
        ["module.linear.weight", "@load_state_dict"],
        "model.load_state_dict(nn.DataParallel(Net()).state_dict())",
        "weights = nn.DataParallel(Net()).state_dict(); model.{}",
    ),
    "model = torch.compile(Net()); return model, (x,)": (["torch.compile"], "; return", "; {}; return"),
    "model = nn.Sequential(torch.compile(Net())); return model, (x,)": (
        ["torch.compile", "model.0"],
        "nn.Sequential(torch.compile(Net()))",
        "nn.Sequential(Net())",
    ),
    "model = torch.ao.quantization.quantize_dynamic(Net()); return model, (x,)": (
        ["model.linear", "torch.ao.quantization"],
        "torch.ao.quantization.quantize_dynamic(Net())",
        "Net()",
    ),
    "return Paired(), (x,)": (
        ["Pair", "out.one, out.other"],
        "return Pair(self.linear(x), x)",
        "out = Pair(self.linear(x), x)\n        {}",
    ),
    "import sys; sys.exit(3)": (["sys.exit(3)", "@import sys"], "sys.exit(3)", "return Net(), (x,)"),
}


@pytest.mark.filterwarnings("ignore:.*script_method", "ignore:torch.(ao.)?quantiz")
@pytest.mark.parametrize("code", WRONG_MODELS)
def test_a_model_that_does_not_run_is_told_what_to_write_and_where(folder: Path, code: str) -> None:
    named, wrong, right = WRONG_MODELS[code]
    whole = f"{NETS}{RUN}\ndef net():\n    {code}\n"
    with pytest.raises(BadFactory) as refused:
        built(folder, whole, "net")
    told = f"{refused.value} {refused.value.fix}"
    for word in named:
        number = next((n for n, line in enumerate(whole.splitlines(), 1) if word[1:] in line), 0)
        assert (f".py:{number}" if word.startswith("@") else word) in told
    line = line_of(refused.value) if "{}" in right else ""
    assert wrong in whole
    built(folder, whole.replace(wrong, right.format(line)), "net")


def test_a_relative_import_outside_of_a_package_gets_the_file_that_makes_one(folder: Path) -> None:
    package = folder / "nets"
    package.mkdir()
    (package / "layers.py").write_text(NETS)
    (package / "mine.py").write_text(f"from .layers import *\n{RUN}\ndef net(): return Net(), (x,)\n")

    def load() -> object:
        model = user_model.user_model("nets/mine.py:net", folder)
        return make(model.factory, {}, model.search_path)

    with pytest.raises(BadFactory, match="relative import") as refused:
        load()
    (package / re.findall(r"empty (\S+)", refused.value.fix)[0]).touch()
    assert load()


def test_the_wrapper_that_is_printed_for_inputs_by_name_gives_what_the_model_gives(folder: Path) -> None:
    code = f"{NETS}{RUN}\ndef net():\n    return ByName(), (x, x)\n"
    with pytest.raises(BadFactory) as refused:
        built(folder, code, "net")
    _, wrapper, line = re.split(r"(class ByPosition.+)and `(?=return)", refused.value.fix, flags=re.DOTALL)
    returned = line.removesuffix("`")
    fixed = built(
        folder, f"{NETS}{RUN}\n{wrapper}\ndef net():\n    model = ByName()\n    {returned}\n", "net"
    )
    assert torch.export.export(fixed.model, fixed.sample(0), strict=True).graph_signature.user_inputs == (
        "image",
        "mask",
    )


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("parser = argparse.ArgumentParser(); parser.add_argument('--width', required=True)", "argparse"),
        ("sys.exit('usage: net.py FILE')", "usage: net.py FILE"),
    ],
)
def test_a_file_that_is_a_script_is_told_to_guard_what_ends_python(
    folder: Path, code: str, named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["worker"])
    begin, *rest = f"{code}; parser.parse_args()".replace("FILE'); parser.parse_args()", "FILE')").split("; ")
    script = "\n".join([begin, *rest])
    made = "def net(): return Net(), (x,)"
    with pytest.raises(BadFactory, match=named) as refused:
        built(folder, f"import argparse, sys\n{NETS}\n{script}\n{made}\n", "net")
    assert line_of(refused.value).startswith("if __name__")
    guarded = "\n".join([line_of(refused.value), *(f"    {line}" for line in script.splitlines())])
    built(folder, f"import argparse, sys\n{NETS}\n{made}\n{guarded}\n", "net")


def test_a_model_that_asks_for_a_gpu_gets_its_line_and_what_to_write_there(folder: Path) -> None:
    code = f"{NETS}\ndef net(): return Net().cuda(), (x,)\n"
    with pytest.raises(BadFactory, match=rf"_0\.py:{len(code.splitlines())}") as refused:
        built(folder, code, "net")
    new, old = re.findall("`(.+?)`", refused.value.fix)
    built(folder, code.replace(old, new), "net")
