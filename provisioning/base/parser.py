"""The parser of every verb's words. It explains a mistake: it says which flag or choice was probably meant,
and which verb has it.

Paths on the command line begin where the user was (`Parser.user_folder`), wherever we are started."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from provisioning.base import answer, flags_of_verbs, words_of_others
from provisioning.base.commands import Command, Fix, repeat_flag
from provisioning.base.errors import (
    UnknownName,
    UsageError,
)
from provisioning.base.guard import red_error
from provisioning.base.settings import user_path

DEBUG = "show tracebacks, and what pip, git or a compiler printed when it failed"
"""The help of --debug."""


NEAR = 0.7
"""A flag is near to what was typed from this share of equal letters on: with fewer, others are proposed."""


SHORT, NEAR_SHORT = 3, 0.6
"""One wrong letter of three leaves two."""
FEW_FLAGS = 16
"""So many flags are named in one line."""


class Parser(argparse.ArgumentParser):
    """Rejects empty paths, expands `~`, and resolves relative paths where the user was; subparsers do too."""

    started_in: str = ""
    _words: Sequence[str] = ()
    _path_fix: str = ""
    """What to type in place of a path that was refused."""

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
        self.exit(UsageError.exit_code, red_error(f"error: {error.message}\n  try: {error.fix}\n{usage}\n"))

    def _explain(self, message: str) -> UsageError:
        """Say which flag or choice was probably meant."""
        import re

        unknown = UsageError(message, fix=self._path_fix or Fix("{} {}", self.prog, ("--help",)))
        if message.endswith("required: -o/--output"):
            return UsageError(message, fix=Fix("add {}", ("-o", "out")))
        if example := re.search(
            r"argument (?:-\w/)?(--[\w-]+)\S*: expected (?:.* such as )?(\d\w*)\b", message
        ):
            return UsageError(message, fix=Fix("for example {}", example.groups()))
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.+)\)", message):
            names = [part.strip(" '") for part in match[2].split(",")]
            if fix := _explain_choice(match[1], names) or self._name_values([match[1]]):
                return UsageError(message, fix=fix)
            return UnknownName(message, match[1], names)
        if match := re.search(r"unrecognized arguments: (?:.*? )?(--?[A-Za-z][\w-]*)", message):
            if fix := self._explain_flag(match[1]):
                return UsageError(message, fix=fix)
            near = self._near_flags(match[1])
            if len(near) == 1 and (one := UnknownName(message, match[1], near)).near:
                return one
            fix = f"did you mean {', '.join(near)}?" if near else self._leave_flag_out(match[1])
            return UsageError(message, fix=fix)
        if values := re.search(r"unrecognized arguments: (.+)", message):
            return UsageError(message, fix=self._explain_values(values[1].split(" ")) or unknown.fix)
        if flag := re.search(r"argument (\S+): expected (?:one|at least one) argument", message):
            message += self._like_a_flag(flag[1])
            return UsageError(message, fix=self._describe_flag(flag[1]) or unknown.fix)
        if "required: MODEL" in message and "--suite" in self._words:
            return UsageError(message, fix=self._name_model_of_suite())
        if " are required: " in message and (shown := self._example()):
            more = Fix("{} {} has more", self.prog, ("--help",))
            return UsageError(message, fix=Fix("for example {}; {}", shown, more))
        return unknown

    def _unknown_flags(self) -> str:
        """The flags that are not ours, in argparse's words: it names what lacks first, and would keep them
        to itself."""
        flags = [word.partition("=")[0] for word in self._words if word.startswith("--") and word != "--"]
        unknown = [flag for flag in flags if flag not in self._option_string_actions]
        return f"; unrecognized arguments: {' '.join(unknown)}" if unknown else ""

    def _near_flags(self, flag: str) -> list[str]:
        """Return the flags that may be meant by one that is not there."""
        from difflib import get_close_matches

        by_name = {name.lstrip("-"): name for name in self._flags() if name not in ("-h", "--help")}
        word = flag.lstrip("-")
        begun = [name for name in by_name if name.startswith(word)]
        # Two exchanged characters are nearer than another one.
        swapped = [name for name in by_name if sorted(name) == sorted(word)]
        cutoff = NEAR if len(word) > SHORT else NEAR_SHORT
        near = begun or swapped[:1] or get_close_matches(word, by_name, n=1, cutoff=cutoff)
        return [by_name[name] for name in near]

    def _like_a_flag(self, flag: str) -> str:
        """Name the value behind this flag that argparse takes for another flag."""
        names = flag.split("/")
        places = [place for place, word in enumerate(self._words[:-1]) if word in names]
        values = [self._words[place + 1] for place in places if self._words[place + 1].startswith("-")]
        return f", found {values[0]}, which begins as a flag does" if values else ""

    def _flags(self) -> list[str]:
        """The flags of this parser, and of the subparser that was typed."""
        typed = [part for part in self._parts() if part.prog.rpartition(" ")[2] in self._words]
        return [flag for parser in (self, *typed) for flag in parser._option_string_actions]

    def _parts(self) -> list[argparse.ArgumentParser]:
        """The parsers of the words that this verb takes first, such as those of `store`."""
        actions = self._get_positional_actions()
        parts = [action.choices for action in actions if isinstance(action, argparse._SubParsersAction)]
        return [parser for choices in parts for parser in choices.values()]

    def _leave_flag_out(self, flag: str) -> Fix:
        """Return the fix for a flag that is nobody's; it may be meant for a command that the verb runs."""
        if any(action.nargs == argparse.REMAINDER for action in self._get_positional_actions()):
            shell = ("sh",) if flag == "-c" else ()
            return Fix("type what it runs behind --: {}", self._typed(["--", *shell, *self._words]))
        own = [name for name in self._flags() if name.startswith("--") and name not in flags_of_verbs.OF_ALL]
        few = f"; it takes {', '.join(own)}" if 0 < len(own) <= FEW_FLAGS else ""
        return Fix("leave {} out{}; {} {} explains the flags", flag, few, self.prog, ("--help",))

    def _name_model_of_suite(self) -> Fix:
        flag = self._words.index("--suite")
        return Fix(
            "name the model to add to the suite, {}; or run the models that the suite has: {}",
            self._typed(["net.py:model", *self._words]),
            ("gate", *self._words[flag : flag + 2]),
        )

    def _example(self) -> str:
        """The first example of the verb's help."""
        return next((line.strip() for line in (self.epilog or "").splitlines()[1:]), "")

    def _explain_values(self, words: Sequence[str]) -> Fix | str | None:
        """Return the fix for words that are nobody's."""
        if any(word.startswith("-") for word in words):
            return None
        return (
            self._name_values(words)
            or self._repeated(words)
            or self._one_a_command(words)
            or self._leave_out(words)
        )

    def _name_values(self, words: Sequence[str]) -> Fix | None:
        """Put the right flag before each of these words, if their form says which one that is. What stands
        before a word already is the wrong flag."""
        flags = {word: words_of_others.flag_of(word, self._option_string_actions) for word in words}
        if not all(flags.values()):
            return None
        typed: list[str] = []
        for word in self._words:
            if word in flags and typed[-1:] and self._takes_choices(typed[-1]):
                typed.pop()
            typed += [flags[word], word] if word in flags else [word]
        return Fix("name what it is: {}", self._typed(typed))

    def _takes_choices(self, flag: str) -> bool:
        action = self._option_string_actions.get(flag)
        return action is not None and action.choices is not None

    def _explain_flag(self, flag: str) -> Fix | str:
        """Return the fix for a flag that other tools have, or another verb of ours."""
        if flag == "--model" and self._takes_model():
            return Fix("MODEL has no flag: {}", self._typed(word for word in self._words if word != flag))
        meant = words_of_others.FLAGS.get(flag, flag)
        if meant in self._option_string_actions:
            return f"did you mean {meant}?"
        if own := words_of_others.ANSWERS.get((self._verb, meant)):
            return own
        if command := words_of_others.COMMANDS_OF_FLAGS.get(flag):
            return Fix("leave {} out; afterwards type {}", flag, command)
        if value := words_of_others.flag_of(flag.lstrip("-"), self._option_string_actions):
            return Fix("name what it is: {}", (value, flag.lstrip("-")))
        if meant == "--output" and not self._parts():
            return Fix("it writes no file: add > FILE, or for a program {}", ("--json", "answer.json"))
        if any(action.nargs == argparse.REMAINDER for action in self._get_positional_actions()):
            return ""
        for part in self._parts():
            if flag in part._option_string_actions:
                return Fix("it is a flag of {}", self._typed([part.prog.rpartition(" ")[2], flag]))
        return flags_of_verbs.refer(flag, self._verb) or words_of_others.advice_of(flag) or ""

    @property
    def _verb(self) -> str:
        """The verb, with its part such as that of `store gc`."""
        words = self.prog.removesuffix(" --").split(" ")
        return " ".join(words[-2:] if words[-2:-1] in (["store"], ["signing"]) else words[-1:])

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
            self._path_fix = error.fix
            raise argparse.ArgumentTypeError(error.message.strip()) from None


def _explain_choice(word: str, names: Collection[str]) -> Fix | str:
    """Return the fix for a word of other tools, in place of one of these names."""
    if (meant := words_of_others.CHOICES.get(word)) in names:
        return f"did you mean {meant}?"
    verb = words_of_others.VERBS.get(word)
    return Fix("{}: it is a command of its own", (verb, "--help")) if verb else ""
