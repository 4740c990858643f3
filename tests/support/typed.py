"""Our commands as a user types them: in a process of their own, or here."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from provisioning.base.answer import answered, taken
from provisioning.base.settings import ROOT

FROM_ELSEWHERE = """\
import runpy, sys
root, package = sys.argv[1:3]
sys.path[0], sys.argv[:3] = root, [package]
runpy.run_module(package, run_name="__main__", alter_sys=True)
"""
"""Not by PYTHONPATH, which would be the user's."""


def typed(
    *words: str | Path,
    package: str = "ci",
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> subprocess.CompletedProcess[str]:
    """What `python -m PACKAGE WORDS` printed in this folder, and its exit code."""
    ours = ["-m", package] if (cwd / package).is_dir() else ["-c", FROM_ELSEWHERE, str(ROOT), package]
    return subprocess.run(
        [sys.executable, *ours, *map(str, words)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def parsed(verb: Any, *words: object) -> argparse.Namespace:
    """The arguments of a verb's module, as its own command line reads these words."""
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    return parser.parse_args([str(word) for word in words])


def actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments of a command line, with those of its subcommands."""
    return [action for command in parsers(parser) for action in command._actions]


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser, and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action.choices.values():
                yield from parsers(choice)


def run_here(verb: Any, *words: object) -> int:
    """The exit code of a verb's module, run in this process."""
    rest, place = taken([str(word) for word in words])

    def work() -> int:
        code: int = verb.run(parsed(verb, *rest))
        return code

    return work() if place is None else answered("verb", rest, Path(place) if place else None, work)
