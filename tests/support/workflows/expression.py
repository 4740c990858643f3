"""GitHub's expression language, as far as our workflows use it, translated to Python's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Value: TypeAlias = "bool | int | float | str | Sequence[Value] | Mapping[str, Value] | None"
Function: TypeAlias = Callable[..., Value]

_TOKEN = re.compile(
    r"(?P<string>'(?:[^']|'')*')|(?P<number>\d+(?:\.\d+)?)|(?P<call>\w+)(?=\()"
    r"|(?P<path>[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)|(?P<sign>&&|\|\||==|!=|[!(),])|(?P<space>\s+)"
)
_SIGNS = {"&&": " and ", "||": " or ", "!": "~"}
_LITERALS: dict[str, Value] = {"true": True, "false": False, "null": None}
_EMBEDDED = re.compile(r"\$\{\{((?:[^'}]|'(?:[^']|'')*'|\}(?!\}))*)\}\}")


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression can name where it stands."""

    contexts: Mapping[str, Value]
    functions: Mapping[str, Function] = field(default_factory=dict)
    """Those that depend on the place, such as `success`."""


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
        return _Operand(_number(left) == _number(right))

    def __ne__(self, other: object) -> Any:
        return ~(self == other)


def evaluate(text: str, scope: Scope) -> Value:
    """The value of an expression between `${{` and `}}`."""
    parts = []
    for token in _TOKEN.finditer(text):
        kind, word = token.lastgroup, token[0]
        if kind == "sign":
            parts.append(_SIGNS.get(word, word))
        elif kind != "space":
            literal = word[1:-1].replace("''", "'") if kind == "string" else word
            parts.append(f" {kind}({literal!r}) ")
    functions = {**FUNCTIONS, **scope.functions}
    names = {
        "string": _Operand,
        "number": lambda word: _Operand(float(word)),
        "call": lambda name: lambda *values: _Operand(functions[name](*(value.value for value in values))),
        "path": lambda name: _Operand(_LITERALS[name] if name in _LITERALS else _named(name, scope.contexts)),
    }
    found = eval("".join(parts).strip(), {"__builtins__": {}}, names)
    return found.value  # type: ignore[no-any-return]


def _named(path: str, contexts: Mapping[str, Value]) -> Value:
    value: Value = contexts
    for name in path.split("."):
        members = value.items() if isinstance(value, Mapping) else ()
        value = next((member for key, member in members if key.lower() == name.lower()), None)
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


def texts(values: Mapping[str, object], scope: Scope) -> dict[str, str]:
    return {name: as_text(expand(value, scope)) for name, value in values.items()}


def condition(text: str, scope: Scope) -> bool:
    """An `if`: with or without `${{ }}`; `success()` is implied unless a status function is called."""
    whole = _EMBEDDED.fullmatch(text.strip())
    inner = (whole[1] if whole else text.strip()) or "true"
    called = {match["call"] for match in _TOKEN.finditer(inner)}
    if not called & scope.functions.keys() and not scope.functions["success"]():
        return False
    return bool(_Operand(evaluate(inner, scope)))


def status_functions(*, failed: bool) -> dict[str, Function]:
    """Nobody cancels a run here."""
    known = {"always": True, "cancelled": False, "success": not failed, "failure": failed}
    return {name: lambda value=value: value for name, value in known.items()}


def as_text(value: Value) -> str:
    """The value as GitHub writes it into a string."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _number(value: Value) -> float:
    try:
        return float(value or 0)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")


FUNCTIONS: dict[str, Function] = {
    "contains": lambda values, value: value in values,
    "hashFiles": lambda *patterns: "of-" + "-".join(map(as_text, patterns)),
    "format": lambda template, *values: as_text(template).format(*map(as_text, values)),
    "fromJSON": lambda text: json.loads(as_text(text)),
    "startsWith": lambda text, start: as_text(text).lower().startswith(as_text(start).lower()),
    "toJSON": lambda value: json.dumps(value, indent=2),
}
