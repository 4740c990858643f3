"""What a factory may give, and what a model may do while it runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from ci.models import factory
from ci.models.compiler_errors import explain_error
from ci.models.factory import make
from ci.models.inference import infer, infer_all, where_input_changes
from ci.models.inputs import Input
from ci.models.model_checks import require_float32
from ci.models.model_samples import inputs_named
from ci.models.user_model import BadFactory
from provisioning.base.settings import ROOT

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(4))

class Good(Net):
    def forward(self, x):
        return self.linear(x)

class Changes(Net):
    def forward(self, x):
        x.add_(1)
        return x

class Keeps(Net):
    def forward(self, x):
        self.state += x
        return self.state

def inputs(generator):
    return (torch.rand(4, generator=generator),)

class Counts(nn.Module):
    count = 0
    def forward(self, x):
        self.count += 1
        return x * self.count

class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []
    def forward(self, x):
        self.seen.append(x)
        return torch.stack(self.seen).sum(0)

class Draws(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)

class Drops(nn.Module):
    def forward(self, x):
        # Two runs are equal as often as not.
        return nn.functional.dropout(x[:1], 0.5, training=True)

def drops(): return Drops().eval(), (torch.ones(2),)
def good(): return Good().eval(), inputs
def fixed(): return Good().eval(), (torch.arange(4.0), torch.tensor([3, 9]))
class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 2) for size in (9, 2))
    def forward(self, rows):
        return torch.cat([table(rows[:, place]) for place, table in enumerate(self.tables)], 1)

def tables(): return Tables().eval(), (torch.tensor([[8, 0], [0, 1]]),)
def table(): return Tables().eval(), (torch.tensor([[8, 1]]),)
def training(): return Good(), inputs
def changes(): return Changes().eval(), inputs
def keeps(): return Keeps().eval(), inputs
def counts(): return Counts().eval(), inputs
def remembers(): return Remembers().eval(), inputs
def draws(): return Draws().eval(), inputs
def nan():
    model = Good().eval()
    model.linear.weight.data[0, 0] = float("nan")
    return model, inputs

class Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x + 1, (x,))

class Loops(nn.Module):
    def forward(self, x):
        from torch._higher_order_ops.while_loop import while_loop
        return while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x @ x), (torch.tensor(0), x))[1]

def squares(generator): return (torch.rand(4, 4, generator=generator),)
def branches(): return Branches().eval(), squares
def loops(): return Loops().eval(), squares
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before = list(sys.path), set(sys.modules)
    (tmp_path / "qnn_ci_net.py").write_text(MODULE)
    yield tmp_path
    sys.path[:] = before[0]
    factory_imports = sys.modules["ci.models.user_model"]
    factory_imports._first = None  # type: ignore[attr-defined]
    for name in set(sys.modules) - before[1]:
        if name.startswith("qnn_ci_"):
            del sys.modules[name]


def test_a_model_in_training_mode_is_put_into_eval_with_a_warning(folder: Path) -> None:
    loaded = make("qnn_ci_net:training", {}, folder)
    assert not loaded.model.training and [rule for rule, _ in loaded.notes] == ["training-mode"]
    assert not make("qnn_ci_net:good", {}, folder).notes


def test_a_module_that_is_nowhere_is_a_slip_of_its_name(folder: Path) -> None:
    with pytest.raises(BadFactory) as refused:
        make("qnn_ci_nett:good", {}, folder)
    assert refused.value.fix == "did you mean qnn_ci_net?" and not refused.value.missing


def test_a_function_that_is_nowhere_is_a_slip_of_its_name(folder: Path) -> None:
    with pytest.raises(BadFactory) as refused:
        make("qnn_ci_net:trainin", {}, folder)
    assert refused.value.fix == "did you mean qnn_ci_net:training?"


def test_an_argument_that_is_nowhere_is_a_slip_of_its_name(folder: Path) -> None:
    with pytest.raises(BadFactory) as refused:
        make("qnn_ci_net:inputs", {"generater": 1}, folder)
    assert refused.value.fix == "did you mean generator?"


def test_inputs_without_a_value_are_refused(folder: Path) -> None:
    (folder / "qnn_ci_net.py").write_text(MODULE + "\ndef none(): return Good().eval(), (torch.zeros(0, 4),)")
    with pytest.raises(BadFactory, match=r"\[0, 4\]"):
        make("qnn_ci_net:none", {}, folder).sample(0)


def test_a_parameter_may_be_nan_where_the_suite_says_that_outputs_are(folder: Path) -> None:
    with pytest.raises(BadFactory):
        make("qnn_ci_net:nan", {}, folder)
    outputs = make("qnn_ci_net:nan", {}, folder, non_finite=True).outputs([(torch.ones(4),)])
    assert outputs[0][0].isnan().tolist() == [True, False, False, False]


def test_a_fixed_sample_alone_judges_and_calibrates_with_a_warning(folder: Path) -> None:
    loaded = make("qnn_ci_net:fixed", {}, folder)
    compared, calibrating, used = loaded.choose(None, None)
    assert len(compared) == len(calibrating) == 1 == used.given
    assert torch.equal(compared[0][0], torch.arange(4.0)) and torch.equal(calibrating[0][0], compared[0][0])
    first, again, other = loaded.sample(0), loaded.sample(0), loaded.sample(factory.CALIBRATION_SEED)
    assert torch.equal(first[0], torch.arange(4.0)) and first[0].data_ptr() != again[0].data_ptr()
    assert not torch.equal(first[0], other[0]) and other[0].min() >= 0 and other[0].max() <= 3
    assert other[1].dtype == torch.int64 and other[1].min() >= 3 and other[1].max() <= 9
    seeds = range(factory.CALIBRATION_SEED, factory.CALIBRATION_SEED + 40)
    drawn = torch.cat([loaded.sample(seed)[1].flatten() for seed in seeds])
    assert (int(drawn.min()), int(drawn.max())) == (3, 9)
    assert [rule for rule, _ in loaded.notes] == ["fixed-inputs"]


def test_a_declared_input_of_integers_reaches_both_of_its_bounds(tmp_path: Path) -> None:
    draw = inputs_named("", [Input(shape=(64,), dtype="int32", low=2, high=5)], tmp_path)
    assert callable(draw)
    (drawn,) = draw(torch.Generator().manual_seed(0))
    assert sorted({*drawn.tolist()}) == [2, 3, 4, 5]


def test_integers_that_are_drawn_index_the_table_of_their_column(folder: Path) -> None:
    loaded = make("qnn_ci_net:tables", {}, folder)
    assert len(infer_all(loaded.model, [loaded.sample(number) for number in range(20)])) == 20
    loaded = make("qnn_ci_net:table", {}, folder)
    with pytest.raises(BadFactory) as refused:
        infer_all(loaded.model, [loaded.sample(number) for number in range(20)])
    assert "--calibrate" in refused.value.fix


def test_a_model_that_changes_its_inputs_changes_no_sample(folder: Path) -> None:
    model = make("qnn_ci_net:changes", {}, folder).model
    sample = (torch.zeros(4),)
    one, two = infer(model, sample), infer(model, sample)
    assert torch.equal(one[0], torch.ones(4)) and torch.equal(two[0], torch.ones(4))
    assert torch.equal(sample[0], torch.zeros(4))


TYPICAL = """\
import dataclasses, torch, warnings
@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    hidden: torch.Tensor
class Fields(torch.nn.Module):
    def forward(self, x):
        return Out(x, x + 1)
x, net = torch.ones(1, 2), torch.nn.Linear(2, 2).eval()
def script():
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.trace(net, x), (x,)
def bare(): return net, x
def fields(): return Fields().eval(), (x,)
def number(): return net, (x, 0.5)
def numbers(): return net, (x, [1.5])
def named(): return net, {'input': x}
def misnamed(): return net, {'x': x}
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("number", "input 1: expected a tensor, found float 0.5"),
        ("numbers", "input 1: expected a tensor, found a list"),
        ("named", 'return model, (inputs["input"],)'),
        ("misnamed", "torch.export.export(model, (), inputs)"),
        ("script", "nn.Module"),
        ("bare", "return model, (x,)"),
        ("fields", "return out.logits, out.hidden"),
    ],
)
def test_what_factories_typically_give_is_refused_with_the_line_to_write(
    folder: Path, name: str, words: str
) -> None:
    (folder / "qnn_ci_typical.py").write_text(TYPICAL)
    with pytest.raises(BadFactory) as refused:
        loaded = make(f"qnn_ci_typical:{name}", {}, folder)
        infer(loaded.model, loaded.sample(0))
    assert words in f"{refused.value}: {refused.value.fix}"


def test_the_line_that_changes_an_input_is_found(folder: Path) -> None:
    place = where_input_changes(make("qnn_ci_net:changes", {}, folder).model, (torch.zeros(4),))
    assert place and place.endswith("qnn_ci_net.py:17)")
    assert where_input_changes(make("qnn_ci_net:good", {}, folder).model, (torch.zeros(4),)) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what executorch imports
def test_a_model_that_raises_while_it_runs_is_told_with_its_line(folder: Path) -> None:
    from ci.lanes.executorch.export import error_of

    loaded = make("qnn_ci_net:good", {}, folder)
    with pytest.raises(RuntimeError) as raised:
        infer_all(loaded.model, [(torch.ones(3),)])
    reply = error_of(raised.value, {})
    assert "(qnn_ci_net.py:13)" in str(reply["message"]) and reply["fix"]


def test_a_model_that_keeps_state_is_refused_with_the_line(folder: Path) -> None:
    with pytest.raises(BadFactory, match=r"qnn_ci_net\.py:22"):
        infer(make("qnn_ci_net:keeps", {}, folder).model, (torch.ones(4),))


@pytest.mark.parametrize("name", ["counts", "remembers", "draws", "drops"])
def test_a_model_whose_outputs_differ_for_the_same_inputs_is_refused(folder: Path, name: str) -> None:
    loaded = make(f"qnn_ci_net:{name}", {}, folder)
    with pytest.raises(BadFactory):
        infer_all(loaded.model, [loaded.sample(0), loaded.sample(1)])


@pytest.mark.parametrize(("dtype", "taken"), [("float32", True), ("float64", False), ("bfloat16", False)])
def test_types_that_a_program_would_read_as_others_are_refused(dtype: str, taken: bool) -> None:
    tensors = [torch.zeros(2), torch.zeros(2, dtype=getattr(torch, dtype))]
    with nullcontext() if taken else pytest.raises(BadFactory, match=dtype):
        require_float32(tensors)


def test_an_error_in_a_librarys_model_names_its_line_in_whichever_environment_it_was_exported() -> None:
    """As the stack trace says that torch keeps with a node."""
    there = "/opt/theirs/lib/python3.11/site-packages"
    frames = (("transformers/models/t5/modeling_t5.py", 348), ("torch/nn/modules/sparse.py", 189))
    trace = "".join(f'  File "{there}/{path}", line {line}, in forward\n    f()\n' for path, line in frames)
    cause, fix = explain_error(IndexError(f"index out of range in self\n{trace}"))
    assert cause.endswith("(transformers/models/t5/modeling_t5.py:348)") and fix


def of_a_pass(node: torch.fx.Node, error: Exception) -> tuple[str, str]:
    """What is said of an error of a compiler's pass that is at this node."""

    def compiles(node: torch.fx.Node) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        compiles(node)
    return explain_error(raised.value)


def test_an_unfold_whose_windows_overlap_is_the_convolution_of_its_fix() -> None:
    node = torch.fx.Graph().call_function(torch.ops.aten.im2col.default)
    node.meta["stack_trace"] = '  File "/opt/theirs/net.py", line 7, in forward\n    return unfold(x)\n'
    cause, fix = of_a_pass(node, AssertionError("im2col can only be converted when stride == kernel_size"))
    assert "unfold" in cause and "net.py:7" in cause and "conv2d(x, self.eye, padding=p).flatten(2)" in fix
    x, (c, k, p) = torch.rand(2, 4, 6, 5), (4, 3, 1)
    eye = torch.eye(c * k * k).view(-1, c, k, k)
    convolved = torch.nn.functional.conv2d(x, eye, padding=p).flatten(2)
    torch.testing.assert_close(convolved, torch.nn.functional.unfold(x, k, padding=p))


def test_a_cell_that_stays_whole_is_written_with_what_computes_the_same() -> None:
    """The fix, run as it is printed."""
    cell, x, h = torch.nn.GRUCell(6, 5), torch.randn(2, 6), torch.randn(2, 5)
    node = torch.fx.Graph().call_function(torch.ops.aten.linear.default)
    node.meta["stack_trace"] = '  File "/opt/theirs/net.py", line 7, in forward\n    return self.cell(x, h)\n'
    node.meta["nn_module_stack"] = {"": ("cell", "torch.nn.modules.rnn.GRUCell")}
    _, fix = of_a_pass(node, RuntimeError("it was not decomposed or delegated"))
    names = {"cell": cell, "x": x, "h": h, "linear": torch.nn.functional.linear, "torch": torch}
    for line in fix.partition(": ")[2].split("; "):
        exec(line, names)
    torch.testing.assert_close(names["h"], cell(x, h))


@pytest.mark.parametrize(
    ("wide", "inferences", "compared"),
    [(64, None, 8), (64, 3, 3), (16384, None, 2)],
)
def test_more_inputs_are_drawn_of_a_model_that_computes_little(
    wide: int, inferences: int | None, compared: int
) -> None:
    def draw(generator: torch.Generator) -> tuple[torch.Tensor]:
        return (torch.randn(1, wide, 32, generator=generator),)

    model = factory.ModelWithInputs(torch.nn.Conv1d(wide, 512, 1), draw)
    chosen = model.choose(inferences, 4)
    assert len(chosen.compared) == chosen.used.compared == compared


@pytest.mark.parametrize(("name", "compared"), [("branches", 8), ("loops", 2)])
def test_inputs_are_drawn_of_a_model_with_control_flow(folder: Path, name: str, compared: int) -> None:
    loaded = make(f"qnn_ci_net:{name}", {}, folder)
    assert len(loaded.choose(None, 4).compared) == compared


def test_torchvision_for_cuda_can_be_imported_beside_torch_for_the_cpu(tmp_path: Path) -> None:
    """In a process of its own: an operator that is defined stays."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "_C.so").write_bytes(b"needs libcudart")
    (package / "__init__.py").write_text(
        "import torch\n@torch.library.register_fake('torchvision::nms')\ndef fake(*_): ...\n"
    )
    (tmp_path / "net.py").write_text(
        "import torch, torchvision\ndef net(): return torch.nn.ReLU(), (torch.ones(1),)\n"
    )
    code = "from pathlib import Path; from ci.models.factory import make; make('net:net', {}, Path.cwd())"
    paths = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]; "
    ran = subprocess.run(
        [sys.executable, "-c", paths + code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
