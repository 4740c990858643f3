"""The values that the processes of this lane receive beside a program, and return, as frozen dataclasses.

Options and requests say what a task does; facts and answers are its replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ci.artifacts.compiler_log import Traffic
from ci.explain.losses import BeyondHalf, Loss
from ci.lanes.onnx.model_file import ContextRecord
from ci.lanes.onnx.options import NO_SETTINGS, Settings
from ci.models.inputs import InputsUsed
from ci.operators import CpuOperator
from ci.work import ExportReply, File, Key, Result

MODEL, QUANTIZED = "model_ctx", "model_qdq"
"""Files that no user sees have these names."""
CONTEXT = "context"
"""This folder of a result holds the context and its .onnx."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """Says how a model is prepared."""

    calibration: int | None = None
    """This many of a factory's samples are kept for calibration; None: as many as the run says."""
    drawn: bool = False
    """Whether a model without samples is calibrated by drawn ones."""
    compares: bool = True


DRAWN = Preparing(drawn=True)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    stem: str = MODEL
    """The names of the context's files begin with this."""
    embed: bool = False
    """Whether the context is inside its .onnx instead of beside it."""
    keeps_outputs: bool = False
    keeps_samples: bool = False
    """Whether the result has a file of all that a device is judged with."""


@dataclass(frozen=True, slots=True)
class FileName:
    stem: str


@dataclass(frozen=True, slots=True)
class Chips:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnnxRunRequest:
    """Says which .onnx a process runs, and with what."""

    model: str
    inputs: str
    outputs: str
    user_folder: str
    soc: str = ""
    """Names the chip; empty for this machine's CPU."""
    settings: Settings = NO_SETTINGS
    as_it_is: bool = False
    do: str = "run"


@dataclass(frozen=True, slots=True)
class ExportToFile:
    """Says which PyTorch model a process exports."""

    factory: str
    """Names the factory as a suite in `search_path` would."""
    search_path: str
    user_folder: str
    model: str
    """The exported file gets this name."""
    folder: str
    """The folder of samples gets this name."""
    into: str = ""
    """Both are written here."""
    samples: str = ""
    """Names a folder of the user's samples."""
    inferences: int | None = None
    calibration: int | None = None
    do: str = "export"


@dataclass(frozen=True, slots=True)
class ExportedFile:
    notes: tuple[str, ...]
    compared: int | None
    """This many of the samples are compared; None if the user has given them."""


@dataclass(frozen=True, slots=True)
class RunReply:
    build_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """Holds a model as it was exported or checked; its samples are beside it."""

    model: str
    used: InputsUsed
    inputs: tuple[str, ...]
    notes: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel(ExportReply):
    rows: Key
    """Its programs depend on these."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Says how near outputs are to the float model's."""

    figures: Mapping[str, float] = field(default_factory=dict)
    slices: tuple[str, ...] = ()
    beyond: tuple[BeyondHalf, ...] = ()
    """If too much is lost, these are the operators whose values leave fp16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedModel:
    """Holds the model as its run has it."""

    model: str
    calibrated_by: int = 0
    in_float: bool = False
    """Whether nothing was quantized, although it should have been."""
    near: Accuracy = Accuracy()
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unsupported:
    node: str
    operator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node} ({self.operator}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Audit:
    nodes: int
    unsupported: tuple[Unsupported, ...]
    graphs: int
    """The other nodes form this many QNN graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledContext:
    record: ContextRecord
    near: Accuracy
    bytes: int
    ddr: Traffic | None
    """Has the compiler's traffic; None if it gave no summary."""
    half_floats: bool | None = None
    """Whether QNN computes floats in 16 bits; None if the context does not say."""
    each_db: tuple[float, ...] = ()
    """Has the SQNR of each sample."""
    draws: tuple[Mapping[str, float], ...] = ()
    """Has the figures of each sample of a recorded case."""
    choices: tuple[str, ...] = ()
    """These operators compute indices that are outputs."""
    cpu_seconds: float = 0.0
    peak: int = 0
    """Making it took at most this many bytes of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenModel:
    """Says what a report tells of a program's model and samples."""

    prepared: PreparedModel
    quantized: QuantizedModel | None = None

    @property
    def used(self) -> InputsUsed:
        calibrating = self.quantized.calibrated_by if self.quantized else 0
        return replace(self.prepared.used, calibrating=calibrating)

    @property
    def quantized_model(self) -> QuantizedModel:
        assert self.quantized is not None
        return self.quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts(TakenModel):
    """Holds what became of a program."""

    context: CompiledContext


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer(TakenModel):
    """Holds what a command asked for."""

    answer: Mapping[str, object] = field(default_factory=dict)
    """The command reads this as a record of its own type."""


@dataclass(frozen=True, slots=True)
class WantedRewrites:
    rules: tuple[str, ...] | None
    """Names the rewrites; None stands for all."""
    tables: tuple[File, ...]
    """These tables of faults and of fixes say what is rewritten."""


@dataclass(frozen=True, slots=True)
class Losses:
    losses: tuple[Loss, ...]
    """Names the operators at which quantizing loses most, the worst first."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Says what HTP accepts of a model, and which nodes stay on the CPU."""

    delegated: Mapping[str, int]
    cpu: tuple[CpuOperator, ...]
    delegates: int
    ddr: Traffic


def facts_in(result: Result) -> ProgramFacts:
    assert isinstance(result.record, ProgramFacts)
    return result.record
