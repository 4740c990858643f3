"""The expressions of `-k`: parts of names with `and`, `or`, `not` and parentheses, as in pytest."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
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
    matches = partial(_matches, whole=whole)
    for expression in expressions:
        _evaluate(expression, "", matches)
    return lambda name: (
        not expressions or any(_evaluate(expression, name.lower(), matches) for expression in expressions)
    )


def _evaluate(expression: str, name: str, matches: Callable[[str, str], bool]) -> bool:
    words = [
        token if token in _OPERATORS else str(matches(token.lower(), name))
        for token in _TOKEN.findall(expression)
    ]
    try:
        tree = ast.parse(" ".join(words), mode="eval")
        if not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
            raise SyntaxError("two names without `and` or `or` between them")
    except SyntaxError as error:
        raise UsageError(
            f"-k {expression!r} is not an expression: {error.msg}",
            fix="-k 'conv2d and not (quantized or fp16)'",
        ) from error
    return bool(eval(compile(tree, "-k", "eval")))  # noqa: S307


def _matches(word: str, name: str, *, whole: bool) -> bool:
    if "*" not in word:
        return word in name
    return fnmatchcase(name, word if whole else f"*{word}*")
