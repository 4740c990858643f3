"""The frame of every command line: verbs loaded late, errors shown as a message and a fix."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast, runtime_checkable

from provisioning.base import answer, words_of_others
from provisioning.base.commands import Command, Fix, join_fixes, repeat_flag
from provisioning.base.commands import session as quoted_session
from provisioning.base.errors import (
    INTERNAL,
    INTERRUPTED,
    TERMINATED,
    EnvironmentLacking,
    Terminated,
    ToolkitError,
    UnknownName,
    UsageError,
)
from provisioning.base.files import disk_error
from provisioning.base.foreign import visible
from provisioning.base.rendering import drop_output, wants_colour
from provisioning.base.settings import CLONE, user_path
from provisioning.base.units import align, columns, readable


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
class ChecksWords(Protocol):
    """A verb that can refuse some words before its environment is made. It needs no package."""

    def check(self, args: argparse.Namespace) -> None: ...


OWN_PACKAGES = ("ci", "provisioning")

CLEANUP_SECONDS = 60.0
"""An interrupted command may take this long to end what it started. The gate, the slowest, needs ten."""

DEBUG = "show tracebacks, and what pip, git or a compiler printed when it failed"
"""The help of --debug."""

STARTED_IN = "QNN_CI_STARTED_IN"
"""The folder in which the user typed, set by noxfile.py and `qnn-ci`. Relative paths begin there."""


STARTED_BY = "QNN_CI_STARTED_BY"
"""The Python of `qnn-ci` or nox: environments are made for it, and a verb that types others uses it."""

PATHS = (
    "QNN_CI_STORE",
    "QNN_CI_REPORTS",
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


class Parser(argparse.ArgumentParser):
    """Rejects empty paths, expands `~`, and resolves relative paths where the user was; subparsers do too."""

    started_in: str = ""
    _words: Sequence[str] = ()

    @classmethod
    def user_folder(cls) -> Path:
        """Return the folder in which the user typed the command."""
        return Path(cls.started_in or Path.cwd())

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords | {"allow_abbrev": False})
        self.register("type", Path, self._path)
        # Also behind the word of a subparser, where people type it.
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG)
        # `split_json` has read it before, so that it may stand behind any of a verb's words.
        self.add_argument(answer.FLAG, nargs="?", metavar="FILE", default=argparse.SUPPRESS, help=answer.HELP)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words. argparse takes a second word that may be left out only directly after the first;
        here flags may stand between them."""
        self._words = args or ()
        positionals = self._get_positional_actions()
        if len(positionals) > 1 and positionals[-1].nargs == "?":
            return self.parse_intermixed_args(args, namespace)
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if " are required: " in message:
            message += self._unknown_flags()
        error = self._explain(message)
        answer.add_error(error)
        words = [action.metavar or action.dest for action in self._get_positional_actions()]
        usage = " ".join(["usage:", self.prog, *map(str, words), "[options]"])
        self.exit(UsageError.exit_code, _red(f"error: {message}\n  try: {error.fix}\n{usage}\n"))

    def _explain(self, message: str) -> UsageError:
        """Say which flag or choice was probably meant."""
        import re

        unknown = UsageError(message, fix=Fix("{} {}", self.prog, ("--help",)))
        if message.endswith("required: -o/--output"):
            return UsageError(message, fix=Fix("add {}", ("-o", "out")))
        if example := re.search(r"argument (--[\w-]+): expected (\d\w*)\b", message):
            return UsageError(message, fix=Fix("for example {}", example.groups()))
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.+)\)", message):
            names = [part.strip(" '") for part in match[2].split(",")]
            if fix := _explain_choice(match[1], names):
                return UsageError(message, fix=fix)
        elif match := re.search(r"unrecognized arguments: .*?(--[\w-]+)", message):
            if fix := self._explain_flag(match[1]):
                return UsageError(message, fix=fix)
            names = [name for name in self._option_string_actions if name not in ("-h", "--help")]
        elif values := re.search(r"unrecognized arguments: (.+)", message):
            return UsageError(message, fix=self._explain_values(values[1].split(" ")) or unknown.fix)
        elif flag := re.search(r"argument (\S+): expected (?:one|at least one) argument", message):
            return UsageError(message, fix=self._describe_flag(flag[1]) or unknown.fix)
        elif " are required: " in message and (shown := self._example()):
            more = Fix("{} {} has more", self.prog, ("--help",))
            return UsageError(message, fix=Fix("for example {}; {}", shown, more))
        else:
            return unknown
        mistake = UnknownName(message, match[1], names)
        return mistake if mistake.near else unknown

    def _unknown_flags(self) -> str:
        """The flags that are not ours, in argparse's words: it names what lacks first, and would keep them
        to itself."""
        flags = [word.partition("=")[0] for word in self._words if word.startswith("--") and word != "--"]
        unknown = [flag for flag in flags if flag not in self._option_string_actions]
        return f"; unrecognized arguments: {' '.join(unknown)}" if unknown else ""

    def _example(self) -> str:
        """The first example of the verb's help."""
        return next((line.strip() for line in (self.epilog or "").splitlines()[1:]), "")

    def _explain_values(self, words: Sequence[str]) -> Fix | str | None:
        """Return the fix for words that are nobody's."""
        if words[0] in words_of_others.FLAGS_OF_VERBS:
            return self._explain_flag(words[0])
        if any(word.startswith("-") for word in words):
            return None
        flags = {word: words_of_others.flag_of(word, self._option_string_actions) for word in words}
        if not all(flags.values()):
            return self._repeated(words) or self._one_a_command(words) or self._leave_out(words)
        typed: list[str] = []
        for word in self._words:
            typed += [flags[word], word] if word in flags else [word]
        return Fix("name what it is: {}", self._typed(typed))

    def _explain_flag(self, flag: str) -> Fix | str:
        """Return the fix for a flag that other tools have."""
        if flag == "--model" and self._takes_model():
            return Fix("MODEL has no flag: {}", self._typed(word for word in self._words if word != flag))
        if verb := words_of_others.FLAGS_OF_VERBS.get(flag):
            return Fix("leave {} out: it is a flag of {}", flag, (verb, "--help"))
        meant = words_of_others.FLAGS.get(flag, "")
        return f"did you mean {meant}?" if meant in self._option_string_actions else ""

    def _one_a_command(self, words: Sequence[str]) -> Fix | None:
        """Return the fix for a second MODEL."""
        if len(words) > 1 or words[0].startswith("-") or not self._takes_model():
            return None
        model = next((word for word in self._words if not word.startswith("-")), "")
        other = self._typed(words[0] if word == model else word for word in self._words if word != words[0])
        return Fix("it takes one MODEL: leave the other to a command of its own, {}", other)

    def _describe_flag(self, flag: str) -> str:
        """Say what belongs behind a flag, as the verb's help says it."""
        action = self._option_string_actions.get(flag.rpartition("/")[2])
        if action is None or not action.help:
            return ""
        return f"{flag} {action.metavar or action.dest.upper()}: {self._get_formatter()._expand_help(action)}"

    def _leave_out(self, words: Sequence[str]) -> Fix | None:
        """Return the fix for words behind a verb that takes flags alone."""
        if self._get_positional_actions():
            return None
        return Fix(
            "leave {} out: it takes flags alone, which {} {} lists", " ".join(words), self.prog, ("--help",)
        )

    def _takes_model(self) -> bool:
        return any(action.dest == "model" for action in self._get_positional_actions())

    def _typed(self, words: Iterable[str]) -> Command:
        return (self.prog.rpartition(" ")[2], *words)

    def _repeated(self, values: Sequence[str]) -> Fix | None:
        """Yield the flag before each of these values, if they stand behind one that takes several."""
        if values[0] not in self._words:
            return None
        place = self._words.index(values[0])
        flag = next((word for word in self._words[:place][::-1] if word.startswith("-")), "")
        action = self._option_string_actions.get(flag)
        if not isinstance(action, argparse._AppendAction):
            return None
        first = self._words.index(flag) + 1
        return Fix("repeat the flag: {}", repeat_flag(flag, [*self._words[first:place], *values]))

    def _path(self, text: str) -> Path:
        if not text:
            # An empty path is the current directory. A user who typed "$UNSET" did not mean that.
            raise argparse.ArgumentTypeError("expected a path, found nothing")
        try:
            return user_path(text, "", self.started_in)
        except UsageError as error:
            raise argparse.ArgumentTypeError(error.message.strip()) from None


def _explain_choice(word: str, names: Collection[str]) -> Fix | str:
    """Return the fix for a word of other tools, in place of one of these names."""
    if (meant := words_of_others.CHOICES.get(word)) in names:
        return f"did you mean {meant}?"
    verb = words_of_others.VERBS.get(word)
    return Fix("{}: it is a command of its own", (verb, "--help")) if verb else ""


def count(text: str) -> int:
    """The type of an argument that is a number of things."""
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")


TIMEOUT = 900.0
"""Seconds after which a stage ends the work on one program, unless --timeout says otherwise."""


def duration(text: str) -> float:
    """The type of an argument that is a time to wait at most, in seconds."""
    with suppress(ValueError):
        if 0 < (seconds := float(text)) <= threading.TIMEOUT_MAX:
            return seconds
    raise argparse.ArgumentTypeError(
        f"expected a number of seconds above 0, such as {TIMEOUT:g}, found {text!r}"
    )


def add_timeout(parser: argparse._ActionsContainer, work: str, default: float = TIMEOUT) -> None:
    """Add the flag of a time limit for `work`."""
    text = f"end {work} after S seconds [%(default)g]"
    parser.add_argument("--timeout", type=duration, default=default, metavar="S", help=text)


def switch(parser: argparse._ActionsContainer, flag: str, help: str) -> None:
    """Add a flag without a value: true if it is typed."""
    parser.add_argument(flag, action="store_true", help=help)


def add_valued(parser: argparse._ActionsContainer, flag: str, metavar: str, help: str, **more: Any) -> None:
    """Add a flag with a value."""
    parser.add_argument(flag, metavar=metavar, help=help, **more)


def add_purpose(parser: argparse._ActionsContainer) -> None:
    """Add --for: the devices that a signed library is for."""
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=("production", "development"),
        default="production",
        help="the devices that it is for; development takes rehearsals and test signatures [%(default)s]",
    )


def repeatable(parser: argparse._ActionsContainer, flag: str, metavar: str, help: str, **more: Any) -> None:
    """Add a flag that may be repeated: its values are a list, empty without the flag."""
    parser.add_argument(
        flag, action="append", default=[], metavar=metavar, help=f"{help}; may be repeated", **more
    )


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
            raise _unknown_verb(name, verbs)

        return answering(name, words, place, refuse)
    typed = quoted_session(*session, name, *rest)
    try:
        return answering(
            name, words, place, lambda: _run_verb(program, name, verbs[name], words), session=typed
        )
    finally:
        Parser.started_in = ""


def _unknown_verb(name: str, verbs: Mapping[str, Verb]) -> UsageError:
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


def guard(work: Callable[[], int], *, debug: bool, session: Fix | None = None) -> int:
    """Turn foreseeable errors into a message, a fix and an exit code.

    `session` is the command that runs the same with all packages installed.
    """
    code = _BROKEN_PIPE
    try:
        with termination_as_interrupt():
            code = work()
        # Flush now: at its end the interpreter could only print a warning.
        sys.stdout.flush()
        return code
    except ToolkitError as error:
        if debug:
            _print_traceback()
            sys.stderr.write(error.output)
        show_error(error)
        return error.exit_code
    except KeyboardInterrupt as error:
        # Else Python ends by SIGINT where this met code that is made from text, as a dataclass is.
        exec("")  # noqa: S102
        if not sys.stderr.isatty():
            sys.stderr.write("interrupted\n")
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except BrokenPipeError:
        # Without a verdict this is no pass. The interpreter flushes stdout at its end, so give it a target.
        drop_output(sys.stdout)
        return code
    except OSError as error:
        trouble = disk_error(error, "choose another path (see --help)")
        if trouble is None:
            return _show_crash(error)
        if debug:
            _print_traceback()
        if error.filename is None:
            drop_output(sys.stdout)
        show_error(trouble)
        return trouble.exit_code
    except ModuleNotFoundError as error:
        if not session or (error.name or "").partition(".")[0] in OWN_PACKAGES:
            return _show_crash(error)
        if debug:
            _print_traceback()
        message = f"the Python {sys.executable} has no package {error.name}"
        show_error(
            EnvironmentLacking(message, fix=join_fixes([session, "which installs what it needs"], ", "))
        )
        return EnvironmentLacking.exit_code
    except Exception as error:
        return _show_crash(error)


def _show_crash(error: Exception) -> int:
    """An error of our own: its traceback is what a report of it needs."""
    _print_traceback()
    name = type(error).__name__
    fix = "report it with the traceback above and the command"
    show_error(ToolkitError(f"this is an error in qnn-ci: {name}: {error}", fix=fix))
    return INTERNAL


def _print_traceback() -> None:
    # Late: every start of the command would pay for it.
    import traceback

    traceback.print_exc()


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does: children end too, and the report is written. A terminal is told
    at once, since that takes seconds.

    An interrupt that meets a library as it takes a lock leaves the lock taken, and what then cleans up may
    wait for it for ever. So work that does not end is interrupted again."""

    def interrupt(number: int, _frame: object) -> None:
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\ninterrupted: ending what runs\n")
        error = Terminated if number == signal.SIGTERM else KeyboardInterrupt

        def interrupt_again(_number: int, _frame: object) -> None:
            raise error

        handler = signal.signal(signal.SIGALRM, interrupt_again)
        before.setdefault(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, CLEANUP_SECONDS, CLEANUP_SECONDS)
        raise error

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A shell has background work ignore Ctrl-C.
    ours = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ours.append(signal.SIGINT)
    before = {number: signal.getsignal(number) for number in ours}
    try:
        for number in ours:
            signal.signal(number, interrupt)
        yield
    finally:
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


_BROKEN_PIPE = 128 + signal.SIGPIPE
"""The exit code of a program that SIGPIPE ended, as in `… | head`."""


def show_error(error: ToolkitError) -> None:
    answer.add_error(error)
    text = f"error: {error.message}\n"
    if error.fix:
        text += f"  try: {error.fix}\n"
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output(sys.stdout)
    sys.stderr.write(_red(readable(visible(text), sys.stderr)))


def _red(text: str) -> str:
    """The text of an error, whose first word is red on a terminal."""
    is_red = sys.stderr.isatty() and wants_colour(sys.stderr)
    return f"\x1b[1;31merror:\x1b[0m{text.removeprefix('error:')}" if is_red else text


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
    return parser


def _run_verb(program: str, name: str, verb: Verb, argv: Sequence[str]) -> int:
    # Child processes resolve relative paths from their own folder.
    started_in = Parser.started_in = os.environ.pop(STARTED_IN, "")
    for variable in PATHS:
        if value := os.environ.get(variable):
            os.environ[variable] = str(user_path(value, variable, started_in))
    parser = _parser(program, name, verb)
    answer.add_parser(parser)
    args = parser.parse_args(argv)
    return module_of(verb).run(args)
