"""The values that the processes of this lane receive and return, as frozen dataclasses.

What ends in Options is what a step asks of a program; the worker reads it as the Request of the same name,
with the folder to write to. The others are parts of replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ci.artifacts.compiler_log import NO_TRAFFIC, Traffic
from ci.explain.audit import KeptNodes
from ci.explain.divergence import DivergenceLimits
from ci.explain.inner_choices import ChoiceFlips
from ci.explain.losses import BeyondHalf, Loss
from ci.explain.rewriting import Need
from ci.models.inputs import InputsUsed
from ci.models.model_lines import OperatorAt
from ci.operators import CpuOperator, GraphPart, Traits
from ci.suite.programs import ProgramOrder
from ci.suite.runner import RunnerOrder
from ci.suite.tensor_files import Inferences
from ci.work import ExportReply, File, Folder, Key, Result
from provisioning.base.findings import Metric
from provisioning.known_faults import Product

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class ExportRequest(ProgramOrder):
    runs: Mapping[str, Mapping[str, Metric]]
    """Maps the name of each run that is wanted to the run; all are of the same case."""
    chips: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps the name of each run to the chips of its programs."""


@dataclass(frozen=True, slots=True)
class Annotated:
    """Says what a run's annotations make of a model for a chip."""

    rows: Key = field(default_factory=dict)
    not_cached: str = ""
    modules: tuple[str, ...] = ()
    """These are the files of the user's modules that were loaded."""
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """Says what a program depends on of the model; `rows` is empty if the program cannot be cached, for the
    reason given."""

    rows: Key = field(default_factory=dict)
    annotated: Mapping[str, Annotated] = field(default_factory=dict)
    """Maps each chip to what the run's annotations make of the model; a run without any has none."""
    not_cached: str = ""
    exported: bool = True
    error: Mapping[str, object] | None = None
    """The error is a row that ci/work/child.py writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRuns(ExportReply):
    runs: Mapping[str, ExportedRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest(ProgramOrder):
    """Says what the worker does with a program's model."""

    options: DataclassInstance
    """One of the options below, which say what the work does with the program."""
    qnn: Mapping[str, str]
    """Names QNN's build, with the digest of its libraries for this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringOptions:
    crashes_on_cpu: bool = False
    """Whether to leave on the CPU what the compiler crashes on, if the rest then lowers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest(LoweringOptions):
    into: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipsOptions:
    chips: tuple[str, ...]
    """The model is lowered for these chips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipsRequest(ChipsOptions):
    into: Path


@dataclass(frozen=True, slots=True)
class QuantizeRequest:
    into: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceOptions(DivergenceLimits):
    runner: RunnerOrder
    versions: Mapping[Product, str]
    faults: File
    """The table of known faults is read from here: operators that can have one are tried first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceRequest(DivergenceOptions):
    into: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRewrites:
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRequest(NeededRewrites):
    into: Path


@dataclass(frozen=True, slots=True)
class WrapRequest:
    context: str
    soc: str
    path: Path


@dataclass(frozen=True, slots=True)
class InTorch:
    """Says how near the quantized model's outputs are to the float model's, both computed by PyTorch."""

    figures: Mapping[str, float]
    slices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Says what a compile learns of the model and its inputs, however it ends."""

    used: InputsUsed
    notes: tuple[tuple[str, str], ...] = ()
    losses: tuple[Loss, ...] = ()
    """Names the operators at which quantizing loses most, the worst first."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak: int = 0
    """The process used at most this many bytes of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized(ModelFacts):
    """Describes the quantized model that `quantize` writes."""

    in_torch: InTorch
    inputs: Inferences


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipProgram(ModelFacts):
    inputs: Inferences
    expected: Inferences
    """The float model computed these outputs."""
    reference: Inferences
    """The quantized model computed these outputs; a float program has none."""
    choices: tuple[OperatorAt, ...] = ()
    """These operators compute indices that are outputs."""
    chooses_inside: bool = False
    """Whether operators read indices or masks that others choose."""
    beyond: tuple[BeyondHalf, ...] = ()
    """These operators compute values that leave the range of fp16."""
    kept_on_cpu: KeptNodes | None = None
    left: tuple[CpuOperator, ...] = ()
    partition: tuple[GraphPart, ...] = ()
    nodes: Mapping[str, Traits] = field(default_factory=dict)
    """Maps each node in a delegate to its traits (`delegated_nodes`)."""
    least: float = 0.0
    """This is the least value of its inputs: some known faults need a negative one."""
    in_torch: InTorch | None = None
    """Only a program for the LPAI has these figures: few have an SDK that can run it on x86."""
    ddr: Traffic = NO_TRAFFIC
    graphs: int = 0
    """The compiler wrote a summary of this many graphs."""
    without_time: str = ""
    """This digest of the program leaves out the time of its lowering."""

    @property
    def delegates(self) -> int:
        return sum(not part.is_on_cpu for part in self.partition)


@dataclass(frozen=True, slots=True)
class ComparedFiles:
    """Names the files of a program's samples, and of the outputs that it is compared with."""

    inputs: Inferences
    expected: Inferences
    reference: Inferences
    non_finite: bool


@dataclass(frozen=True, slots=True)
class ComparedOutputs:
    """Says what a program's outputs are compared with."""

    compiled: Folder
    """This folder holds the inputs and the expected outputs."""
    compared: ComparedFiles


@dataclass(frozen=True, slots=True)
class RunRequest(ComparedOutputs):
    """Says what a process that runs a program gets."""

    runner: RunnerOrder
    program: File
    qnn: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RanProgram:
    compiled: Folder
    """This folder holds the program's inputs and the expected outputs."""
    compared: ComparedFiles
    outputs: Folder
    """The program gave these outputs on the emulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicesOptions(RanProgram):
    runner: RunnerOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicesRequest(ChoicesOptions):
    into: Path


@dataclass(frozen=True, slots=True)
class SecondComparison:
    """Says how near a program's outputs are to the expected ones."""

    figures: Mapping[str, float]
    slices: tuple[str, ...] = ()
    each_db: tuple[float, ...] = ()
    """Has the SQNR of each sample."""


@dataclass(frozen=True, slots=True)
class JudgedChoices:
    flips: tuple[ChoiceFlips, ...]
    compared: SecondComparison | None
    """The program is compared with models that choose as it does; None if rounding does not explain its
    choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions(RanProgram):
    sample: int
    """This sample alone is far below the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRequest(RangeOptions):
    into: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideRange(OperatorAt):
    """Says where a sample leaves the ranges that were calibrated by most."""

    sample: int
    value: float
    low: float
    high: float

    def describe(self) -> str:
        calibrated = f"{self.low:.4g} to {self.high:.4g}"
        return (
            f"sample {self.sample} is outside the calibrated range: {self.place} reaches {self.value:.4g},"
            f" and was calibrated for {calibrated}"
        )


@dataclass(frozen=True, slots=True)
class JudgedRange:
    outside: OutsideRange | None
    """None if the sample is not worse because it is clipped."""
    compared: SecondComparison | None
    """The program is compared on the other samples."""


@dataclass(frozen=True, slots=True)
class EmulatorRun:
    figures: Mapping[str, float] = field(default_factory=dict)
    slices: tuple[str, ...] = ()
    each_db: tuple[float, ...] = ()
    """Has the SQNR of each sample."""
    rule: str = ""
    """Names what is wrong if the run gave nothing to compare; otherwise empty."""
    message: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    flips: tuple[ChoiceFlips, ...] = ()
    """Says where the program chooses otherwise than the float model. If rounding explains it, the figures are
    those against models that choose as the program does."""
    outside: OutsideRange | None = None
    """Says why one sample is far below the others; the figures are then those of the others."""


def compiled_in(result: Result) -> ChipProgram:
    return result.read(ChipProgram)


def ran_in(result: Result) -> EmulatorRun:
    return result.read(EmulatorRun)


def ran(result: Result) -> bool:
    """Whether the run gave figures."""
    return not result.failure and not ran_in(result).rule


def figures_of(result: Result | None) -> Mapping[str, float] | None:
    """Return the run's figures; nothing if it did not run, or gave nothing to compare."""
    return ran_in(result).figures if result is not None and ran(result) else None
