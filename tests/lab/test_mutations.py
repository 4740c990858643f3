"""Mutations drawn by chance, and what is said of those that no test notices."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from lab.mutations.drawn import Mutation, draw, mutations_of
from lab.mutations.stage import try_mutations_of
from tests.support.repositories import repository

CODE = '''
"""A docstring with 1 < 2."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    WIDTH: int = 4


@cached(size=3)
def kept(rows: list[int], most: int = 10) -> list[int]:
    """Return rows."""
    found = []
    for row in rows:
        if row > most or not row:
            continue
        print(f"{row:>2}")
        found.append(row + 1)
    return found if found else [0]
'''


def changed_lines(text: str) -> set[tuple[str, str]]:
    lines = text.splitlines()
    changes = set[tuple[str, str]]()
    for mutation in mutations_of("x.py", text):
        after = mutation.apply(text).splitlines()
        assert len(after) == len(lines)
        changes |= {(old.strip(), new.strip()) for old, new in zip(lines, after, strict=True) if old != new}
    return changes


def test_each_is_one_change_of_what_runs_and_none_of_types_decorators_or_texts() -> None:
    assert changed_lines(CODE) == {
        ("def kept(rows: list[int], most: int = 10) -> list[int]:",
         "def kept(rows: list[int], most: int = 11) -> list[int]:"),
        ("if row > most or not row:", "if row >= most or not row:"),
        ("if row > most or not row:", "if row > most and not row:"),
        ("if row > most or not row:", "if row > most or  row:"),
        ("continue", "break"),
        ('print(f"{row:>2}")', "pass"),
        ("found.append(row + 1)", "pass"),
        ("found.append(row + 1)", "found.append(row - 1)"),
        ("found.append(row + 1)", "found.append(row + 2)"),
        ("return found if found else [0]", "return found if (not found) else [0]"),
        ("return found if found else [0]", "return found if found else [1]"),
    }  # fmt: skip


def test_the_same_seed_draws_the_same_from_all_files() -> None:
    texts = {f"{name}.py": CODE for name in "abcd"}
    drawn = draw(texts, 20, "2026-11-30")
    assert drawn == draw(dict(reversed(texts.items())), 20, "2026-11-30") != draw(texts, 20, "2026-12-01")
    assert len({mutation.file for mutation in drawn}) > 1
    for mutation in drawn:
        ast.parse(mutation.apply(CODE))


def test_words_beyond_ascii_move_no_change() -> None:
    text = 'sizes = ["größer", 1]\nlarger = "ä" if sizes else 2\n'
    assert [mutation.apply(text) for mutation in mutations_of("x.py", text)] == [
        text.replace("1", "2"),
        text.replace("if sizes", "if (not sizes)"),
        text.replace("2", "3"),
    ]


MODULE = """\
def largest(rows):
    return rows[-1] if rows else 0


def count(rows):
    return 3
"""
CHECK = """\
from product import largest

assert largest([1, 2]) == 2
"""
COMMAND = (sys.executable, "check.py")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return repository(tmp_path / "clone", {"product.py": MODULE, "check.py": CHECK})


def test_what_a_test_notices_is_red_and_what_none_notices_survives(clone: Path, tmp_path: Path) -> None:
    mutations = mutations_of("product.py", MODULE)
    rows = try_mutations_of(mutations, [clone], tmp_path / "logs", timeout=60, command=COMMAND)
    assert {str(row.mutation) for row in rows if row.survived} == {"`0` became `1`", "`3` became `4`"}
    assert {row.mutation.line for row in rows if not row.survived} == {2}
    assert (clone / "product.py").read_text(encoding="utf-8") == MODULE


def test_what_never_ends_is_noticed(clone: Path, tmp_path: Path) -> None:
    begin = MODULE.index("rows[-1]")
    endless = Mutation("product.py", 2, begin, begin + len("rows[-1]"), "rows[-1]", "[*iter(int, 1)]")
    (row,) = try_mutations_of([endless], [clone], tmp_path / "logs", timeout=3, command=COMMAND)
    assert not row.survived
