"""Models trained and programs compiled and run by workers, and cached by all that decides them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ci.closed import closed
from ci.digests import Digests
from ci.jobs import Job
from ci.lanes.llm.prompts import TEMPLATE
from ci.lanes.llm.suite import LlmProgram
from ci.lanes.llm.verdicts import findings_of, model_findings
from ci.models.own_packages import OwnPackages
from ci.outcome import Result
from ci.results import CachedResults, Key
from ci.suite.cached_steps import CachedStep
from ci.suite.findings import verdict
from ci.suite.installed import host_libraries, require_packages
from ci.suite.stage import AnyPlan
from ci.work import Home
from provisioning.base.commands import Fix, session
from provisioning.base.findings import Metric
from provisioning.components import QNN_SDK
from provisioning.environment import Environment

WORKER = "ci.lanes.llm.worker"
NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn", "tokenizers", "torch", "transformers")
MEMORY = 1500 << 20
WEIGHTS = ".safetensors"
CONFIGS = ("config.json", "adapter_config.json")
TOOLKIT = "this toolkit"
READ = (".json", WEIGHTS)
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
class LlmPlan(AnyPlan[LlmProgram]):
    qnn_environment: Environment | None
    """Of ExecuTorch's programs; Genie needs nothing that is provisioned."""


@dataclass(frozen=True)
class LanguageStep(CachedStep[LlmProgram]):
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
class Generate(LanguageStep):
    """What a compiled model says, through Genie."""

    kind = "llm"
    title = "texts"

    models: Mapping[str, Result]
    """By program."""

    def key(self, program: LlmProgram, results: CachedResults) -> Key:
        weights = str(self.models[program.name].facts["weights"])
        return {"what": "generate", **_asked(program), "weights": weights, **self.qnn}

    def cost(self, program: LlmProgram) -> Job:
        return Job(program.name, 90.0 if program.run.quantized else 60.0, MEMORY)

    def request(self, program: LlmProgram) -> Mapping[str, Any]:
        model = str(self.models[program.name].folder)
        return {"do": program.run.through, **_asked(program), "model": model, "timeout": self.timeout}

    def accepts(self, program: LlmProgram, result: Result) -> bool:
        return verdict(list(findings_of(program, result))) == "pass"


@dataclass(frozen=True)
class GenerateByExecutorch(Generate):
    kind = "llm-executorch"
    title = "texts through ExecuTorch"
    by_executorch = True


def digests_of_checkpoint(folder: Path, store: Path) -> dict[str, str]:
    """Of all that a compile may read, by name."""
    paths = (path for path in sorted(folder.iterdir()) if path.suffix in READ or path.name == TEMPLATE)
    return digests_of(store, {path.name: path for path in paths})


def float_of(folder: Path, adapter: str, store: Path) -> dict[str, str]:
    """Digests of what a checkpoint's float is computed from, with that of its adapter: tensors, what says how
    they are used, and our own code, which rounds them."""
    folders = {"": folder} | ({"the adapter's ": Path(adapter)} if adapter else {})
    read = {
        f"{whose}{name}": digest
        for whose, place in folders.items()
        for name, digest in digests_of_checkpoint(place, store).items()
        if name.endswith(WEIGHTS) or name in CONFIGS
    }
    code = digests_of(store, {path.name: path for path in sorted(Path(__file__).parent.glob("*.py"))})
    return {**read, TOOLKIT: hashlib.sha256(json.dumps(code).encode()).hexdigest()}


def changed_files(folder: Path, record: Mapping[str, Any], store: Path) -> list[str]:
    """Binaries and graphs that are not what `compile` wrote, by its record."""
    written = {name: digest for name, digest in record["files"].items() if name.endswith(COMPILED)}
    there = {name: folder / name for name in written if (folder / name).is_file()}
    found = digests_of(store, there)
    return [name for name, digest in written.items() if found.get(name) != digest]


def digests_of(store: Path, paths: Mapping[str, Path]) -> dict[str, str]:
    digests = Digests(store)
    found = {name: digests.of(str(path))[0] for name, path in paths.items()}
    digests.save()
    return found


def _asked(program: LlmProgram) -> dict[str, Any]:
    return {name: program.request[name] for name in ("run", "soc")}


@dataclass(frozen=True)
class CompileCheckpoint(LanguageStep):
    kind = "llm-compile"
    title = "language models"
    keeps_files = by_executorch = True

    what: ClassVar[str] = "compile"
    order: Mapping[str, Any]

    def key(self, program: LlmProgram, results: CachedResults) -> Key:
        store, request = self.plan.selection.store, dict(self.order)
        # By what is in them, wherever they are.
        files: dict[str, Metric] = {**digests_of_checkpoint(Path(request.pop("model")), store)}
        if adapter := request.pop("adapter"):
            of_adapter = digests_of_checkpoint(Path(adapter), store)
            files |= {f"the adapter's {name}": digest for name, digest in of_adapter.items()}
        if text := request.pop("calibrate", ""):
            files["the text to calibrate by"] = digests_of(store, {text: Path(text)})[text]
        rest = {"order": request, "files": files, **self.qnn}
        return {"what": self.what, "name": program.case_name, **rest}

    def cost(self, program: LlmProgram) -> Job:
        return Job(program.name, 60.0, MEMORY)

    def request(self, program: LlmProgram) -> Mapping[str, Any]:
        return self.order


@dataclass(frozen=True)
class MeasureRounding(CompileCheckpoint):
    """What rounding alone costs a checkpoint of the user's, by transformers' own model."""

    kind = "llm-rounding"
    title = "rounding"
    keeps_files = False
    what = "rounding"
