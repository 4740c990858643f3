"""No outdated result is used: attacks by what a user's code does beside exporting its model.

The model is exported as always, and its annotations run; only the compile is a stand-in, as it is not reached
where a result is used. Attacks on files, packages and records are in tests/unit/test_outdated_keys.py."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.lanes.executorch import steps as compiling
from ci.lanes.executorch.steps import compile_programs
from ci.lanes.executorch.suite import programs_of
from ci.work.jobs import WorkOptions
from ci.work.outcome import Result
from tests.support.journey_files import SUITE
from tests.support.lowering import plan_of
from tests.support.typed import typed

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.usefixtures("one_template"),
    pytest.mark.long("exports a model twice for each attack"),
]

NET = """\
import torch
{change}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


def make():
    return Net().eval(), lambda generator: (torch.rand(1, 8, generator=generator),)
"""


class User:
    """Has a suite of one model, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder / "repository", folder / "store"
        self.folder.mkdir(parents=True)
        self.write("net.py", NET.format(change=""))
        self.write("suite.toml", SUITE.replace("net:model", "net:make"))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def annotates(self) -> None:
        suite = self.folder / "suite.toml"
        suite.write_text(suite.read_text().replace("socs", 'annotations = ["annotation:annotate"]\nsocs'))

    def result(self) -> Result:
        programs = programs_of(self.folder / "suite.toml")
        # Without the variable, annotating looks for an SDK on the network each time.
        environment = {"PATH": os.environ["PATH"], "QNN_SDK_ROOT": ""}
        plan = plan_of(self.store.parent, programs, WorkOptions(jobs=1, why=True), environment=environment)
        (result,) = compile_programs(plan).values()
        assert not result.failure, result.failure
        return result

    def is_cached(self) -> bool:
        return self.result().cached


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.setattr(compiling, "WORKER", "tests.support.exporting_worker")
    return User(tmp_path)


QUANTIZER = "from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer\n"
CODE: Mapping[str, str] = {
    "a method of the quantizer": QUANTIZER + "QnnQuantizer.annotate = lambda self, model: model",
    "the code in a function of the quantizer": (
        QUANTIZER + "QnnQuantizer.annotate.__code__ = (lambda self, model: model).__code__"
    ),
    "the defaults of a function": (
        "from executorch.backends.qualcomm.utils import utils\n"
        "utils.generate_htp_compiler_spec.__defaults__ = (1,)"
    ),
    "a method that a class inherited": QUANTIZER + "QnnQuantizer.__getattribute__ = object.__getattribute__",
    "a method of the partitioner": (
        "from executorch.backends.qualcomm.partition.qnn_partitioner import QnnPartitioner\n"
        "QnnPartitioner.partition = lambda self, program: None"
    ),
    "an observer of torchao": (
        "from torchao.quantization.pt2e import MinMaxObserver\nMinMaxObserver.forward = lambda self, x: x"
    ),
    "a row of the table of chips": (
        "from executorch.backends.qualcomm.serialization import qc_schema\n"
        "table = qc_schema._soc_info_table\n"
        "first, second, *_ = table\n"
        "table[first] = table[second]"
    ),
    "a field in a row of the table of chips": (
        "from executorch.backends.qualcomm.serialization import qc_schema\n"
        "next(iter(qc_schema._soc_info_table.values())).htp_info.vtcm_size_in_mb = 1"
    ),
    "a number of ExecuTorch": (
        "from executorch.backends.qualcomm.utils import constants\nconstants.QCOM_QUANT_MAX = 'other'"
    ),
    "a new row of the table of decompositions": (
        "import torch._decomp\ntorch._decomp.decomposition_table[torch.ops.aten.alias.default] = lambda x: x"
    ),
    "a list of ExecuTorch's passes": (
        "from executorch.backends.qualcomm.quantizer import quantizer\nquantizer.__all__ = ['Other']"
    ),
    "a function of torch": "import torch.fx.passes.utils.matcher_utils as m\nm.SubgraphMatcher.match = None",
    "a kernel of an operator of torch": (
        'LIBRARY = torch.library.Library("aten", "IMPL")\nLIBRARY.impl("ceil", lambda x: x, "CPU")'
    ),
    "a Python kernel of an operator of torch": (
        "torch.ops.aten.floor.default.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(lambda x: x)"
    ),
    "a mode that intercepts torch's functions": (
        "class Mode(torch.overrides.TorchFunctionMode):\n"
        "    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        return function(*args, **(kwargs or {}))\n"
        "Mode().__enter__()"
    ),
    "a rule of the quantizer that only the compile needs": (
        "from executorch.backends.qualcomm.quantizer.annotators import htp_rules\n"
        "htp_rules._RULES.pop(torch.ops.aten.linear.default)"
    ),
    "a pass that only the compile needs": (
        "from executorch.backends.qualcomm._passes.backends.htp import qnn_htp_pass_manager as later\n"
        "later.RecomposeHadamard = later.RemoveRedundancy"
    ),
    "a function of numpy": "import functools, numpy\nnumpy.array = functools.partial(numpy.array)",
    "how modules are imported": (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return None\n"
        "sys.meta_path.insert(0, Finder())"
    ),
}
"""Each changes something else than the model, so that the exported graph stays as it is."""


@pytest.mark.parametrize("what", CODE)
def test_a_model_whose_code_changes_what_compiles_it_is_not_cached(
    what: str, user: User, capfd: pytest.CaptureFixture[str]
) -> None:
    user.write("net.py", NET.format(change=CODE[what]))
    assert [user.is_cached(), user.is_cached()] == [False, False]
    assert "is not cached: its code has changed " in capfd.readouterr().err


EXPORTS = """
class Sum(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1


torch.export.export(Sum(), (torch.rand(2, 4),), dynamic_shapes=({0: torch.export.Dim("n")},))
"""


LISTS = """\
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        with open({!r}, "a") as stream:
            stream.write(f"{{name}}\\n")
sys.meta_path.insert(0, Finder())"""


@pytest.mark.whole
@pytest.mark.parametrize("precision", ["8a8w", "16a8w", "fp16"])
def test_a_compile_imports_nothing_of_the_backend_that_a_process_had_not_before(
    precision: str, user: User, tmp_path: Path
) -> None:
    user.write("net.py", NET.format(change=LISTS.format(str(tmp_path / "names"))))
    flags = ("--precision", precision, "-o", str(tmp_path / "out"))
    environ = {**os.environ, "QNN_CI_STARTED_IN": str(user.folder)}
    done = typed("compile", "net.py:make", *flags, env=environ)
    assert done.returncode == 0, done.stderr
    names = (tmp_path / "names").read_text().split()
    assert names and not [name for name in names if name.startswith(("executorch.backends", "torchao."))]


def test_variables_that_the_code_sets_count(user: User) -> None:
    """The compile has them too."""
    sets = 'import os\nos.environ["QNN_SDK_ROOT"] = "{}"'
    for value in ("one", "other"):
        user.write("net.py", NET.format(change=sets.format(value)))
        assert [user.is_cached(), user.is_cached()] == [False, True]


def test_names_that_the_code_adds_to_numpy_are_no_change(user: User) -> None:
    user.write("net.py", NET.format(change="import numpy\nnumpy.float = float"))
    assert [user.is_cached(), user.is_cached()] == [False, True]


def test_what_torch_fills_when_it_needs_it_is_no_change(user: User) -> None:
    user.write("net.py", NET.format(change=EXPORTS))
    assert [user.is_cached(), user.is_cached()] == [False, True]


def test_neither_is_one_that_was_cached_before_its_code_did(user: User) -> None:
    assert [user.is_cached(), user.is_cached()] == [False, True]
    user.write("net.py", NET.format(change=CODE["a method of the partitioner"]))
    assert not user.is_cached()
    user.write("net.py", NET.format(change=""))
    assert user.is_cached()


OPERATORS: Mapping[str, tuple[str, str]] = {
    "in torch's own namespace": (
        'LIBRARY = torch.library.Library("aten", "FRAGMENT")\n'
        'LIBRARY.define("mine(Tensor x) -> Tensor")\n'
        'LIBRARY.impl("mine", lambda x: x * {number}, "CompositeExplicitAutograd")\n'
        'LIBRARY.impl("mine", torch.empty_like, "Meta")',
        "torch.ops.aten.mine(x)",
    ),
    "an overload of torch's operator": (
        'LIBRARY = torch.library.Library("aten", "FRAGMENT")\n'
        'LIBRARY.define("relu.mine(Tensor x, int n) -> Tensor")\n'
        'LIBRARY.impl("relu.mine", lambda x, n: x * {number}, "CompositeExplicitAutograd")\n'
        'LIBRARY.impl("relu.mine", lambda x, n: torch.empty_like(x), "Meta")',
        "torch.ops.aten.relu.mine(x, 1)",
    ),
}


@pytest.mark.parametrize("where", OPERATORS)
def test_an_operator_of_the_users_is_not_cached_whatever_its_name_is(where: str, user: User) -> None:
    define, call = OPERATORS[where]
    text = NET.replace("torch.relu(self.linear(x))", f"self.linear({call})")
    user.write("net.py", text.format(change=define.format(number=2)))
    assert [user.is_cached(), user.is_cached()] == [False, False]


def annotation(body: str, before: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"import torch\n{before}\n\ndef annotate(model):\n{lines}"


OTHER_RANGE = """\
for node in model.graph.nodes:
    note = node.meta.get("quantization_annotation")
    if note and note.output_qspec:
        note.output_qspec = dataclasses.replace(note.output_qspec, quant_max={value})"""


@dataclass(frozen=True)
class Attack:
    """Has two states of a file beside the suite, of which the annotations read one."""

    annotation: str
    states: tuple[str, str] = ("200", "100")
    file: str = "state.txt"


READ = 'pathlib.Path(__file__).with_name("state.txt").read_text()'
ANNOTATIONS: Mapping[str, Attack] = {
    "reads a file": Attack(
        annotation(OTHER_RANGE.format(value=f"int({READ})"), "import dataclasses, pathlib")
    ),
    "imports a module in its body": Attack(
        annotation("import rules\nrules.apply(model)"),
        states=tuple(  # type: ignore[arg-type]
            "import dataclasses\n" + annotation(OTHER_RANGE.format(value=value)).replace("annotate", "apply")
            for value in (200, 100)
        ),
        file="rules.py",
    ),
    "runs a program": Attack(
        annotation(
            OTHER_RANGE.format(value='int(subprocess.check_output(["cat", "state.txt"]))'),
            "import dataclasses, subprocess",
        )
    ),
    "changes the weights": Attack(
        annotation(f"for weight in model.parameters():\n    weight.data += float({READ})", "import pathlib")
    ),
    "changes a note of its own": Attack(
        annotation(f'for node in model.graph.nodes:\n    node.meta["mine"] = {READ}', "import pathlib")
    ),
    "changes a setting of torch": Attack(
        annotation(f"torch.set_num_threads(int({READ}))", "import pathlib"), states=("1", "2")
    ),
}


WITH_WHOLE = (
    "runs a program",
    "changes the weights",
    "changes a note of its own",
    "changes a setting of torch",
)
"""Nightly: each compiles twice, and ordinary long runs have two that reach the key by the same way."""


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=[pytest.mark.whole] if what in WITH_WHOLE else []) for what in ANNOTATIONS],
)
def test_annotations_count_by_what_they_make_of_the_model(what: str, user: User) -> None:
    attack = ANNOTATIONS[what]
    user.annotates()
    user.write("annotation.py", attack.annotation)
    user.write(attack.file, attack.states[0])
    assert [user.is_cached(), user.is_cached()] == [False, True]
    user.write(attack.file, attack.states[1])
    assert [user.is_cached(), user.is_cached()] == [False, True]


def test_annotations_that_make_the_same_are_the_same_however_they_are_written(user: User) -> None:
    user.annotates()
    user.write("annotation.py", annotation("pass"))
    assert [user.is_cached(), user.is_cached()] == [False, True]
    user.write("annotation.py", annotation("import rules\nrules.none(model)"))
    user.write("rules.py", "def none(model): ...\n")
    assert user.is_cached()


OBSERVER = """\
from torchao.quantization.pt2e import MinMaxObserver

class Mine(MinMaxObserver):
    def forward(self, x):
        return super().forward(x * FACTOR)
"""
NEVER: Mapping[str, str] = {
    "names an observer of its own": annotation(
        "for node in model.graph.nodes:\n"
        '    note = node.meta.get("quantization_annotation")\n'
        "    if note and note.output_qspec:\n"
        "        spec = dataclasses.replace(note.output_qspec, observer_or_fake_quant_ctr=Mine)\n"
        "        note.output_qspec = spec",
        f"import dataclasses\n{OBSERVER}",
    ),
    "says that its observer is torchao's": annotation(
        "Mine.__module__, Mine.__qualname__ = MinMaxObserver.__module__, 'MinMaxObserver'\n"
        "for node in model.graph.nodes:\n"
        '    note = node.meta.get("quantization_annotation")\n'
        "    if note and note.output_qspec:\n"
        "        spec = dataclasses.replace(note.output_qspec, observer_or_fake_quant_ctr=Mine)\n"
        "        note.output_qspec = spec",
        f"import dataclasses\n{OBSERVER}",
    ),
    "changes the partitioner": annotation(CODE["a method of the partitioner"], ""),
    "makes something else each time": annotation(
        OTHER_RANGE.format(value="100 + os.getpid() % 100"), "import dataclasses, os"
    ),
}


@pytest.mark.parametrize("what", NEVER)
def test_annotations_that_no_text_describes_are_not_cached(what: str, user: User) -> None:
    user.annotates()
    user.write("annotation.py", NEVER[what])
    assert [user.is_cached(), user.is_cached()] == [False, False]


def test_a_module_that_only_the_compile_imports_is_not_cached(user: User) -> None:
    """A file beside the suite may have the name of a package that the compiler imports when it needs it."""
    user.write("late.py", "VALUE = 1\n")
    assert [user.is_cached(), user.is_cached()] == [False, False]


LOADS = 'import ctypes\nctypes.CDLL("{}", mode=ctypes.RTLD_GLOBAL)'


@pytest.mark.parametrize("how", ["edited", "replaced"])
def test_a_library_that_the_code_loads_counts_by_its_bytes(how: str, user: User, tmp_path: Path) -> None:
    library = tmp_path / "libshadow.so"
    build_library(library, 1)
    user.write("net.py", NET.format(change=LOADS.format(library)))
    assert [user.is_cached(), user.is_cached()] == [False, True]
    build_library(new := tmp_path / "new.so", 2)
    LIBRARY_CHANGES[how](new, library)
    assert [user.is_cached(), user.is_cached()] == [False, True]


LIBRARY_CHANGES: Mapping[str, Callable[[Path, Path], object]] = {
    "edited": shutil.copyfile,
    "replaced": os.replace,
}


def build_library(path: Path, number: int) -> None:
    source = path.with_suffix(".c")
    source.write_text(f"int qnn_ci_shadow(void) {{ return {number}; }}\n")
    subprocess.run(["cc", "-shared", "-o", path, source], check=True)
