"""What crosses a process: orders to workers, what they reply, and the record that a compile leaves."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.suite.programs import Fields
from ci.work.plain import as_json, read
from ci.work.request import Folder, irrelevant
from provisioning.base.errors import UsageError
from provisioning.base.rendering import plural

KINDS = ("prefill", "decode")
"""Of graphs, by which their binaries are named: a block of tokens at once, or one."""
GENIE, EXECUTORCH = "genie", "executorch"
"""The runtimes that a model speaks through."""
RECORD = "compiled.json"
"""The record's name, beside what was compiled."""


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
    """Windows of tokens to quantize by; none for fp16."""
    into: str = ""
    """The folder of what is written."""

    @property
    def quantized(self) -> bool:
        return self.precision != "fp16"

    def count(self, kind: str) -> int:
        """How many tokens a kind of graph reads at once."""
        return self.prefill if kind == "prefill" else 1


@dataclass(frozen=True, slots=True)
class Written:
    binaries: int
    size: int
    """Of all, in bytes."""


@dataclass(frozen=True, slots=True)
class ForcedText:
    """A text of which Genie reads `prompt`, and then says `tokens`, whatever it would have chosen."""

    prompt: list[int]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class JudgedText:
    """What of a text is read, by float, by rounded float and by what was compiled: the same places each."""

    rows: list[list[int]]
    """Windows of one length."""
    few: list[int]
    """The row that parts are judged by."""
    texts: list[ForcedText]
    """What Genie is made to say: after prefixes what follows in the text, and one to the context's end."""
    sample: str
    """Its first words, by which tokenizers are compared."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is measured of each token of one window of text, in which tokens depend on each other."""

    ours: Sequence[float]
    """How much less likely than certain the right token was, in nats."""
    theirs: Sequence[float]
    divergence: Sequence[float]
    """Kullback-Leibler, from float's probabilities."""
    same: Sequence[bool]
    """Whether our top-1 is one of float's."""


Windows = dict[str, list[Window]]
"""By who read them."""


@dataclass(frozen=True, slots=True)
class Readings:
    read: Windows


Decibels = dict[str, float]
"""By output of a part: its SQNR against float at the median position. Values beyond what calibration saw are
cut off at few positions, and a mistake is at all."""


@dataclass(frozen=True, slots=True)
class PartDistances:
    number: int
    kind: str
    layers: tuple[int, int]
    """The first and the last."""
    htp: Decibels
    cpu: Decibels | None = None
    """Of a quantized part alone."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """What rounding alone costs a checkpoint."""

    read: Windows
    parts: list[Decibels]
    """What it leaves of each part's outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOrder:
    """A text that is read by what `compile` wrote, or by float that is only rounded."""

    compiled: CompileOrder
    """By which it was compiled to `into`, of the checkpoint where that is now."""
    text: JudgedText
    kind: str = ""
    """Of the graphs: the emulator cannot load all binaries of a large model at once."""
    timeout: float = 0.0
    """Of Genie."""


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
    """`eos`, `length`, or `context` when that was full."""


GENIE_SAMPLER = "qnn-ci"
"""The name of the sampler that says forced texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenieOrder:
    """What the process with Genie does; one that fills the context must be the last."""

    folder: str
    """Where the paths of the settings lead."""
    settings: dict[str, Any]
    """Genie's configuration."""
    texts: list[str] = field(default_factory=list)
    """To be encoded by Genie's tokenizer."""
    prompts: list[list[int]] = field(default_factory=list)
    """To be answered."""
    forced: list[ForcedText] = field(default_factory=list)
    logits: str = ""
    """The folder for the logits of forced texts, a file each by its number."""


@dataclass(frozen=True, slots=True)
class GenieReply:
    encoded: list[list[int]]
    spoken: list[SpokenText]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOrder:
    """A program of a suite: compiled, and measured."""

    compiled: CompileOrder
    """Of a model that has its texts beside it."""
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
    """All that is measured of a program. A worker answers in a fork each time, so that the emulator's memory
    is free again."""
    text, windows, parts = measure.text, Windows(), list[PartDistances]()
    of_kinds = [replace(measure, kind=kind) for kind in KINDS]
    sys.stderr.write("what rounding alone costs, by float\n")
    rounded = read(Rounded, ask(do="rounding", **as_json(measure)))
    if logits:
        tokens = sum(len(row) - 1 for row in text.rows)
        sys.stderr.write(f"reading {tokens} tokens in {plural(len(text.rows), 'window')}\n")
        for of_kind in of_kinds:
            windows |= read(Readings, ask(do="figures", **as_json(of_kind))).read
    if logits and text.texts:
        sys.stderr.write(f"Genie reads {plural(len(text.texts), 'text')}\n")
        windows |= read(Readings, ask(do="genie", **as_json(measure))).read
    sys.stderr.write(f"each of {plural(measure.compiled.parts, 'part')} by itself\n")
    for of_kind in of_kinds:
        parts += read(Parts, ask(do="parts", **as_json(of_kind))).parts
    return MeasuredProgram(size, windows, rounded, parts)


Qnn = Mapping[str, str]
"""The build that programs are lowered with, and the digest of its libraries; none through Genie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """A checkpoint to compile. A worker reads it as CompileOrder."""

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
    """A program of a suite to compile and measure. A worker reads it as SuiteOrder."""

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
    """On held-out text."""
    weights: str
    """Their digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What `compile` says of its output."""

    order: CompileOrder
    size: int
    source: dict[str, str]
    """Digests of the checkpoint's files."""
    files: dict[str, str]
    """Digests of what was written."""

    def as_text(self) -> str:
        return json.dumps(as_json(self)) + "\n"


def record_in(folder: Path) -> Record | None:
    """None where no compile has left one; raises UsageError for one that is not of this release."""
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
    raise UsageError(f"{folder} has no {RECORD}", fix="name a folder that compile wrote")
