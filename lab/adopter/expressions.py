"""Expressions of GitHub Actions, `${{ … }}`, as far as our workflows and actions use them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Value = object
"""A value of JSON. An absent name is None, as it is empty on GitHub."""

_TOKEN = re.compile(
    r"\s*(?:('(?:[^']|'')*')|(\d+(?:\.\d+)?)|([A-Za-z_][\w-]*(?:\.[\w-]+)*)|(&&|\|\||==|!=|[!(),]))"
)
_WHOLE = re.compile(r"\$\{\{((?:'(?:[^']|'')*'|[^'}]|\}(?!\}))*)\}\}")


@dataclass(frozen=True, slots=True)
class ExpressionScope:
    """What expressions can name at one place."""

    contexts: Mapping[str, Value]
    status: Mapping[str, bool] = field(default_factory=dict)
    """The answers of success(), failure(), cancelled() and always()."""

    def value(self, text: str) -> Value:
        """Of an expression without `${{ }}`."""
        return _Parser(text, self).whole()

    def filled(self, text: str) -> Value:
        """A text with the values of its expressions; where it is one expression, that value itself."""
        if match := _WHOLE.fullmatch(text.strip()):
            return self.value(match[1])
        return _WHOLE.sub(lambda match: to_text(self.value(match[1])), text)

    def text(self, text: object) -> str:
        return to_text(self.filled(text) if isinstance(text, str) else text)

    def holds(self, condition: str | bool) -> bool:
        """Of an `if`: without a function of the status, success() must hold too."""
        if isinstance(condition, bool):
            return condition and self.status["success"]
        match = _WHOLE.fullmatch(condition.strip())
        text = match[1] if match else condition
        if not re.search(r"\b(always|success|failure|cancelled)\(\)", text):
            text = f"success() && ({text})"
        return is_true(self.value(text))


def to_text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def is_true(value: Value) -> bool:
    return value not in (None, False, 0, "")


class _Parser:
    def __init__(self, text: str, scope: ExpressionScope) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._scope, self._text, place = scope, text, 0
        kinds = ("text", "number", "name", "sign")
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None:
                raise ValueError(f"no expression: {text!r}")
            kind, token = next(
                (kind, token) for kind, token in zip(kinds, match.groups(), strict=True) if token
            )
            self._tokens.append((kind, token))
            place = match.end()

    def whole(self) -> Value:
        value = self._either()
        if self._tokens:
            raise ValueError(f"no expression: {self._text!r}")
        return value

    def _takes(self, *signs: str) -> str:
        if self._tokens and self._tokens[0][0] == "sign" and self._tokens[0][1] in signs:
            return self._tokens.pop(0)[1]
        return ""

    def _either(self) -> Value:
        value = self._both()
        while self._takes("||"):
            other = self._both()
            value = value if is_true(value) else other
        return value

    def _both(self) -> Value:
        value = self._compared()
        while self._takes("&&"):
            other = self._compared()
            value = other if is_true(value) else value
        return value

    def _compared(self) -> Value:
        value = self._single()
        while sign := self._takes("==", "!="):
            # GitHub ignores the case of texts.
            alike = to_text(value).lower() == to_text(self._single()).lower()
            value = alike if sign == "==" else not alike
        return value

    def _single(self) -> Value:
        if self._takes("!"):
            return not is_true(self._single())
        if self._takes("("):
            value = self._either()
            self._require(")")
            return value
        kind, token = self._tokens.pop(0) if self._tokens else ("", "")
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind == "number":
            return float(token)
        if kind == "name" and self._takes("("):
            return self._called(token, self._arguments())
        if kind == "name":
            return self._named(token)
        raise ValueError(f"no expression: {self._text!r}")

    def _arguments(self) -> list[Value]:
        values: list[Value] = []
        while not self._takes(")"):
            values.append(self._either())
            self._takes(",")
        return values

    def _require(self, sign: str) -> None:
        if not self._takes(sign):
            raise ValueError(f"no {sign} in {self._text!r}")

    def _named(self, name: str) -> Value:
        if name in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[name]
        first, *rest = name.split(".")
        if first not in self._scope.contexts:
            raise ValueError(f"there is no context {first!r}: {self._text!r}")
        value: Value = self._scope.contexts[first]
        for part in rest:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _called(self, name: str, values: Sequence[Value]) -> Value:
        if name in self._scope.status:
            return self._scope.status[name]
        return FUNCTIONS[name](*values)


def _contains(where: Value, what: Value) -> bool:
    if isinstance(where, list):
        return to_text(what).lower() in [to_text(item).lower() for item in where]
    return to_text(what).lower() in to_text(where).lower()


def _format(text: Value, *values: Value) -> str:
    return to_text(text).format(*map(to_text, values))


FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "contains": _contains,
    "format": _format,
    "fromJSON": lambda text: json.loads(to_text(text)),
    "toJSON": json.dumps,
    "startsWith": lambda text, begin: to_text(text).lower().startswith(to_text(begin).lower()),
}
