"""Models trained and programs compiled and run by workers, and cached by all that decides them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ci.cached_steps import require_done
from ci.closed import closed
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
from ci.models.own_packages import OwnPackages
from ci.outcome import Result
from ci.plain import as_json, read
from ci.results import CachedResults, Key
from ci.suite.findings import verdict
from ci.suite.installed import host_libraries, ready_environment, require_packages
from ci.suite.program_steps import ProgramStep, run_cached_step
from ci.suite.programs import NO_SUITE
from ci.suite.stage import Plan
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


@dataclass(frozen=True)
class LanguageStep(ProgramStep):
    own_packages = False
    function = f"{WORKER}:answer"

    plan: LlmPlan

    by_executorch: ClassVar[bool] = False

    @property
    def work(self) -> str:
        """The function of worker.py that prepares its processes."""
        return "lower" if self.qnn_environment else "generate"

    @property
    def qnn_environment(self) -> Environment | None:
        return self.plan.qnn_environment if self.by_executorch else None

    def home(self, own: OwnPackages) -> Home:
        return home_of(self.work, self.plan.logs, environment(self.qnn_environment))

    @property
    def qnn(self) -> Key:
        """The QNN that ExecuTorch's programs are lowered with."""
        if not self.qnn_environment:
            return {}
        root = self.qnn_environment.root(QNN_SDK).path
        return {"QNN": dict(host_libraries(root, self.plan.selection.store))}


def _asked(what: str, order: CompileOrder | MeasureOrder | SuiteOrder) -> dict[str, Any]:
    """The request of an order; the task itself says which folder is the result's."""
    request = {"do": what, **as_json(order)}
    request.pop("into", None)
    return request


@dataclass(frozen=True)
class Train(LanguageStep):
    """The float model of a case, from nothing: the same for all cases."""

    kind = "llm-training"
    title = "models"
    work = "train"
    keeps_files = True

    def key(self, program: LlmProgram, results: CachedResults) -> Key:
        return {"what": "train", **self.qnn}

    def cost(self, program: LlmProgram) -> Job:
        return Job(program.name, 90.0, MEMORY)

    def request(self, program: LlmProgram) -> Mapping[str, Any]:
        return {"do": "train"}

    def accepts(self, program: LlmProgram, result: Result) -> bool:
        return not list(model_findings(program.case_name, program.case.perplexity, result))


@dataclass(frozen=True)
class ReadPrograms(LanguageStep):
    """What a program of a suite makes of text, compiled for Genie."""

    kind = "llm"
    title = "programs"

    models: Mapping[str, Result]
    """By program."""

    def key(self, program: LlmProgram, results: CachedResults) -> Key:
        weights = read(Trained, self.models[program.name].facts).weights
        asked = {name: program.request[name] for name in ("run", "soc")}
        return {"what": "judge", **asked, "weights": weights, **self.qnn}

    def cost(self, program: LlmProgram) -> Job:
        return Job(program.name, 90.0 if program.run.precision != "fp16" else 60.0, MEMORY)

    def request(self, program: LlmProgram) -> Mapping[str, Any]:
        model, run = self.models[program.name].folder, program.run
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
            timeout=self.timeout,
        )
        return _asked("suite", order)

    def accepts(self, program: LlmProgram, result: Result) -> bool:
        return verdict(list(findings_of(program, result))) == "pass"


@dataclass(frozen=True)
class ReadExecutorchPrograms(ReadPrograms):
    kind = "llm-executorch"
    title = "programs of ExecuTorch"
    by_executorch = True


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
    found = {name: digests.of(str(path))[0] for name, path in paths.items()}
    digests.save()
    return found


@dataclass(frozen=True)
class CompileCheckpoint(LanguageStep):
    kind = "llm-compile"
    title = "language models"
    keeps_files = by_executorch = True

    order: CompileOrder

    def key(self, program: LlmProgram, results: CachedResults) -> Key:
        return {"what": "compile", **self._read(program, self.order), **self.qnn}

    def _read(self, program: LlmProgram, order: CompileOrder) -> Key:
        """An order by what is in its files, wherever they are."""
        files: dict[str, Metric] = {**source_of(order, self.plan.selection.store)}
        if order.calibration:
            files["the text to calibrate by"] = _digest(order.calibration)
        rest = as_json(replace(order, model="", adapter="", calibration=[], into=""))
        return {"name": program.case_name, "order": rest, "files": files}

    def cost(self, program: LlmProgram) -> Job:
        return Job(program.name, 60.0, MEMORY)

    def request(self, program: LlmProgram) -> Mapping[str, Any]:
        return _asked("compile" if self.order.through == GENIE else "lower", self.order)


@dataclass(frozen=True)
class MeasureRounding(CompileCheckpoint):
    """What rounding alone costs a checkpoint of the user's, by transformers' own model."""

    kind = "llm-rounding"
    title = "rounding"
    keeps_files = False

    text: JudgedText

    def key(self, program: LlmProgram, results: CachedResults) -> Key:
        # The chip and how weights are stored change nothing.
        order = replace(self.order, soc="", shared=False)
        read = {**self._read(program, order), "text": _digest(as_json(self.text))}
        return {"what": "rounding", **read, **self.qnn}

    def request(self, program: LlmProgram) -> Mapping[str, Any]:
        return _asked("rounding", MeasureOrder(compiled=self.order, text=self.text))


def measured_rounding(order: CompileOrder, text: JudgedText, selection: Selection, timeout: float) -> Rounded:
    """Of a checkpoint of the user's, unless it is cached."""
    program = program_of(order)
    plan = LlmPlan.of([program], selection, WorkOptions(timeout=timeout, jobs=1))
    [result] = run_cached_step(MeasureRounding(plan, order, text), [program]).values()
    return read(Rounded, require_done(result).facts)


def _digest(tokens: object) -> str:
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()
