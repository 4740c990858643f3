"""Models trained and programs compiled and run by workers, and cached by all that decides them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.cached_steps import Step, require_done
from ci.child import closed
from ci.digests import Digests
from ci.jobs import Job, WorkOptions
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    CompileOrder,
    JudgedText,
    MeasureOrder,
    Record,
    Rounded,
    SuiteOrder,
    Trained,
)
from ci.lanes.llm.prompts import TEMPLATE
from ci.lanes.llm.suite import LlmCase, LlmProgram, LlmRun
from ci.lanes.llm.tiny import CONFIG as TINY_CONFIG
from ci.lanes.llm.tiny import JUDGED, QUANTIZED_BY
from ci.lanes.llm.verdicts import findings_of, model_findings
from ci.outcome import Result
from ci.plain import as_json, read
from ci.results import Key
from ci.suite.findings import verdict
from ci.suite.installed import host_libraries, ready_environment, require_packages
from ci.suite.programs import NO_SUITE
from ci.suite.stage import Plan, run_cached_step
from ci.work import Home
from provisioning.base.commands import Fix, session
from provisioning.base.findings import Metric
from provisioning.base.settings import Selection
from provisioning.components import QNN_SDK
from provisioning.environment import Environment

WORKER = "ci.lanes.llm.worker"
NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn", "tokenizers", "torch", "transformers")
MEMORY = 1500 << 20
CONTEXT, PREFILL = int(TINY_CONFIG["max_position_embeddings"]), 32
"""Of a suite's programs."""
READ = (".json", ".safetensors")
COMPILED = (".bin", ".onnx", ".pte", ".pt2")
"""How the names of the files end that only `compile` writes."""

PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""For training: by its own choice each kind of processor rounds otherwise, and so trains another model."""


def require_installed() -> None:
    require_packages(NEEDED, Fix("{} makes .nox/llm, whose bin/python has it", ("test_llm",)))


def environment(qnn_environment: Environment | None = None) -> dict[str, str]:
    """The workers' environment; those that lower and run ExecuTorch's programs have the profile's QNN."""
    variables = {
        **closed(os.environ),
        "HF_HUB_OFFLINE": "1",
        # More threads would add in another order, and so train another model.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    # The provider and Genie bring their own QNN libraries, and no other SDK's may be found first.
    variables.pop("LD_LIBRARY_PATH", None)
    return {**variables, **qnn_environment.variables} if qnn_environment else variables


def home_of(work: str, logs: Path, variables: Mapping[str, str] | None = None) -> Home:
    """`work` is a function of worker.py."""
    return Home(
        {**(variables or environment()), **(PORTABLE if work == "train" else {})},
        logs,
        f"{WORKER}:{work}",
        "executorch and transformers" if work == "lower" else "onnxruntime-qnn and transformers",
        session("test_llm"),
    )


@dataclass(frozen=True, slots=True)
class LlmPlan(Plan):
    programs: tuple[LlmProgram, ...]
    qnn_environment: Environment | None
    """Of ExecuTorch's programs; Genie needs nothing that is provisioned."""

    @classmethod
    def of(cls, programs: Sequence[LlmProgram], selection: Selection, work: WorkOptions) -> LlmPlan:
        lowered = any(program.run.through == EXECUTORCH for program in programs)
        qnn_environment = ready_environment(selection, os.environ) if lowered else None
        logs = selection.reports.absolute() / "llm"
        return cls(tuple(programs), selection, work, logs, {}, qnn_environment)


def program_of(order: CompileOrder) -> LlmProgram:
    """Of a checkpoint of a command line, which no suite has."""
    folder = Path(order.model)
    words: dict[str, Any] = {"through": order.through, "precision": order.precision}
    run = LlmRun.model_construct(**words, socs=(order.soc,))
    case = LlmCase.model_construct(perplexity=math.inf, runs=(run,))
    return LlmProgram(folder / NO_SUITE, folder.name, case, run, order.soc)


def language_step(
    plan: LlmPlan,
    kind: str,
    title: str,
    *,
    request: Callable[[LlmProgram], Mapping[str, object]],
    key: Callable[[LlmProgram, Key], Key],
    by_executorch: bool = False,
    work: str = "",
    **more: Any,
) -> Step:
    """`work` is the function of worker.py that prepares its processes; `key` gets the QNN that ExecuTorch's
    programs are lowered with."""
    environment_ = plan.qnn_environment if by_executorch else None
    qnn: Key = {}
    if environment_:
        root = environment_.root(QNN_SDK).path
        qnn = {"QNN": dict(host_libraries(root, plan.selection.store))}
    home = home_of(work or ("lower" if environment_ else "generate"), plan.logs, environment(environment_))
    return Step(
        plan=plan,
        kind=kind,
        title=title,
        function=f"{WORKER}:answer",
        home=lambda own: home,
        request=request,
        key=lambda program, results: key(program, qnn),
        own_packages=False,
        **more,
    )


def _asked(what: str, order: CompileOrder | MeasureOrder | SuiteOrder) -> dict[str, object]:
    """The request of an order; the task itself says which folder is the result's."""
    request = {"do": what, **as_json(order)}
    request.pop("into", None)
    return request


def training(plan: LlmPlan) -> Step:
    """The float model of a case, from nothing: the same for all cases."""
    return language_step(
        plan,
        "llm-training",
        "models",
        work="train",
        request=lambda program: {"do": "train"},
        key=lambda program, qnn: {"what": "train", **qnn},
        cost=lambda program: Job(program.name, 90.0, MEMORY),
        accepts=lambda program, result: (
            not list(model_findings(program.case_name, program.case.perplexity, result))
        ),
        keeps_files=True,
    )


def reading(plan: LlmPlan, models: Mapping[str, Result]) -> Step:
    """What programs of a suite make of text, compiled for Genie. `models` are theirs by program."""
    return _reading(plan, models, "llm", "programs")


def reading_by_executorch(plan: LlmPlan, models: Mapping[str, Result]) -> Step:
    return _reading(plan, models, "llm-executorch", "programs of ExecuTorch", by_executorch=True)


def _reading(plan: LlmPlan, models: Mapping[str, Result], kind: str, title: str, **more: Any) -> Step:
    def key(program: LlmProgram, qnn: Key) -> Key:
        weights = read(Trained, models[program.name].facts).weights
        order = program.order
        return {"what": "judge", "run": {**order.run}, "soc": order.soc, "weights": weights, **qnn}

    def request(program: LlmProgram) -> Mapping[str, object]:
        model, run = models[program.name].folder, program.run
        assert model is not None
        order = SuiteOrder(
            compiled=CompileOrder(
                model=str(model),
                through=run.through,
                soc=program.soc,
                precision=run.precision,
                context=CONTEXT,
                prefill=PREFILL,
                parts=run.parts,
                calibration=[],
            ),
            calibrate=str(model / QUANTIZED_BY),
            judged=str(model / JUDGED),
            timeout=plan.work.timeout,
        )
        return _asked("suite", order)

    return language_step(
        plan,
        kind,
        title,
        request=request,
        key=key,
        cost=lambda program: Job(program.name, 60.0 if program.run.precision == "fp16" else 90.0, MEMORY),
        accepts=lambda program, result: verdict(list(findings_of(program, result))) == "pass",
        **more,
    )


def source_of(order: CompileOrder, store: Path) -> dict[str, str]:
    """Digests of all that a compile may read of a checkpoint and of its adapter, by name."""
    folders = {"": order.model, **({"the adapter's ": order.adapter} if order.adapter else {})}
    return digests_of(
        store,
        {
            f"{whose}{path.name}": path
            for whose, folder in folders.items()
            for path in sorted(Path(folder).iterdir())
            if path.suffix in READ or path.name == TEMPLATE
        },
    )


def changed_files(folder: Path, record: Record, store: Path) -> list[str]:
    """Binaries and graphs that are not what `compile` wrote, by its record."""
    written = {name: digest for name, digest in record.files.items() if name.endswith(COMPILED)}
    there = {name: folder / name for name in written if (folder / name).is_file()}
    found = digests_of(store, there)
    return [name for name, digest in written.items() if found.get(name) != digest]


def digests_of(store: Path, paths: Mapping[str, Path]) -> dict[str, str]:
    digests = Digests(store)
    found = {name: digests.of(path) for name, path in paths.items()}
    digests.save()
    return found


def compiling(plan: LlmPlan, order: CompileOrder) -> Step:
    return language_step(
        plan,
        "llm-compile",
        "language models",
        request=lambda program: _asked("compile" if order.through == GENIE else "lower", order),
        key=lambda program, qnn: {"what": "compile", **_read(plan, program, order), **qnn},
        by_executorch=True,
        cost=lambda program: Job(program.name, 60.0, MEMORY),
        keeps_files=True,
    )


def measuring_rounding(plan: LlmPlan, order: CompileOrder, text: JudgedText) -> Step:
    """What rounding alone costs a checkpoint of the user's, by transformers' own model."""

    def key(program: LlmProgram, qnn: Key) -> Key:
        # The chip and how weights are stored change nothing.
        read = _read(plan, program, replace(order, soc="", shared=False))
        return {"what": "rounding", **read, "text": _digest(as_json(text)), **qnn}

    return language_step(
        plan,
        "llm-rounding",
        "rounding",
        request=lambda program: _asked("rounding", MeasureOrder(compiled=order, text=text)),
        key=key,
        by_executorch=True,
        cost=lambda program: Job(program.name, 60.0, MEMORY),
    )


def _read(plan: LlmPlan, program: LlmProgram, order: CompileOrder) -> Key:
    """An order by what is in its files, wherever they are."""
    files: dict[str, Metric] = {**source_of(order, plan.selection.store)}
    if order.calibration:
        files["the text to calibrate by"] = _digest(order.calibration)
    rest = as_json(replace(order, model="", adapter="", calibration=[], into=""))
    return {"name": program.case_name, "order": rest, "files": files}


def measured_rounding(order: CompileOrder, text: JudgedText, selection: Selection, timeout: float) -> Rounded:
    """Of a checkpoint of the user's, unless it is cached."""
    program = program_of(order)
    plan = LlmPlan.of([program], selection, WorkOptions(timeout=timeout, jobs=1))
    [result] = run_cached_step(measuring_rounding(plan, order, text), [program]).values()
    return read(Rounded, require_done(result).facts)


def _digest(tokens: object) -> str:
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()
