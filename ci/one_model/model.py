"""The model of a command line, for any lane: the selection, the typed words, and the options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ci.models.user_model import UserModel, user_model
from ci.one_model.named_files import samples_in
from ci.one_model.options import ModelOptions
from ci.suite.lane_head import LaneHead
from ci.work import WorkOptions
from provisioning.base.commands import Fix, session
from provisioning.base.errors import UsageError
from provisioning.base.option_fields import option_words
from provisioning.base.parser import Parser
from provisioning.base.settings import Selection, selection_flags

SomeOptions = TypeVar("SomeOptions", bound=ModelOptions)


@dataclass(frozen=True, slots=True)
class OneModel:
    """The model that a command line names, and the options typed with it."""

    selection: Selection
    typed: str
    """The model as the user typed it; empty if the command takes a suite's program."""
    lane: LaneHead
    options: ModelOptions
    """The options of the model's lane; `own` returns them with their type."""
    work: WorkOptions = field(default_factory=WorkOptions)
    several_precisions: bool = False
    """Whether files are named by their precision, if the lane does not do so anyway."""

    def own(self, kind: type[SomeOptions]) -> SomeOptions:
        """Return the options with their type; called by the lane that they belong to."""
        assert isinstance(self.options, kind)
        return self.options

    def use(self, options: ModelOptions) -> OneModel:
        """Return the same model with these options."""
        return replace(self, options=options)

    def use_precision(self, name: str | None) -> OneModel:
        return self.use(replace(self.options, precisions=() if name is None else (name,)))

    @property
    def precision(self) -> str | None:
        """The first precision that was typed; None means the default."""
        return next(iter(self.options.precisions), None)

    @property
    def output(self) -> Path:
        return self.options.output or Path()

    @property
    def file(self) -> UserModel:
        """The file of the model. Modules are searched first in its own folder, or in the current one."""
        return user_model(self.typed, Parser.user_folder())

    @property
    def samples_folder(self) -> Path | None:
        return samples_in(self.options.calibrate) if self.options.calibrate else None

    def for_chip(self, soc: str) -> OneModel:
        if self.selection.socs == (soc,):
            return self
        return replace(self, selection=replace(self.selection, soc=soc, named_socs=(soc,)))

    def command(self, verb: str, soc: str, *more: str) -> Fix:
        """The command that runs another verb on the same model, for this chip."""
        flags = selection_flags(self.selection, soc)
        return session(verb, self.typed, *flags, *option_words(self.options, verb), *more)

    @property
    def traits(self) -> tuple[str, ...]:
        """The texts that distinguish this piece of work from others on the same model."""
        return (*self.options.traits, *self.selection.socs)


def require_one_chip(selection: Selection) -> None:
    """Refuse several chips, for commands that examine a program for one chip."""
    if len(selection.socs) > 1:
        chips = ", ".join(selection.socs)
        raise UsageError(f"expected one chip, found {chips}", fix="name one --soc, and repeat the command")
