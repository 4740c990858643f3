"""The expressions of `-k`: parts of names with `and`, `or`, `not` and parentheses, as pytest has them."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from provisioning.base.errors import UsageError

Matcher = Callable[[str], bool]

TOKEN = re.compile(r"\s*([()]|[^\s()]+)")


def compile_expression(text: str) -> Matcher:
    """A predicate over names. A word matches anywhere, in any case; one with `*` must match the whole."""
    tokens = TOKEN.findall(text)
    matcher, rest = _either(tokens, text)
    if rest:
        raise _wrong(text, f"{rest[0]!r} after the end")
    return matcher


def _either(tokens: list[str], text: str) -> tuple[Matcher, list[str]]:
    left, rest = _both(tokens, text)
    while rest and rest[0] == "or":
        right, rest = _both(rest[1:], text)
        left = _or(left, right)
    return left, rest


def _both(tokens: list[str], text: str) -> tuple[Matcher, list[str]]:
    left, rest = _one(tokens, text)
    while rest and rest[0] == "and":
        right, rest = _one(rest[1:], text)
        left = _and(left, right)
    return left, rest


def _one(tokens: list[str], text: str) -> tuple[Matcher, list[str]]:
    if not tokens:
        raise _wrong(text, "its end")
    token, rest = tokens[0], tokens[1:]
    if token == "not":
        inner, rest = _one(rest, text)
        return lambda name: not inner(name), rest
    if token == "(":
        inner, rest = _either(rest, text)
        if not rest or rest[0] != ")":
            raise _wrong(text, "no closing parenthesis")
        return inner, rest[1:]
    if token in ("and", "or", ")"):
        raise _wrong(text, repr(token))
    return _word(token.lower()), rest


def _word(word: str) -> Matcher:
    if "*" in word:
        return lambda name: fnmatchcase(name.lower(), word)
    return lambda name: word in name.lower()


def _or(left: Matcher, right: Matcher) -> Matcher:
    return lambda name: left(name) or right(name)


def _and(left: Matcher, right: Matcher) -> Matcher:
    return lambda name: left(name) and right(name)


def _wrong(text: str, found: str) -> UsageError:
    return UsageError(
        f"-k {text!r}: expected a part of a name, found {found}",
        remedy="""-k 'conv2d and not (quantized or fp16)'""",
    )
