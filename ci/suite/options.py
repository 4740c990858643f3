"""What a command asks for, read once from its command line (flags.py, compile_flags.py). Imports nothing
heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.command_line import TIMEOUT
from provisioning.base.settings import Selection

RUN_TIMEOUT = 300.0
"""Seconds after which a run on the emulator ends, unless --run-timeout says otherwise."""
LANGUAGE_TIMEOUT = 4 * 3600.0
"""The same for language models: one with a billion weights takes minutes to compile, and seconds for each
token."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which programs of which suites; empty fields choose all."""

    suites: tuple[Path, ...] = ()
    cases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    shard: str = ""


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """How work is done, and with what limits. Times are seconds, memory is bytes."""

    timeout: float = TIMEOUT
    jobs: int | None = None
    cache: bool = True
    why: bool = False
    keep: bool = False
    """Whether to leave what was made with the logs."""
    keep_going: bool = False
    """Whether operators that crash the compiler stay on the CPU if the rest then lowers."""
    worker_memory: int | None = None
    run_timeout: float = RUN_TIMEOUT
    recheck: float = 0.0
    """The share of the programs to compile twice and compare."""
    known_failures: bool = False
    """Whether work that has failed is not done again: its failure is known."""
    until: float = math.inf
    """A time of time.monotonic() at which whatever is at work ends."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Whether measured values become the expected ones."""

    values: bool = False
    reason: str = ""
    """Why one is agreed to that is worse than it should be."""


@dataclass(frozen=True, slots=True)
class StageOptions:
    selection: Selection
    choice: Choice
    work: WorkOptions
    accept: Accept
    list_only: bool


@dataclass(frozen=True, slots=True)
class OneModel:
    """MODEL of a command line."""

    selection: Selection
    typed: str
    """As the user typed it; empty where `divergence` takes a suite's program."""
    lane: str
    work: WorkOptions
    precision: str | None = None
    precision_file: Path | None = None
    """In place of a precision: that of `tune`."""
    calibrate: str | None = None
    python: Path | None = None
    """Exports a PyTorch model."""
    backend: str | None = None
    per_channel: bool = False
    variables: tuple[str, ...] = ()
    """The user's variables that the model may read."""
    dimensions: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Settings of ONNX Runtime's provider, NAME=VALUE."""
    as_it_is: bool = False
    """Run a compiled .onnx even where its build or chip is another."""
    calibration: int | None = None
    """How many samples calibrate at most."""
    inferences: int | None = None
    """How many are compared at most."""

    def words(self, soc: str) -> list[str]:
        words = [self.typed, "--soc", soc]
        for flag, values in (
            ("--precision", [self.precision] if self.precision else []),
            ("--precision-file", [str(self.precision_file)] if self.precision_file else []),
            ("--calibrate", [self.calibrate] if self.calibrate else []),
            ("--calibration", [str(self.calibration)] if self.calibration else []),
            ("--inferences", [str(self.inferences)] if self.inferences else []),
            ("--variable", self.variables),
            ("--dimension", self.dimensions),
            ("--option", self.options),
        ):
            words += [word for value in values for word in (flag, value)]
        return [*words, *["--per-channel"] * self.per_channel]

    @property
    def named(self) -> tuple[str, ...]:
        """What else than model and chips tells one piece of work from another."""
        file = self.precision_file.name if self.precision_file else None
        return tuple(filter(None, (self.precision, file, self.backend, *self.selection.socs)))


@dataclass(frozen=True, slots=True)
class Language:
    through: str
    context: int
    prefill: int
    parts: int | None
    shared_weights: bool
    adapter: str | None


@dataclass(frozen=True, slots=True)
class Compiling:
    """What `compile` and `quantize` write, and how."""

    output: Path = Path()
    verify: bool = True
    verbose: bool = False
    """Whether all that is known of a program is printed, and not its verdict alone."""
    search: bool = True
    """Whether the cause of outputs that are not healthy is looked for."""
    several_precisions: bool = False
    """Whether files are named by their precision, where the lane does not do so anyway."""
    keep_on_cpu: tuple[str, ...] = ()
    embed: bool = False
    and_socs: tuple[str, ...] = ()
    language: Language | None = None
