"""Which programs a command line names: the expressions of `-k`, and the parts of `--shard`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from ci.jobs import Job, longest_first
from provisioning.base.commands import Fix
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


def shard(jobs: Iterable[Job], index: int, count: int) -> list[Job]:
    """Shard `index` (from 1) of `count`: the same jobs always give the same shards of about equal length."""
    loads = [0.0] * count
    mine: list[Job] = []
    for job in longest_first(jobs):
        lightest = min(range(count), key=lambda shard: (loads[shard], shard))
        # Give a job without an expected length a small one; otherwise all such jobs would be in one shard.
        loads[lightest] += max(job.seconds, 1e-3)
        if lightest == index - 1:
            mine.append(job)
    return mine


def parse_shard(text: str, flag: str = "--shard") -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise UsageError(
            f"{flag} {text}: expected i/n with 1 <= i <= n, such as 1/4", fix=f"{flag} 1/4 is the first"
        )
    return int(index), int(count)


def shard_named(jobs: Sequence[Job], text: str) -> list[Job]:
    """The jobs of the shard that `--shard` names. Raises UsageError for an empty shard: running nothing must
    not pass."""
    mine = shard(jobs, *parse_shard(text))
    if not mine:
        raise UsageError(
            f"--shard {text}: of {len(jobs)} in all, none is left for this part",
            fix=Fix("{}, which makes no empty parts", ("matrix",)),
        )
    return mine
