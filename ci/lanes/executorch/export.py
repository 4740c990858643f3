"""Builds and exports a case's model once, and says what the cache knows it by and what its programs are made
of."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ci.lanes.executorch.orders import ExportedRun, ExportedRuns, ExportRequest
from ci.lanes.executorch.suite import ExecutorchCase, ExecutorchRun, case_of, chosen_for
from ci.models.compiler_errors import explain_error
from ci.models.exported import NoDigest, digest_of
from ci.models.factory import ModelWithInputs, copy_sample, find, inputs_named, make
from ci.models.inputs import InputsUsed
from ci.models.model_lines import source_of, users_line
from ci.models.user_model import BadFactory, modules_in
from ci.suite.programs import ProgramOrder
from ci.work.child import doing, error_reply, loaded_libraries, reporting
from ci.work.plain import reader, to_json
from provisioning.base.findings import Metric
from provisioning.base.settings import ROOT

FLAGS = (
    "get_default_dtype",
    "is_grad_enabled",
    "are_deterministic_algorithms_enabled",
    "get_float32_matmul_precision",
    "get_num_threads",
)
"""These functions of torch read settings that a model's code may change, and that decide how the rest is
computed."""


@dataclass
class ExportedCase:
    subject: ModelWithInputs
    _programs: list[tuple[tuple[Tensor, ...], Any]] = field(default_factory=list)
    _outputs: dict[str, list[list[Tensor]]] = field(default_factory=dict)

    @classmethod
    def of(cls, case: ExecutorchCase, search_path: Path) -> ExportedCase:
        doing("load")
        inputs = inputs_named(case.samples, case.inputs, search_path)
        subject = make(case.factory, case.arguments, search_path, inputs, non_finite=case.non_finite)
        torch.set_grad_enabled(False)
        subject.model.requires_grad_(False)
        return cls(subject)

    def float_outputs(self, samples: Sequence[tuple[Tensor, ...]]) -> list[list[Tensor]]:
        """Return the float model's outputs."""
        name = digest_of_tensors(samples)
        if name not in self._outputs:
            doing("run on CPU")
            self._outputs[name] = self.subject.outputs(samples)
        return self._outputs[name]

    def program(self, sample: tuple[Tensor, ...]) -> Any:
        """Return the program that torch exports with this sample; alike samples share one."""
        for inputs, program in self._programs:
            if _are_alike(inputs, sample):
                return program
        doing("export")
        program = torch.export.export(self.subject.model, copy_sample(sample), strict=True)
        self._programs.append((sample, program))
        return program


cases: list[ExportedCase] = []
"""This process has exported this case; its forks compile it."""


@dataclass(frozen=True)
class ChipModel:
    """Holds a case's model as one run compiles it for a chip, with its samples."""

    exported: ExportedCase
    case: ExecutorchCase
    run: ExecutorchRun
    soc: str
    search_path: Path
    compared: Sequence[tuple[Tensor, ...]]
    calibrating: Sequence[tuple[Tensor, ...]]
    used: InputsUsed

    @classmethod
    def of(cls, order: ProgramOrder) -> ChipModel:
        """Return the model of the order's case, which this process may have exported already."""
        case, search_path = case_of(order), Path(order.search_path)
        exported, run = cases[0] if cases else ExportedCase.of(case, search_path), case.runs[0]
        return cls(exported, case, run, order.soc, search_path, *chosen_for(exported.subject, case, run))

    @property
    def model(self) -> Any:
        return self.exported.subject.model

    @property
    def sample(self) -> tuple[Tensor, ...]:
        return self.compared[0]

    @property
    def backend(self) -> str:
        return self.run.backend or self.case.backend

    @property
    def float_outputs(self) -> list[list[Tensor]]:
        """Return the float model's outputs."""
        return self.exported.float_outputs(self.compared)

    def at(self, precision: str) -> ChipModel:
        return replace(self, run=self.run.model_copy(update={"precision": precision}))


def _export_runs(request: ExportRequest) -> ExportedRuns:
    """Return what each program depends on of the model, and the line of each node."""
    os.chdir(request.working_folder)
    runs = dict[str, ExportedRun]()
    lines: dict[str, tuple[str, str]] = {}
    for name, run in request.runs.items():
        order = replace(request, run=run, run_of_model={})
        if not cases:
            cases.append(ExportedCase.of(case_of(order), Path(order.search_path)))
        try:
            runs[name] = _exported_run(ChipModel.of(order), lines)
        except BadFactory as error:
            more = {"fix": error.fix, "missing": error.missing}
            runs[name] = ExportedRun(error=error_reply("factory", str(error), **more))
    return ExportedRuns(
        runs=runs,
        lines=lines,
        modules=tuple(modules_in(Path(request.search_path))),
        libraries=tuple(loaded_libraries()),
    )


def _exported_run(chip_model: ChipModel, lines: dict[str, tuple[str, str]]) -> ExportedRun:
    run = chip_model.run
    rows: dict[str, Metric] = {
        "samples": digest_of_tensors(chip_model.compared),
        "calibration": digest_of_tensors(chip_model.calibrating),
        "used": asdict(chip_model.used),
        "notes": [list(note) for note in chip_model.exported.subject.notes],
        "float outputs": digest_of_tensors(chip_model.float_outputs),
        "torch": _flags(),
    }
    try:
        program = chip_model.exported.program(chip_model.sample)
        lines |= {node.name: source_of(node) for node in program.graph.nodes if node.op == "call_function"}
        rows["model"] = digest_of(program)
        if run.annotations:
            rows["annotations"] = _annotations(run, chip_model.search_path)
    except NoDigest as error:
        return ExportedRun(not_cached=str(error))
    except BadFactory:
        raise
    except Exception as error:
        # Its compile exports it again, and says what is wrong.
        return ExportedRun(not_cached=f"it cannot be exported: {type(error).__name__}", exported=False)
    return ExportedRun(rows)


def _flags() -> dict[str, Metric]:
    flags = {name: getattr(torch, name)() for name in FLAGS}
    return {name: str(value) for name, value in {**flags, "mkldnn": torch.backends.mkldnn.enabled}.items()}


def _annotations(run: ExecutorchRun, search_path: Path) -> dict[str, Metric]:
    """Return the modules that its functions are defined in. Raises NoDigest if one lies outside the suite's
    folder."""
    before = set(sys.modules)
    for name in run.annotations:
        find(name, search_path)
    roots = [Path(folder).resolve() for folder in (sys.prefix, sys.base_prefix, ROOT)]
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        path = Path(file).resolve() if file else None
        if path and not any(path.is_relative_to(root) for root in (*roots, search_path.resolve())):
            raise NoDigest(f"its annotations import {path}, which is not in the suite's folder")
    return {
        path.relative_to(search_path).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in map(Path, modules_in(search_path))
    }


def digest_of_tensors(inferences: Sequence[Sequence[Tensor]]) -> str:
    digest = sha256()
    for number, tensors in enumerate(inferences):
        for index, tensor in enumerate(tensors):
            digest.update(f"{number} {index} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _are_alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether torch exports the same program for both: an export does not depend on the inputs' values."""

    def kinds(sample: Sequence[Tensor]) -> list[object]:
        return [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in sample]

    return kinds(one) == kinds(other)


class Failed(Exception):
    """Reports a failed step of lowering; `step` names the finding, `source` the model's line, FILE:LINE."""

    def __init__(self, step: str, message: str, fix: str = "", source: str = "") -> None:
        super().__init__(message)
        self.step, self.fix, self.source = step, fix, source


def error_of(error: Exception, order: Mapping[str, object]) -> dict[str, object]:
    if isinstance(error, BadFactory):
        return {"kind": "factory", "message": str(error), "fix": error.fix, "missing": error.missing}
    if isinstance(error, Failed):
        return {"kind": error.step, "message": str(error), "fix": error.fix, "source": error.source}
    message, fix = explain_error(error)
    line = users_line(traceback.extract_tb(error.__traceback__)).strip(" ()")
    return {"kind": "compile", "message": message[:2000], "fix": fix or (f"correct {line}" if line else "")}


_request_of = reader(ExportRequest)
export = reporting(lambda order: to_json(_export_runs(_request_of(order))), error_of)
