"""Commands: those that we run for their output (`capture`), and those that we print for the user to paste.

A `Fix` is text with commands in it as values, so that each can be spelled as the user started us, and
changed. `session` makes a command of ours."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from provisioning.base.settings import CLONE

if TYPE_CHECKING:
    import subprocess


Command: TypeAlias = tuple[str, ...]

SPELLED_INSTALLED = "QNN_CI_SPELLED_INSTALLED"
"""This variable is set in jobs of a repository that has no clone of ours: commands are printed for
`qnn-ci`."""


def quote_command(*words: str | Path) -> str:
    """One command, each word quoted where a POSIX shell needs it. Every command we print goes through this.

    Placeholders that the user fills in are written in capitals: quoted("rm", "-rf", path), "FILE".
    """
    return shlex.join([str(word) for word in words])


class Fix(str):
    """What to type or write next: text for people, and the commands in it as values.

    Each `{}` of the text stands for one of `parts`. A tuple is a command: a verb with its arguments, or from
    a flag on what to add to the command that was typed. It is printed as this copy takes it: an installed one
    has no nox. Another fix keeps its commands.
    """

    parts: tuple[str | Command, ...]
    """Text and commands in turn."""
    without: str = ""
    """The flag without which the command is to be typed again."""

    def __new__(cls, text: str, *parts: str | Path | Sequence[str | Path]) -> Fix:
        texts = text.split("{}") if parts else [text]
        pieces: list[str | Command] = [texts[0]]
        for part, following in zip(parts, texts[1:], strict=True):
            if isinstance(part, str | Path):
                pieces += part.parts if isinstance(part, Fix) else [str(part)]
            else:
                pieces.append(tuple(map(str, part)))
            pieces.append(following)
        clone = CLONE and not os.environ.get(SPELLED_INSTALLED)
        self = super().__new__(cls, _spell(pieces, clone))
        self.parts = tuple(part for part in pieces if part)
        return self

    @classmethod
    def read(cls, packed: Sequence[str | Sequence[str]]) -> Fix:
        """Make a fix from `parts` as JSON has them."""
        return cls("{}" * len(packed), *packed)

    @property
    def installed(self) -> str:
        """The text with commands as pages spell them: `qnn-ci VERB …`."""
        return _spell(self.parts, False)

    @property
    def commands(self) -> list[Command]:
        return [part for part in self.parts if isinstance(part, tuple)]

    @property
    def command(self) -> tuple[str, ...]:
        """The verb with its arguments; empty if there is no command that can be typed as it stands."""
        return () if self._first[:1] and self._first[0].startswith("-") else self._first

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags to add to the command that was typed."""
        return () if self.command else self._first

    @property
    def _first(self) -> Command:
        first = next(iter(self.commands), ())
        return () if any(map(_is_placeholder, first)) else first

    def plus(self, *flags: str) -> Fix:
        """The same command with more flags."""
        return self.map_commands(lambda command: (*command, *flags))

    def selecting(self, profile: Sequence[str], target: Sequence[str]) -> Fix:
        """Add these flags to each command of provisioning that has none such. `target` is for `env`, which
        without it looks for the host's tree."""

        def add_selection_flags(command: Command) -> Command:
            verb, *words = command
            choices = (profile, target if verb == "env" else ()) if verb in OF_PROVISIONING else ()
            flags = [word for flag in choices if flag and flag[0] not in words for word in flag]
            return (verb, *flags, *words)

        return self.map_commands(add_selection_flags)

    def map_commands(self, change: Callable[[Command], Command]) -> Fix:
        """Return the same text, with each command as `change` returns it."""
        return Fix.read([part if isinstance(part, str) else change(part) for part in self.parts])


OF_CLONE = ("github", "image", "lock")
"""They work on our own sources, images or manifests: sessions of a clone, and no verbs of `qnn-ci`."""

OF_PROVISIONING = ("provision", "validate", "env")


def _spell(parts: Iterable[str | Command], clone: bool) -> str:
    return "".join(part if isinstance(part, str) else _typed_command(part, clone) for part in parts)


def _typed_command(command: Command, clone: bool) -> str:
    verb, *arguments = command
    if verb.startswith("-"):
        return quote_command(*command)
    dashes = ["--"] if arguments else []
    in_clone = clone or verb in OF_CLONE
    return (
        quote_command("nox", "-s", verb, *dashes, *arguments)
        if in_clone
        else quote_command("qnn-ci", *command)
    )


def _is_placeholder(word: str) -> bool:
    """`MODEL`, `net.py:NAME` and `…` are the reader's to fill in; the capitals of a path are not."""
    parts = "".join(letter if letter.isalnum() else " " for letter in word).split()
    capitals = any(len(part) > 2 and part.isalpha() and part.isupper() for part in parts)
    return "…" in word or (capitals and "/" not in word)


def session(name: str, *arguments: str | Path) -> Fix:
    """A command of ours."""
    return Fix("{}", (name, *arguments))


def repeat_flag(flag: str, values: Iterable[object] | None) -> list[str]:
    """Repeat the flag before each of its values that is not None."""
    return [part for value in values or () if value is not None for part in (flag, str(value))]


def add_flags(*words: str) -> Fix:
    """Return the command that was typed, with these flags."""
    return Fix("{}", words)


def leave_out(flag: str, more: str = "") -> Fix:
    """Return the command that was typed, without this flag."""
    fix = Fix(f"leave {flag} out{more}")
    fix.without = flag
    return fix


def fix_of(row: Mapping[str, Any], key: str = "fix") -> Fix:
    """A row of a manifest: its words, with its commands in place of `{}`."""
    return Fix(row[key], *row.get("commands", ()))


def join_fixes(fixes: Iterable[str], by: str = "; ") -> Fix:
    """One fix of several; empty ones count for nothing."""
    texts = [fix for fix in fixes if fix]
    return Fix(by.join(["{}"] * len(texts)), *texts)


def capture(command: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command for its output and exit code. It reads nothing from our standard input."""
    import subprocess

    stdin = {} if "input" in more else {"stdin": subprocess.DEVNULL}
    settings = {"errors": "replace", **stdin, **more}
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


MOST_OUTPUT = 16 << 20


def interview(command: Sequence[str | Path], seconds: float, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program for the few lines that it says of itself.

    The system ends a program that prints more than 16 MiB. Raises TimeoutExpired."""
    import resource
    import subprocess
    import tempfile

    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        # A `preexec_fn` would copy the page tables of this process for each program.
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, **more
        ) as process:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (MOST_OUTPUT, MOST_OUTPUT))
            try:
                process.wait(seconds)
            except BaseException:
                process.kill()
                raise
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read(MOST_OUTPUT).decode("utf-8", "replace"))
    return subprocess.CompletedProcess(process.args, process.returncode, *texts)


ANSWER_SECONDS = 20.0
"""How long a program may take to say its version; a compiler on a busy machine takes less."""


def version_line(program: Path) -> tuple[str, str]:
    """The first line that a program prints of itself for `--version`; else why there is none."""
    import signal
    import subprocess

    try:
        process = interview([program, "--version"], ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return "", f"it gave no answer within {ANSWER_SECONDS:g} s"
    except OSError as error:
        return "", error.strerror or str(error)
    if process.returncode == -signal.SIGXFSZ:
        return "", "it prints without end"
    lines = process.stdout.splitlines()
    if lines and not process.returncode:
        return lines[0].strip(), ""
    words = (process.stderr.strip() or process.stdout.strip()).splitlines()
    return "", f"it ended with exit code {process.returncode}" + (f": {words[-1][:200]}" if words else "")
