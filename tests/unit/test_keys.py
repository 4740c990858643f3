"""Whatever a worker gets is in the key of its work: for every field of a case and a run, in every lane."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.explain.divergence import DivergenceLimits
from ci.explain.losses import ScoreRequest
from ci.lanes.executorch.explain import searching
from ci.lanes.executorch.orders import EmulatorRun, ExportedRun, ExportedRuns
from ci.lanes.executorch.steps import ExecutorchPlan, lowering, running, worker_step
from ci.lanes.executorch.suite import SUITES as EXECUTORCH
from ci.lanes.executorch.suite import case_of
from ci.lanes.llm.orders import CompileOrder, SuiteOrder
from ci.lanes.llm.steps import LlmPlan, measuring
from ci.lanes.llm.steps import compiling as compiling_checkpoint
from ci.lanes.llm.suite import SUITES as LLM
from ci.lanes.llm.suite import LlmCase, LlmProgram, LlmRun
from ci.lanes.onnx.explain import rewriting
from ci.lanes.onnx.steps import OnnxPlan, compiling, request_of
from ci.lanes.onnx.suite import SUITES as ONNX
from ci.lanes.onnx.suite import OnnxOrder, OnnxRequest
from ci.lanes.onnx.suite import programs_of as onnx_programs
from ci.suite.programs import NO_SUITE, Program, ProgramOrder
from ci.suite.ready_environment import host_libraries
from ci.suite.runner import Runner
from ci.suite.stage import Plan
from ci.suite.tensor_files import TensorFile
from ci.work.cached_steps import NotCached, Step
from ci.work.jobs import WorkOptions
from ci.work.outcome import Result
from ci.work.plain import read, to_json
from ci.work.request import NOTHING, key_of, sent_request
from ci.work.results import CachedResults
from provisioning import known_faults
from provisioning.base.settings import Selection
from provisioning.stage_variables import HOST_LIBRARIES
from tests.support.lowering import QNN, compiled_as, make_program
from tests.support.onnx_suites import write_suite
from tests.support.scripts import script

LLM_SUITE = """\
schema = 2
[case.net]
perplexity = 9.0
[[case.net.run]]
lane = "llm"
precision = "fp16"
socs = ["SM8650"]
"""


def _plan(kind: type[Plan], program: Program, folder: Path, **more: Any) -> Any:
    selection = Selection("wheels", "x86_64-linux", "SM8650", folder / "store", folder)
    return kind((program,), selection, WorkOptions(), folder / "logs", {}, **more)


def _plan_of(program: Program, folder: Path) -> ExecutorchPlan:
    more = {"environment": {}, "sdk": folder, "qnn": QNN, "refused": {}}
    plan: ExecutorchPlan = _plan(ExecutorchPlan, program, folder, **more)
    return plan


def _lower(program: Program, folder: Path) -> Step[Any]:
    return lowering(_plan_of(program, folder))


def _onnx(program: Program, folder: Path) -> Step[Any]:
    return compiling(_plan(OnnxPlan, program, folder))


def _judge(program: Program, folder: Path) -> Step[Any]:
    models = {program.name: Result({"perplexity": 3.0, "weights": "weights"}, folder)}
    return measuring(_plan(LlmPlan, program, folder, qnn_environment=None), models)


def _llm_program(folder: Path) -> Program:
    path = folder / "llm.toml"
    path.write_text(LLM_SUITE)
    program: Program = LLM.programs_of(path)[0]
    return program


def key_in(step: Step[Any], program: Program, folder: Path) -> Any:
    """What a result depends on, as its record has it."""
    key = key_of(step.request(program), CachedResults(folder / "store", "any").digest)
    return json.loads(json.dumps(key))


@pytest.mark.parametrize("table", ["MANIFEST", "FIXES"])
def test_what_an_onnx_model_is_rewritten_by_is_in_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    program = onnx_programs(write_suite(tmp_path))[0]
    plan = _plan(OnnxPlan, program, tmp_path)

    def key(rules: tuple[str, ...] | None = None) -> Any:
        return key_in(rewriting(plan, rules), program, tmp_path)

    first = key()
    assert key() == first and key(("bias-used-twice",)) != first
    (edited := tmp_path / "table.toml").write_bytes(getattr(known_faults, table).read_bytes() + b"#")
    monkeypatch.setattr(known_faults, table, edited)
    assert key() != first


def test_a_program_that_another_qnn_compiles_or_with_crashes_on_the_cpu_has_another_key(
    tmp_path: Path,
) -> None:
    program = make_program(tmp_path)
    plan = _plan_of(program, tmp_path)
    steps = [
        lowering(plan),
        lowering(replace(plan, qnn={**QNN, "libraries": "others"})),
        lowering(plan, crashes_on_cpu=True),
    ]
    key, *keys = (key_in(step, program, tmp_path) for step in steps)
    assert key not in keys


def test_what_a_run_on_the_emulator_gets_is_in_its_key(tmp_path: Path) -> None:
    """Its program and files by their bytes, wherever they lie; what is judged later is in no key."""
    program = make_program(tmp_path)

    def key(what: str = "", library: str = "", qnn: str = "aa", **facts: Any) -> Any:
        (backend := tmp_path / "dist/lib/libexecutorch_backend_qnn.so").parent.mkdir(
            parents=True, exist_ok=True
        )
        backend.write_text(library)
        compiled = tmp_path / f"compiled-{what}"
        compiled.mkdir(exist_ok=True)
        (compiled / "input_0_0.raw").write_text(what)
        plan = replace(_plan_of(program, tmp_path), qnn={**QNN, "libraries": qnn})
        runner = Runner(script(tmp_path / "dist/bin/runner", "exit 0"))
        step = running(plan, runner, {program.name: Result(folder=compiled, record=compiled_as(**facts))})
        return key_in(step, program, tmp_path)

    first = key()
    assert (
        key("other") != first
        and key(library="built anew") != first
        and key(qnn="another build") != first
        and key(without_time="other") != first
        and key(expected=((TensorFile("float", "float32", (1,)),),)) != first
    )
    assert key() == first and str(tmp_path / "compiled") not in json.dumps(first)


def test_a_search_for_what_differs_is_known_by_its_runner_and_limit_and_not_by_its_time(
    tmp_path: Path,
) -> None:
    program = make_program(tmp_path)
    (backend := tmp_path / "dist/lib/libexecutorch_backend_qnn.so").parent.mkdir(parents=True)
    runner = Runner(script(tmp_path / "dist/bin/runner", "exit 0"))

    def key(library: str = "", least: float = 20.0, seconds: float = 60.0) -> Any:
        backend.write_text(library)
        step = searching(_plan_of(program, tmp_path), runner, DivergenceLimits(least, seconds))
        return key_in(step, program, tmp_path)

    def scored(exact: str, seconds: float) -> Any:
        asked = ScoreRequest(exact, seconds)
        step = worker_step(_plan_of(program, tmp_path), "scores", "scored", asked)
        return key_in(step, program, tmp_path)

    first = key()
    assert key(seconds=5.0) == first
    assert scored("16a8w", 5.0) == scored("16a8w", 60.0) != scored("fp16", 60.0)
    assert key(least=30.0) != first and key(library="built anew") != first


def test_a_run_that_gave_nothing_to_compare_is_not_kept_nor_a_program_without_all_its_costs(
    tmp_path: Path,
) -> None:
    program = make_program(tmp_path)
    plan = _plan_of(program, tmp_path)
    runs = running(plan, Runner(tmp_path / "runner"), {})
    assert runs.keeps(program, Result(record=EmulatorRun({"sqnr_db": 3.0})))
    assert not runs.keeps(program, Result(record=EmulatorRun(rule="missing", message="no outputs")))
    compiles = lowering(plan)
    assert compiles.keeps(program, Result(record=compiled_as(delegates=2)))
    assert not compiles.keeps(program, Result(record=compiled_as(delegates=2, graphs=1)))


def test_a_model_that_has_no_digest_has_no_key(tmp_path: Path) -> None:
    program = make_program(tmp_path)
    step = lowering(_plan_of(program, tmp_path))
    run = ExportedRun(not_cached="its operator is of another namespace")
    with pytest.raises(NotCached):
        step.export_key(program, to_json(ExportedRuns(runs={program.run.name: run})))


def test_qnn_is_known_by_the_bytes_of_its_libraries(tmp_path: Path) -> None:
    """Two builds may have one id."""
    (libraries := tmp_path / "lib" / HOST_LIBRARIES).mkdir(parents=True)
    for name in ("libQnnHtp.so", "libQnnHtpPrepare.so"):
        (libraries / name).write_text(name)
    first = host_libraries(tmp_path, tmp_path / "store")
    assert host_libraries(tmp_path, tmp_path / "store") == first
    (libraries / "libQnnHtpPrepare.so").write_text("another.library.so")
    second = host_libraries(tmp_path, tmp_path / "store")
    assert second["build_id"] == first["build_id"] and second != first


def test_what_a_checkpoint_is_compiled_of_is_known_by_its_bytes(tmp_path: Path) -> None:
    """Wherever it is."""

    def key(name: str, *changed: str) -> Any:
        folder = tmp_path / name / "model"
        (folder / "compiled").mkdir(parents=True)
        files = ("config.json", "model.safetensors", "chat_template.jinja", "tokenizer.json", "a.txt")
        for file in (*files, "compiled/genie_config.json"):
            (folder / file).write_text("changed" if file in changed else "{}")
        run = LlmRun.model_construct(precision="fp16", socs=("SM8650",))
        case = LlmCase.model_construct(perplexity=math.inf, runs=(run,))
        program = LlmProgram(folder / NO_SUITE, folder.name, case, run, "SM8650")
        sizes: dict[str, Any] = {"context": 128, "prefill": 32, "parts": 1, "calibration": []}
        order = CompileOrder(model=str(folder), through="genie", soc="SM8650", precision="fp16", **sizes)
        step = compiling_checkpoint(_plan(LlmPlan, program, tmp_path, qnn_environment=None), order)
        return key_in(step, program, tmp_path)

    first, moved, config = key("first"), key("moved"), key("config", "config.json")
    assert first == moved != config and str(tmp_path) not in json.dumps([first, config])
    weights, template = key("weights", "model.safetensors"), key("template", "chat_template.jinja")
    assert first not in (weights, template, key("words", "tokenizer.json"))
    # Nothing reads it.
    assert first == key("notes", "a.txt") == key("output", "compiled/genie_config.json")


def _same(received: Any, sent: Any) -> bool:
    fields = set(type(sent).model_fields) - sent.judged_later
    return all(_plain(getattr(received, name)) == _plain(getattr(sent, name)) for name in fields)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _gets_all(program: Any) -> bool:
    order = read(ProgramOrder, json.loads(json.dumps(to_json(program.order))))
    case = case_of(order)
    same = _same(case, program.case) and _same(case.runs[0], program.run)
    return same and (order.soc, Path(order.search_path)) == (program.soc, program.search_path)


def _gets_all_of_onnx(program: Any) -> bool:
    folders = dict.fromkeys(("log", "export_folder"), "folder")
    request = json.loads(json.dumps({**sent_request(request_of(program, NOTHING)), **folders}))
    order = OnnxOrder.of(read(OnnxRequest, request))
    same = _same(order.case, program.case) and _same(order.run, program.run)
    return same and order.run.settings(program.soc) == program.run.settings(program.soc)


def _gets_all_of_llm(program: Any) -> bool:
    request = json.loads(json.dumps(sent_request(_judge(program, Path("model")).request(program))))
    order, run = read(SuiteOrder, request).compiled, program.run
    wanted = (run.through, run.precision, run.parts, program.soc)
    return (order.through, order.precision, order.parts, order.soc) == wanted


@pytest.mark.parametrize(
    ("suites", "gets_all"),
    [(EXECUTORCH, _gets_all), (ONNX, _gets_all_of_onnx), (LLM, _gets_all_of_llm)],
    ids=["executorch", "onnx", "llm"],
)
def test_the_worker_gets_all_that_the_suite_says(suites: Any, gets_all: Callable[[Any], bool]) -> None:
    programs = suites.all_programs([])
    assert programs and [program.name for program in programs if not gets_all(program)] == []
