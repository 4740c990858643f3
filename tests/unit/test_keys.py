"""Whatever a worker gets is in the key of its work: for every field of a case and a run, in every lane."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from ci.engine.inputs import key_of, roots_of
from ci.engine.memo import CachedResult, Memo, Miss, WorkDone
from ci.engine.work import Result
from ci.engine.workers.parent import Worker
from ci.lanes.executorch.compile import ExecutorchPlan, Lower
from ci.lanes.executorch.emulate import RunOnEmulator
from ci.lanes.executorch.suite import SUITES as EXECUTORCH
from ci.lanes.executorch.suite import ModuleScheme, parse_request
from ci.lanes.llm.suite import SUITES as LLM
from ci.lanes.llm.suite import Limits, LlmCase, LlmProgram, LlmRun
from ci.lanes.llm.work import CompileCheckpoint, Generate, LlmPlan, Train
from ci.lanes.onnx.compile import CompileOnnx, OnnxPlan
from ci.lanes.onnx.steps import case_of, run_of
from ci.lanes.onnx.suite import SUITES as ONNX
from ci.lanes.onnx.suite import programs_of as onnx_programs
from ci.pipeline.models.own_packages import NO_PACKAGES
from ci.pipeline.options import WorkOptions
from ci.pipeline.runner import Runner
from ci.pipeline.stage import AnyPlan
from ci.pipeline.steps import Step, StepTask, tasks_of
from ci.pipeline.suite import NO_SUITE, AnyProgram, Input, TaskMetric, Thresholds
from provisioning.base.settings import Selection
from tests.support.lowering import BASIS, make_program
from tests.support.onnx_suites import write_suite

LIMITS = Limits(first_choice=0.5, perplexity_ratio=2.0, divergence=1.0, divergence_99=1.0, regret=1.0)
LLM_SUITE = """\
schema = 2
[case.net]
perplexity = 9.0
[[case.net.run]]
lane = "llm"
precision = "fp16"
socs = ["SM8650"]
"""

RUN = {
    "label": "other",
    "socs": ("SM8850",),
    "tags": ("nightly",),
    "thresholds": Thresholds(sqnr_db=7.0, top1=0.5),
}
EXECUTORCH_RUN = RUN | {
    "precision": "16a8w",
    "backend": "lpai",
    "executorch": ">=1.5.1",
    "emulator_fault": "it does not run",
    "qat": True,
    "per_channel": False,
    "observer": "moving_average",
    "calibration": 5,
    "modules": (ModuleScheme(precision="16a8w", name="layer"),),
    "annotations": ("net:annotate",),
    "precision_file": "net.precision.toml",
    "nodes": {"16a8w": ("conv",)},
    "block_sizes": {"conv": (1, 16)},
    "unquantized_nodes": ("conv",),
    "unquantized_operators": ("aten.add",),
    "cpu_nodes": ("conv",),
    "cpu_operators": ("aten.add",),
    "delegates": 2,
    "cpu_budget": 3,
}
RIGHT = TaskMetric(name="words right", function="net:right")

EXECUTORCH_CASE = {
    "non_finite": True,
    "factory": "net:other",
    "arguments": {"width": 9},
    "inputs": (Input(shape=(1, 2)),),
    "backend": "gpu",
    "samples": "data",
    "files": ("others.bin",),
    "inferences": 3,
    "many_draws": True,
    "metric": RIGHT,
    "delegates": 2,
    "cpu_budget": 3,
}
ONNX_RUN = RUN | {
    "precision": "u16u16",
    "precision_file": "net.precision.toml",
    "nodes": {"u16u8": ("conv",)},
    "per_channel": True,
    "calibration": 5,
    "repaired": True,
    "options": {"vtcm_mb": 4},
    "budget": {"Galaxy S25": "2 ms"},
    "forecast": True,
    "refused": ("Erf",),
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
    "cache": "uint16",
    "parts": 2,
    "state": "buffers",
    "limits": LIMITS,
    "htp_against_cpu": LIMITS,
    "prompts": 3,
}
LLM_CASE = {"non_finite": True, "perplexity": 5.0}

JUDGED = {
    *("label", "tags", "thresholds", "socs", "limits", "htp_against_cpu", "perplexity"),
    *("cpu_budget", "delegates", "emulator_fault", "executorch", "files", "budget", "precision_file"),
}
"""Fields whose change does no work again."""

FACTS: Mapping[str, Any] = {"inputs": [], "expected": [], "reference": [], "without_time": "digest"}


def _plan(kind: type[AnyPlan[Any]], program: AnyProgram[Any, Any], folder: Path, **more: Any) -> Any:
    selection = Selection("wheels", "x86_64-linux", "SM8650", folder / "store", folder)
    return kind((program,), selection, WorkOptions(), folder / "logs", {}, **more)


def _lower(program: AnyProgram[Any, Any], folder: Path) -> Step[Any]:
    more = {"environment": {}, "sdk": folder, "basis": BASIS, "refused": {}}
    return Lower(_plan(ExecutorchPlan, program, folder, **more))


def _run(program: AnyProgram[Any, Any], folder: Path) -> Step[Any]:
    compiled = folder / "compiled"
    compiled.mkdir(exist_ok=True)
    plan = cast(Lower, _lower(program, folder)).plan
    return RunOnEmulator(plan, Runner(Path("runner")), {program.name: Result(FACTS, compiled)})


def _onnx(program: AnyProgram[Any, Any], folder: Path) -> Step[Any]:
    return CompileOnnx(_plan(OnnxPlan, program, folder))


def _generate(program: AnyProgram[Any, Any], folder: Path) -> Step[Any]:
    models = {program.name: Result({"weights": "weights"}, folder)}
    return Generate(_plan(LlmPlan, program, folder, qnn_environment=None), models)


@dataclass(frozen=True)
class Lane:
    program: Callable[[Path], AnyProgram[Any, Any]]
    step: Callable[[AnyProgram[Any, Any], Path], Step[Any]]
    case: Mapping[str, Any]
    run: Mapping[str, Any]


def _llm_program(folder: Path) -> AnyProgram[Any, Any]:
    path = folder / "llm.toml"
    path.write_text(LLM_SUITE)
    return LLM.programs_of(path)[0]


LANES = {
    "test_lowering": Lane(make_program, _lower, EXECUTORCH_CASE, EXECUTORCH_RUN),
    "test_emulator": Lane(make_program, _run, EXECUTORCH_CASE, EXECUTORCH_RUN),
    "test_onnx": Lane(lambda folder: onnx_programs(write_suite(folder))[0], _onnx, ONNX_CASE, ONNX_RUN),
    "test_llm": Lane(_llm_program, _generate, LLM_CASE, LLM_RUN),
}


class Heard(Exception):
    """Carries the first order that a worker got."""


class Listener:
    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        raise Heard({name: value for name, value in order.items() if name not in ("into", "log", "folder")})


def _key_and_order(lane: Lane, program: AnyProgram[Any, Any], folder: Path) -> tuple[str, Any]:
    memo = Memo(folder / "store", "any", roots_of(program.suite, folder / "store"), environ=os.environ)
    step = lane.step(program, folder)
    task = StepTask(step, program, memo, step.key(program, memo, {}), folder / "scratch")
    with pytest.raises(Heard) as heard:
        task.work(cast(Worker, Listener()), {})
    return key_of(task.key), heard.value.args[0]


def test_work_is_compared_with_earlier_work_of_the_same_model_alone(tmp_path: Path) -> None:
    def subject(program: AnyProgram[Any, Any]) -> str:
        step = _lower(program, tmp_path)
        return tasks_of(step, NO_PACKAGES, [program], tmp_path)[0].subject

    program = make_program(tmp_path)
    of_another = replace(program, case=program.case.model_copy(update={"factory": "others:net"}))
    alone, other = (replace(case, suite=tmp_path / NO_SUITE) for case in (program, of_another))
    assert subject(alone) != subject(other)
    # A suite's case is the same case, whatever model it has now.
    assert subject(program) == subject(of_another)
    assert subject(program) != subject(replace(program, suite=tmp_path / "others.toml"))


def test_what_a_model_says_is_not_compared_with_its_training(tmp_path: Path) -> None:
    program = _llm_program(tmp_path)
    texts = _generate(program, tmp_path)
    train = Train(_plan(LlmPlan, program, tmp_path, qnn_environment=None))
    both = [tasks_of(step, NO_PACKAGES, [program], tmp_path)[0] for step in (train, texts)]
    both[0].memo.remember(both[0].subject, both[0].key, {}, WorkDone())
    assert both[1].memo.find(both[1].subject, both[1].key) == Miss("not run before")


def test_what_a_checkpoint_is_compiled_of_is_known_by_its_bytes_and_blames_no_other(tmp_path: Path) -> None:
    """Wherever it is, and whatever else of the same name was compiled before."""

    def task(name: str, config: str) -> StepTask[Any]:
        folder = tmp_path / name / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(config)
        run = LlmRun.model_construct(precision="fp16", socs=("SM8650",))
        case = LlmCase.model_construct(perplexity=math.inf, runs=(run,))
        program = LlmProgram(folder / NO_SUITE, folder.name, case, run, "SM8650")
        request = {"model": str(folder), "adapter": "", "calibrate": "", "context": 128}
        step = CompileCheckpoint(_plan(LlmPlan, program, tmp_path, qnn_environment=None), request)
        return tasks_of(step, NO_PACKAGES, [program], tmp_path)[0]

    first, moved, other = task("first", "{}"), task("moved", "{}"), task("other-model", '{"a": 1}')
    assert first.key == moved.key and str(tmp_path) not in json.dumps([first.key, other.key])
    first.memo.remember(first.subject, first.key, {}, WorkDone())
    assert isinstance(moved.memo.find(moved.subject, moved.key), CachedResult)
    assert other.memo.find(other.subject, other.key) == Miss("not run before")
    other.memo.remember(other.subject, other.key, {}, WorkDone())
    (tmp_path / "first" / "model" / "config.json").write_text('{"a": 2}')
    again = first.step.key(first.program, first.memo, {})
    why = first.memo.find(first.subject, again)
    assert isinstance(why, Miss) and why.why.startswith("files.config.json: ") and "nothing" not in why.why


CHANGES = [
    (name, part, field)
    for name, lane in LANES.items()
    for part, fields in (("case", lane.case), ("run", lane.run))
    for field in fields
]


@pytest.mark.parametrize("name", LANES)
def test_every_field_has_another_value_to_try(tmp_path: Path, name: str) -> None:
    lane = LANES[name]
    program = lane.program(tmp_path)
    assert set(lane.case) == set(type(program.case).model_fields) - {"runs"}
    assert set(lane.run) == set(type(program.run).model_fields)


@pytest.mark.parametrize(("name", "part", "field"), CHANGES)
def test_what_the_worker_gets_is_in_the_key(tmp_path: Path, name: str, part: str, field: str) -> None:
    lane = LANES[name]
    program = lane.program(tmp_path)
    value = getattr(lane, part)[field]
    assert getattr(getattr(program, part), field) != value
    changed = replace(program, **{part: getattr(program, part).model_copy(update={field: value})})
    key, order = _key_and_order(lane, program, tmp_path)
    other_key, other_order = _key_and_order(lane, changed, tmp_path)
    if key == other_key:
        assert order == other_order
    assert key == other_key or field not in JUDGED


def _same(received: Any, sent: Any) -> bool:
    fields = set(type(sent).model_fields) - sent.judged_later
    return all(_plain(getattr(received, name)) == _plain(getattr(sent, name)) for name in fields)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _gets_all(program: Any) -> bool:
    case, run, soc, folder = parse_request(json.loads(json.dumps(program.order)))
    same = _same(case, program.case) and _same(run, program.run)
    return same and (soc, folder) == (program.soc, program.search_path)


def _gets_all_of_onnx(program: Any) -> bool:
    order = json.loads(json.dumps(program.order))
    same = _same(case_of(order), program.case) and _same(run_of(order), program.run)
    return same and run_of(order).settings(program.soc) == program.run.settings(program.soc)


def _gets_all_of_llm(program: Any) -> bool:
    run = LlmRun.model_construct(**json.loads(json.dumps(program.order))["run"])
    return _same(run, program.run) and bool(run.quantized == program.run.quantized)


@pytest.mark.parametrize(
    ("suites", "gets_all"),
    [(EXECUTORCH, _gets_all), (ONNX, _gets_all_of_onnx), (LLM, _gets_all_of_llm)],
    ids=["executorch", "onnx", "llm"],
)
def test_the_worker_gets_all_that_the_suite_says(suites: Any, gets_all: Callable[[Any], bool]) -> None:
    programs = suites.all_programs([])
    assert programs and [program.name for program in programs if not gets_all(program)] == []
