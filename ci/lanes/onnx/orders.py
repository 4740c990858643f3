"""What the processes of this lane are asked beside a program, and what they reply: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ci.artifacts.compiler_log import Traffic
from ci.explain.losses import BeyondHalf, Loss
from ci.lanes.onnx.model_file import ContextRecord
from ci.lanes.onnx.options import NO_SETTINGS, Settings
from ci.models.inputs import InputsUsed
from ci.operators import CpuOperator
from ci.work.outcome import Result
from ci.work.request import File
from ci.work.results import ExportReply, Key

MODEL, QUANTIZED = "model_ctx", "model_qdq"
"""Names of files that no user sees."""
CONTEXT = "context"
"""The folder of a result that has the context and its .onnx."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """How a model is prepared."""

    calibration: int | None = None
    """How many of a factory's samples are kept to calibrate by; None: as many as the run says."""
    drawn: bool = False
    """Whether a model without samples is calibrated by drawn ones."""
    compares: bool = True


DRAWN = Preparing(drawn=True)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    stem: str = MODEL
    """Of its files."""
    embed: bool = False
    """Whether the context is inside its .onnx, and not beside it."""
    keeps_outputs: bool = False


@dataclass(frozen=True, slots=True)
class FileName:
    stem: str


@dataclass(frozen=True, slots=True)
class Chips:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnnxRunRequest:
    """What a process gets that runs one .onnx."""

    model: str
    inputs: str
    outputs: str
    user_folder: str
    soc: str = ""
    """Empty: on this machine's CPU."""
    settings: Settings = NO_SETTINGS
    as_it_is: bool = False
    do: str = "run"


@dataclass(frozen=True, slots=True)
class ExportToFile:
    """What a process gets that exports one PyTorch model."""

    factory: str
    """As a suite in `search_path` names it."""
    search_path: str
    user_folder: str
    model: str
    """The name of the file."""
    folder: str
    """The name of the folder of samples."""
    into: str = ""
    """Where both are written."""
    samples: str = ""
    """A folder of the user's samples."""
    inferences: int | None = None
    calibration: int | None = None
    do: str = "export"


@dataclass(frozen=True, slots=True)
class ExportedFile:
    notes: tuple[str, ...]
    compared: int | None
    """How many of the samples are compared; None where the user has given them."""


@dataclass(frozen=True, slots=True)
class RunReply:
    build_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model as it was exported or checked; its samples are beside it."""

    model: str
    used: InputsUsed
    inputs: tuple[str, ...]
    notes: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel(ExportReply):
    rows: Key
    """What its programs depend on."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How near outputs are to the float model's."""

    figures: Mapping[str, float] = field(default_factory=dict)
    slices: tuple[str, ...] = ()
    beyond: tuple[BeyondHalf, ...] = ()
    """Where too much is lost: operators whose values leave fp16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedModel:
    """The model as its run has it."""

    model: str
    calibrated_by: int = 0
    in_float: bool = False
    """Whether nothing of it is quantized, though it was to be."""
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
    """The number of QNN graphs that the other nodes form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledContext:
    record: ContextRecord
    near: Accuracy
    bytes: int
    ddr: Traffic | None
    """None where the compiler gave no summary."""
    half_floats: bool | None = None
    """Whether QNN computes floats in 16 bits; None if the context does not say."""
    each_db: tuple[float, ...] = ()
    """The SQNR of each sample."""
    draws: tuple[Mapping[str, float], ...] = ()
    """The figures of each sample of a recorded case."""
    choices: tuple[str, ...] = ()
    """Operators whose indices are outputs."""
    cpu_seconds: float = 0.0
    peak: int = 0
    """The most bytes of memory that it took to make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenModel:
    """What is to be told of a program's model and samples."""

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
    """What became of a program."""

    context: CompiledContext


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer(TakenModel):
    """What a command asked for."""

    answer: Mapping[str, object] = field(default_factory=dict)
    """As the record says that the command expects."""


@dataclass(frozen=True, slots=True)
class WantedRewrites:
    rules: tuple[str, ...] | None
    """None: all."""
    tables: tuple[File, ...]
    """Those of faults and of fixes, which say what is rewritten."""


@dataclass(frozen=True, slots=True)
class Losses:
    losses: tuple[Loss, ...]
    """The operators at which quantizing loses most, the worst first."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """What HTP takes of a model, and the nodes that stay on the CPU."""

    delegated: Mapping[str, int]
    cpu: tuple[CpuOperator, ...]
    delegates: int
    ddr: Traffic


def facts_in(result: Result) -> ProgramFacts:
    assert isinstance(result.record, ProgramFacts)
    return result.record
