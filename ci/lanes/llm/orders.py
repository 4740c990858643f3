"""What crosses a process: orders to workers, what they reply, and the record that a compile leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ci.plain import as_json, read
from provisioning.base.errors import UsageError

KINDS = ("prefill", "decode")
"""Of graphs, by which their binaries are named: a block of tokens at once, or one."""
GENIE, EXECUTORCH = "genie", "executorch"
"""The runtimes that a model speaks through."""
RECORD = "compiled.json"
"""The record's name, beside what was compiled."""
README_OF_RECORD = f"""
No device reads {RECORD}. It holds the tokens of the text that this was calibrated by, and tokenizer.json
turns them back into words: leave it out of what you publish if that text is secret.
"""
ANOTHER_FOLDER = "compile to another folder, or remove this one first"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOrder:
    model: str
    adapter: str = ""
    through: str
    soc: str
    precision: str
    context: int
    prefill: int
    parts: int
    shared: bool = False
    """Whether prefill and decode share their weights."""
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
    decode: int
    """How many places of each window decode reads: of a large model it takes seconds for each."""
    few: list[int]
    """The row that parts are judged by."""
    texts: list[ForcedText]
    """What Genie is made to say: after prefixes what follows in the text, and one to the context's end."""
    sample: str
    """Its first words, by which tokenizers are compared."""
    count: int
    """Of its tokens."""

    @property
    def lengths(self) -> dict[str, int]:
        """Of each window, by the kind of graph that reads it."""
        return dict(zip(KINDS, (len(self.rows[0]), self.decode), strict=True))


@dataclass(frozen=True, slots=True)
class Window:
    """What is measured of each token of one window of text, in which tokens depend on each other."""

    ours: Sequence[float]
    """How much less likely than certain the right token was, in nats."""
    theirs: Sequence[float]
    divergence: Sequence[float]
    """Kullback-Leibler, from float's probabilities."""
    lost: Sequence[float]
    """How much less float gives our first choice than its own, in logits."""

    def first(self, count: int) -> Window:
        """The same of its first tokens alone."""
        return Window(self.ours[:count], self.theirs[:count], self.divergence[:count], self.lost[:count])


Windows = dict[str, list[Window]]
"""By who read them."""


@dataclass(frozen=True, slots=True)
class Readings:
    read: Windows
    rates: dict[str, float]
    """Tokens that each reader read in a second."""

    @classmethod
    def of(cls, every: Iterable[Readings]) -> Readings:
        """All of these, of which each has readers of its own."""
        read, rates = Windows(), dict[str, float]()
        for readings in every:
            read |= readings.read
            rates |= readings.rates
        return cls(read, rates)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far the outputs of a part are from float's, in dB."""

    db: float
    """Of the worst block of the worst output."""
    output: str
    typical: dict[str, float]
    """Of each output at most places."""


@dataclass(frozen=True, slots=True)
class PartDistances:
    number: int
    kind: str
    layers: tuple[int, int]
    """The first and the last."""
    htp: Distance
    cpu: Distance | None


@dataclass(frozen=True, slots=True)
class Rounded:
    """What rounding alone costs a checkpoint."""

    read: Windows
    tie: float
    """How near two of float's logits must be to change places."""
    parts: list[dict[str, Distance]]
    """What it leaves of each part's outputs, by the kind of graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOrder:
    """A text that is read by what `compile` wrote, or by float that is only rounded."""

    compiled: CompileOrder
    """By which it was compiled to `into`, of the checkpoint where that is now."""
    text: JudgedText
    kind: str = ""
    """Of the graphs: the emulator cannot load all binaries of a large model at once."""
    cpu: bool = False
    """Whether the quantized graphs are run on the CPU, and the emulator not."""
    config: str = ""
    """Genie's."""
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
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOrder:
    """A program of a suite: compiled, and measured."""

    compiled: CompileOrder
    calibrate: str
    """The text that it is quantized by."""
    judged: str
    """The text that it is judged by."""
    timeout: float
    into: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredProgram:
    size: int
    readings: Readings
    rounded: Rounded
    parts: list[PartDistances]
    lengths: dict[str, int]
    """Of the windows that each kind of graph read."""


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
    cpu_seconds: float
    peak: int
    source: dict[str, str]
    """Digests of the checkpoint's files, and of its adapter's."""
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
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UsageError(f"{path} is not of this release: {place}", fix=ANOTHER_FOLDER) from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}", fix=ANOTHER_FOLDER) from None


def record_of(folder: Path) -> Record:
    if record := record_in(folder):
        return record
    raise UsageError(f"{folder} has no {RECORD}", fix="compile it again")
