"""Read MODEL of a command line and its flags, for every command for one model (`compile`, `audit`, `repair`
…).

Which lane takes the model decides which flags it has. `add_model` adds the flags of all lanes to the verb's
parser, `one_model_of` reads them for the model's own lane and refuses the others', and `check_model` refuses
what is wrong in the words alone. Imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ci.lanes.registry import lane_named, lanes_with_suites
from ci.models.not_models import MODEL_HELP
from ci.models.user_model import user_model
from ci.one_model.model import OneModel
from ci.one_model.named_files import (
    path_of_package,
    require_file,
    require_inputs,
    require_no_file_name,
    require_outputs,
    require_program,
    require_project,
)
from ci.one_model.options import ModelOptions
from ci.one_model.phones import require_phone
from ci.suite.lane_head import COMPILE, DIVERGENCE, RUN, LaneHead
from ci.suite.options import SEARCH_TIMEOUT, Choice
from provisioning.base.errors import UsageError
from provisioning.base.option_fields import add_options, read_options, require_taken
from provisioning.base.parser import Parser
from provisioning.base.selection import add_selection, host_selection, selection_of

if TYPE_CHECKING:
    from ci.explain.lane import AnyModelLane


def heads_of_models(verb: str) -> list[LaneHead]:
    """The lanes whose models the verb takes."""
    return [row.head for row in lanes_with_suites() if verb in row.head.verbs]


def options_of(lane: LaneHead) -> type[ModelOptions]:
    """The options that the lane's models take."""
    return lane_named(lane.name).options


def lane_of(args: argparse.Namespace, verb: str, folder: Path) -> LaneHead:
    """The lane of the model that the user typed in this folder; for a suite's program, the one that --lane
    names."""
    if not args.model:
        return lane_named(read_options(ModelOptions, args).lane).head
    for row in lanes_with_suites():
        if row.head.takes_path(folder / args.model):
            return row.head
    # A PyTorch model: the first lane takes it, or the one that its export is for.
    heads = heads_of_models(verb)
    through = getattr(args, "through", "")
    return next((head for head in heads if head.name == through), heads[0])


def kinds_of(verb: str) -> Mapping[str, type[ModelOptions]]:
    """The options of each kind of model that the verb takes, by the words for that kind, such as `PyTorch
    models`."""
    return {head.models: options_of(head) for head in heads_of_models(verb)}


def add_model(
    parser: argparse.ArgumentParser,
    verb: str,
    help: str = MODEL_HELP,
    *,
    metavar: str = "MODEL",
    optional: bool = False,
) -> None:
    """Add MODEL and all options that the verb takes with it."""
    parser.add_argument("model", metavar=metavar, help=help, nargs="?" if optional else None)
    add_options(parser, verb, kinds_of(verb))
    add_selection(parser)


def one_model_of(args: argparse.Namespace, verb: str) -> OneModel:
    """Read MODEL. Refuses kinds of models that the verb does not take, and flags that this kind ignores."""
    lane, kinds = lane_of(args, verb, Parser.user_folder()), kinds_of(verb)
    if lane.models not in kinds:
        raise UsageError(
            f"{args.model}: this command takes {' and '.join(kinds)}",
            fix="name a .pt2, file.py:function or an .onnx; compile takes this one",
        )
    if verb == RUN and (folder := Parser.user_folder() / args.model).is_dir() and not lane.takes_text:
        require_program(folder, args.model)
    through = f" through {lane.name}" if getattr(args, "through", "") else ""
    subject = args.model or "a suite's program"
    require_taken(f"{subject}{through}", lane.models, args, verb, kinds)
    options = read_options(options_of(lane), args)
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
        work=options.work_options(SEARCH_TIMEOUT if verb == DIVERGENCE else lane.timeout),
        several_precisions=verb == COMPILE and len(options.precisions) > 1,
    )


def check_model(args: argparse.Namespace, verb: str) -> None:
    """Refuse what is wrong in the words alone: a model, file, chip or precision that does not exist."""
    model = one_model_of(args, verb)
    options, path = model.options, Parser.user_folder() / model.typed
    require_inputs(options.inputs)
    require_no_file_name(model.output)
    if options.compare:
        require_outputs(Parser.user_folder() / options.compare)
    if options.precision_file:
        require_file(options.precision_file, "--precision-file", "name a file that tune wrote")
    for phone in options.phones:
        require_phone(phone)
    options.check_samples()
    for text in options.packages:
        path_of_package(text)
    if options.project:
        require_project(options.project, f"--project {options.project}")
    if model.typed and verb != RUN:
        options.check_model(path)
    if not model.typed or model.lane.takes_text:
        return
    if verb == RUN:
        require_program(path, model.typed)
        return
    user_model(model.typed, Parser.user_folder())
    options.check_precisions()


def model_lane(model: OneModel) -> AnyModelLane:
    """Import and return the lane of the model."""
    return lane_named(model.lane.name).model_lane
