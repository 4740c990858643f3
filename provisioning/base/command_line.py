"""The frame of every command line: `main` finds the verb, imports only its module, parses its words and runs
it.

A verb is a module, or an object in one, with EXAMPLES, `configure` and `run`. It may check its words, and
choose its environment, before any package is there."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from provisioning.base import answer, words_of_others
from provisioning.base.commands import Fix
from provisioning.base.commands import session as quoted_session
from provisioning.base.errors import (
    UnknownName,
    UsageError,
)
from provisioning.base.guard import guard
from provisioning.base.parser import Parser
from provisioning.base.settings import CLONE, user_path
from provisioning.base.units import align, columns


@dataclass(frozen=True, slots=True)
class Verb:
    module: str
    """The module that has it; or `module:name`, where a module has several."""
    summary: str
    environment: str = "tools"
    """The locked environment that has its packages; qnn_ci/command.py chooses for those that need several."""


class VerbModule(Protocol):
    """The interface of a verb's module. --help shows `EXAMPLES`, one command a line."""

    EXAMPLES: str

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


@runtime_checkable
class ChoosesEnvironment(Protocol):
    """A verb whose words decide which locked environment it runs in."""

    def environment_of(self, args: argparse.Namespace, default: str) -> str: ...


@runtime_checkable
class ChecksWords(Protocol):
    """A verb that can refuse some words before its environment is made. It needs no package."""

    def check(self, args: argparse.Namespace) -> None: ...


STARTED_IN = "QNN_CI_STARTED_IN"
"""The folder in which the user typed, set by noxfile.py and `qnn-ci`. Relative paths begin there."""

STARTED_BY = "QNN_CI_STARTED_BY"
"""The Python of `qnn-ci` or nox: environments are made for it, and a verb that types others uses it."""

PATHS = (
    "QNN_CI_STORE",
    "QNN_CI_REPORTS",
    "QNN_CI_REQUIREMENTS",
    "QNN_SDK_ROOT",
    "ANDROID_NDK_ROOT",
    "ANDROID_NDK_HOME",
    "ANDROID_NDK",
    "HEXAGON_SDK_ROOT",
    "EXECUTORCH_ROOT",
    "EXECUTORCH_RUNTIME_ROOT",
    "QNN_EXECUTOR_RUNNER",
)
"""Variables in which a user names a path. `~` is expanded, and relative ones begin where the user was."""


def main(
    program: str,
    description: str,
    verbs: Mapping[str, Verb],
    argv: Sequence[str],
    *,
    session: Sequence[str] = (),
) -> int:
    """Find the verb, import only its module, run it; returns the exit code (see errors.py).

    `session` is the nox session of all these verbs, where each has none of its own name.
    """
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(_overview(program, description, verbs))
        return 0 if argv else UsageError.exit_code
    # What imports create stays: to look for garbage in it takes a fifteenth of a short command.
    gc.set_threshold(50_000)
    # When Python ends it would look once more: for a second where executorch is imported.
    atexit.register(gc.freeze)
    name, rest = argv[0], list(argv[1:])
    words, place = answer.split_json(rest)
    if name not in verbs:

        def refuse() -> int:
            raise unknown_verb(name, verbs)

        return answering(name, words, place, refuse)
    typed = quoted_session(*session, name, *rest)
    try:
        return answering(
            name, words, place, lambda: _run_verb(program, name, verbs[name], words), session=typed
        )
    finally:
        Parser.started_in = ""


def unknown_verb(name: str, verbs: Mapping[str, Verb]) -> UsageError:
    """Name the verbs that begin so, and what each does; without any, the nearest verb."""
    message = f"there is no verb {name!r}"
    begun = [(f"  {verb}", verbs[verb].summary) for verb in sorted(verbs) if verb.startswith(f"{name}_")]
    if (meant := words_of_others.VERBS.get(name, "")) in verbs:
        return UsageError(message, fix=f"did you mean {meant}, to {verbs[meant].summary}?")
    if len(begun) < 2:
        return UnknownName(message, name, verbs)
    rows = "\n".join(align(begun, columns()))
    return UsageError(f"{message}; these begin so:\n{rows}", fix="type the whole name of one of them")


def answering(
    verb: str,
    words: Sequence[str],
    place: str | None,
    work: Callable[[], int],
    *,
    session: Fix | None = None,
    starts: bool = False,
) -> int:
    """Do the work under `guard`. With `place`, also write the answer of --json there, errors included."""
    debug = "--debug" in words
    if place is None:
        return guard(work, debug=debug, session=session)
    # The verb moves on from where the user was.
    file = user_path(place, answer.FLAG, os.environ.get(STARTED_IN, "")).absolute() if place else None
    return guard(
        lambda: answer.write_answer(
            verb, words, file, lambda: guard(work, debug=debug, session=session), starts=starts
        ),
        debug=debug,
    )


def _overview(program: str, description: str, verbs: Mapping[str, Verb]) -> str:
    lines = [f"usage: {program} VERB [options]", "", description, ""]
    lines += align(((f"  {name}", verb.summary) for name, verb in verbs.items()), columns())
    return "\n".join([*lines, "", f"`{program} VERB --help` explains each, with examples.", ""])


def module_of(verb: Verb) -> VerbModule:
    path, _, attribute = verb.module.partition(":")
    imported_module: Any = importlib.import_module(path)
    return cast(VerbModule, getattr(imported_module, attribute) if attribute else imported_module)


def arguments_of(verb: Verb, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a verb's words without running it.

    If its command line refuses them, return what was parsed before: the verb itself says what is wrong."""
    parser = Parser()
    module_of(verb).configure(parser)
    arguments = argparse.Namespace()
    with suppress(SystemExit), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        parser.parse_known_args(answer.split_json(argv)[0], arguments)
    return arguments


def check_words(program: str, name: str, verb: Verb, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a verb's words without running it. If its command line refuses them, so does this."""
    args: argparse.Namespace = _parser(program, name, verb).parse_args(answer.split_json(argv)[0])
    return args


def _adapt_help(text: str) -> str:
    """Adapt a page of help to this copy: an installed one has neither nox nor our packages."""
    if CLONE:
        return text
    import re

    text = re.sub(r"\bnox -s (\w[\w-]*)(?: --(?= |$))?", r"qnn-ci \1", text)
    return re.sub(r"\bpython -m (?:ci|provisioning)\b", "qnn-ci", text)


def _parser(program: str, name: str, verb: Verb) -> Parser:
    module = module_of(verb)
    parser = Parser(
        prog=_adapt_help(f"{program} {name}"),
        description=verb.summary,
        epilog=_adapt_help(f"examples:\n{module.EXAMPLES.rstrip()}\n") if module.EXAMPLES else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    answer.add_parser(parser)
    return parser


def _run_verb(program: str, name: str, verb: Verb, argv: Sequence[str]) -> int:
    # Child processes resolve relative paths from their own folder.
    started_in = Parser.started_in = os.environ.pop(STARTED_IN, "")
    for variable in PATHS:
        if value := os.environ.get(variable):
            os.environ[variable] = str(user_path(value, variable, started_in))
    args = _parser(program, name, verb).parse_args(argv)
    return module_of(verb).run(args)
