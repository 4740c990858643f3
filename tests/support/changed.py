"""Tests of what changed: `nox -s tests -- --changed [BASE]` runs the quick ones that import it.

A test belongs to a changed module if it imports it; if none does, if it imports another of the same folder.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping

import pytest

from provisioning.base.settings import ROOT

FLAG = "--changed"
QUICK = ("tests/unit", "tests/conformance", "tests/lab")


def add_flag(parser: pytest.Parser) -> None:
    help_text = "run the quick tests of what differs from BASE (default: the last commit) alone"
    parser.addoption(FLAG, nargs="?", const="HEAD", metavar="BASE", help=help_text)


def choose_tests(config: pytest.Config) -> None:
    """With the flag, let pytest look at the chosen files alone."""
    base = config.getoption(FLAG)
    if base is None:
        return
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in _quick_tests()}
    chosen = files_to_run(_changed_since(base), texts)
    if not chosen:
        raise pytest.UsageError(f"no quick test imports what differs from {base}: nox -s tests -- tests/unit")
    config.args[:] = [str(ROOT / name) for name in chosen]


def files_to_run(changed: Iterable[str], texts: Mapping[str, str]) -> list[str]:
    """Return the tests to run, by the text of each, for these changed files."""
    chosen: set[str] = set()
    for name in changed:
        if name in texts:
            chosen.add(name)
        elif name.endswith(".py"):
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            folder = module.rpartition(".")[0]
            chosen |= _importing(_imports_of(module), texts) or _importing(_imports_below(folder), texts)
    return sorted(chosen)


def _imports_of(module: str) -> str:
    folder, _, name = module.rpartition(".")
    from_folder = rf"|from {re.escape(folder)} import [^\n]*\b{name}\b" if folder else ""
    return rf"^ *(?:(?:from|import) {re.escape(module)}\b(?!\.){from_folder})"


def _imports_below(folder: str) -> str:
    # What nearly all tests import says nothing about one of them.
    if folder.partition(".")[0] in ("", "tests"):
        return r"(?!)"
    return rf"^ *(?:from|import) {re.escape(folder)}\b"


def _importing(pattern: str, texts: Mapping[str, str]) -> set[str]:
    return {name for name, text in texts.items() if re.search(pattern, text, re.MULTILINE)}


def _quick_tests() -> Iterator[str]:
    for folder in QUICK:
        for path in (ROOT / folder).rglob("test_*.py"):
            yield path.relative_to(ROOT).as_posix()


def _changed_since(base: str) -> list[str]:
    names = list[str]()
    for command in (["diff", "--name-only", base], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", "-C", ROOT, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise pytest.UsageError(f"{FLAG} {base}: git says {done.stderr.strip()}")
        names += done.stdout.splitlines()
    return names
