"""Build and export a case's model once, for all programs that are made of it.

`ExportedCase` is the model with its samples and float outputs; `ChipModel` is the same for one run and chip.
Errors say which step failed, with the line of the model."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ci.lanes.executorch import BROKEN
from ci.lanes.executorch.suite import ExecutorchCase, ExecutorchRun, case_of, chosen_for
from ci.models.compiler_errors import explain_error
from ci.models.factory import ChosenSamples, ModelWithInputs, make
from ci.models.inference import copy_sample
from ci.models.inputs import InputsUsed
from ci.models.model_lines import users_line
from ci.models.model_samples import inputs_named
from ci.models.user_model import BadFactory
from ci.suite.programs import ProgramOrder
from ci.work import doing, to_json


@dataclass
class ExportedCase:
    subject: ModelWithInputs
    annotated: dict[tuple[str, str], str] = field(default_factory=dict)
    """Maps a run and a chip to the digest of what the run's annotations made of the model."""
    annotated_with: set[str] = field(default_factory=set)
    """The annotations imported these files."""
    not_repeated: str = ""
    """Says what this process did otherwise than the one that made the digest."""
    _samples: dict[tuple[int | None, int | None], ChosenSamples] = field(default_factory=dict)
    _programs: list[tuple[tuple[Tensor, ...], ExportedProgram]] = field(default_factory=list)
    _outputs: dict[str, list[list[Tensor]]] = field(default_factory=dict)

    @classmethod
    def of(cls, case: ExecutorchCase, search_path: Path) -> ExportedCase:
        doing("load")
        inputs = inputs_named(case.samples, case.inputs, search_path)
        subject = make(case.factory, case.arguments, search_path, inputs, non_finite=case.non_finite)
        torch.set_grad_enabled(False)
        subject.model.requires_grad_(False)
        if case.fold_constants:
            # Imported late: few models ask for it, and it imports every rewrite.
            from ci.lanes.executorch.folding import fold_constants

            subject = fold_constants(subject)
        return cls(subject)

    def samples(self, case: ExecutorchCase, run: ExecutorchRun) -> ChosenSamples:
        """Return the samples of a run. They are read once: what a user's function draws a second time may be
        something else."""
        wanted = case.inferences, run.calibration if run.quantizes else 0
        if wanted not in self._samples:
            self._samples[wanted] = chosen_for(self.subject, case, run)
        return self._samples[wanted]

    def float_outputs(self, samples: Sequence[tuple[Tensor, ...]]) -> list[list[Tensor]]:
        """Return the float model's outputs."""
        name = digest_of_tensors(samples)
        if name not in self._outputs:
            doing("run on CPU")
            self._outputs[name] = self.subject.outputs(samples)
        return self._outputs[name]

    def program(self, sample: tuple[Tensor, ...]) -> ExportedProgram:
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
        return cls(exported, case, run, order.soc, search_path, *exported.samples(case, run))

    @property
    def model(self) -> nn.Module:
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

    @property
    def name(self) -> tuple[str, str]:
        """Name the run and the chip."""
        return self.run.model_dump_json(), self.soc

    def at(self, precision: str) -> ChipModel:
        return replace(self, run=self.run.model_copy(update={"precision": precision}))


def digest_of_tensors(inferences: Sequence[Sequence[Tensor]]) -> str:
    digest = sha256()
    for number, tensors in enumerate(inferences):
        for index, tensor in enumerate(tensors):
            digest.update(f"{number} {index} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
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
    step = _step_of(error.__cause__ if isinstance(error, Failed) else error)
    if isinstance(error, Failed):
        return {"kind": error.step, "message": str(error), "fix": error.fix, "source": error.source, **step}
    message, fix = explain_error(error)
    line = users_line(traceback.extract_tb(error.__traceback__)).strip(" ()")
    fix = fix or (f"correct {line}" if line else "")
    return {"kind": "compile", "message": message[:2000], "fix": fix, **step}


def _step_of(error: BaseException | None) -> dict[str, object]:
    """Return the detail of an error that says which step of the compiler raised it; none if no step did."""
    if error is None:
        return {}
    # Imported late: an export needs none of ExecuTorch.
    from ci.lanes.executorch.raised_step import step_that_raised

    broken = step_that_raised(error)
    return {} if broken is None else {BROKEN: to_json(broken)}
