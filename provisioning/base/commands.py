"""Commands: those that we run for their output, and those that we print for the user to paste."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import CLONE, ROOT

if TYPE_CHECKING:
    import subprocess


LAST_LINES = 12
"""How many lines of a process without a result --debug shows."""


def quoted(*words: str | Path) -> str:
    """One command, each word quoted where a POSIX shell needs it. Every command we print goes through this.

    Placeholders that the user fills in are written in capitals: quoted("rm", "-rf", path), "FILE".
    """
    return shlex.join([str(word) for word in words])


def session(name: str, *arguments: str | Path) -> str:
    """`nox -s NAME -- ARGUMENTS`."""
    return as_here(quoted("nox", "-s", name, *(["--", *arguments] if arguments else [])))


def as_here(text: str) -> str:
    """The commands in a text as this copy takes them: an installed one has neither nox nor our packages."""
    return text if CLONE else as_installed(text)


def as_installed(text: str) -> str:
    """The commands in a text as pages spell them: `qnn-ci VERB …`."""
    import re

    text = re.sub(r"\bnox -s (\w[\w-]*)(?: --(?= |$))?", r"qnn-ci \1", text)
    return re.sub(r"\bpython -m (?:ci|provisioning)\b", "qnn-ci", text)


_OF_PROVISIONING = (
    r"(?P<command>(?P<program>nox -s|qnn-ci|python -m provisioning) (?P<verb>provision|validate|env)\b)"
    r"(?: --(?= ))?"
)


def selecting(text: str, profile: Sequence[str], target: Sequence[str]) -> str:
    """The text, with these flags in each command of provisioning that has none such; `target` is for `env`,
    which without it looks for the host's tree."""
    import re

    def select(match: re.Match[str]) -> str:
        typed = re.split("[;,`&|()]", text[match.end() :])[0].split()
        wanted = (profile, target if match["verb"] == "env" else ())
        flags = [word for flag in wanted if flag and flag[0] not in typed for word in flag]
        dashes = " --" * (match["program"] == "nox -s")
        return f"{match['command']}{dashes} {quoted(*flags)}" if flags else match[0]

    return re.sub(_OF_PROVISIONING, select, text)


def typed(program: str, argv: Sequence[str]) -> str:
    """The command as the user typed it: `program` ends in ` --` where it is a session."""
    words = [program if argv else program.removesuffix(" --"), *([quoted(*argv)] if argv else [])]
    return as_here(" ".join(words))


ONE_TASK = "provisioning.base.one_task"


def captured_module(
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    timeout: float,
    subject: object,
    cwd: Path | str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a module of ours in its own process. Raises CheckFailed about `subject` if it takes too long."""
    import subprocess

    from provisioning.base.progress import at_work

    path = os.pathsep.join([str(ROOT), environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", ONE_TASK, module, *arguments]
    try:
        with at_work(f"working on {subject}"):
            return captured(command, env={**environ, "PYTHONPATH": path}, timeout=timeout, cwd=cwd)
    except subprocess.TimeoutExpired as error:
        message = f"{subject}: not done after {timeout:g} s"
        raise CheckFailed(message, fix="allow more with --timeout") from error


def without_result(done: subprocess.CompletedProcess[str], subject: object, fix: str) -> CheckFailed:
    """What a process printed that ended without its result: its last line, and more of them for --debug."""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    message = f"{subject}: {lines[-1] if lines else 'it ended without a word'}"
    return CheckFailed(message, fix=fix, output="\n".join(lines[-LAST_LINES:]))


def captured(command: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command for its output and exit code. It reads nothing from our standard input."""
    import subprocess

    stdin = {} if "input" in more else {"stdin": subprocess.DEVNULL}
    settings = {"errors": "replace", **stdin, **more}
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


def logged(
    command: Sequence[str | Path],
    log: Path,
    environ: Mapping[str, str] | None = None,
    subject: object = "",
    *,
    timeout: float | None = None,
    cwd: Path | None = None,
) -> int:
    """Run a command with its output in a log; returns its exit code. Too long is a lack of the machine."""
    import subprocess

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command, stdout=output, stderr=output, env=environ, timeout=timeout, cwd=cwd, check=False
            )
        except subprocess.TimeoutExpired as error:
            message, fix = f"{subject}: no answer after {timeout:g} s", f"read {log}; --timeout gives more"
            raise EnvironmentLacking(message, fix=fix) from error
    return done.returncode
