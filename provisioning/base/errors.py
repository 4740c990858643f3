"""Foreseeable errors: each an exception that carries its exit code and what to type next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

INTERNAL = 70
"""An error of our own: a crash, as sysexits.h numbers it."""

INTERRUPTED, TERMINATED = 130, 143
"""Ended by Ctrl-C, and by SIGTERM as a job's cancellation sends it; as shells number them."""
STOPPED = (INTERRUPTED, TERMINATED)


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the work ends as after Ctrl-C, and with another exit code."""


class ToolkitError(Exception):
    """Base: shown to users as one message and one fix.

    --debug adds the traceback and `output`: what the program that failed (pip, git, CMake) printed.
    """

    exit_code = 1
    rule = "command-error"
    """The rule of the finding that an answer has of it."""

    def __init__(
        self, message: str, *, fix: str = "", output: str = "", exit_code: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.output = output
        if exit_code is not None:
            self.exit_code = exit_code


class CheckFailed(ToolkitError):
    """The checked thing is bad."""

    rule = "command-check"


class UsageError(ToolkitError):
    """The command was used wrongly: its arguments, its variables or a manifest."""

    exit_code = 2
    rule = "command-usage"


class UnknownName(UsageError):
    """The user named something that does not exist. The fix is the nearest name, or all names."""

    def __init__(self, message: str, name: str, candidates: Iterable[str]) -> None:
        import difflib

        names = sorted(candidates)
        close = difflib.get_close_matches(name, names)
        # Two exchanged characters are nearer than another one.
        swaps = [word for word in names if sorted(word.lower()) == sorted(name.lower())]
        self.name, self.near = name, next(iter([*swaps, *close]), "")
        hint = f"did you mean {self.near}?" if self.near else f"use one of: {', '.join(names)}"
        super().__init__(message, fix=hint)


class ManifestError(UsageError):
    """A manifest that cannot be taken: names file, key, what was expected and what was found."""

    def __init__(
        self, file: Path, key: str, *, expected: str, found: str, fix: str = "", line: int = 0
    ) -> None:
        place = f"{file}:{line}" if line else str(file)
        super().__init__(
            f"{place}: {key}: expected {expected}, found {found}",
            fix=fix or (f"correct {place}" if key.startswith("(") else f"correct {key} in {place}"),
        )
        self.key = key


class EnvironmentLacking(ToolkitError):
    """Something is missing that must be there first; the fix is the command that puts it there."""

    exit_code = 3
    rule = "command-environment"


class UpstreamError(ToolkitError):
    """The network or a server failed us."""

    exit_code = 4
    rule = "command-network"


class IntegrityError(UpstreamError):
    """Bytes arrived that are not the bytes the manifest names."""


class ArchiveError(IntegrityError):
    """An archive that is damaged or hostile."""


def exit_code_of(*, good: bool) -> int:
    """Return the exit code of a command that has checked something."""
    return 0 if good else CheckFailed.exit_code


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all that it came from, each once. urllib3 hides causes in arguments and in
    `reason`."""
    ids: set[int] = set()
    queue: list[object] = [error]
    while queue:
        cause = queue.pop(0)
        if isinstance(cause, BaseException) and id(cause) not in ids:
            ids.add(id(cause))
            yield cause
            queue += [*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__]
