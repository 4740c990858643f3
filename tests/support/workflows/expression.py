"""GitHub's expression language, as far as our workflows use it, evaluated strictly.

GitHub turns an unknown context, output or input into an empty string. In a workflow it is a typing mistake:
here it is an error.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Value: TypeAlias = "bool | int | float | str | Sequence[Value] | Mapping[str, Value] | None"
Function: TypeAlias = Callable[..., Value]

STATUS_FUNCTIONS = frozenset({"success", "always", "failure", "cancelled"})

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>\d+(?:\.\d+)?)
      | (?P<string>'(?:[^']|'')*')
      | (?P<name>[A-Za-z_][A-Za-z0-9_-]*)
      | (?P<operator>&&|\|\||==|!=|[!().,])
    )""",
    re.VERBOSE,
)
_EMBEDDED = re.compile(r"\$\{\{((?:[^'}]|'(?:[^']|'')*'|\}(?!\}))*)\}\}")
_LITERALS: dict[str, Value] = {"true": True, "false": False, "null": None}


class Unknown(Exception):
    """What GitHub would refuse or take for empty, or what this runner does not know."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression can name where it stands."""

    contexts: Mapping[str, Value]
    functions: Mapping[str, Function] = field(default_factory=dict)
    """Those that depend on the place, such as `success`."""


Evaluator: TypeAlias = Callable[[Scope], Value]


class Known(dict[str, Value]):
    """A context with a fixed set of names: looking up another name is an error."""

    def __init__(self, name: str, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self.name = name


@functools.cache
def parse(text: str) -> tuple[Evaluator, frozenset[str]]:
    """The expression between `${{` and `}}`, and the functions that it calls."""
    parser = _Parser(text)
    evaluate = parser.operation()
    if parser.kind:
        raise parser.wrong(f"goes on with {parser.token!r} after its end")
    return evaluate, frozenset(parser.functions)


class _Parser:
    """By descent; each method reads one level of precedence."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.kind = self.token = ""
        self.functions: set[str] = set()
        self.take()

    def wrong(self, why: str) -> Unknown:
        return Unknown(f"the expression {self.text.strip()!r} {why}")

    def take(self) -> str:
        """Go on to the next token; return the one before."""
        before = self.token
        rest = self.text[self.position :]
        match = _TOKEN.match(rest)
        if match is None and rest.strip():
            raise self.wrong(f"cannot be read from {rest.strip()!r} on")
        self.kind = (match.lastgroup or "") if match else ""
        self.token = match[self.kind] if match else ""
        self.position += match.end() if match else 0
        return before

    def expect(self, token: str) -> None:
        if self.token != token:
            raise self.wrong(f"has {self.token or 'its end'!r} where {token} is expected")
        self.take()

    def operation(self, level: int = 0) -> Evaluator:
        if level == len(_LEVELS):
            return self.negation()
        left = self.operation(level + 1)
        while self.token in _LEVELS[level]:
            left = functools.partial(_LEVELS[level][self.take()], left, self.operation(level + 1))
        return left

    def negation(self) -> Evaluator:
        if self.token == "!":
            self.take()
            operand = self.negation()
            return lambda scope: not truthy(operand(scope))
        return self.lookup()

    def lookup(self) -> Evaluator:
        value = self.primary()
        while self.token == ".":
            self.take()
            if self.kind != "name":
                raise self.wrong(f"has {self.token or 'its end'!r} where a name is expected")
            value = functools.partial(_member, value, self.take())
        return value

    def primary(self) -> Evaluator:
        kind, text = self.kind, self.token
        if text == "(":
            self.take()
            inner = self.operation()
            self.expect(")")
            return inner
        if kind not in ("string", "number", "name"):
            raise self.wrong(f"has {text or 'its end'!r} where a value is expected")
        self.take()
        if kind == "name" and self.token == "(":
            return self.call(text)
        if kind == "name" and text not in _LITERALS:
            return functools.partial(_context, text)
        literal: Value = text[1:-1].replace("''", "'")
        if kind != "string":
            literal = _LITERALS[text] if kind == "name" else float(text)
        return lambda scope: literal

    def call(self, name: str) -> Evaluator:
        self.functions.add(name)
        self.expect("(")
        arguments: list[Evaluator] = []
        while self.token != ")":
            if arguments:
                self.expect(",")
            arguments.append(self.operation())
        self.take()
        return lambda scope: _function(name, scope)(*(argument(scope) for argument in arguments))


def _context(name: str, scope: Scope) -> Value:
    if name not in scope.contexts:
        expected = ", ".join(sorted(scope.contexts))
        raise Unknown(f"the context {name!r} cannot be used here: expected one of {expected}")
    return scope.contexts[name]


def _function(name: str, scope: Scope) -> Function:
    functions = {**FUNCTIONS, **scope.functions}
    if name not in functions:
        raise Unknown(f"the function {name}() is not known here: expected one of {', '.join(functions)}")
    return functions[name]


_LEVELS: Sequence[Mapping[str, Callable[[Evaluator, Evaluator, Scope], Value]]] = (
    {"||": lambda left, right, scope: value if truthy(value := left(scope)) else right(scope)},
    {"&&": lambda left, right, scope: right(scope) if truthy(value := left(scope)) else value},
    {
        "==": lambda left, right, scope: _equal(left(scope), right(scope)),
        "!=": lambda left, right, scope: not _equal(left(scope), right(scope)),
    },
)
"""Operators by precedence; the last ones bind most."""


def _member(of: Evaluator, name: str, scope: Scope) -> Value:
    within = of(scope)
    for key, value in within.items() if isinstance(within, Mapping) else ():
        if key.lower() == name.lower():
            return value
    if isinstance(within, Known):
        raise Unknown(f"{within.name}.{name}: expected one of {', '.join(sorted(within)) or 'none'}")
    return None


def expand(value: Any, scope: Scope) -> Any:
    """A YAML value with all its expressions evaluated. A string that is one expression takes its type."""
    if isinstance(value, Mapping):
        return {key: expand(member, scope) for key, member in value.items()}
    if not isinstance(value, str):
        return value
    if (whole := _EMBEDDED.fullmatch(value.strip())) is not None:
        return parse(whole[1])[0](scope)
    if "${{" in _EMBEDDED.sub("", value):
        raise Unknown(f"an expression in {value!r} is not closed")
    return _EMBEDDED.sub(lambda match: as_text(parse(match[1])[0](scope)), value)


def condition(text: str, scope: Scope) -> bool:
    """An `if`: with or without `${{ }}`; `success()` is implied unless a status function is called."""
    stripped = text.strip()
    whole = _EMBEDDED.fullmatch(stripped)
    if whole is None and "${{" in stripped:
        raise Unknown(f"the condition {stripped!r} mixes text and expressions, which is always true")
    evaluate, functions = parse((whole[1] if whole else stripped) or "true")
    if not functions & STATUS_FUNCTIONS and not truthy(_function("success", scope)()):
        return False
    return truthy(evaluate(scope))


def truthy(value: Value) -> bool:
    return not (value is None or value is False or value == 0 or value == "" or value != value)


def as_text(value: Value) -> str:
    """The value as GitHub writes it into a string."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(int(value) if float(value).is_integer() else value)
    if isinstance(value, str):
        return value
    return "Object" if isinstance(value, Mapping) else "Array"


def number(value: Value) -> float:
    if value is None:
        return 0
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value.strip() or 0)
        except ValueError:
            return math.nan
    return math.nan


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    if isinstance(left, (Mapping, list)) and isinstance(right, (Mapping, list)):
        return left is right
    return number(left) == number(right)


FUNCTIONS: dict[str, Function] = {
    "format": lambda template, *values: as_text(template).format(*map(as_text, values)),
    "fromJSON": lambda text: json.loads(as_text(text)),
    "toJSON": lambda value: json.dumps(value, indent=2),
}
