"""The suite: which models are lowered, how, for which chips, and what is expected of them.

A case is one model; a run of it is one way to quantize it; a program is one run for one chip.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from provisioning.errors import ManifestError, UsageError
from provisioning.manifest import Model, load, load_socs, soc_named
from provisioning.settings import MANIFESTS

SHIPPED = MANIFESTS / "suites" / "lowering.toml"

Scheme = Literal["fp16", "8a8w", "8a4w", "16a16w", "16a8w", "16a4w", "16a4w_block", "16a2w", "fp16a8w"]
QAT_SCHEMES = ("8a8w", "16a8w", "16a4w", "16a4w_block", "fp16a8w")
"""What ExecuTorch's quantizer has for quantization-aware training."""

Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
Dotted = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
Scalar = bool | int | float | str


class Thresholds(Model):
    """What the emulator's outputs must reach. The unprefixed compare with float eager."""

    cosine: Annotated[float, Field(le=1)] | None = None
    sqnr_db: float | None = None
    max_abs: Annotated[float, Field(ge=0)] | None = None
    max_rel: Annotated[float, Field(ge=0)] | None = None
    """Of the largest absolute value of the expected output."""
    top1: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of rows in which the largest value is at the same place."""
    reference_cosine: Annotated[float, Field(le=1)] | None = None
    reference_sqnr_db: float | None = None
    """Against the quantized model in PyTorch: what the chip adds, without what quantizing costs."""

    @model_validator(mode="after")
    def _can_fail(self) -> Thresholds:
        if self.cosine is None and self.sqnr_db is None:
            raise ValueError("cosine or sqnr_db, or nothing would be compared")
        return self


class ModuleScheme(Model):
    """Another scheme for some of the model's modules: named as in named_modules(), or by class."""

    scheme: Scheme
    name: str = ""
    type: str = ""
    per_channel: bool = False

    @model_validator(mode="after")
    def _names_one(self) -> ModuleScheme:
        if bool(self.name) == bool(self.type):
            raise ValueError("either name or type")
        if self.scheme == "fp16":
            raise ValueError("a quantizing scheme; unquantized_nodes leaves nodes in float")
        return self


class Run(Model):
    scheme: Scheme
    label: Word | None = None
    """Tells this run from another of the same scheme; [the scheme, with -qat for QAT]."""
    socs: tuple[str, ...] = Field(min_length=1)
    tags: tuple[Word, ...] = Field(min_length=1)
    thresholds: Thresholds | None = None
    emulator_fault: str = ""
    """Part of what the runner says where a program that lowers is known not to run; then no thresholds."""
    qat: bool = False
    per_channel: bool = True
    observer: Literal["min_max", "moving_average"] = "min_max"
    """How activations' ranges are found: the widest seen, or mostly what the first batches had."""
    calibration: Annotated[int, Field(ge=1)] = 4
    """Batches of inputs that the observers, or the QAT steps, see."""
    modules: tuple[ModuleScheme, ...] = ()
    annotations: tuple[Dotted, ...] = ()
    """Functions that are given the graph and annotate nodes of it themselves."""
    block_sizes: dict[str, tuple[Annotated[int, Field(ge=1)], ...]] = Field(default_factory=dict)
    """Block sizes by node (`linear`, `conv2d_1`); `*` stands in a name for anything."""
    unquantized_nodes: tuple[str, ...] = ()
    unquantized_operators: tuple[str, ...] = ()
    cpu_nodes: tuple[str, ...] = ()
    """Nodes of the edge graph that the partitioner is told to leave on the CPU."""
    cpu_operators: tuple[str, ...] = ()
    delegates: Annotated[int, Field(ge=0)] | None = None
    cpu_budget: Annotated[int, Field(ge=0)] | None = None

    @property
    def name(self) -> str:
        return self.label or (f"{self.scheme}-qat" if self.qat else self.scheme)

    @field_validator("socs")
    @classmethod
    def _are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for soc in value:
            if soc not in load_socs():
                raise ValueError(f"a SoC of manifests/socs.toml, not {soc!r}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Run:
        if (self.thresholds is None) != bool(self.emulator_fault):
            raise ValueError("thresholds, or emulator_fault in their place")
        if self.qat and self.scheme not in QAT_SCHEMES:
            raise ValueError(f"one of {', '.join(QAT_SCHEMES)} with qat")
        quantizing = (
            self.qat, self.modules, self.annotations, self.block_sizes,
            self.unquantized_nodes, self.unquantized_operators,
        )  # fmt: skip
        if self.scheme == "fp16" and any(quantizing):
            raise ValueError("no quantization options with fp16")
        if (self.scheme == "16a4w_block") != bool(self.block_sizes):
            raise ValueError("block_sizes with 16a4w_block, and only with it")
        return self


class Case(Model):
    factory: Dotted
    """`module:function`, called with `arguments`; gives the model and its inputs (docs/lowering.md)."""
    arguments: dict[str, Scalar] = Field(default_factory=dict)
    files: tuple[str, ...] = ()
    """What the factory reads beside Python modules, such as weights; relative to the suite."""
    inferences: Annotated[int, Field(ge=1)] = 2
    delegates: Annotated[int, Field(ge=0)] = 1
    """How many delegates are expected; a run may say otherwise."""
    cpu_budget: Annotated[int, Field(ge=0)] = 0
    """How many operators may stay on the CPU."""
    runs: tuple[Run, ...] = Field(min_length=1, alias="run")

    @model_validator(mode="after")
    def _names_are_unique(self) -> Case:
        names = [run.name for run in self.runs]
        if again := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"a label for the second run named {again[0]}")
        return self


class Suite(Model):
    schema_: Literal[1] = Field(alias="schema")
    cases: dict[Word, Case] = Field(alias="case", min_length=1)


@dataclass(frozen=True, slots=True)
class Program:
    """One model, quantized one way, for one chip."""

    suite: Path
    case_name: str
    case: Case
    run: Run
    soc: str

    @property
    def name(self) -> str:
        return f"{self.case_name}/{self.run.name}/{self.soc}"

    @property
    def delegates(self) -> int:
        return self.case.delegates if self.run.delegates is None else self.run.delegates

    @property
    def cpu_budget(self) -> int:
        return self.case.cpu_budget if self.run.cpu_budget is None else self.run.cpu_budget

    @property
    def search_path(self) -> Path:
        """Where the factory's module is looked for before everything else."""
        return self.suite.parent


def load_suite(path: Path) -> Suite:
    return load(path, Suite)


def programs_of(path: Path, socs: Sequence[str] = ()) -> list[Program]:
    """Every program of a suite; with `socs`, every run for these chips instead of its own."""
    for soc in socs:
        soc_named(soc)
    return [
        Program(path.absolute(), name, case, run, soc)
        for name, case in load_suite(path).cases.items()
        for run in case.runs
        for soc in socs or run.socs
    ]


def choose(
    programs: Sequence[Program],
    *,
    tags: Collection[str] = (),
    words: Sequence[str] = (),
    cases: Collection[str] = (),
) -> list[Program]:
    """Of the cases those with one of the tags, and one of the words in their names (`*` is anything)."""
    patterns = [re.compile(".*".join(map(re.escape, word.split("*"))), re.IGNORECASE) for word in words]
    chosen = [
        program
        for program in programs
        if (not cases or program.case_name in cases)
        and (not tags or set(tags) & set(program.run.tags))
        and (not patterns or any(pattern.search(program.name) for pattern in patterns))
    ]
    if not chosen:
        asked = [f"--case {case}" for case in cases]
        asked += [f"--tag {tag}" for tag in tags] + [f"-k {word}" for word in words]
        known = sorted({tag for program in programs for tag in program.run.tags})
        raise UsageError(
            f"no program is left by {' '.join(asked)}; tags are {', '.join(known)}",
            remedy="python -m ci test_lowering --list",
        )
    return chosen


def all_programs(suites: Sequence[Path], socs: Sequence[str] = ()) -> list[Program]:
    """Of the named suites, or of the shipped one; no two may have the same name."""
    programs = [program for path in suites or [SHIPPED] for program in programs_of(path, socs)]
    seen: dict[str, Program] = {}
    for program in programs:
        if other := seen.get(program.name):
            raise ManifestError(
                program.suite,
                f"case.{program.case_name}",
                expected="a name that no other suite has",
                found=f"the one of {other.suite}",
            )
        seen[program.name] = program
    return programs
