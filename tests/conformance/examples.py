"""What the conformance tests need of each lane beside its record: a suite with one program, and processes
that stand in for its own, which would take seconds. A lane that is registered and not here fails them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ci.explain.divergence import DivergenceLimits
from ci.lanes.executorch import steps as executorch_steps
from ci.lanes.executorch.explain import searching
from ci.lanes.executorch.lane import LANE as EXECUTORCH
from ci.lanes.executorch.steps import ExecutorchPlan, lowering, running
from ci.lanes.executorch.suite import ExecutorchProgram, ModuleScheme
from ci.lanes.llm import steps as llm_steps
from ci.lanes.llm.lane import LANE as LLM
from ci.lanes.llm.steps import LlmPlan, measuring, training
from ci.lanes.llm.suite import LlmProgram
from ci.lanes.onnx import steps as onnx_steps
from ci.lanes.onnx.explain import rewriting
from ci.lanes.onnx.lane import LANE as ONNX
from ci.lanes.onnx.orders import QuantizedModel
from ci.lanes.onnx.steps import OnnxPlan, compiling
from ci.lanes.onnx.suite import OnnxProgram
from ci.models.inputs import Input
from ci.suite.lane import AnyLane
from ci.suite.options import Choice, StageOptions
from ci.suite.programs import Suites, TaskMetric
from ci.suite.runner import Runner
from ci.suite.stage import packages_of
from ci.suite.suite_file import Thresholds
from ci.work.cached_steps import Step
from ci.work.jobs import WorkOptions
from ci.work.outcome import Result
from ci.work.plain import to_json
from provisioning.base.settings import Selection
from tests.support import llm_worker, onnx_worker, toy_lane
from tests.support import lowering as lowering_support
from tests.support.onnx_suites import CONTEXT, PREPARED
from tests.support.programs import program as pte
from tests.support.scripts import script

PASSES, FAILS, DIES, LATE = "passes", "fails", "dies", "late"
"""What becomes of the program."""
TEXT = {
    "executorch": """\
schema = 2
[case.net]
factory = "net:make"
arguments = { width = 8 }
[[case.net.run]]
lane = "executorch"
precision = "8a8w"
socs = ["SM8650"]
""",
    "onnx": """\
schema = 2
[case.net]
factory = "ci.models.shipped.vision:resnet"
arguments = { width = 16 }
[[case.net.run]]
lane = "onnx"
precision = "16a8w"
socs = ["SM8650"]
options = { op_affinity = "FOLDER/letters.txt" }
""",
    "llm": """\
schema = 2
[case.net]
perplexity = 14.0
[[case.net.run]]
lane = "llm"
precision = "fp16"
socs = ["SM8650"]
""",
    "toy": """\
schema = 2
[case.net]
text = "letters.txt"
[[case.net.run]]
lane = "toy"
width = 3
socs = ["SM8650"]
""",
}


MODEL = """\
from pathlib import Path
def make(width): return Path(__file__).with_name("program.bin").read_bytes()
"""


@dataclass(frozen=True)
class Folder:
    """A folder with a suite of one program, with a store and with reports."""

    path: Path

    @property
    def suite(self) -> Path:
        return self.path / "suite.toml"

    @property
    def selection(self) -> Selection:
        return Selection("wheels", "x86_64-linux", "SM8650", self.path / "store", self.path / "reports")

    def options(self, *, timeout: float = 60, accept: bool = False, listed: bool = False) -> StageOptions:
        work = WorkOptions(timeout, jobs=1)
        return StageOptions(self.selection, Choice(suites=(self.suite,)), work, accept, listed)


@dataclass(frozen=True)
class Example:
    """One program of a lane."""

    text: str
    """Of its suite."""
    stand_in: Callable[[pytest.MonkeyPatch, Folder, str], AnyLane]
    """The lane with processes that stand in for its own: of its program becomes what the word says."""
    steps: Callable[[Folder, Any], Iterator[Step[Any]]]
    """Steps of the lane for this program; the first is the one that compiles it."""
    suites: Suites[Any]
    case: Mapping[str, object]
    run: Mapping[str, object]
    """By field, another value than the suite's."""
    typed: str = ""
    """MODEL of a command line for this lane; empty for the folder of a checkpoint."""

    def program(self, folder: Folder) -> Any:
        (program,) = self.suites.programs_of(folder.suite)
        return program

    def write(self, folder: Path) -> Folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "program.bin").write_bytes(pte())
        for name, text in {"net.py": MODEL, "letters.txt": "ab", "suite.toml": self.text}.items():
            (folder / name).write_text(text.replace("FOLDER", str(folder)), encoding="utf-8")
        return Folder(folder)


# Lane executorch

LOWERING_WORKER = "tests.support.lowering_worker"


def plan_of_executorch(
    folder: Folder, programs: Sequence[ExecutorchProgram], options: StageOptions, stages: tuple[str, ...] = ()
) -> ExecutorchPlan:
    environment = {"PATH": os.environ["PATH"]}
    return lowering_support.plan_of(folder.path, programs, options.work, environment=environment)


def executorch_in_which(patch: pytest.MonkeyPatch, folder: Folder, outcome: str) -> AnyLane:
    function = {PASSES: "make", FAILS: "refuse", DIES: "crash", LATE: "spin"}[outcome]
    folder.suite.write_text(TEXT["executorch"].replace("net:make", f"net:{function}"), encoding="utf-8")
    patch.setattr(executorch_steps, "WORKER", LOWERING_WORKER)
    patch.setattr(executorch_steps, "EXPORT", f"{LOWERING_WORKER}:export")
    return replace(EXECUTORCH, plan=partial(plan_of_executorch, folder))


def executorch_steps_of(folder: Folder, program: ExecutorchProgram) -> Iterator[Step[Any]]:
    plan = plan_of_executorch(folder, [program], folder.options())
    runner = Runner(script(folder.path / "dist/bin/runner", "exit 0"))
    (library := folder.path / "dist/lib/libexecutorch_backend_qnn.so").parent.mkdir(exist_ok=True)
    library.write_text("library")
    compiled = folder.path / "compiled"
    compiled.mkdir(exist_ok=True)
    (compiled / "input_0_0.raw").write_text("numbers")
    result = Result(folder=compiled, record=lowering_support.compiled_as(without_time="digest"))
    yield lowering(plan)
    yield running(plan, runner, {program.name: result})
    yield searching(plan, runner, DivergenceLimits(20.0))


# Lane onnx


def plan_of_onnx(folder: Folder, programs: Sequence[OnnxProgram], options: StageOptions) -> OnnxPlan:
    packages = packages_of(programs, folder.selection.store)
    return OnnxPlan(tuple(programs), folder.selection, options.work, folder.path / "logs", packages)


def onnx_in_which(patch: pytest.MonkeyPatch, folder: Folder, outcome: str) -> AnyLane:
    refused: Mapping[str, object] = {
        "error": {"kind": "cpu-node", "message": "a node does not run on HTP", "fix": "", "exit_code": 1}
    }
    replies = {
        "prepare": to_json(PREPARED),
        "quantize": to_json(QuantizedModel(model="m", calibrated_by=32)),
        "compile_context": refused if outcome == FAILS else to_json(CONTEXT),
    }
    how = {DIES: "crashes", LATE: "computes"}.get(outcome)
    wrong = {"do": "compile_context", "how": how} if how else {}
    document = {"replies": replies, "wrong": wrong, "made": {}}
    # The same for all tests of a run: a process belongs to these variables.
    stand_in = folder.path.parents[1] / "stand-in"
    stand_in.mkdir(exist_ok=True)
    (stand_in / "replies.json").write_text(json.dumps(document), encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], onnx_worker.STAND_IN: str(stand_in)}
    patch.setattr(onnx_steps, "WORKER", onnx_worker.__name__)
    patch.setattr(onnx_steps, "environment", lambda own=None: environment)
    return ONNX


def onnx_steps_of(folder: Folder, program: OnnxProgram) -> Iterator[Step[Any]]:
    plan = plan_of_onnx(folder, [program], folder.options())
    yield compiling(plan)
    yield rewriting(plan, None)


# Lane llm


def plan_of_llm(
    folder: Folder, programs: Sequence[LlmProgram], options: StageOptions, stages: tuple[str, ...] = ()
) -> LlmPlan:
    packages = packages_of(programs, folder.selection.store)
    return LlmPlan(tuple(programs), folder.selection, options.work, folder.path / "logs", packages, None)


def llm_in_which(patch: pytest.MonkeyPatch, folder: Folder, outcome: str) -> AnyLane:
    environment = {"PATH": os.environ["PATH"], llm_worker.OUTCOME: outcome}
    patch.setattr(llm_steps, "WORKER", llm_worker.__name__)
    patch.setattr(llm_steps, "environment", lambda qnn_environment=None: environment)
    return replace(LLM, plan=partial(plan_of_llm, folder))


def llm_steps_of(folder: Folder, program: LlmProgram) -> Iterator[Step[Any]]:
    plan = plan_of_llm(folder, [program], folder.options())
    model = Result({"perplexity": 3.0, "weights": "digest"}, folder.path)
    yield measuring(plan, {program.name: model})
    yield training(plan)


# The toy lane


def toys_in_which(patch: pytest.MonkeyPatch, folder: Folder, outcome: str) -> AnyLane:
    if outcome == FAILS:
        folder.suite.write_text(TEXT["toy"].replace("width = 3", "width = 99"), encoding="utf-8")
    return toy_lane.lane_in_which({DIES: "dies", LATE: "computes for ever"}.get(outcome, ""))


def toy_steps_of(folder: Folder, program: toy_lane.ToyProgram) -> Iterator[Step[Any]]:
    yield toy_lane.compiling(toy_lane.plan_of([program], folder.options(), ()))


# Other values of each field

RUN = {
    "label": "other",
    "socs": ("SM8850",),
    "tags": ("nightly",),
    "thresholds": Thresholds(sqnr_db=7.0, top1=0.5),
}
EXECUTORCH_RUN = RUN | {
    "precision": "16a8w",
    "backend": "lpai",
    "per_channel": False,
    "calibration": 5,
    "modules": (ModuleScheme(precision="16a8w", name="layer"),),
    "annotations": ("net:annotate",),
    "precision_file": "net.precision.toml",
    "nodes": {"16a8w": ("conv",)},
    "block_sizes": {"conv": (1, 16)},
    "cpu_nodes": ("conv",),
    "delegates": 2,
    "cpu_budget": 3,
}
RIGHT = TaskMetric(name="words right", function="net:right")

EXECUTORCH_CASE = {
    "non_finite": True,
    "factory": "net:other",
    "arguments": {"width": 9},
    "inputs": (Input(shape=(1, 2)),),
    "backend": "lpai",
    "samples": "data",
    "files": ("others.bin",),
    "inferences": 3,
    "metric": RIGHT,
    "delegates": 2,
    "cpu_budget": 3,
    "fold_constants": True,
}
ONNX_RUN = RUN | {
    "precision": "u16u16",
    "precision_file": "net.precision.toml",
    "nodes": {"u16u8": ("conv",)},
    "per_channel": True,
    "calibration": 5,
    "options": {"vtcm_mb": 4},
}
ONNX_CASE = {
    "non_finite": True,
    "factory": "net:other",
    "arguments": {"width": 9},
    "model": "other.onnx",
    "dimensions": {"batch": 1},
    "samples": "data",
    "inputs": (Input(shape=(1, 2)),),
    "inferences": 3,
    "metric": RIGHT,
    "recorded": True,
}
LLM_RUN = RUN | {
    "precision": "16a8w",
    "through": "executorch",
    "parts": 2,
}
LLM_CASE = {"non_finite": True, "perplexity": 5.0}
TOY_RUN = RUN | {
    "width": 4,
    "precision": "8a8w",
    "precision_file": "net.precision.toml",
    "nodes": {"16a8w": ("conv",)},
    "calibration": 5,
}
TOY_CASE = {"non_finite": True, "text": "net.py", "samples": "data", "inferences": 3}

EXAMPLES = {
    "executorch": Example(
        TEXT["executorch"],
        executorch_in_which,
        executorch_steps_of,
        EXECUTORCH.suites,
        EXECUTORCH_CASE,
        EXECUTORCH_RUN,
        "net.py:make",
    ),
    "onnx": Example(TEXT["onnx"], onnx_in_which, onnx_steps_of, ONNX.suites, ONNX_CASE, ONNX_RUN, "net.onnx"),
    "llm": Example(TEXT["llm"], llm_in_which, llm_steps_of, LLM.suites, LLM_CASE, LLM_RUN),
    "toy": Example(TEXT["toy"], toys_in_which, toy_steps_of, toy_lane.SUITES, TOY_CASE, TOY_RUN),
}
"""Maps a lane to its example. To add one, write its suite, its stand-ins, its steps and other values of its
fields here."""
