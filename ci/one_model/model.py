"""MODEL of a command line, of any lane: its flags, and what is read from them. Imports nothing heavy."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ci.models.not_models import MODEL_HELP
from ci.models.user_model import UserModel, user_model
from ci.suite.options import add_choice, add_work, host_selection, work_of
from ci.suite.precision import precision_named, scheme_named
from ci.work.jobs import WorkOptions
from provisioning.base.command_line import TIMEOUT, Parser, count, duration, repeatable, switch, valued
from provisioning.base.commands import Fix, leave_out, session
from provisioning.base.errors import UnknownName, UsageError
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection, user_path

PRECISION_HELP = "fp16, 8a8w, 16a8w, 16a4w … [fp16; a quantized model as it is]"
OPTION_HELP = "a setting of the provider, the session or the run (docs/options.md lists them)"

LANGUAGE_TIMEOUT = 4 * 3600.0
"""Seconds after which work on a language model ends: one with a billion weights takes minutes to compile, and
seconds for each token."""


@dataclass(frozen=True, slots=True)
class ModelLane:
    """How the commands for one model reach a lane."""

    models: str
    """Those that it takes, in words."""
    package: str
    environment: str
    """The locked Python that it runs in."""
    flags: tuple[str, ...]
    """Those that it alone has."""
    timeout: float = TIMEOUT
    """Seconds after which a step ends, unless --timeout says otherwise."""
    only_compiles: bool = False
    """Whether of the commands for one model it has `compile` alone."""

    def module(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")

    @property
    def product(self) -> Any:
        """What `compile` asks of it (Compiles), and beside that `quantize`, `run` and `forecast`."""
        return self.module("product")

    @property
    def explain(self) -> Any:
        """What the searches ask of it (Explains)."""
        return self.module("explain")

    @property
    def suites(self) -> Any:
        """Those of the lane (Suites)."""
        return self.module("suite").SUITES


PYTORCH = ModelLane(
    "PyTorch models",
    "ci.lanes.executorch",
    "executorch",
    ("keep_on_cpu", "backend", "jobs", "variable"),
)
ONNX = ModelLane(
    "ONNX models",
    "ci.lanes.onnx",
    "onnx",
    ("per_channel", "embed", "dimension", "option", "as_it_is"),
)
CHECKPOINT = ModelLane(
    "checkpoints of language models",
    "ci.lanes.llm",
    "llm",
    ("through", "context", "prefill", "parts", "chat", "system", "tokens"),
    LANGUAGE_TIMEOUT,
    only_compiles=True,
)
LANES = (PYTORCH, ONNX, CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Language:
    through: str
    context: int
    prefill: int
    parts: int | None


@dataclass(frozen=True, slots=True)
class OneModel:
    """MODEL of a command line, and what its flags say of it."""

    selection: Selection
    typed: str
    """As the user typed it; empty where `divergence` takes a suite's program."""
    lane: ModelLane
    work: WorkOptions
    precision: str | None = None
    precision_file: Path | None = None
    """In place of a precision: that of `tune`."""
    calibrate: str | None = None
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
    output: Path = Path()
    verify: bool = True
    search: bool = True
    """Whether the cause of outputs that are not healthy is looked for."""
    several_precisions: bool = False
    """Whether files are named by their precision, where the lane does not do so anyway."""
    keep_on_cpu: tuple[str, ...] = ()
    embed: bool = False
    language: Language | None = None

    @property
    def file(self) -> UserModel:
        """Modules are searched first in its own folder, or in the current one."""
        return user_model(self.typed, Parser.user_folder())

    @property
    def samples_folder(self) -> Path | None:
        if not self.calibrate:
            return None
        folder = user_path(self.calibrate, "--calibrate", str(Parser.user_folder())).absolute()
        if not folder.is_dir():
            message = f"--calibrate {self.calibrate} is not a folder"
            folders = [path.name for path in folder.parent.glob("*/")]
            if get_close_matches(folder.name, folders, n=1):
                raise UnknownName(message, folder.name, folders)
            raise UsageError(message, fix="name a folder of samples")
        return folder

    def for_chip(self, soc: str) -> OneModel:
        if self.selection.socs == (soc,):
            return self
        return replace(self, selection=replace(self.selection, soc=soc, named_socs=(soc,)))

    def command(self, verb: str, soc: str, *more: str) -> Fix:
        """That does something else with the same model; quantizing knows no settings of the provider."""
        model = replace(self, options=()) if verb == "quantize" else self
        return session(verb, *model.words(soc), *more)

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
        return [*words, "--per-channel"] if self.per_channel else words

    @property
    def traits(self) -> tuple[str, ...]:
        """What else than model and chips tells one piece of work from another."""
        file = self.precision_file.name if self.precision_file else None
        return tuple(filter(None, (self.precision, file, self.backend, *self.selection.socs)))


def lane_of(model: str | None, folder: Path) -> ModelLane:
    """That of the model that MODEL names for a user in this folder."""
    if model is None:
        return PYTORCH
    if model.endswith(".onnx"):
        return ONNX
    # A folder in the Hugging Face format, what is often taken for one, or what `compile` wrote for Genie.
    names = ("config.json", "adapter_config.json", "genie_config.json")
    files = (folder / model / name for name in names)
    return CHECKPOINT if any(file.is_file() for file in files) else PYTORCH


def add_model(
    parser: argparse.ArgumentParser, help: str = MODEL_HELP, *, optional: bool = False
) -> argparse._ArgumentGroup:
    """What all commands for one model have alike; returns the group of ONNX models' flags."""
    parser.set_defaults(precision=None, precision_file=None, backend=None, option=[])
    parser.add_argument("model", metavar="MODEL", help=help, nargs="?" if optional else None)
    valued(
        parser,
        "--calibrate",
        "DIR",
        "a folder with a file for each sample: .npy, .npz, for PyTorch models also .pt; for ONNX models"
        " also MODULE:FUNCTION [drawn]",
    )
    valued(parser, "--calibration", "N", "at most this many calibrate [200; 32 if drawn]", type=count)
    valued(
        parser, "--inferences", "N", "at most this many others are compared [16; 2 or 8 if drawn]", type=count
    )
    repeatable(parser, "--variable", "NAME", "pass this environment variable to the model")
    add_selection(parser)
    onnx = parser.add_argument_group("ONNX models")
    switch(onnx, "--per-channel", "one weight scale for each channel of a convolution")
    add_dimension(onnx)
    return onnx


def add_dimension(parser: argparse._ActionsContainer) -> None:
    repeatable(parser, "--dimension", "NAME=N", "fix a named size, or all of an input: x=1,3,64,64")


def one_model_of(args: argparse.Namespace, *, checkpoints: bool = False) -> OneModel:
    """MODEL. Refuses a checkpoint, where the command takes none."""
    lane = lane_of(args.model, Parser.user_folder())
    if lane.only_compiles and not checkpoints:
        raise UsageError(
            f"{args.model}: this command takes PyTorch and ONNX models",
            fix="name a .pt2, file.py:function or an .onnx; compile takes this one",
        )
    present = require_taken(lane, args, ("suite", "precision_file"))
    if "precision_file" in present and {"precision", "precisions", "suite"} & present:
        raise UsageError(
            "--precision-file already has the precision, and a suite names its own",
            fix='leave --precision and --suite out; in a run of the suite: precision_file = "FILE"',
        )
    return OneModel(
        typed=args.model or "",
        lane=lane,
        work=work_of(args, lane.timeout),
        precision=args.precision,
        precision_file=args.precision_file,
        calibrate=args.calibrate,
        calibration=args.calibration,
        inferences=args.inferences,
        backend=args.backend,
        per_channel=args.per_channel,
        variables=tuple(args.variable),
        dimensions=tuple(args.dimension),
        options=tuple(args.option),
        selection=host_selection(args),
    )


def require_taken(lane: ModelLane, args: argparse.Namespace, of_no_checkpoint: Iterable[str]) -> set[str]:
    """The names of the flags that were typed, or have a default. Refuses those that this kind of model
    ignores: the user would believe that they worked."""
    lanes_by_flag: dict[str, tuple[ModelLane, ...]]
    lanes_by_flag = {name: (taker,) for taker in LANES for name in taker.flags}
    lanes_by_flag |= dict.fromkeys(of_no_checkpoint, (PYTORCH, ONNX))
    present = {name for name, value in vars(args).items() if value}
    for name in sorted(present & lanes_by_flag.keys()):
        if lane not in (lanes := lanes_by_flag[name]):
            flag, kinds = f"--{name.replace('_', '-')}", " and ".join(taker.models for taker in lanes)
            raise UsageError(f"{flag} is for {kinds}, not for {args.model}", fix=leave_out(flag))
    return present


def check_model(args: argparse.Namespace, folder: Path) -> None:
    """Refuse what the words alone show to be wrong: a model, chip or precision that is not there."""
    lane = one_model_of(args, checkpoints=True).lane
    if not args.model or lane == CHECKPOINT:
        return
    user_model(args.model, folder)
    for precision in getattr(args, "precisions", None) or filter(None, [args.precision]):
        precision_in(lane, precision)


def precision_in(lane: ModelLane, name: str) -> str:
    """As the lane's runs name it."""
    return precision_named(name).name if lane == ONNX else scheme_named(name)


def add_model_or_suite(parser: argparse.ArgumentParser) -> None:
    """For `divergence`, which takes a program of a suite in place of MODEL."""
    add_option(add_model(parser, f"{MODEL_HELP}; without it, a suite's program", optional=True))
    lanes = ("executorch", "onnx")
    parser.add_argument("--lane", choices=lanes, default=lanes[0], help="of a suite's program [%(default)s]")
    add_choice(parser, "manifests/suites/models.toml")


def model_or_suite_of(args: argparse.Namespace) -> OneModel:
    """MODEL, or none in the lane of the suite's program."""
    model = one_model_of(args)
    return replace(model, lane=ONNX) if not args.model and args.lane == "onnx" else model


def add_limit(parser: argparse._ActionsContainer, work: str) -> None:
    """The flag of a time limit whose default is the lane's."""
    text = f"end {work} after S seconds [{TIMEOUT:g}; of a language model {LANGUAGE_TIMEOUT:g}]"
    valued(parser, "--timeout", "S", text, type=duration)


def program_to_run(args: argparse.Namespace) -> OneModel:
    """A program that is compiled already."""
    typed: str = args.model
    lane = lane_of(typed, Parser.user_folder())
    program = OneModel(selection_of(args), typed, lane, WorkOptions(args.timeout or lane.timeout))
    if lane != ONNX:
        return program
    return replace(program, options=tuple(args.option), as_it_is=args.as_it_is)


def require_one_chip(selection: Selection) -> None:
    """For commands that look at a program for one chip."""
    if len(selection.socs) > 1:
        chips = ", ".join(selection.socs)
        raise UsageError(f"expected one chip, found {chips}", fix="name one --soc, and repeat the command")


def add_output(
    parser: argparse.ArgumentParser, output: str, *, required: bool = True
) -> argparse._ArgumentGroup:
    """What `compile` and `quantize` have alike; `output` says what is written. Returns the group of PyTorch
    models' flags."""
    parser.add_argument("-o", "--output", type=Path, required=required, metavar="DIR", help=output)
    pytorch = parser.add_argument_group("PyTorch models")
    pytorch.add_argument("--backend", choices=("htp", "lpai"), help="the processor [htp]")
    return pytorch


def add_precisions(parser: argparse.ArgumentParser, help: str) -> None:
    """A flag that may be repeated: its values are `precisions`, None without it."""
    valued(parser, "--precision", "SCHEME", help, action="append", dest="precisions")


def add_precision_file(group: argparse._ActionsContainer) -> None:
    valued(group, "--precision-file", "FILE", "a file that `tune` wrote, instead of --precision", type=Path)


def add_option(group: argparse._ActionsContainer) -> None:
    repeatable(group, "--option", "NAME=VALUE", OPTION_HELP)


def add_language(group: argparse._ActionsContainer) -> None:
    group.add_argument("--through", choices=("genie", "executorch"), help="the runtime [genie]")
    valued(group, "--context", "N", "the longest context, in tokens [128]", type=count)
    valued(group, "--prefill", "N", "tokens that prefill reads at once [32]", type=count)
    valued(group, "--parts", "N", "Genie's binaries [1 GB each at most]", type=count)


def add_compile(parser: argparse.ArgumentParser) -> None:
    onnx = add_model(parser)
    pytorch = add_output(parser, "the folder for the program and its record")
    add_precisions(parser, f"{PRECISION_HELP}; may be repeated, to compare them in a table")
    add_precision_file(parser)
    parser.add_argument(
        "--verify", choices=("emulator", "none"), default="emulator", help="where to run it [%(default)s]"
    )
    switch(parser, "--no-search", "do not search for the cause of wrong outputs (90 to 300 s at most)")
    valued(
        parser,
        "--suite",
        "FILE.toml",
        "also add the model to this suite, and print the command that accepts what it measures",
        type=Path,
    )
    repeatable(parser, "--keep-on-cpu", "NODE", "leave this node on the CPU")
    switch(parser, "--embed", "put the context into the .onnx")
    add_option(onnx)
    add_language(parser.add_argument_group(CHECKPOINT.models))
    group = parser.add_argument_group("how")
    add_limit(group, "a step")
    add_work(group, "a step", None)
    pytorch.add_argument("--jobs", "-j", type=count, metavar="N", help="programs in parallel [cores]")


def model_to_compile(args: argparse.Namespace) -> OneModel:
    return replace(
        one_model_of(args, checkpoints=True),
        output=args.output,
        verify=args.verify == "emulator",
        search=not args.no_search,
        several_precisions=len(args.precisions or ()) > 1,
        keep_on_cpu=tuple(args.keep_on_cpu),
        embed=args.embed,
        language=Language(
            args.through or "genie",
            args.context or 128,
            args.prefill or 32,
            args.parts,
        ),
    )
