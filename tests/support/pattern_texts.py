"""Texts that a pattern matches, made of the pattern: of patterns that no example has, too."""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
FLAGS = re.compile(r"\(\?[a-z]+\)")
LETTERS = "x 7:_A/-.,;\"'()=\t"
"""What stands for any character, among others."""
MORE_LETTERS = f"{LETTERS}yzQ5+~\n\u00e9"


def parsed(source: str) -> list[Any]:
    return list(PARSER.parse(FLAGS.sub("", source)))


def inner(items: list[Any]) -> Iterator[list[Any]]:
    """The parts of a pattern, itself, and theirs."""
    yield items
    for operation, argument in items:
        name = str(operation)
        parts = (
            argument[1] if name == "BRANCH" else [argument[-1]] if name in ("SUBPATTERN", *REPEATS) else []
        )
        for part in parts:
            yield from inner(list(part))


REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def text_of(items: list[Any], chosen: random.Random) -> str:
    """One that matches, but for what a pattern asks of the letters beside each other."""
    return "".join(_text_of_item(str(operation), argument, chosen) for operation, argument in items)


def _text_of_item(name: str, argument: Any, chosen: random.Random) -> str:
    if name == "LITERAL":
        return chr(argument)
    if name == "ANY":
        return chosen.choice(LETTERS)
    if name in ("IN", "NOT_LITERAL"):
        items = argument if name == "IN" else [("NEGATE", None), ("LITERAL", argument)]
        return chosen.choice(_letters_in(tuple(items)))
    if name == "BRANCH":
        return text_of(chosen.choice(argument[1]), chosen)
    if name == "SUBPATTERN":
        return text_of(argument[-1], chosen)
    if name in REPEATS:
        least, most, items = argument
        times = chosen.randint(least, min(most, least + 2))
        return "".join(text_of(items, chosen) for _ in range(times))
    assert name == "AT", name
    return ""


@cache
def _letters_in(items: tuple[tuple[Any, Any], ...]) -> list[str]:
    """Some of the letters that brackets stand for."""
    named = [(str(name), argument) for name, argument in items]
    negated = named[0][0] == "NEGATE"
    letters = [
        letter
        for letter in MORE_LETTERS
        if negated != any(_is(name, argument, letter) for name, argument in named[negated:])
    ]
    listed = {"LITERAL": named[0][1:], "RANGE": named[0][1]}.get(named[0][0], ())
    return [*letters, *map(chr, listed)]


def _is(name: str, argument: Any, letter: str) -> bool:
    if name == "CATEGORY":
        return re.match(CATEGORIES[str(argument)], letter) is not None
    low, high = argument if name == "RANGE" else (argument, argument)
    return bool(low <= ord(letter) <= high)
