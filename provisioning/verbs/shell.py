"""`shell`: become a command, or an interactive shell, in the environment of a target."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from provisioning.base import answer
from provisioning.base.parser import Parser
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import dist_path
from provisioning.environment import Environment, resolve

EXAMPLES = """\
  nox -s shell
  nox -s shell -- --target aarch64-android
  python -m provisioning shell -- sh -c 'ls "$QNN_SDK_ROOT/lib"'
"""

MARKER = "QNN_CI_SHELL"
"""This variable is set to profile/target inside, for prompts."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="[--] CMD", help="what to run [$SHELL, interactive]"
    )


def run(args: argparse.Namespace) -> int:
    """Replace this process, so that signals and the exit code are the command's own."""
    answer.refuse("shell")
    environment = resolve(selection_of(args), os.environ).for_shell(os.environ, dist_path())
    environment.explain()
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    command = words or [os.environ.get("SHELL") or "/bin/sh", "-i"]
    variables = shell_variables(environment, os.environ, interactive=not words)
    if Parser.started_in:
        os.chdir(Parser.started_in)
    sys.stdout.flush()
    sys.stderr.flush()
    return become(command, variables)


def shell_variables(
    environment: Environment, environ: Mapping[str, str], *, interactive: bool
) -> dict[str, str]:
    """The environment inside; an interactive shell also gets a prompt that says where one is."""
    marker = f"{environment.profile}/{environment.target}"
    variables = {**environment.merged(environ), MARKER: marker}
    if sys.prefix != sys.base_prefix:
        # `python` is the one with the packages that this environment is for.
        path = variables.get("PATH", os.defpath)
        variables |= {"VIRTUAL_ENV": sys.prefix, "PATH": f"{sys.prefix}/bin{os.pathsep}{path}"}
    if interactive:
        prompt = f"({marker}) "
        if Path(environ.get("SHELL", "")).name == "bash":
            # Bash's start-up files set the prompt, so mark it once after they ran.
            variables.setdefault("PROMPT_COMMAND", f"PS1='{prompt}'\"$PS1\"; unset PROMPT_COMMAND")
        else:
            variables["PS1"] = prompt + environ.get("PS1", "$ ")
    return variables


def become(command: list[str], variables: Mapping[str, str]) -> int:
    """Exec; returns only if that fails, as a POSIX shell would: 127 not found, 126 not runnable."""
    try:
        os.execvpe(command[0], command, variables)  # noqa: S606 - no shell is wanted between
    except OSError as error:
        sys.stderr.write(f"error: {command[0]!r} cannot be run: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
