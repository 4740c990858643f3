"""Tests of what changed: `nox -s tests -- --changed [BASE]` runs those nearest to it, for some seconds.

A test is near to a module if it imports it, imports what imports it, or types a verb whose module does. Code
imports a module, too, whose name it has in quotes, or whose folder it has there before a `{`. Of tests that
are equally near, those that import least else are the nearest. What is left when the time is over is
counted."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import pytest

from provisioning.base.settings import ROOT

FLAG = "--changed"
STARTED, SECONDS = time.monotonic(), 18.0
"""So long after the start a test may begin; the last ones take some ten seconds more."""
MOST_FILES = 16
"""Collecting a file of tests takes a third of a second."""
TESTS = ("tests/unit", "tests/conformance", "tests/lab", "tests/integration")
CODE = ("ci", "provisioning", "qnn_ci", "lab", "tests/support")
LATE = f"not run: the {SECONDS:.0f} seconds of {FLAG} were over; nox -s tests -- tests/unit has no limit"

IMPORT = re.compile(r"^ *(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([\w.]+))", re.MULTILINE)


def add_flag(parser: pytest.Parser) -> None:
    help_text = "for half a minute run the tests nearest to what differs from BASE (default: the last commit)"
    parser.addoption(FLAG, nargs="?", const="HEAD", metavar="BASE", help=help_text)


def choose_tests(config: pytest.Config) -> None:
    """With the flag, let pytest look at the chosen files alone."""
    base = config.getoption(FLAG)
    if base is None:
        return
    chosen = files_to_run(_changed_since(base), dict(_texts()), _modules_of_verbs())
    if not chosen:
        raise pytest.UsageError(f"no test imports what differs from {base}: nox -s tests -- tests/unit")
    config.args[:] = [str(ROOT / name) for name in chosen]


class TimeLimit:
    """Lets no test begin when the time is over."""

    def __init__(self, left_out: Counter[str], end: float = STARTED + SECONDS) -> None:
        self._left_out, self._end = left_out, end

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        if time.monotonic() < self._end:
            return None
        self._left_out[LATE] += 1
        return True


def files_to_run(changed: Iterable[str], texts: Mapping[str, str], verbs: Mapping[str, str]) -> list[str]:
    """Return the files of tests to run, the nearest first, by the text of each file of code and tests, and by
    the module of each verb."""
    names = {_module_of(name): name for name in texts}
    imported = {name: _imported_by(text, names, verbs) for name, text in texts.items()}
    importing = defaultdict[str, set[str]](set)
    for name, others in imported.items():
        for other in others:
            importing[other].add(name)
    distances: dict[str, int] = {}
    for name in changed:
        for test, distance in _distances(name, importing):
            distances[test] = min(distance, distances.get(test, distance))
    nearest = sorted(distances, key=lambda test: (distances[test], len(imported[test]), test))
    return nearest[:MOST_FILES]


def _distances(changed: str, importing: Mapping[str, set[str]]) -> Iterator[tuple[str, int]]:
    """Yield each test that imports a file, and by how many steps."""
    met, edge, distance = {changed}, {changed}, 0
    while edge:
        yield from ((name, distance) for name in edge if _is_test(name))
        edge = {name for inner in edge for name in importing.get(inner, ())} - met
        met |= edge
        distance += 1


def _imported_by(text: str, names: Mapping[str, str], verbs: Mapping[str, str]) -> set[str]:
    """Return the files that this text imports, and those of the verbs and workers that it has in quotes."""
    modules = set[str]()
    for package, members, module in IMPORT.findall(text):
        modules |= {package, module, *(f"{package}.{name}" for name in re.findall(r"\w+", members))}
    for word in re.findall(r'"([\w.]+)[":]', text):
        # The table of all verbs says nothing about one of them.
        modules |= {verbs.get(word, word)} - ({word} & {*verbs.values()})
    for folder in re.findall(r'f"([\w.]+\.)\{', text):
        modules |= {module for module in names if module.startswith(folder)}
    return {names[module] for module in modules & names.keys()}


def _module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_test(name: str) -> bool:
    return name.startswith(TESTS) and name.rpartition("/")[2].startswith("test_")


def _modules_of_verbs() -> dict[str, str]:
    from ci.__main__ import VERBS

    return {name: verb.module.partition(":")[0] for name, verb in VERBS.items()}


def _texts() -> Iterator[tuple[str, str]]:
    for folder in (*CODE, *TESTS):
        for path in (ROOT / folder).rglob("*.py"):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def _changed_since(base: str) -> list[str]:
    names = list[str]()
    for command in (["diff", "--name-only", base], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise pytest.UsageError(f"{FLAG} {base}: git says {done.stderr.strip()}")
        names += done.stdout.splitlines()
    return names
