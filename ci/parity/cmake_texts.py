"""Read CMake's files as they are written: commands with the line of every word, lists, generator expressions.

What CMake itself computes comes from its trace (`cmake_trace`); this module finds where it was written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|\#\[(?P<comment>=*)\[.*?\](?P=comment)\]|\#[^\n]*)
    |(?P<paren>[()])
    |\[(?P<bracket>=*)\[(?P<raw>.*?)\](?P=bracket)\]
    |"(?P<quoted>(?:\\.|[^"\\])*)"
    |(?P<plain>(?:\\.|"(?:\\.|[^"\\])*"|[^\s()\#"\\])+)
    """,
    re.DOTALL | re.VERBOSE,
)
_REFERENCE = re.compile(r"\$\{(\w+)\}")
_INNER_REFERENCE = re.compile(r"\$(?:ENV|CACHE)?\{[^{}]*\}")

_VARIABLES = {
    "PLATFORM_ID": "CMAKE_SYSTEM_NAME",
    "CONFIG": "CMAKE_BUILD_TYPE",
    "CXX_COMPILER_ID": "CMAKE_CXX_COMPILER_ID",
    "C_COMPILER_ID": "CMAKE_C_COMPILER_ID",
    "COMPILE_LANGUAGE": "COMPILE_LANGUAGE",
}
"""Expressions that ask for a variable; COMPILE_LANGUAGE is set for each language of a target's sources."""

FALSE = frozenset({"", "0", "FALSE", "OFF", "N", "NO", "IGNORE", "NOTFOUND"})


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    line: int
    plain: bool
    """Neither quoted nor in brackets."""

    @property
    def variables(self) -> list[str]:
        return _REFERENCE.findall(self.text)

    @property
    def literal(self) -> str:
        """The text without placeholders."""
        text, before = self.text, ""
        while text != before:
            before, text = text, _INNER_REFERENCE.sub("", text)
        return text


@dataclass(frozen=True, slots=True)
class CMakeCommand:
    name: str
    line: int
    words: Sequence[Word]


@lru_cache(maxsize=512)
def commands(text: str) -> tuple[CMakeCommand, ...]:
    """The commands, as far as the text can be read; CMake itself reports syntax errors."""
    result: list[CMakeCommand] = []
    before: Word | None = None
    words: list[Word] | None = None
    name, depth = Word("", 0, plain=True), 0
    for word in _words(text):
        if words is None:
            if word.plain and word.text == "(" and before is not None:
                name, words, depth = before, [], 1
            before = word
            continue
        if word.plain and word.text in ("(", ")"):
            depth += 1 if word.text == "(" else -1
        if depth:
            words.append(word)
        else:
            result.append(CMakeCommand(name.text.lower(), name.line, tuple(words)))
            words, before = None, None
    return tuple(result)


def _words(text: str) -> Iterator[Word]:
    position, line = 0, 1
    while match := _TOKEN.match(text, position):
        kind = match.lastgroup or ""
        if match["space"] is None:
            raw, quoted = match["raw"], match["quoted"]
            inner = raw if raw is not None else quoted
            yield Word(match[0] if inner is None else inner, line, plain=inner is None)
        line += text.count("\n", position, match.end())
        position = match.end()
        if not kind:
            break


def commands_by_line(text: str) -> Mapping[tuple[int, str], CMakeCommand]:
    """Commands by their first line and name, as a trace gives them."""
    return {(command.line, command.name): command for command in commands(text)}


def block(text: str, line: int) -> list[CMakeCommand]:
    """The commands from the `if` (or `while`) on this line to the end of it."""
    body: list[CMakeCommand] = []
    depth = 0
    for command in commands(text):
        if command.line < line:
            continue
        depth += command.name in ("if", "while")
        depth -= command.name in ("endif", "endwhile")
        body.append(command)
        if depth <= 0:
            break
    return body


def list_elements(value: str) -> list[str]:
    """The elements of a CMake list."""
    if "[" not in value and "\\" not in value:
        return value.split(";") if value else []
    elements, depth, element, position = [], 0, "", 0
    while position < len(value):
        sign = value[position]
        if sign == "\\" and value[position + 1 : position + 2] == ";":
            element += ";"
            position += 2
            continue
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == ";" and depth <= 0:
            elements.append(element)
            element, depth = "", 0
        else:
            element += sign
        position += 1
    return [*elements, element]


class Unevaluable(Exception):
    """`what` cannot be known here."""


def truth(text: str) -> str:
    return "0" if text.upper() in FALSE or text.upper().endswith("-NOTFOUND") else "1"


@dataclass(frozen=True, slots=True)
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
        text = ",".join(parameters)
        if name in ("0", "INSTALL_INTERFACE"):
            return ""
        if name in ("1", "BUILD_INTERFACE", "LINK_ONLY", "BUILD_LOCAL_INTERFACE"):
            return text
        predicates: dict[str, Callable[[], bool]] = {
            "BOOL": lambda: truth(text) == "1",
            "NOT": lambda: text == "0",
            "AND": lambda: all(parameter == "1" for parameter in parameters),
            "OR": lambda: any(parameter == "1" for parameter in parameters),
            "STREQUAL": lambda: parameters[0] == parameters[1],
            "EQUAL": lambda: int(parameters[0]) == int(parameters[1]),
            "IN_LIST": lambda: parameters[0] in ",".join(parameters[1:]).split(";"),
            "TARGET_EXISTS": lambda: self.is_target(text),
            "COMPILE_LANG_AND_ID": lambda: (
                self._value("COMPILE_LANGUAGE", parameters[:1]) == "1"
                and self._value(f"{parameters[0]}_COMPILER_ID", parameters[1:]) == "1"
            ),
        }
        try:
            if name == "IF":
                return parameters[1] if parameters[0] == "1" else ",".join(parameters[2:])
            if name in predicates:
                return "1" if predicates[name]() else "0"
        except (IndexError, ValueError) as error:
            raise Unevaluable(f"$<{name}:{text}> ({error})") from error
        if name in _VARIABLES:
            value = self.variables.get(_VARIABLES[name])
            if value is None:
                raise Unevaluable(f"$<{name}>, for {_VARIABLES[name]} is not set")
            if not parameters:
                return value
            return "1" if value.upper() in (parameter.upper() for parameter in parameters) else "0"
        constants = {
            "SEMICOLON": ";",
            "COMMA": ",",
            "ANGLE-R": ">",
            "LOWER_CASE": text.lower(),
            "UPPER_CASE": text.upper(),
        }
        if name in constants:
            return constants[name]
        if name in ("LINK_LIBRARY", "LINK_GROUP"):
            return ";".join(parameters[1:])
        if name == "TARGET_NAME_IF_EXISTS":
            return text if self.is_target(text) else ""
        raise Unevaluable(f"$<{name}{':' + text if parameters else ''}>")
