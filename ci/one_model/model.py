"""MODEL of a command line, of any lane: the selection, what was typed, and the options. Imports nothing
heavy."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ci.models.not_models import MODEL_HELP
from ci.models.user_model import UserModel, user_model
from ci.one_model.named_files import (
    path_of_package,
    require_file,
    require_inputs,
    require_outputs,
    require_program,
    require_project,
    samples_in,
)
from ci.one_model.options import (
    COMPILE,
    DIVERGENCE,
    FORECAST,
    LANGUAGE_TIMEOUT,
    RUN,
    SEARCH_TIMEOUT,
    ModelOptions,
)
from ci.suite.options import Choice, host_selection
from ci.suite.precision import precision_named, scheme_named
from ci.work.jobs import WorkOptions
from provisioning.base.command_line import TIMEOUT, Parser
from provisioning.base.commands import Fix, session
from provisioning.base.errors import UsageError
from provisioning.base.option_fields import add_options, option_words, read_options, require_taken
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection, selection_flags

SomeOptions = TypeVar("SomeOptions", bound=ModelOptions)


@dataclass(frozen=True, slots=True)
class ModelLane:
    """How the commands for one model reach a lane."""

    models: str
    """Those that it takes, in words."""
    package: str
    environment: str
    """The locked Python that it runs in."""
    timeout: float = TIMEOUT
    """Seconds after which a step ends, unless --timeout says otherwise."""
    only_compiles: bool = False
    """Whether of the commands for one model it has `compile` and `run` alone."""

    def module(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")

    @property
    def options(self) -> type[ModelOptions]:
        """What may be typed with its models."""
        options: type[ModelOptions] = self.module("model_options").OPTIONS
        return options

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


PYTORCH = ModelLane("PyTorch models", "ci.lanes.executorch", "executorch")
ONNX = ModelLane("ONNX models", "ci.lanes.onnx", "onnx")
CHECKPOINT = ModelLane(
    "checkpoints of language models", "ci.lanes.llm", "llm", LANGUAGE_TIMEOUT, only_compiles=True
)
LANES = (PYTORCH, ONNX, CHECKPOINT)


@dataclass(frozen=True, slots=True)
class OneModel:
    """MODEL of a command line, and what was typed with it."""

    selection: Selection
    typed: str
    """As the user typed it; empty where a suite's program is taken."""
    lane: ModelLane
    options: ModelOptions
    """The lane's own: `own` gives them by their type."""
    work: WorkOptions = field(default_factory=WorkOptions)
    several_precisions: bool = False
    """Whether files are named by their precision, where the lane does not do so anyway."""

    def own(self, kind: type[SomeOptions]) -> SomeOptions:
        """The options, for the lane whose they are."""
        assert isinstance(self.options, kind)
        return self.options

    def use(self, options: ModelOptions) -> OneModel:
        """The same model with these options."""
        return replace(self, options=options)

    def use_precision(self, name: str | None) -> OneModel:
        return self.use(replace(self.options, precisions=() if name is None else (name,)))

    @property
    def precision(self) -> str | None:
        """The first one that was typed; None: the usual one."""
        return next(iter(self.options.precisions), None)

    @property
    def output(self) -> Path:
        return self.options.output or Path()

    @property
    def file(self) -> UserModel:
        """Modules are searched first in its own folder, or in the current one."""
        return user_model(self.typed, Parser.user_folder())

    @property
    def samples_folder(self) -> Path | None:
        return samples_in(self.options.calibrate) if self.options.calibrate else None

    def for_chip(self, soc: str) -> OneModel:
        if self.selection.socs == (soc,):
            return self
        return replace(self, selection=replace(self.selection, soc=soc, named_socs=(soc,)))

    def command(self, verb: str, soc: str, *more: str) -> Fix:
        """The command that does something else with the same model, for this chip."""
        flags = selection_flags(self.selection, soc)
        return session(verb, self.typed, *flags, *option_words(self.options, verb), *more)

    @property
    def traits(self) -> tuple[str, ...]:
        """What tells this piece of work from others of the same model."""
        return (*self.options.traits, *self.selection.socs)


def lane_of(model: str | None, folder: Path, through: str = "") -> ModelLane:
    """The lane of the model that MODEL names for a user in this folder, and that --through names."""
    if model is None:
        return PYTORCH
    if model.endswith(".onnx"):
        return ONNX
    # A folder in the Hugging Face format, what is often taken for one, or what `compile` wrote for Genie.
    names = ("config.json", "adapter_config.json", "genie_config.json")
    files = (folder / model / name for name in names)
    if any(file.is_file() for file in files):
        return CHECKPOINT
    return ONNX if through == ONNX.environment else PYTORCH


def through_of(args: argparse.Namespace, verb: str) -> str:
    """What the user, or the verb itself, says of the lane."""
    return ONNX.environment if verb == FORECAST else getattr(args, "through", "")


def kinds_of(verb: str) -> Mapping[str, type[ModelOptions]]:
    """The options of each kind of models that the verb takes."""
    lanes = [lane for lane in LANES if verb in (COMPILE, RUN) or not lane.only_compiles]
    # Of a PyTorch model its export is forecast.
    lanes = [ONNX] if verb == FORECAST else lanes
    return {lane.models: lane.options for lane in lanes}


def add_model(
    parser: argparse.ArgumentParser,
    verb: str,
    help: str = MODEL_HELP,
    *,
    metavar: str = "MODEL",
    optional: bool = False,
) -> None:
    """MODEL with all that the verb takes with it."""
    parser.add_argument("model", metavar=metavar, help=help, nargs="?" if optional else None)
    add_options(parser, verb, kinds_of(verb))
    add_selection(parser)


def one_model_of(args: argparse.Namespace, verb: str) -> OneModel:
    """MODEL. Refuses what the verb does not take: kinds of models, and flags that this kind ignores."""
    lane, kinds = lane_of(args.model, Parser.user_folder(), through_of(args, verb)), kinds_of(verb)
    if not args.model and read_options(ModelOptions, args).lane == ONNX.environment:
        lane = ONNX
    if lane.models not in kinds:
        raise UsageError(
            f"{args.model}: this command takes {' and '.join(kinds)}",
            fix="name a .pt2, file.py:function or an .onnx; compile takes this one",
        )
    require_taken(args.model or "a suite's program", lane.models, args, verb, kinds)
    options = read_options(lane.options, args)
    suites = options.suite or read_options(Choice, args).suites
    if options.precision_file and (options.precisions or suites):
        raise UsageError(
            "--precision-file already has the precision, and a suite names its own",
            fix='leave --precision and --suite out; in a run of the suite: precision_file = "FILE"',
        )
    return OneModel(
        selection=selection_of(args) if verb == RUN else host_selection(args),
        typed=args.model or "",
        lane=lane,
        options=options,
        work=WorkOptions(
            timeout=options.timeout or (SEARCH_TIMEOUT if verb == DIVERGENCE else lane.timeout),
            jobs=options.jobs,
            cache=options.cache,
            why=options.why,
        ),
        several_precisions=verb == COMPILE and len(options.precisions) > 1,
    )


def check_model(args: argparse.Namespace, verb: str) -> None:
    """Refuse what the words alone show to be wrong: a model, file, chip or precision that is not there."""
    model = one_model_of(args, verb)
    options, path = model.options, Parser.user_folder() / model.typed
    require_inputs(options.inputs)
    if options.compare:
        require_outputs(Parser.user_folder() / options.compare)
    if options.precision_file:
        require_file(options.precision_file, "--precision-file", "name a file that tune wrote")
    options.check_samples()
    for text in options.packages:
        path_of_package(text)
    if options.project:
        require_project(options.project, f"--project {options.project}")
    if not model.typed or model.lane == CHECKPOINT:
        return
    if verb == RUN:
        require_program(path, model.typed)
        return
    user_model(model.typed, Parser.user_folder())
    for precision in options.precisions:
        precision_in(model.lane, precision)


def precision_in(lane: ModelLane, name: str) -> str:
    """The precision as the lane's runs name it."""
    return precision_named(name).name if lane == ONNX else scheme_named(name)


def require_one_chip(selection: Selection) -> None:
    """For commands that look at a program for one chip."""
    if len(selection.socs) > 1:
        chips = ", ".join(selection.socs)
        raise UsageError(f"expected one chip, found {chips}", fix="name one --soc, and repeat the command")
