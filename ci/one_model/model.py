"""MODEL of a command line, of any lane: the selection, what was typed, and the options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ci.models.user_model import UserModel, user_model
from ci.one_model.named_files import samples_in
from ci.one_model.options import ModelOptions
from ci.suite.lane_head import LaneHead
from ci.work.jobs import WorkOptions
from provisioning.base.command_line import Parser
from provisioning.base.commands import Fix, session
from provisioning.base.errors import UsageError
from provisioning.base.option_fields import option_words
from provisioning.base.settings import Selection, selection_flags

SomeOptions = TypeVar("SomeOptions", bound=ModelOptions)


@dataclass(frozen=True, slots=True)
class OneModel:
    """MODEL of a command line, and what was typed with it."""

    selection: Selection
    typed: str
    """As the user typed it; empty where a suite's program is taken."""
    lane: LaneHead
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


def require_one_chip(selection: Selection) -> None:
    """For commands that look at a program for one chip."""
    if len(selection.socs) > 1:
        chips = ", ".join(selection.socs)
        raise UsageError(f"expected one chip, found {chips}", fix="name one --soc, and repeat the command")
