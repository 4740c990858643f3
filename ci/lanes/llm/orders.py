"""The values that cross a process in this lane: orders to workers, their replies, and the record that a
compile leaves.

A name that ends in Order is what a worker reads; one in Request is what a step sends, and its key is made
of."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.suite.programs import Fields
from ci.work import Folder, irrelevant, read, to_json
from provisioning.base.commands import Fix
from provisioning.base.errors import UsageError
from provisioning.base.rendering import plural

KINDS = ("prefill", "decode")
"""A graph reads a block of tokens at once, or one. The kind is in the names of its binaries."""
GENIE, EXECUTORCH = "genie", "executorch"
"""A model runs through one of these runtimes."""
RECORD = "compiled.json"
"""The record has this name, beside what was compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOrder:
    model: str
    through: str
    soc: str
    precision: str
    context: int
    prefill: int
    parts: int
    calibration: list[list[int]]
    """Quantizing uses these windows of tokens; fp16 has none."""
    into: str = ""
    """The output is written to this folder."""

    @property
    def quantized(self) -> bool:
        return self.precision != "fp16"

    def count(self, kind: str) -> int:
        """Return how many tokens a kind of graph reads at once."""
        return self.prefill if kind == "prefill" else 1


@dataclass(frozen=True, slots=True)
class Written:
    binaries: int
    size: int
    """All binaries together have this many bytes."""
    losses: list[float] = field(default_factory=list)
    """The float model loses so many nats for each token of the rows of the calibration; fp16 has none."""


@dataclass(frozen=True, slots=True)
class ForcedText:
    """Genie reads `prompt` and is then made to choose `tokens`, whatever it would have chosen."""

    prompt: list[int]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class JudgedText:
    """Names the tokens of a text that the float model, its rounded copy and the compiled model all read."""

    rows: list[list[int]]
    """All windows have the same length."""
    few: list[int]
    """Parts are judged by this row."""
    texts: list[ForcedText]
    """Genie is made to say these: after each prefix what follows in the text, and one that fills the
    context."""
    sample: str
    """Tokenizers are compared by these first words of the text."""


@dataclass(frozen=True, slots=True)
class Window:
    """Holds what is measured of each token of one window of text; its tokens depend on each other."""

    ours: Sequence[float]
    """Has the negative log-likelihood of each right token, in nats."""
    theirs: Sequence[float]
    divergence: Sequence[float]
    """Has the Kullback-Leibler divergence from float's probabilities."""
    same: Sequence[bool]
    """Says of each token whether our top-1 is one of float's."""


Windows = dict[str, list[Window]]
"""Maps the name of each reader to the windows that it read."""


@dataclass(frozen=True, slots=True)
class Readings:
    read: Windows


Decibels = dict[str, float]
"""Maps each output of a part to its SQNR against float at the median position. The median leaves out values
beyond what calibration saw, which are cut off at few positions; a mistake affects all positions."""


@dataclass(frozen=True, slots=True)
class PartDistances:
    number: int
    kind: str
    layers: tuple[int, int]
    """Names the first and the last layer."""
    htp: Decibels
    cpu: Decibels | None = None
    """Only a quantized part is compared on the CPU, too."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """Holds what rounding alone costs a checkpoint."""

    read: Windows
    parts: list[Decibels]
    """Rounding leaves this SQNR of each part's outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOrder:
    """Says which text is to be read by what `compile` wrote, or by the float model that is only rounded."""

    compiled: CompileOrder
    """The checkpoint was compiled by this order to `into`; its paths are the current ones."""
    text: JudgedText
    kind: str = ""
    """Only graphs of this kind are loaded, because the emulator cannot load all binaries of a large model at
    once."""
    timeout: float = 0.0
    """Genie may run for this many seconds."""


@dataclass(frozen=True, slots=True)
class Parts:
    parts: list[PartDistances]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOrder:
    compiled: CompileOrder
    prompt: list[int]
    most: int


@dataclass(frozen=True, slots=True)
class SpokenText:
    tokens: list[int]
    stopped: str
    """Says why the answer ended: `eos`, `length`, or `context` if that was full."""


GENIE_SAMPLER = "qnn-ci"
"""The sampler that chooses forced tokens has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenieOrder:
    """Says what the process with Genie does; a text that fills the context must be the last."""

    folder: str
    """The paths in the settings are relative to this folder."""
    settings: dict[str, Any]
    """These settings are Genie's configuration."""
    texts: list[str] = field(default_factory=list)
    """Genie's tokenizer encodes these texts."""
    prompts: list[list[int]] = field(default_factory=list)
    """Genie answers these prompts."""
    forced: list[ForcedText] = field(default_factory=list)
    logits: str = ""
    """The logits of forced texts are written to this folder, a file for each, named by its number."""


@dataclass(frozen=True, slots=True)
class GenieReply:
    encoded: list[list[int]]
    spoken: list[SpokenText]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOrder:
    """Says which program of a suite to compile and measure."""

    compiled: CompileOrder
    """The model that is compiled has its texts beside it."""
    timeout: float
    into: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    size: int
    read: Windows
    rounded: Rounded
    parts: list[PartDistances]


def measure_program(
    ask: Callable[..., Any], measure: MeasureOrder, size: int, *, logits: bool = True
) -> MeasuredProgram:
    """Measure everything that is needed of a program. A worker answers in a fork each time, so that the
    emulator's memory is free again."""
    text, windows, parts = measure.text, Windows(), list[PartDistances]()
    of_kinds = [replace(measure, kind=kind) for kind in KINDS]
    sys.stderr.write("what rounding alone costs, by float\n")
    rounded = read(Rounded, ask(do="rounding", **to_json(measure)))
    if logits:
        tokens = sum(len(row) - 1 for row in text.rows)
        sys.stderr.write(f"reading {tokens} tokens in {plural(len(text.rows), 'window')}\n")
        for of_kind in of_kinds:
            windows |= read(Readings, ask(do="figures", **to_json(of_kind))).read
    if logits and text.texts:
        sys.stderr.write(f"Genie reads {plural(len(text.texts), 'text')}\n")
        windows |= read(Readings, ask(do="genie", **to_json(measure))).read
    sys.stderr.write(f"each of {plural(measure.compiled.parts, 'part')} by itself\n")
    for of_kind in of_kinds:
        parts += read(Parts, ask(do="parts", **to_json(of_kind))).parts
    return MeasuredProgram(size, windows, rounded, parts)


Qnn = Mapping[str, str]
"""Names the build that programs are lowered with, and the digest of its libraries; empty for Genie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """Names a checkpoint to compile. A worker reads it as CompileOrder."""

    model: Folder
    through: str
    soc: str
    precision: str
    context: int
    prefill: int
    parts: int
    calibration: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilingRequest(CheckpointRequest):
    do: str
    name: str
    qnn: Qnn


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """Names a program of a suite to compile and measure. A worker reads it as SuiteOrder."""

    do: str
    compiled: CheckpointRequest
    run: Fields
    qnn: Qnn
    timeout: float = field(metadata=irrelevant("how long Genie may take"))


@dataclass(frozen=True, slots=True)
class TrainRequest:
    do: str


@dataclass(frozen=True, slots=True)
class TrainOrder:
    into: str


@dataclass(frozen=True, slots=True)
class Trained:
    perplexity: float
    """The model has this perplexity on held-out text."""
    weights: str
    """This is the digest of the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Holds what `compile` records of its output."""

    order: CompileOrder
    size: int
    source: dict[str, str]
    """Maps the checkpoint's files to their digests."""
    files: dict[str, str]
    """Maps the files that were written to their digests."""

    def to_json(self) -> str:
        return json.dumps(to_json(self)) + "\n"


def record_in(folder: Path) -> Record | None:
    """Read the record that a compile left; None if there is none. Raises UsageError if its format is not this
    release's."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        return read(Record, json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        raise UsageError(
            f"{path} is not a record of this release",
            fix="compile to another folder, or remove this one first",
        ) from None


def record_of(folder: Path) -> Record:
    if record := record_in(folder):
        return record
    message, fix = f"{folder} has no {RECORD}", "name a folder that compile wrote of a language model"
    if others := sorted(path for kind in ("*.pte", "*_ctx.onnx") for path in folder.glob(kind)):
        message += f", but {others[0].name}, which is no language model"
        fix = Fix("{} runs it; what compared it with the float model is compile", ("run", others[0]))
    raise UsageError(message, fix=fix)
