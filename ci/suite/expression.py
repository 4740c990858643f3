"""The expressions of `-k`: parts of names with `and`, `or`, `not` and parentheses, as in pytest."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from provisioning.base.errors import UsageError

_TOKEN = re.compile(r"[()]|[^\s()]+")
_OPERATORS = {"and", "or", "not", "(", ")"}
_ALLOWED = (ast.Expression, ast.BoolOp, ast.UnaryOp, ast.Not, ast.And, ast.Or, ast.Constant)


def matcher(expressions: Sequence[str], *, whole: bool = False) -> Callable[[str], bool]:
    """A predicate over names, true where any of the expressions holds; without expressions always true.

    A word matches any part of a name, in any case, and `*` in it matches anything; with `whole` a word with
    `*` must match the whole name."""
    parsed = [_parsed(expression, whole) for expression in expressions]
    return lambda name: not parsed or any(_holds(*tree, name.lower()) for tree in parsed)


Words = Mapping[int, Callable[[str], bool]]
"""What each word asks of a name, by its place in the text that was parsed."""


def _parsed(expression: str, whole: bool) -> tuple[ast.expr, Words]:
    text, words = "", {}
    for token in _TOKEN.findall(expression):
        if token not in _OPERATORS:
            words[len(text)] = partial(_matches, token.lower(), whole=whole)
        text += f"{token if token in _OPERATORS else True} "
    try:
        tree = ast.parse(text, mode="eval")
        if not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
            raise SyntaxError("two names without `and` or `or` between them")
    except SyntaxError as error:
        raise UsageError(
            f"-k {expression!r} is not an expression: {error.msg}",
            fix="-k 'conv2d and not (quantized or fp16)'",
        ) from error
    return tree.body, words


def _holds(node: ast.expr, words: Words, name: str) -> bool:
    if isinstance(node, ast.BoolOp):
        values = (_holds(value, words, name) for value in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp):
        return not _holds(node.operand, words, name)
    return words[node.col_offset](name)


def _matches(word: str, name: str, *, whole: bool) -> bool:
    if "*" not in word:
        return word in name
    return fnmatchcase(name, word if whole else f"*{word}*")
