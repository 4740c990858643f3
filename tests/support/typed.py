"""Our commands as a user types them: in a process of their own, or here."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from provisioning.base.answer import split_json, write_answer
from provisioning.base.settings import ROOT
from tests.support.command_server import LATE
from tests.support.schemas import check_answer, check_answer_to

FROM_ELSEWHERE = """\
import runpy, sys
root, package = sys.argv[1:3]
sys.path[0], sys.argv[:3] = root, [package]
runpy.run_module(package, run_name="__main__", alter_sys=True)
"""
"""Not by PYTHONPATH, which would be the user's."""


READ_AT_START = re.compile(r"PYTHON|LD_|LC_|LANG|MALLOC_|GLIBC_|OPENSSL_")
"""Variables that Python, its libraries and the loader read once; OMP_NUM_THREADS is read later."""


def typed(
    *words: str | Path,
    package: str = "ci",
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
    anew: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What `python -m PACKAGE WORDS` printed in this folder, and its exit code. It is a process of its own,
    which has its modules from one that forks; `anew` where that would make a difference."""
    done = _typed(*words, package=package, cwd=cwd, env=env, timeout=timeout, anew=anew)
    check_answer_to([*map(str, words)], cwd, done.stdout)
    return done


def _typed(
    *words: str | Path, package: str, cwd: Path, env: Mapping[str, str] | None, timeout: float, anew: bool
) -> subprocess.CompletedProcess[str]:
    environ = dict(os.environ if env is None else env)
    clone = cwd != ROOT and (cwd / package).is_dir()
    if not (anew or clone) and _at_start(environ) == _server().environ:
        return _server().run([*map(str, words)], package, cwd, environ, timeout)
    ours = ["-m", package] if clone or cwd == ROOT else ["-c", FROM_ELSEWHERE, str(ROOT), package]
    return subprocess.run(
        [sys.executable, *ours, *map(str, words)],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if READ_AT_START.match(name)}


class CommandServer:
    """The process of tests/support/command_server.py, which ends with this one."""

    def __init__(self) -> None:
        self.environ = _at_start(os.environ)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.command_server", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.end)

    def end(self) -> None:
        self._channel.close()
        self._process.wait()

    def run(
        self, words: list[str], package: str, cwd: Path, environ: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        sent = {"words": words, "package": package, "cwd": str(cwd), "environ": environ, "timeout": timeout}
        pipes = [os.pipe() for _ in range(3)]
        socket.send_fds(self._channel, [json.dumps(sent).encode()], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        with ThreadPoolExecutor(len(pipes)) as pool:
            output, errors, status = pool.map(_text_of, (read for read, _ in pipes))
        if status == LATE:
            raise subprocess.TimeoutExpired([package, *words], timeout, output, errors)
        return subprocess.CompletedProcess([package, *words], int(status), output, errors)


def _text_of(descriptor: int) -> str:
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        return stream.read()


_server = cache(CommandServer)


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
    rest, place = split_json([str(word) for word in words])

    def work() -> int:
        code: int = verb.run(parsed(verb, *rest))
        return code

    if place is None:
        return work()
    code = write_answer("verb", rest, Path(place) if place else None, work)
    if place:
        check_answer(Path(place).read_text(encoding="utf-8"))
    return code
