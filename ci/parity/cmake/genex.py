"""Generator expressions, as far as lists of sources and libraries use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

VARIABLES = {
    "PLATFORM_ID": "CMAKE_SYSTEM_NAME",
    "CONFIG": "CMAKE_BUILD_TYPE",
    "CXX_COMPILER_ID": "CMAKE_CXX_COMPILER_ID",
    "C_COMPILER_ID": "CMAKE_C_COMPILER_ID",
    "COMPILE_LANGUAGE": "COMPILE_LANGUAGE",
}
"""Expressions that ask for a variable; COMPILE_LANGUAGE is set for each language of a target's sources."""

FALSE = frozenset({"", "0", "FALSE", "OFF", "N", "NO", "IGNORE", "NOTFOUND"})


class Unevaluable(Exception):
    """`what` cannot be known here."""


def truth(text: str) -> str:
    return "0" if text.upper() in FALSE or text.upper().endswith("-NOTFOUND") else "1"


@dataclass(frozen=True)
class Expressions:
    """Replaces every `$<…>` of a text by its value. Raises Unevaluable."""

    variables: Mapping[str, str]
    is_target: Callable[[str], bool]

    def evaluate(self, text: str) -> str:
        result, position = self._text(text, 0, ends="")
        return result + text[position:]

    def _text(self, text: str, position: int, *, ends: str) -> tuple[str, int]:
        result = ""
        while position < len(text):
            if text.startswith("$<", position):
                piece, position = self._expression(text, position + 2)
                result += piece
            elif text[position] in ends:
                break
            else:
                result += text[position]
                position += 1
        return result, position

    def _expression(self, text: str, position: int) -> tuple[str, int]:
        name, position = self._text(text, position, ends=":>")
        parameters: list[str] = []
        if text[position : position + 1] == ":":
            # In `$<condition:…>` commas are part of the text.
            stop = ">" if name in ("0", "1", "BUILD_INTERFACE", "INSTALL_INTERFACE", "LINK_ONLY") else ",>"
            while text[position : position + 1] in (":", ","):
                parameter, position = self._text(text, position + 1, ends=stop)
                parameters.append(parameter)
        if text[position : position + 1] != ">":
            raise Unevaluable(f"$<{name} is not closed")
        return self._value(name, parameters), position + 1

    def _value(self, name: str, parameters: list[str]) -> str:
        joined = ",".join(parameters)
        if name in ("0", "INSTALL_INTERFACE"):
            return ""
        if name in ("1", "BUILD_INTERFACE", "LINK_ONLY", "BUILD_LOCAL_INTERFACE"):
            return joined
        known: dict[str, Callable[[], bool]] = {
            "BOOL": lambda: truth(joined) == "1",
            "NOT": lambda: joined == "0",
            "AND": lambda: all(parameter == "1" for parameter in parameters),
            "OR": lambda: any(parameter == "1" for parameter in parameters),
            "STREQUAL": lambda: parameters[0] == parameters[1],
            "EQUAL": lambda: int(parameters[0]) == int(parameters[1]),
            "IN_LIST": lambda: parameters[0] in ",".join(parameters[1:]).split(";"),
            "TARGET_EXISTS": lambda: self.is_target(joined),
            "COMPILE_LANG_AND_ID": lambda: (
                self._value("COMPILE_LANGUAGE", parameters[:1]) == "1"
                and self._value(f"{parameters[0]}_COMPILER_ID", parameters[1:]) == "1"
            ),
        }
        try:
            if name == "IF":
                return parameters[1] if parameters[0] == "1" else ",".join(parameters[2:])
            if name in known:
                return "1" if known[name]() else "0"
        except (IndexError, ValueError) as error:
            raise Unevaluable(f"$<{name}:{joined}> ({error})") from error
        if name in VARIABLES:
            value = self.variables.get(VARIABLES[name])
            if value is None:
                raise Unevaluable(f"$<{name}>, for {VARIABLES[name]} is not set")
            if not parameters:
                return value
            return "1" if value.upper() in (parameter.upper() for parameter in parameters) else "0"
        constants = {
            "SEMICOLON": ";",
            "COMMA": ",",
            "ANGLE-R": ">",
            "LOWER_CASE": joined.lower(),
            "UPPER_CASE": joined.upper(),
        }
        if name in constants:
            return constants[name]
        if name in ("LINK_LIBRARY", "LINK_GROUP"):
            return ";".join(parameters[1:])
        if name == "TARGET_NAME_IF_EXISTS":
            return joined if self.is_target(joined) else ""
        raise Unevaluable(f"$<{name}{':' + joined if parameters else ''}>")
