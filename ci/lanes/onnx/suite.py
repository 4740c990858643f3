"""The suite of this lane says which models are compiled through ONNX Runtime, in which precision, and for
which chips."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, field_validator, model_validator

from ci.lanes.onnx.model_options import OnnxOptions
from ci.lanes.onnx.options import Settings, settings_of, texts_of
from ci.models.inputs import Input, most_calibrating
from ci.models.wheels import PREFIX
from ci.suite.precision import PRECISIONS, precision_named
from ci.suite.programs import (
    HELD,
    HELD_QUANTIZED,
    Dotted,
    Fields,
    MixedRun,
    Program,
    ProgramOrder,
    Scalar,
    SuiteCase,
    Suites,
    TaskMetric,
)
from ci.work import File, irrelevant
from provisioning.base.commands import session
from provisioning.base.errors import ToolkitError
from provisioning.base.option_fields import declared_options, option_words
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import soc_named

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHIPPED = MANIFESTS / "suites" / "models.toml"


Count = Annotated[int, Field(ge=1)]
NAMES = dict.fromkeys([*(precision.suite_name for precision in PRECISIONS.values()), *PRECISIONS])
"""These names of precisions are allowed; a suite writes the first ones."""


class OnnxRun(MixedRun):
    precision: Annotated[str, Field(json_schema_extra={"enum": list(NAMES)}, examples=["8a8w"])]
    """The suite may write either name of a precision; the run has ONNX Runtime's."""
    per_channel: bool = False
    calibration: Annotated[int, Field(ge=1)] | None = None
    """The ranges are taken from at most this many samples; [32 drawn ones, 200 of `samples`]."""
    options: dict[str, Scalar] = Field(default={})
    """Sets options of the provider and the session: docs/options.md."""

    @property
    def kind(self) -> str:
        return precision_named(self.precision).suite_name

    @property
    def required_figures(self) -> tuple[str, ...]:
        return HELD_QUANTIZED if self.quantizes else HELD

    @property
    def quantizes(self) -> bool:
        return precision_named(self.precision).quantized

    @field_validator("precision")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            return precision_named(value).name
        except ToolkitError as error:
            raise ValueError(f"a precision ({error.message}; {error.fix})") from None

    @field_validator("nodes")
    @classmethod
    def _nodes_are_known(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        by_name = {cls._is_known(name): names for name, names in value.items()}
        if "qdq" in by_name:
            raise ValueError("nodes at a precision that quantizes them, or at fp16")
        return by_name

    @model_validator(mode="after")
    def _options_fit(self) -> OnnxRun:
        for soc in self.socs:
            try:
                self.settings(soc)
            except ToolkitError as error:
                raise ValueError(f"{error.message}; {error.fix}") from None
        return self

    def settings(self, soc: str) -> Settings:
        """Return the options of a context that lies beside its .onnx."""
        options = self.options.items()
        values = {name: value if isinstance(value, bool | int) else str(value) for name, value in options}
        return settings_of(values, soc=soc_named(soc), embed=False, where="options")


class OnnxCase(SuiteCase):
    judged_later: ClassVar[frozenset[str]] = SuiteCase.judged_later | {"metric"}
    of_model: ClassVar[frozenset[str]] = frozenset(
        {"factory", "arguments", "model", "dimensions", "samples", "inputs", "inferences"}
    )

    factory: Dotted | None = None
    """Names a `module:function`, as in the lowering suite (docs/suites.md)."""
    arguments: dict[str, Scalar] = Field(default={})
    model: str = ""
    """Names an .onnx instead, relative to the suite; it may lie outside its folder, or in one of its
    wheels."""
    dimensions: dict[str, Count | tuple[Count, ...]] = Field(default={})
    """Sizes for the named dimensions of that .onnx, or all sizes of a named input."""
    samples: str = ""
    """Inputs to calibrate by and to compare: a folder of .npy or .npz relative to the suite; of an .onnx also
    `module:function`."""
    inputs: tuple[Input, ...] = ()
    """Gives the inputs of a factory that returns only the model."""
    inferences: Annotated[int, Field(ge=1)] | None = None
    """At most this many inputs are compared; [16 of `samples`; 8 drawn ones where an inference takes less
    than a second, else 2]."""
    metric: TaskMetric | None = None
    recorded: bool = False
    """Whatever becomes of it is a result, failures too: --accept records it, and another result is
    an error."""
    runs: tuple[OnnxRun, ...] = Field(min_length=1, alias="run")

    @model_validator(mode="after")
    def _is_one_model(self) -> OnnxCase:
        if bool(self.factory) == bool(self.model):
            raise ValueError("either factory or model")
        if self.factory and (self.dimensions or ":" in self.samples):
            raise ValueError("dimensions, and a function of samples, only with model")
        if self.model and self.inputs:
            raise ValueError("inputs only with factory: an .onnx names its own")
        return self


def calibrating(case: OnnxCase, run: OnnxRun) -> int:
    return most_calibrating(run.calibration, has_data=bool(case.samples))


def command_for_one(verb: str, case: OnnxCase, run: OnnxRun, soc: str, search_path: Path, *more: str) -> str:
    """Return the command that runs `verb` with an .onnx as its case has it. Empty if no command line can say
    the same: for a factory, whose .onnx only a suite makes; a file in a wheel; precisions of nodes without a
    file."""
    if not case.model or case.model.startswith(PREFIX):
        return ""
    if run.nodes and not run.precision_file and verb in declared_options(OnnxOptions)["precision_file"].verbs:
        return ""
    options = OnnxOptions(
        calibrate=samples_of(case, search_path) or None,
        calibration=run.calibration,
        inferences=case.inferences,
        precisions=() if run.precision_file else (run.kind,),
        precision_file=search_path / run.precision_file if run.precision_file else None,
        per_channel=run.per_channel,
        dimensions=tuple(assignments_of(case.dimensions)),
        settings=tuple(f"{name}={text}" for name, text in texts_of(run.options).items()),
    )
    return session(verb, search_path / case.model, "--soc", soc, *option_words(options, verb), *more)


def samples_of(case: OnnxCase, search_path: Path) -> str:
    """Return the case's samples as --calibrate takes them; empty if it has none."""
    folder = search_path / case.samples
    return str(folder) if case.samples and folder.is_dir() else case.samples


def assignments_of(dimensions: Mapping[str, int | tuple[int, ...]]) -> Iterator[str]:
    """Return the sizes as --dimension takes them."""
    for name, size in dimensions.items():
        yield f"{name}={','.join(map(str, (size,) if isinstance(size, int) else size))}"


@dataclass(frozen=True, slots=True)
class OnnxProgram(Program):
    case: OnnxCase
    run: OnnxRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest(ProgramOrder):
    """Says what a task is asked of a program."""

    task_options: DataclassInstance
    """The task is asked this beside the program."""
    chip: Fields
    """This is the chip's row in the table of chips."""
    calibrating: int
    """The ranges are taken from at most this many samples."""
    option_files: tuple[File, ...]
    """The run's options name these files."""
    user_folder: str = field(metadata=irrelevant("where relative paths in options begin"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxRequest(ProgramOrder):
    """Says what a task gets: its program and its folders."""

    user_folder: Path
    log: Path
    export_folder: Path
    into: Path | None = None
    scratch: Path | None = None


@dataclass(frozen=True)
class OnnxOrder:
    """Holds a program as its processes work on it."""

    case: OnnxCase
    run: OnnxRun
    soc: str
    began: float
    search_path: Path
    working_folder: Path
    """Relative paths in the user's code begin here."""
    user_folder: Path
    """Relative paths in options begin here."""
    log: Path
    into: Path
    scratch: Path
    exports: Path
    """Files that all programs of the model use are written here."""

    @classmethod
    def of(cls, request: OnnxRequest) -> OnnxOrder:
        os.chdir(request.user_folder)
        run = {**request.whole_run, "socs": [request.soc]}
        case = OnnxCase.model_validate_json(json.dumps({**request.whole_case, "run": [run]}))
        return cls(
            case,
            case.runs[0],
            request.soc,
            time.monotonic(),
            Path(request.search_path),
            Path(request.working_folder),
            request.user_folder,
            request.log,
            # An export has only the folder of its model.
            request.into or request.export_folder,
            request.scratch or request.export_folder,
            request.export_folder,
        )

    @property
    def writes(self) -> dict[str, str]:
        """Return where the work writes to, as ci/work/child.py reads it."""
        return {"log": str(self.log), "into": str(self.into), "scratch": str(self.scratch)}

    def command(self, verb: str, soc: str = "") -> str:
        """Return the command that does this for the model alone; empty if only a suite makes the model."""
        return command_for_one(verb, self.case, self.run, soc or self.soc, self.search_path)


SUITES = Suites(lane="onnx", case=OnnxCase, program=OnnxProgram, stages=("test_onnx",), shipped=SHIPPED)
programs_of = SUITES.programs_of
