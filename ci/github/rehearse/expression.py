"""GitHub's expression language, evaluated strictly.

GitHub turns an unknown context, function, input or output into an empty string. Here it is an error: in a
workflow it is a typing mistake.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from provisioning.base.errors import UnknownName, UsageError

Value: TypeAlias = "bool | int | float | str | Sequence[Value] | Mapping[str, Value] | None"
Function: TypeAlias = Callable[..., Value]

STATUS_FUNCTIONS = frozenset({"success", "always", "failure", "cancelled"})

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>0x[0-9a-fA-F]+|[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<string>'(?:[^']|'')*')
      | (?P<name>[A-Za-z_][A-Za-z0-9_-]*)
      | (?P<operator>&&|\|\||==|!=|<=|>=|[<>!()\[\].,*])
    )""",
    re.VERBOSE,
)
_EMBEDDED = re.compile(r"\$\{\{((?:[^'}]|'(?:[^']|'')*'|\}(?!\}))*)\}\}")
_LITERALS: dict[str, Value] = {"true": True, "false": False, "null": None, "NaN": math.nan}


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value


@dataclass(frozen=True, slots=True)
class Context:
    name: str


@dataclass(frozen=True, slots=True)
class Index:
    of: Node
    key: Node


@dataclass(frozen=True, slots=True)
class Filter:
    """`.*`: all values of an object or list. Later look-ups apply to each of them."""

    of: Node


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    operator: str
    operands: tuple[Node, ...]


Node: TypeAlias = "Literal | Context | Index | Filter | Call | Operation"


class _Filtered(list[Value]):
    """The result of a filter. Indexing it indexes each member."""


class Known(Mapping[str, Value]):
    """A context with a fixed set of names: looking up another name is an error. Names in `empty` are null."""

    def __init__(self, name: str, values: Mapping[str, Value], *, empty: Iterable[str] = ()) -> None:
        self.name = name
        self.values_ = {key.lower(): value for key, value in values.items()}
        self.keys_ = list(values)
        self.empty = {key.lower() for key in empty}

    def __getitem__(self, key: str) -> Value:
        if key.lower() in self.empty - self.values_.keys():
            return None
        if key.lower() not in self.values_:
            raise UsageError(
                f"{self.name}.{key} is not known here:"
                f" expected one of {', '.join(sorted(self.keys_)) or 'none'}",
                remedy="correct the expression, or teach ci/github/rehearse the name",
            )
        return self.values_[key.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_)

    def __len__(self) -> int:
        return len(self.keys_)


@functools.cache
def parse(text: str) -> Node:
    """The expression between `${{` and `}}`."""
    parser = _Parser(text)
    node = parser.either()
    parser.end()
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.wrong(f"cannot be read from {text[position:].strip()!r} on")
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind]))
            position = match.end()
        self.at = 0

    def wrong(self, why: str) -> UsageError:
        return UsageError(f"the expression {self.text.strip()!r} {why}", remedy="correct it in the workflow")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        if expected and self.peek() not in expected:
            raise self.wrong(f"has {self.peek() or 'its end'!r} where {' or '.join(expected)} is expected")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.wrong(f"goes on with {self.peek()!r} after its end")

    def either(self) -> Node:
        return self._chain(("||",), self.both)

    def both(self) -> Node:
        return self._chain(("&&",), self.equality)

    def equality(self) -> Node:
        return self._chain(("==", "!="), self.comparison)

    def comparison(self) -> Node:
        return self._chain(("<", "<=", ">", ">="), self.negation)

    def _chain(self, operators: tuple[str, ...], operand: Callable[[], Node]) -> Node:
        node = operand()
        while self.peek() in operators:
            node = Operation(self.take(), (node, operand()))
        return node

    def negation(self) -> Node:
        if self.peek() == "!":
            self.take()
            return Operation("!", (self.negation(),))
        return self.lookup()

    def lookup(self) -> Node:
        node = self.primary()
        while self.peek() in (".", "["):
            if self.take() == ".":
                if self.peek() == "*":
                    self.take()
                    node = Filter(node)
                else:
                    node = Index(node, Literal(self.name()))
            elif self.peek() == "*":
                self.take()
                self.take("]")
                node = Filter(node)
            else:
                key = self.either()
                self.take("]")
                node = Index(node, key)
        return node

    def name(self) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at][0] != "name":
            raise self.wrong(f"has {self.peek() or 'its end'!r} where a name is expected")
        return self.take()

    def primary(self) -> Node:
        if self.at >= len(self.tokens):
            raise self.wrong("ends where a value is expected")
        kind, text = self.tokens[self.at]
        if text == "(":
            self.take()
            node = self.either()
            self.take(")")
            return node
        self.take()
        if kind == "string":
            return Literal(text[1:-1].replace("''", "'"))
        if kind == "number":
            return Literal(int(text, 16) if text.startswith("0x") else _whole(float(text)))
        if kind == "name":
            if self.peek() == "(":
                return Call(text, self.arguments())
            return Literal(_LITERALS[text]) if text in _LITERALS else Context(text)
        raise self.wrong(f"has {text!r} where a value is expected")

    def arguments(self) -> tuple[Node, ...]:
        self.take("(")
        arguments: list[Node] = []
        while self.peek() != ")":
            if arguments:
                self.take(",")
            arguments.append(self.either())
        self.take(")")
        return tuple(arguments)


def evaluate(node: Node, contexts: Mapping[str, Value], functions: Mapping[str, Function]) -> Value:
    """`functions`: those that depend on the expression's place, such as `success` and `hashFiles`."""

    def value(part: Node) -> Value:
        return evaluate(part, contexts, functions)

    match node:
        case Literal(literal):
            return literal
        case Context(name):
            if name not in contexts:
                raise UsageError(
                    f"the context {name!r} cannot be used here:"
                    f" expected one of {', '.join(sorted(contexts))}",
                    remedy="correct the expression in the workflow",
                )
            return contexts[name]
        case Index(of, key):
            return _index(value(of), value(key))
        case Filter(of):
            within = value(of)
            if isinstance(within, Mapping):
                return _Filtered(within.values())
            return _Filtered(within if isinstance(within, (list, tuple)) else ())
        case Call(name, arguments):
            return _call(name, [value(argument) for argument in arguments], functions)
        case Operation("!", (operand,)):
            return not truthy(value(operand))
        case Operation("&&", (left, right)):
            first = value(left)
            return value(right) if truthy(first) else first
        case Operation("||", (left, right)):
            first = value(left)
            return first if truthy(first) else value(right)
        case Operation(operator, (left, right)):
            return _COMPARISONS[operator](value(left), value(right))
    raise AssertionError(node)


@dataclass(frozen=True, slots=True)
class Used:
    """The contexts and functions that an expression uses."""

    contexts: frozenset[str]
    functions: frozenset[str]


def used(node: Node) -> Used:
    match node:
        case Context(name):
            return Used(frozenset({name}), frozenset())
        case Call(name, parts):
            own, inner = frozenset({name}), parts
        case Operation(_, parts):
            own, inner = frozenset(), parts
        case Index(of, key):
            own, inner = frozenset(), (of, key)
        case Filter(of):
            own, inner = frozenset(), (of,)
        case _:
            return Used(frozenset(), frozenset())
    inner_uses = [used(part) for part in inner]
    return Used(
        frozenset().union(*(one.contexts for one in inner_uses)),
        own.union(*(one.functions for one in inner_uses)),
    )


def members(node: Node, context: str) -> Iterator[str]:
    """The names of a context's members that an expression uses: `build` of `steps.build.outputs.x`."""
    match node:
        case Index(Context(name), Literal(str(key))) if name == context:
            yield key
        case Index(of, key):
            yield from (*members(of, context), *members(key, context))
        case Call(_, parts) | Operation(_, parts):
            for part in parts:
                yield from members(part, context)
        case Filter(of):
            yield from members(of, context)


def embedded(text: str) -> list[str]:
    """The expressions inside a string."""
    return [match[1] for match in _EMBEDDED.finditer(text)]


def expand(text: str, contexts: Mapping[str, Value], functions: Mapping[str, Function]) -> Value:
    """The string with its expressions replaced. A string that is one expression keeps its type."""
    if (whole := _EMBEDDED.fullmatch(text.strip())) is not None:
        return evaluate(parse(whole[1]), contexts, functions)
    if "${{" in _EMBEDDED.sub("", text):
        raise UsageError(f"an expression in {text!r} is not closed", remedy="close it with }}")
    return _EMBEDDED.sub(lambda m: as_text(evaluate(parse(m[1]), contexts, functions)), text)


def expand_all(value: Any, contexts: Mapping[str, Value], functions: Mapping[str, Function]) -> Any:
    """A YAML value with all its expressions evaluated."""
    if isinstance(value, str):
        return expand(value, contexts, functions)
    if isinstance(value, Mapping):
        return {key: expand_all(one, contexts, functions) for key, one in value.items()}
    if isinstance(value, list):
        return [expand_all(one, contexts, functions) for one in value]
    return value


def condition(text: str, contexts: Mapping[str, Value], functions: Mapping[str, Function]) -> bool:
    """An `if`: with or without `${{ }}`; `success()` is implied unless a status function is called."""
    stripped = text.strip()
    whole = _EMBEDDED.fullmatch(stripped)
    if whole is None and "${{" in stripped:
        raise UsageError(
            f"the condition {stripped!r} mixes text and expressions, which is always true",
            remedy="write it without ${{ }}",
        )
    node = parse(whole[1] if whole else stripped) if stripped else Call("success", ())
    if not used(node).functions & STATUS_FUNCTIONS and not truthy(_call("success", [], functions)):
        return False
    return truthy(evaluate(node, contexts, functions))


def truthy(value: Value) -> bool:
    return not (value is None or value is False or value == 0 or value == "" or value != value)


def as_text(value: Value) -> str:
    """The value as GitHub writes it into a string."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return _number_text(value)
    if isinstance(value, str):
        return value
    return "Object" if isinstance(value, Mapping) else "Array"


def _number_text(value: int | float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(_whole(value))


def _whole(value: int | float) -> int | float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _index(within: Value, key: Value) -> Value:
    if isinstance(within, _Filtered):
        return _Filtered(member for one in within if (member := _index(one, key)) is not None)
    if isinstance(within, Known):
        return within[as_text(key)]
    if isinstance(within, Mapping):
        wanted = as_text(key).lower()
        return next((value for name, value in within.items() if name.lower() == wanted), None)
    if isinstance(within, (list, tuple)):
        at = number(key)
        if 0 <= at < len(within):
            return cast(Value, within[int(at)])
    return None


def number(value: Value) -> float:
    if value is None:
        return 0
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str):
        try:
            text = value.strip()
            return float(int(text, 16)) if text.startswith("0x") else float(text or 0)
        except ValueError:
            return math.nan
    return math.nan


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    if isinstance(left, (Mapping, list, tuple)) and isinstance(right, (Mapping, list, tuple)):
        return left is right
    return number(left) == number(right)


def _ordered(compare: Callable[[object, object], bool]) -> Callable[[Value, Value], bool]:
    def ordered(left: Value, right: Value) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return compare(left.lower(), right.lower())
        return compare(number(left), number(right))

    return ordered


_COMPARISONS: dict[str, Callable[[Value, Value], bool]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _ordered(lambda left, right: left < right),  # type: ignore[operator]
    "<=": _ordered(lambda left, right: left <= right),  # type: ignore[operator]
    ">": _ordered(lambda left, right: left > right),  # type: ignore[operator]
    ">=": _ordered(lambda left, right: left >= right),  # type: ignore[operator]
}


def _contains(within: Value, item: Value) -> bool:
    if isinstance(within, (list, tuple)):
        return any(_equal(one, item) for one in within)
    return as_text(item).lower() in as_text(within).lower()


def _format(template: Value, *values: Value) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] is None or int(match[1]) >= len(values):
            raise UsageError(f"format({as_text(template)!r}): no argument for {match[0]!r}")
        return as_text(values[int(match[1])])

    return re.sub(r"\{\{|\}\}|\{(\d+)\}|[{}]", replace, as_text(template))


def _join(values: Value, separator: Value = ",") -> str:
    if not isinstance(values, (list, tuple)):
        return as_text(values)
    return as_text(separator).join(as_text(value) for value in values)


def plain(value: Value) -> object:
    """The value as JSON's own types."""
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in value}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return _whole(value) if isinstance(value, float) else value


def _from_json(text: Value) -> Value:
    try:
        value: Value = json.loads(as_text(text))
    except ValueError as error:
        raise UsageError(f"fromJSON({as_text(text)!r}): {error}", remedy="give it JSON") from error
    return value


FUNCTIONS: dict[str, tuple[Function, int, int]] = {
    "contains": (_contains, 2, 2),
    "startswith": (lambda text, start: as_text(text).lower().startswith(as_text(start).lower()), 2, 2),
    "endswith": (lambda text, end: as_text(text).lower().endswith(as_text(end).lower()), 2, 2),
    "format": (_format, 1, 255),
    "join": (_join, 1, 2),
    "tojson": (lambda value: json.dumps(plain(value), indent=2), 1, 1),
    "fromjson": (_from_json, 1, 1),
}
"""Names are not case-sensitive."""


def _call(name: str, arguments: list[Value], functions: Mapping[str, Function]) -> Value:
    if name in functions:
        return functions[name](*arguments)
    if name.lower() not in FUNCTIONS:
        raise UnknownName(f"the function {name}() cannot be used here", name, {*FUNCTIONS, *functions})
    function, least, most = FUNCTIONS[name.lower()]
    if not least <= len(arguments) <= most:
        raise UsageError(f"{name}() takes {least} to {most} arguments, found {len(arguments)}")
    return function(*arguments)
