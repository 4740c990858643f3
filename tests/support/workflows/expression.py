"""GitHub's expression language, as far as our workflows use it: translated to Python's, evaluated strictly.

GitHub turns an unknown context, output or input into an empty string. In a workflow it is a typing mistake:
here it is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Value: TypeAlias = "bool | int | float | str | Sequence[Value] | Mapping[str, Value] | None"
Function: TypeAlias = Callable[..., Value]

STATUS_FUNCTIONS = frozenset({"success", "always", "failure", "cancelled"})

_TOKEN = re.compile(
    r"(?P<string>'(?:[^']|'')*')|(?P<number>\d+(?:\.\d+)?)|(?P<call>\w+)(?=\()"
    r"|(?P<path>[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)|(?P<sign>&&|\|\||==|!=|[!(),])|(?P<space>\s+)"
)
_SIGNS = {"&&": " and ", "||": " or ", "!": "~"}
_LITERALS: dict[str, Value] = {"true": True, "false": False, "null": None}
_EMBEDDED = re.compile(r"\$\{\{((?:[^'}]|'(?:[^']|'')*'|\}(?!\}))*)\}\}")


class Unknown(Exception):
    """What GitHub would refuse or take for empty, or what this runner does not know."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression can name where it stands."""

    contexts: Mapping[str, Value]
    functions: Mapping[str, Function] = field(default_factory=dict)
    """Those that depend on the place, such as `success`."""


class Known(dict[str, Value]):
    """A context with a fixed set of names: looking up another name is an error."""

    def __init__(self, name: str, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self.name = name


@dataclass(eq=False)
class _Operand:
    """A value with GitHub's truth and equality; `~` is its `!`, which binds more than a comparison."""

    value: Any

    def __bool__(self) -> bool:
        return isinstance(self.value, (Mapping, list)) or bool(self.value)

    def __invert__(self) -> _Operand:
        return _Operand(not self)

    def __eq__(self, other: object) -> Any:
        left: Any = self.value
        right: Any = other.value if isinstance(other, _Operand) else other
        if isinstance(left, str) and isinstance(right, str):
            return _Operand(left.lower() == right.lower())
        if isinstance(left, (Mapping, list)) and isinstance(right, (Mapping, list)):
            return _Operand(left is right)
        return _Operand(number(left) == number(right))

    def __ne__(self, other: object) -> Any:
        return ~(self == other)


def evaluate(text: str, scope: Scope) -> Value:
    """The value of an expression between `${{` and `}}`."""
    parts, end = [], 0
    for token in _TOKEN.finditer(text):
        if token.start() != end:
            break
        end, kind, word = token.end(), token.lastgroup, token[0]
        if kind == "sign":
            parts.append(_SIGNS.get(word, word))
        elif kind != "space":
            literal = word[1:-1].replace("''", "'") if kind == "string" else word
            parts.append(f" {kind}({literal!r}) ")
    if end != len(text):
        raise Unknown(f"the expression {text.strip()!r} cannot be read from {text[end:]!r} on")
    functions = {**FUNCTIONS, **scope.functions}

    def call(name: str) -> Callable[..., _Operand]:
        if name not in functions:
            raise Unknown(f"the function {name}() is not known here: expected one of {', '.join(functions)}")
        return lambda *values: _Operand(functions[name](*(value.value for value in values)))

    def path(name: str) -> _Operand:
        return _Operand(_LITERALS[name] if name in _LITERALS else _named(name, scope))

    names = {"string": _Operand, "number": lambda word: _Operand(float(word)), "call": call, "path": path}
    try:
        found = eval("".join(parts).strip(), {"__builtins__": {}}, names)
    except SyntaxError as error:
        raise Unknown(f"the expression {text.strip()!r} cannot be read") from error
    return found.value  # type: ignore[no-any-return]


def _named(path: str, scope: Scope) -> Value:
    value: Value = Known("the contexts", scope.contexts)
    for name in path.split("."):
        within, value = value, None
        for key, member in within.items() if isinstance(within, Mapping) else ():
            if key.lower() == name.lower():
                value = member
                break
        else:
            if isinstance(within, Known):
                raise Unknown(f"{within.name}.{name}: expected one of {', '.join(sorted(within)) or 'none'}")
    return value


def expand(value: Any, scope: Scope) -> Any:
    """A YAML value with all its expressions evaluated. A string that is one expression takes its type."""
    if isinstance(value, Mapping):
        return {key: expand(member, scope) for key, member in value.items()}
    if not isinstance(value, str):
        return value
    if (whole := _EMBEDDED.fullmatch(value.strip())) is not None:
        return evaluate(whole[1], scope)
    return _EMBEDDED.sub(lambda match: as_text(evaluate(match[1], scope)), value)


def condition(text: str, scope: Scope) -> bool:
    """An `if`: with or without `${{ }}`; `success()` is implied unless a status function is called."""
    whole = _EMBEDDED.fullmatch(text.strip())
    inner = (whole[1] if whole else text.strip()) or "true"
    called = {match["call"] for match in _TOKEN.finditer(inner)}
    if not called & STATUS_FUNCTIONS and not scope.functions["success"]():
        return False
    return bool(_Operand(evaluate(inner, scope)))


def as_text(value: Value) -> str:
    """The value as GitHub writes it into a string."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (str, int, float)):
        return str(value)
    return "Object" if isinstance(value, Mapping) else "Array"


def number(value: Value) -> float:
    try:
        return float(value or 0)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")


FUNCTIONS: dict[str, Function] = {
    "format": lambda template, *values: as_text(template).format(*map(as_text, values)),
    "fromJSON": lambda text: json.loads(as_text(text)),
    "toJSON": lambda value: json.dumps(value, indent=2),
}
