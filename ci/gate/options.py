"""The flags of `gate`, each a field.

The gate takes some flags of a lane's stages, too: those that choose programs and those that say how they are
processed. It passes these on to the stages that it starts.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace

from ci.gate import stage_names
from ci.suite.lane_head import STAGE
from ci.suite.options import GATE, GATE_TAG, OF_MACHINE, SHOWS, WHICH, Choice, WorkFlags, check
from provisioning.base.commands import Fix, repeat_flag, session
from provisioning.base.errors import UsageError
from provisioning.base.option_fields import Options, add_options, declared_options, option, option_words
from provisioning.base.option_fields import read_options as read_fields
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection

STAGES = "stages"
"""This is a heading of --help."""


@dataclass(frozen=True)
class GateFlags(WorkFlags):
    """Which stages the gate runs, and how they process programs."""

    only: tuple[str, ...] = option(
        (),
        "--only",
        "run this one; may be repeated",
        choices=tuple(stage_names()),
        verbs=(GATE,),
        group=STAGES,
        decides_nothing=SHOWS,
    )
    skip: tuple[str, ...] = option(
        (),
        "--skip",
        "not this one; may be repeated",
        choices=tuple(stage_names()),
        verbs=(GATE,),
        group=STAGES,
        decides_nothing=SHOWS,
    )
    verbose: bool = option(
        False,
        "--verbose",
        "show what each stage prints",
        letter="-v",
        verbs=(GATE,),
        group=STAGES,
        unprinted=OF_MACHINE,
        decides_nothing=SHOWS,
    )

    @property
    def chosen_stages(self) -> list[str]:
        """The names of the stages to run. Raises UsageError if none is left."""
        names = [name for name in self.only or stage_names() if name not in self.skip]
        if not names:
            raise UsageError("--only and --skip leave no stage to run", fix="leave one of them out")
        return names


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What the user typed, as one value."""

    selection: Selection
    selection_words: tuple[str, ...] = ()
    """The flags of the selection as typed; each stage reads the environment itself."""
    choice: Choice = field(default_factory=Choice)
    flags: GateFlags = field(default_factory=GateFlags)

    @property
    def command(self) -> Fix:
        """The command that runs this gate again."""
        own_words = option_words(self.flags, GATE)
        return session(GATE, *self.selection_words, *own_words, *self.words_for_stage(self.choice))

    @property
    def programs(self) -> Choice:
        """The programs to run: of the shipped suite those for pull requests, unless the user names others."""
        if self.choice.suites or self.choice.tags:
            return self.choice
        return replace(self.choice, tags=(GATE_TAG,))

    def words_for_stage(self, choice: Choice) -> list[str]:
        """Return the words with which a lane's stage runs these programs as this gate was asked to."""
        return [*_words_for_stage(choice), *_words_for_stage(self.flags)]


def _words_for_stage(options: Options) -> list[str]:
    """Return the words of the flags that the gate and a stage both take."""
    words: list[str] = []
    for name, row in declared_options(type(options)).items():
        if GATE in row.verbs and STAGE in row.verbs:
            words += row.words(getattr(options, name))
    return words


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    add_options(parser, GATE, {WHICH: Choice})
    add_options(parser, GATE, {STAGES: GateFlags})


def read_options(args: argparse.Namespace) -> GateOptions:
    choice = read_fields(Choice, args)
    check(choice.suites)
    return GateOptions(selection_of(args), tuple(selection_words(args)), choice, read_fields(GateFlags, args))


def selection_words(args: argparse.Namespace) -> list[str]:
    """Return the flags of the selection as typed."""
    return [
        *repeat_flag("--profile", [args.profile]),
        *repeat_flag("--target", args.target),
        *repeat_flag("--soc", args.soc),
        *repeat_flag("--store", [args.store]),
        *repeat_flag("--reports", [args.reports]),
        *repeat_flag("--executorch", [args.executorch_by_word or None]),
    ]
