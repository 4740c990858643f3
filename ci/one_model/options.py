"""The options that commands for one model share for models of every kind. Imports nothing heavy.

A lane defines its own in its `model_options`: a subclass of `ModelOptions`, which says which of these it
ignores."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ci.one_model.named_files import samples_in
from ci.suite.lane_head import (
    AUDIT,
    COMPILE,
    DIVERGENCE,
    FORECAST,
    FROM_MODEL,
    QUANTIZE,
    REPAIR,
    RUN,
    TUNE,
)
from ci.suite.options import SHOWS, WorkFlags
from provisioning.base.flags import count
from provisioning.base.option_fields import option

SomeOptions = TypeVar("SomeOptions", bound="ModelOptions")

PRECISION_HELP = "fp16, 8a8w, 16a8w, 16a4w … [fp16; a quantized model as it is]"


THROUGH = ("genie", "executorch", "onnx")
"""The values of --through: the runtime of a language model, or the lane of another PyTorch model."""

THROUGH_HELP = "the runtime of a language model [genie]; onnx: export a PyTorch model, and compile that"


GOAL, PACKAGES = "what must hold", "the model's own packages"
"""These are headings of --help."""
OF_SEARCH = "the printed command decides what becomes of it"
IN_KEY = "the key has the packages themselves"
OF_PLACE = "the printed command says where it writes"


@dataclass(frozen=True)
class Floor:
    """The minimum that `tune` must keep."""

    value: float
    decibels: bool

    def __str__(self) -> str:
        number = repr(self.value).removesuffix(".0")
        return f"{number}dB" if self.decibels else number


def decibels(text: str) -> float:
    """The type of an SQNR that something is held to."""
    with suppress(ValueError):
        if 0 < (value := float(text.removesuffix("dB"))) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"expected a number above 0, such as 30, found {text!r}")


def floor(text: str) -> Floor:
    """Parse an argument that is such a minimum."""
    if not (match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(dB)?", text)):
        raise argparse.ArgumentTypeError(f"expected 35dB, or with --metric a number, found {text!r}")
    return Floor(float(match[1]), bool(match[2]))


@dataclass(frozen=True)
class ModelOptions(WorkFlags):
    calibrate: str | None = option(
        None,
        "--calibrate",
        "a folder with a file for each sample: .npy, .npz, for PyTorch models also .pt; for ONNX models"
        " also MODULE:FUNCTION [drawn]; for a checkpoint a text file",
        metavar="DIR",
        verbs=FROM_MODEL,
        suite="case.samples",
    )
    calibration: int | None = option(
        None,
        "--calibration",
        "at most this many calibrate [200; 32 if drawn]",
        metavar="N",
        parse=count,
        verbs=FROM_MODEL,
        suite="run.calibration",
    )
    inferences: int | None = option(
        None,
        "--inferences",
        "at most this many others are compared [16; 2 or 8 if drawn]",
        metavar="N",
        parse=count,
        verbs=FROM_MODEL,
        suite="case.inferences",
    )
    precisions: tuple[str, ...] = option(
        (),
        "--precision",
        PRECISION_HELP,
        metavar="SCHEME",
        verbs=FROM_MODEL,
        once=(QUANTIZE, DIVERGENCE, REPAIR, FORECAST),
        helps={
            COMPILE: f"{PRECISION_HELP}; may be repeated, to compare them in a table",
            QUANTIZE: "8a8w, 16a8w, 16a4w …",
            AUDIT: "may be repeated [fp16, 8a8w, 16a8w, and 16a4w for PyTorch models]",
            TUNE: "twice: the cheap one, then the exact one [8a8w, 16a8w]",
        },
        suite="run.precision",
    )
    precision_file: Path | None = option(
        None,
        "--precision-file",
        "a file that `tune` wrote, instead of --precision",
        metavar="FILE",
        parse=Path,
        verbs=(COMPILE, QUANTIZE, DIVERGENCE, REPAIR),
        suite="run.precision_file",
    )
    packages: tuple[str, ...] = option(
        (),
        "--with",
        "a package of the model: a requirement, or the path of a wheel or a project; may be repeated",
        metavar="PACKAGE",
        verbs=FROM_MODEL,
        group=PACKAGES,
        decides_nothing=IN_KEY,
    )
    project: Path | None = option(
        None,
        "--project",
        "the model's project, with its dependencies [the nearest pyproject.toml, once an import fails]",
        metavar="FOLDER",
        parse=Path,
        verbs=FROM_MODEL,
        group=PACKAGES,
        decides_nothing=IN_KEY,
    )
    takes_project: bool = option(
        True,
        "--no-project",
        "leave the nearest pyproject.toml alone",
        verbs=FROM_MODEL,
        group=PACKAGES,
        decides_nothing=IN_KEY,
    )
    output: Path | None = option(
        None,
        "--output",
        "the folder for the program and its record",
        letter="-o",
        metavar="DIR",
        parse=Path,
        verbs=(COMPILE, QUANTIZE, REPAIR, TUNE),
        required=(COMPILE, REPAIR),
        helps={
            QUANTIZE: "the folder for the quantized model and its record",
            REPAIR: "the folder for the rewritten model",
            TUNE: "the folder for the precision file [here]",
        },
        unprinted=OF_PLACE,
        decides_nothing="files are copied there",
    )
    verify: str = option(
        "emulator",
        "--verify",
        "where to run it [emulator]",
        choices=("emulator", "none"),
        verbs=(COMPILE,),
        unprinted="a program that we advise is to be run",
        decides_nothing="it chooses whether a program is run once it is compiled",
    )
    keep_samples: bool = option(
        False,
        "--keep-samples",
        "also write what a device is judged with: samples, and the outputs of float and of the emulator",
        verbs=(COMPILE,),
        unprinted=OF_PLACE,
        decides_nothing=SHOWS,
    )
    search: bool = option(
        True,
        "--no-search",
        "do not search for the cause of wrong outputs (90 to 300 s at most)",
        verbs=(COMPILE,),
        unprinted="if the program that we advise is wrong, too, its cause is worth knowing",
        decides_nothing=SHOWS,
    )
    report_upstream: Path | None = option(
        None,
        "--report-upstream",
        "if a step of ExecuTorch is the cause, write a script of the smallest part that shows it",
        metavar="FILE.py",
        parse=Path,
        verbs=(COMPILE,),
        unprinted=OF_PLACE,
        decides_nothing=SHOWS,
    )
    suite: Path | None = option(
        None,
        "--suite",
        "also add the model to this suite, and print the command that accepts what it measures",
        metavar="FILE.toml",
        parse=Path,
        verbs=(COMPILE,),
        unprinted="a trial adds nothing to a suite",
        decides_nothing=SHOWS,
    )
    lane: str = option(
        "executorch",
        "--lane",
        "of a suite's program [executorch]",
        choices=("executorch", "onnx"),
        verbs=(DIVERGENCE,),
        unprinted="MODEL says so",
        decides_nothing="it is the program's",
    )
    where: bool = option(
        False,
        "--where",
        "write nothing; list what each operator loses against float on the CPU, worst first",
        verbs=(QUANTIZE,),
        unprinted=OF_SEARCH,
        decides_nothing="it is another task, with results of its own",
    )
    least: float | None = option(
        None,
        "--least",
        "the SQNR below which it counts as different [the suite's threshold, else 30]",
        metavar="DB",
        parse=decibels,
        verbs=(DIVERGENCE,),
    )
    write: Path | None = option(
        None,
        "--write",
        "cut out that operator with its inputs, as a script",
        metavar="FILE.py",
        parse=Path,
        verbs=(DIVERGENCE,),
        unprinted=OF_PLACE,
        decides_nothing=SHOWS,
    )
    only: tuple[str, ...] = option(
        (),
        "--only",
        "what to repair, by the names in manifests/fixes.toml [all]; may be repeated",
        metavar="RULE",
        verbs=(REPAIR,),
    )
    floor: Floor | None = option(
        None,
        "--floor",
        "the least SQNR against float, or with --metric the least result",
        metavar="35dB",
        parse=floor,
        verbs=(TUNE,),
        group=GOAL,
        decides_nothing="each program of the search is a result by itself",
    )
    metric: str | None = option(
        None,
        "--metric",
        "a function that gets the program's outputs and float's (a list of arrays for each inference)"
        " and returns a number; more is better",
        metavar="FILE.py:FUNCTION",
        verbs=(TUNE,),
        group=GOAL,
        decides_nothing="it is computed anew of a program's outputs",
    )
    phones: tuple[str, ...] = option(
        (),
        "--phone",
        "only this phone: 'Galaxy S25', 'X Elite' [all fitted ones]; may be repeated",
        metavar="NAME",
        verbs=(FORECAST,),
    )
    inputs: tuple[str, ...] = option(
        (),
        "--input",
        ".npy of an input, in order or by name, or .npz with all [drawn]; may be repeated",
        metavar="[NAME=]FILE",
        verbs=(RUN,),
        decides_nothing="a program that is run by itself is not cached",
    )
    outputs: Path | None = option(
        None,
        "--output",
        "write an .npy for each output there",
        letter="-o",
        metavar="DIR",
        parse=Path,
        verbs=(RUN,),
        unprinted=OF_PLACE,
        decides_nothing=SHOWS,
    )
    compare: str | None = option(
        None,
        "--compare",
        "compare with the outputs that -o wrote of another program; exit 1 if they differ too much",
        metavar="DIR",
        verbs=(RUN,),
        decides_nothing=SHOWS,
    )

    @property
    def is_verified(self) -> bool:
        """Whether a compiled program is run on the emulator."""
        return self.verify == "emulator"

    @property
    def traits(self) -> tuple[str, ...]:
        """The texts that distinguish one piece of work from others on the same model."""
        file = [self.precision_file.name] if self.precision_file else []
        return (*self.precisions, *file)

    @property
    def processor(self) -> str:
        """The part of the chip that runs the program."""
        return "htp"

    def check_precisions(self) -> None:
        """Refuse a precision that the lane does not know."""

    def check_model(self, path: Path) -> None:
        """Refuse a model that its own files show not to be one of the lane's."""

    def check_samples(self) -> None:
        """Refuse samples that are not there."""
        if self.calibrate:
            samples_in(self.calibrate)

    def rewritten(self: SomeOptions) -> SomeOptions:
        """The options for a rewritten model, whose nodes have other names and whose sizes are fixed."""
        return self

    def folding_constants(self) -> ModelOptions | None:
        """Return the options that fold constants; None if the lane cannot, or these do already."""
        return None

    def keeping_on_cpu(self, nodes: Sequence[str]) -> ModelOptions:
        """Return the options with which these nodes run on the CPU."""
        return self

    def remedies(self) -> Iterator[ModelOptions]:
        """Yield these options, each time with one more that may make a quantized program more accurate."""
        yield from ()
