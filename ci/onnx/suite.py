"""The suite: which models are compiled through ONNX Runtime, how, and for which chips.

A case is one model; a run of it is one precision; a program is one run for one chip.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ci.lowering.suite import Dotted, Scalar, Thresholds, Word
from ci.onnx.options import Settings, settings_of
from ci.onnx.precision import precision_named
from provisioning.errors import ToolkitError, UsageError
from provisioning.manifest import Model, load, load_socs, soc_named
from provisioning.settings import MANIFESTS

SHIPPED = MANIFESTS / "suites" / "onnx.toml"


class Run(Model):
    precision: str
    label: Word | None = None
    """Tells this run from another of the same precision; [the precision]."""
    socs: tuple[str, ...] = Field(min_length=1)
    tags: tuple[Word, ...] = Field(min_length=1)
    thresholds: Thresholds
    per_channel: bool = False
    calibration: Annotated[int, Field(ge=1)] = 4
    """How many samples the ranges are taken from."""
    options: dict[str, Scalar] = Field(default={})
    """Of the provider, the session and the run: `python -m ci onnx options`."""
    profiling: bool = False

    @property
    def name(self) -> str:
        return self.label or self.precision

    @field_validator("precision")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            return precision_named(value).name
        except ToolkitError as error:
            raise ValueError(f"a precision ({error.message}; {error.remedy})") from None

    @field_validator("socs")
    @classmethod
    def _are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for soc in value:
            if soc not in load_socs():
                raise ValueError(f"a SoC of manifests/socs.toml, not {soc!r}")
        return value

    @model_validator(mode="after")
    def _options_fit(self) -> Run:
        for soc in self.socs:
            try:
                self.settings(soc)
            except ToolkitError as error:
                raise ValueError(f"{error.message}; {error.remedy}") from None
        return self

    def settings(self, soc: str) -> Settings:
        """Both an embedded context and one beside are made, so options must suit both."""
        given = {
            name: value if isinstance(value, bool | int) else str(value)
            for name, value in self.options.items()
        }
        return settings_of(given, soc=soc_named(soc), embed=True, where="options")


class Case(Model):
    factory: Dotted | None = None
    """`module:function`, as in the lowering suite (docs/lowering.md)."""
    arguments: dict[str, Scalar] = Field(default={})
    model: str = ""
    """An .onnx instead, relative to the suite; it need not lie below it."""
    dimensions: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    """Sizes for the named dimensions of that .onnx."""
    calibrate: str = ""
    """Its calibration data: a directory of .npy or .npz, relative to the suite."""
    inferences: Annotated[int, Field(ge=1)] = 2
    runs: tuple[Run, ...] = Field(min_length=1, alias="run")

    @model_validator(mode="after")
    def _is_one_model(self) -> Case:
        if bool(self.factory) == bool(self.model):
            raise ValueError("either factory or model")
        if self.factory and (self.calibrate or self.dimensions):
            raise ValueError("calibrate and dimensions only with model: a factory gives its own inputs")
        names = [run.name for run in self.runs]
        if again := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"a label for the second run named {again[0]}")
        return self


class Suite(Model):
    schema_: Literal[1] = Field(alias="schema")
    cases: dict[Word, Case] = Field(alias="case", min_length=1)


@dataclass(frozen=True, slots=True)
class Program:
    """One model in one precision for one chip."""

    suite: Path
    case_name: str
    case: Case
    run: Run
    soc: str

    @property
    def name(self) -> str:
        return f"{self.case_name}/{self.run.name}/{self.soc}"

    @property
    def search_path(self) -> Path:
        return self.suite.parent

    def file(self, name: str) -> Path:
        return self.search_path / name


def programs_of(path: Path, socs: Sequence[str] = ()) -> list[Program]:
    """Every program of a suite; with `socs`, every run for these chips instead of its own."""
    for soc in socs:
        soc_named(soc)
    return [
        Program(path.absolute(), name, case, run, soc)
        for name, case in load(path, Suite).cases.items()
        for run in case.runs
        for soc in socs or run.socs
    ]


def choose(programs: Sequence[Program], tags: Collection[str], words: Sequence[str]) -> list[Program]:
    """Those with one of the tags, and one of the words in their names (`*` stands for anything)."""
    patterns = [re.compile(".*".join(map(re.escape, word.split("*"))), re.IGNORECASE) for word in words]
    chosen = [
        program
        for program in programs
        if (not tags or set(tags) & set(program.run.tags))
        and (not patterns or any(pattern.search(program.name) for pattern in patterns))
    ]
    if not chosen:
        asked = [f"--tag {tag}" for tag in tags] + [f"-k {word}" for word in words]
        known = sorted({tag for program in programs for tag in program.run.tags})
        raise UsageError(
            f"no program is left by {' '.join(asked)}; tags are {', '.join(known)}",
            remedy="python -m ci test_onnx --list",
        )
    return chosen
