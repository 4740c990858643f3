"""Models trained and programs compiled and run by workers, and remembered by everything that they
depend on.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.closed import closed
from ci.engine.inputs import Digests, Roots, Touched, search_key
from ci.engine.installed import host_libraries, require_packages
from ci.engine.jobs import Job
from ci.engine.memo import Memo
from ci.engine.work import Done, Failure, empty_folder
from ci.engine.workers.parent import Gone, Setup, Worker
from ci.lanes.llm.suite import Program
from provisioning.base.commands import session
from provisioning.base.findings import Metric
from provisioning.components import QNN_SDK
from provisioning.environment import Environment

NEEDED = ("onnx", "onnxruntime", "onnxruntime_qnn", "tokenizers", "torch", "transformers")
MEMORY = 1500 << 20

PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""For training: by its own choice each kind of processor rounds otherwise, and so trains another model."""


def require_installed() -> None:
    require_packages(NEEDED, "nox -s test_llm makes .nox/llm, whose bin/python has it")


def environment() -> dict[str, str]:
    """The workers' environment."""
    variables = {
        **closed(os.environ),
        "HF_HUB_OFFLINE": "1",
        # More threads would add in another order, and so train another model.
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    # The provider and Genie bring their own QNN libraries, and no other SDK's may be found first.
    variables.pop("LD_LIBRARY_PATH", None)
    return variables


def executorch_environment(qnn_environment: Environment) -> dict[str, str]:
    """Of the workers that lower and run ExecuTorch's programs: with the profile's QNN."""
    return {**environment(), **qnn_environment.variables}


def setup_of(work: str, logs: Path, timeout: float, variables: Mapping[str, str] | None = None) -> Setup:
    return Setup(
        command=("-m", "ci.lanes.llm.worker", work),
        environment={**(variables or environment()), **(PORTABLE if work == "train" else {})},
        logs=logs,
        timeout=timeout,
        imports="executorch and transformers" if work == "lower" else "onnxruntime-qnn and transformers",
        fix="nox -s test_llm",
        forks=True,
    )


@dataclass(frozen=True)
class Common:
    """What tasks of one kind of worker have in common."""

    memo: Memo
    logs: Path
    timeout: float
    basis: Mapping[str, Metric]


@dataclass(frozen=True)
class ModelTask:
    """Training, or one program."""

    name: str
    common: Common
    inputs: Mapping[str, Metric]
    """Known before the work, beside those of `common`."""
    order: Mapping[str, Any]
    seconds: float
    """Expected."""
    keeps_files: bool
    """Whether the written files are the result."""
    keep: bool = False

    @property
    def key(self) -> Mapping[str, Metric]:
        return {**self.inputs, **self.common.basis}

    @property
    def memo(self) -> Memo:
        return self.common.memo

    @property
    def cost(self) -> Job:
        return Job(self.name, self.seconds, MEMORY)

    @property
    def group(self) -> str:
        return self.name

    @property
    def log(self) -> Path:
        return self.common.logs / f"{self.name}.log"

    def work(self, worker: Worker, shared: dict[str, Any]) -> Done | Failure:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        into = self.memo.scratch() if self.keeps_files else empty_folder(self.common.logs / self.name)
        order = {**self.order, "into": str(into.absolute()), "log": str(self.log.absolute())}
        reply = worker.ask({**order, "timeout": self.common.timeout})
        if error := reply.get("error"):
            shutil.rmtree(into, ignore_errors=True)
            code = error["exit_code"]
            return Failure(error["kind"], error["message"], error["fix"], self.log, exit_code=code)
        self.log.unlink(missing_ok=True)
        touched = Touched.of(reply.pop("touched"))
        if self.keeps_files:
            return Done(reply, touched, folder=into, own=(self.common.logs,))
        return Done(reply, touched, evidence=None if self.keep else into, own=(into, self.common.logs))

    def ended(self, gone: Gone, shared: Mapping[str, Any]) -> Failure:
        fix = "give it longer with --timeout" if gone.kind == "timeout" else session("diagnose", self.log)
        return Failure(gone.kind, gone.sentence(self.log), fix, self.log)


def basis_of(roots: Roots, store: Path, qnn_environment: Environment | None = None) -> dict[str, Metric]:
    """What work depends on beside its order; `qnn_environment` where ExecuTorch does it."""
    variables = executorch_environment(qnn_environment) if qnn_environment else environment()
    basis: dict[str, Metric] = {
        "python": f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}",
        **search_key(roots, variables),
    }
    if qnn_environment:
        basis["QNN"] = dict(host_libraries(qnn_environment.root(QNN_SDK).path, "compiles for the HTP", store))
    return basis


def training(case: str, common: Common) -> ModelTask:
    return ModelTask(f"{case}/model", common, {"what": "train"}, {"do": "train"}, 90.0, keeps_files=True)


def program_task(program: Program, common: Common, model: Path, weights: str, *, keep: bool) -> ModelTask:
    run, request = program.run, {name: program.request[name] for name in ("run", "soc")}
    order = {
        "do": run.through,
        **request,
        "model": str(model),
        "timeout": common.timeout,
    }
    inputs: dict[str, Metric] = {
        "what": "speak",
        **request,
        "weights": weights,
    }
    seconds = 90.0 if run.quantized else 60.0
    return ModelTask(program.name, common, inputs, order, seconds, keeps_files=False, keep=keep)


def compile_task(order: Mapping[str, Any], common: Common, store: Path) -> ModelTask:
    """A checkpoint of the user's."""
    digests, folder = Digests(store), Path(order["model"])
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors")]
    paths += [Path(order["calibrate"])] if order["calibrate"] else []
    files: dict[str, Metric] = {str(path): digests.of(str(path))[0] for path in paths}
    digests.save()
    inputs: dict[str, Metric] = {"what": "compile", "order": dict(order), "files": files}
    return ModelTask("compile", common, inputs, order, 60.0, keeps_files=True)
