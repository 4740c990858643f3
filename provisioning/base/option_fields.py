"""An option is one value: a field of a frozen dataclass.

The field says how the option is typed, which verbs take it, whether a printed command repeats it, which field
of a suite says the same, and whether a cached result depends on it. A command's parser, what is read from it,
the commands that we print and the tables of the docs all come from the field.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, TypeVar

from provisioning.base.commands import leave_out
from provisioning.base.errors import UsageError

T = TypeVar("T")
SomeOptions = TypeVar("SomeOptions", bound="Options")
METADATA = "option"
IRRELEVANT = "irrelevant"
"""Marks a field on which no cached result depends: a key is made of the others (ci/work/request.py)."""


@dataclass(frozen=True)
class Options:
    """The options of a command: a subclass has a field for each, and every field has a default."""

    ignored: ClassVar[frozenset[str]] = frozenset()
    """Fields of the base class that mean nothing here. Their flags are refused, not ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a field says of itself."""

    flag: str
    help: str
    verbs: tuple[str, ...]
    """The verbs that take the option."""
    default: object
    """The value if the flag is not typed. If it is True, the flag turns it off; if it is a tuple, the flag
    may be repeated."""
    letter: str
    """The short flag, such as `-o`."""
    metavar: str
    parse: Callable[[str], object]
    choices: tuple[str, ...]
    helps: Mapping[str, str]
    """The help for verbs that have their own."""
    group: str
    """The heading of the flag in --help; empty: the options."""
    required: tuple[str, ...]
    """Verbs that cannot do without it."""
    once: tuple[str, ...]
    """Verbs that take a single value where others take several."""
    unprinted: str
    """Why a printed command does not repeat it; empty: it does."""
    suite: str
    """The field of a suite that says the same, such as `run.backend`; empty: suites have none."""
    decides_nothing: str
    """Why no cached result depends on it; empty: results do."""

    def words(self, value: object) -> Iterator[str]:
        """Yield the words that a user types for this value; none for the default."""
        if value == self.default:
            return
        if isinstance(value, bool):
            yield self.flag
            return
        for item in value if isinstance(value, tuple) else (value,):
            text = str(item).removesuffix(".0") if isinstance(item, float) else str(item)
            # argparse takes a word with a dash for a flag.
            yield from [f"{self.flag}={text}"] if text.startswith("-") else [self.flag, text]

    def add_to(self, parser: argparse._ActionsContainer, name: str, verb: str) -> None:
        """Add the flag. Its value is the attribute `name` of the parsed arguments, only if it is typed."""
        names = [self.letter, self.flag] if self.letter else [self.flag]
        text = self.helps.get(verb, self.help)
        if isinstance(self.default, bool):
            action = "store_false" if self.default else "store_true"
            parser.add_argument(*names, dest=name, action=action, default=argparse.SUPPRESS, help=text)
            return
        several = isinstance(self.default, tuple) and verb not in self.once
        parser.add_argument(
            *names,
            dest=name,
            action="append" if several else "store",
            default=argparse.SUPPRESS,
            required=verb in self.required,
            type=self.parse,
            choices=self.choices or None,
            metavar=self.metavar or None,
            help=text,
        )


def option(
    default: T,
    flag: str,
    help: str,
    *,
    verbs: tuple[str, ...],
    metavar: str = "",
    parse: Callable[[str], object] = str,
    choices: tuple[str, ...] = (),
    letter: str = "",
    helps: Mapping[str, str] | None = None,
    group: str = "",
    required: tuple[str, ...] = (),
    once: tuple[str, ...] = (),
    unprinted: str = "",
    suite: str = "",
    decides_nothing: str = "",
) -> T:
    """A field of an options dataclass; `Option` explains the arguments."""
    row = Option(
        flag=flag,
        help=help,
        verbs=verbs,
        default=default,
        letter=letter,
        metavar=metavar,
        parse=parse,
        choices=choices,
        helps=helps or {},
        group=group,
        required=required,
        once=once,
        unprinted=unprinted,
        suite=suite,
        decides_nothing=decides_nothing,
    )
    reason = {IRRELEVANT: decides_nothing} if decides_nothing else {}
    return field(default=default, metadata={METADATA: row, **reason})


def declared_options(kind: type[Options]) -> Mapping[str, Option]:
    """Map each field's name to its option, for the options that mean something here."""
    return {row.name: row.metadata[METADATA] for row in fields(kind) if row.name not in kind.ignored}


def add_options(parser: argparse.ArgumentParser, verb: str, kinds: Mapping[str, type[Options]]) -> None:
    """Add the flags that the verb has for any of these kinds of models, each under its title.

    A flag that only one of several kinds takes is shown under that title."""
    for name, (row, titles) in _options_by_name(verb, kinds).items():
        heading = row.group or ("" if len(kinds) == 1 or len(titles) > 1 else titles[0])
        row.add_to(group_named(parser, heading) if heading else parser, name, verb)


def group_named(parser: argparse.ArgumentParser, heading: str) -> argparse._ArgumentGroup:
    """The flags of --help under this heading."""
    groups = (group for group in parser._action_groups if group.title == heading)
    return next(groups, None) or parser.add_argument_group(heading)


def _options_by_name(verb: str, kinds: Mapping[str, type[Options]]) -> dict[str, tuple[Option, list[str]]]:
    """Each option of the verb, with the titles of the kinds that take it."""
    rows: dict[str, tuple[Option, list[str]]] = {}
    for title, kind in kinds.items():
        for name, row in declared_options(kind).items():
            if verb in row.verbs:
                rows.setdefault(name, (row, []))[1].append(title)
    return rows


def require_taken(
    subject: str, title: str, args: argparse.Namespace, verb: str, kinds: Mapping[str, type[Options]]
) -> None:
    """Refuse a typed flag that this kind of model ignores: the user would believe that it worked."""
    for name, (row, titles) in sorted(_options_by_name(verb, kinds).items()):
        if hasattr(args, name) and title not in titles:
            message = f"{row.flag} is for {' and '.join(titles)}, not for {subject}"
            raise UsageError(message, fix=leave_out(row.flag))


def read_options(kind: type[SomeOptions], args: argparse.Namespace) -> SomeOptions:
    """Return what was typed, as one value."""
    values: dict[str, object] = {}
    for name, row in declared_options(kind).items():
        if not hasattr(args, name):
            continue
        value = getattr(args, name)
        if isinstance(row.default, tuple):
            value = tuple(value) if isinstance(value, list) else (value,)
        values[name] = value
    return replace(kind(), **values)


def option_words(options: Options, verb: str) -> list[str]:
    """The words that a printed command of this verb has for these options."""
    rows = declared_options(type(options)).items()
    printed = [(name, row) for name, row in rows if verb in row.verbs and not row.unprinted]
    return [word for name, row in printed for word in row.words(getattr(options, name))]


def suite_values(options: Options, table: str) -> dict[str, object]:
    """The fields of a suite's `case` or `run` that say what was typed."""
    values: dict[str, object] = {}
    for name, row in declared_options(type(options)).items():
        place, _, own = row.suite.partition(".")
        if place == table and getattr(options, name) != row.default:
            values[own] = getattr(options, name)
    return values


def suite_names(kind: type[Options], table: str) -> tuple[str, ...]:
    """The fields of a suite's `case` or `run` that a command line can name."""
    places = (row.suite.partition(".") for row in declared_options(kind).values())
    return tuple(own for place, _, own in places if place == table)
