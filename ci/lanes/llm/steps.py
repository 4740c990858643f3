"""The steps of this lane: each is a piece of work of a worker process, which trains a model, compiles it or
measures it.

`LlmPlan` is what all steps of a run share, `language_step` makes one of them. What the stage thinks of the
results is in `stage`, what `compile` writes in `product`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    CheckpointRequest,
    CompileOrder,
    CompilingRequest,
    JudgeRequest,
    Qnn,
    Record,
    Trained,
    TrainRequest,
)
from ci.lanes.llm.suite import LlmCase, LlmProgram, LlmRun
from ci.lanes.llm.tiny import CONFIG as TINY_CONFIG
from ci.lanes.llm.tokenizer import TEMPLATE
from ci.lanes.llm.verdicts import findings_of, model_findings
from ci.lanes.llm.weights import shards_named
from ci.suite.findings import verdict
from ci.suite.programs import NO_SUITE
from ci.suite.ready_environment import host_libraries, ready_environment, require_packages
from ci.suite.stage import Plan, packages_of
from ci.work import (
    Digests,
    Folder,
    Home,
    Job,
    Result,
    Step,
    WorkOptions,
    closed_environment,
    names_below,
    read,
)
from provisioning.base.commands import Fix, session
from provisioning.base.settings import Selection
from provisioning.components import QNN_SDK
from provisioning.environment import Environment

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WORKER = "ci.lanes.llm.worker"
NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn", "tokenizers", "torch", "transformers")
MEMORY = 1500 << 20
CONTEXT, PREFILL = int(TINY_CONFIG["max_position_embeddings"]), 32
"""A suite's programs have this context, and prefill reads this many tokens at once."""
READ = (".json", ".safetensors", TEMPLATE)
"""Files of a checkpoint are read if their names end like this."""
PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""Training sets these, because each kind of processor otherwise rounds in its own way, and so trains another
model."""


def require_installed() -> None:
    require_packages(NEEDED, Fix("{} makes .nox/llm, whose bin/python has it", ("test_llm",)))


def environment(qnn_environment: Environment | None = None) -> dict[str, str]:
    """Return the workers' environment; it has the profile's QNN if they lower and run ExecuTorch's
    programs."""
    variables = {
        **closed_environment(os.environ),
        "HF_HUB_OFFLINE": "1",
        # More threads would add in another order, and so train another model.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    # The provider and Genie bring their own QNN libraries, and no other SDK's may be found first.
    variables.pop("LD_LIBRARY_PATH", None)
    return {**variables, **qnn_environment.variables} if qnn_environment else variables


def home_of(prepare: str, logs: Path, variables: Mapping[str, str] | None = None) -> Home:
    """Return what the processes start from; `prepare` names a function of worker.py."""
    return Home(
        {**(variables or environment()), **(PORTABLE if prepare == "train" else {})},
        logs,
        f"{WORKER}:{prepare}",
        "executorch and transformers" if prepare == "lower" else "onnxruntime-qnn and transformers",
        session("test_llm"),
    )


@dataclass(frozen=True, slots=True)
class LlmPlan(Plan):
    programs: tuple[LlmProgram, ...]
    qnn_environment: Environment | None
    """ExecuTorch's programs need this; Genie needs nothing that is provisioned."""

    @classmethod
    def of(cls, programs: Sequence[LlmProgram], selection: Selection, work: WorkOptions) -> LlmPlan:
        needs_executorch = any(program.run.through == EXECUTORCH for program in programs)
        qnn_environment = ready_environment(selection, os.environ) if needs_executorch else None
        logs = selection.reports.absolute() / "llm"
        packages = packages_of(programs, selection.store)
        return cls(tuple(programs), selection, work, logs, packages, qnn_environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(LlmProgram):
    """Stands for a checkpoint of a command line, which no suite has, as a program."""

    compiled: CompileOrder


def checkpoint_of(order: CompileOrder) -> Checkpoint:
    folder = Path(order.model)
    words: dict[str, Any] = {"through": order.through, "precision": order.precision}
    run = LlmRun.model_construct(**words, socs=(order.soc,))
    case = LlmCase.model_construct(perplexity=math.inf, runs=(run,))
    return Checkpoint(folder / NO_SUITE, folder.name, case, run, order.soc, compiled=order)


def language_step(
    plan: LlmPlan,
    kind: str,
    title: str,
    *,
    request: Callable[[LlmProgram, Qnn], DataclassInstance],
    by_executorch: bool = False,
    prepare: str = "",
    **more: Any,
) -> Step[LlmProgram]:
    """Return a step of this lane. `prepare` is the function of worker.py that prepares its processes;
    `request` gets the QNN that ExecuTorch's programs are lowered with."""
    qnn_environment = plan.qnn_environment if by_executorch else None
    qnn: Qnn = {}
    if qnn_environment:
        qnn = host_libraries(qnn_environment.root(QNN_SDK).path, plan.selection.store)
    home = home_of(
        prepare or ("lower" if qnn_environment else "generate"), plan.logs, environment(qnn_environment)
    )
    return Step(
        plan=plan,
        kind=kind,
        title=title,
        function=f"{WORKER}:answer",
        home=lambda own: home,
        request=lambda program: request(program, qnn),
        **more,
    )


def training(plan: LlmPlan) -> Step[LlmProgram]:
    """Return the step that trains a case's float model from scratch; all cases get the same one."""
    return language_step(
        plan,
        "llm-training",
        "models",
        prepare="train",
        request=lambda program, qnn: TrainRequest("train"),
        cost=lambda program: Job(program.name, 90.0, MEMORY),
        keeps=lambda program, result: (
            not list(model_findings(program.case_name, program.case.perplexity, result))
        ),
        keeps_files=True,
    )


def measuring(plan: LlmPlan, models: Mapping[str, Result], through: str = GENIE) -> Step[LlmProgram]:
    """Return the step that compiles a suite's programs and measures how well they read text. `models` has the
    float model of each program."""

    def request(program: LlmProgram, qnn: Qnn) -> JudgeRequest:
        model, run = models[program.name], program.run
        assert model.folder is not None
        compiled = CheckpointRequest(
            model=Folder(str(model.folder), known_by=read(Trained, model.facts).weights),
            through=run.through,
            soc=program.soc,
            precision=run.precision,
            context=CONTEXT,
            prefill=PREFILL,
            parts=run.parts,
            calibration=[],
        )
        return JudgeRequest("suite", compiled, {**program.order.run}, qnn, plan.work.timeout)

    return language_step(
        plan,
        "llm" if through == GENIE else "llm-executorch",
        f"programs through {through}",
        request=request,
        by_executorch=through == EXECUTORCH,
        cost=lambda program: Job(program.name, 60.0 if program.run.precision == "fp16" else 90.0, MEMORY),
        keeps=lambda program, result: verdict(list(findings_of(program, result))) == "pass",
    )


def source_of(order: CompileOrder, store: Path) -> dict[str, str]:
    """Return the digests of all files of a checkpoint that a compile may read, by name."""
    paths = {name: Path(order.model, name) for name in names_below(checkpoint_folder(order.model))}
    return digests_of(store, paths)


def checkpoint_folder(model: str) -> Folder:
    return Folder(model, READ, is_flat=True, also=shards_named(Path(model)))


def changed_files(folder: Path, record: Record, store: Path) -> list[str]:
    """Return the files that differ from what `compile` wrote, by its record."""
    present = {name: folder / name for name in record.files if (folder / name).is_file()}
    digests = digests_of(store, present)
    return [name for name, digest in record.files.items() if digests.get(name) != digest]


def digests_of(store: Path, paths: Mapping[str, Path]) -> dict[str, str]:
    digests = Digests(store)
    by_name = {name: digests.of(path) for name, path in paths.items()}
    digests.save()
    return by_name


def compiling(plan: LlmPlan, order: CompileOrder) -> Step[LlmProgram]:
    """Return the step that compiles. The cache knows the result by the contents of the order's files,
    wherever they are."""

    def request(program: LlmProgram, qnn: Qnn) -> CompilingRequest:
        return CompilingRequest(
            do="compile" if order.through == GENIE else "lower",
            name=program.case_name,
            model=checkpoint_folder(order.model),
            through=order.through,
            soc=order.soc,
            precision=order.precision,
            context=order.context,
            prefill=order.prefill,
            parts=order.parts,
            calibration=order.calibration,
            qnn=qnn,
        )

    return language_step(
        plan,
        "llm-compile",
        "language models",
        request=request,
        by_executorch=True,
        cost=lambda program: Job(program.name, 60.0, MEMORY),
        keeps_files=True,
    )
