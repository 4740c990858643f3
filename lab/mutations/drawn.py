"""Draws small changes of Python code, as an unlucky hand would make them: one token or one statement each.

A good test goes red with any of them. What only types, decorators or docstrings say is left alone.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

COMPARISONS: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
}
TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
"""What stands beside a `+` that joins: a `-` there would be an error that any test finds."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of a file."""

    file: str
    line: int
    begin: int
    """Where the changed bytes of the file begin, and where they end."""
    end: int
    before: str
    after: str

    def apply(self, text: str) -> str:
        data = text.encode()
        return (data[: self.begin] + self.after.encode() + data[self.end :]).decode()

    def __str__(self) -> str:
        return f"`{_one_line(self.before)}` became `{_one_line(self.after)}`"


def draw(texts: Mapping[str, str], count: int, seed: str) -> list[Mutation]:
    """Draw this many of all mutations of these files, each as likely as any other."""
    mutations = [mutation for file in sorted(texts) for mutation in mutations_of(file, texts[file])]
    generator = random.Random(seed)  # noqa: S311
    return generator.sample(mutations, min(count, len(mutations)))


def mutations_of(file: str, text: str) -> list[Mutation]:
    return list(_Finder(file, text).find_in(ast.parse(text)))


class _Finder:
    def __init__(self, file: str, text: str) -> None:
        self._file, self._data = file, text.encode()
        self._line_begins = [0]
        for line in self._data.splitlines(keepends=True):
            self._line_begins.append(self._line_begins[-1] + len(line))

    def find_in(self, node: ast.AST) -> Iterator[Mutation]:
        """Find the mutations of a node and of what it contains."""
        if _is_for_types(node):
            return
        match node:
            case ast.Compare():
                yield from self._comparisons(node)
            case ast.BoolOp():
                yield from self._between_conditions(node)
            case ast.BinOp() if type(node.op) in ARITHMETIC and not _joins(node):
                yield from self._operator(node.left, node.right, ARITHMETIC[type(node.op)])
            case ast.UnaryOp(op=ast.Not()):
                yield self._mutation(self._begin(node), self._begin(node) + len("not"), "")
            case ast.Constant(value=bool() as value):
                yield self._replaced(node, str(not value))
            case ast.Constant(value=int() | float() as value):
                yield self._replaced(node, repr(value + 1))
            case ast.If() | ast.IfExp() | ast.While():
                yield from self._condition(node.test)
            case ast.comprehension():
                for condition in node.ifs:
                    yield from self._condition(condition)
            case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
                yield self._replaced(node, "pass")
            case ast.Continue():
                yield self._replaced(node, "break")
        for child in _executed_children(node):
            yield from self.find_in(child)

    def _comparisons(self, node: ast.Compare) -> Iterator[Mutation]:
        operands = [node.left, *node.comparators]
        for left, right, operator in zip(operands, node.comparators, node.ops, strict=False):
            yield from self._operator(left, right, COMPARISONS[type(operator)])

    def _between_conditions(self, node: ast.BoolOp) -> Iterator[Mutation]:
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from self._operator(left, right, words)

    def _operator(self, left: ast.expr, right: ast.expr, words: tuple[str, str]) -> Iterator[Mutation]:
        """Replace the first word, which stands between two operands, by the second."""
        after_left = self._end(left)
        at = self._data[after_left : self._begin(right)].find(words[0].encode())
        # It may be written otherwise, as `not   in`.
        if at >= 0:
            begin = after_left + at
            yield self._mutation(begin, begin + len(words[0]), words[1])

    def _condition(self, test: ast.expr) -> Iterator[Mutation]:
        # The others are changed inside.
        if isinstance(test, (ast.Name, ast.Attribute, ast.Call)):
            yield self._replaced(test, f"(not {self._text(test)})")

    def _replaced(self, node: ast.expr | ast.stmt, after: str) -> Mutation:
        return self._mutation(self._begin(node), self._end(node), after)

    def _mutation(self, begin: int, end: int, after: str) -> Mutation:
        line = self._data.count(b"\n", 0, begin) + 1
        return Mutation(self._file, line, begin, end, self._data[begin:end].decode(), after)

    def _text(self, node: ast.expr) -> str:
        return self._data[self._begin(node) : self._end(node)].decode()

    def _begin(self, node: ast.expr | ast.stmt) -> int:
        return self._line_begins[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._line_begins[node.end_lineno - 1] + node.end_col_offset


def _executed_children(node: ast.AST) -> Iterator[ast.AST]:
    """Leave out types, decorators and the parts of texts."""
    if isinstance(node, ast.JoinedStr):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "ops", "op"):
            continue
        children = value if isinstance(value, list) else [value]
        yield from (child for child in children if isinstance(child, ast.AST))


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _joins(node: ast.BinOp) -> bool:
    return any(
        isinstance(operand, TEXTS) or (isinstance(operand, ast.Constant) and isinstance(operand.value, str))
        for operand in (node.left, node.right)
    )


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 60 else f"{words[:57]}…"
