"""The commands of a CMake file as written, with the line of every word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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


def by_line(text: str) -> Mapping[tuple[int, str], CMakeCommand]:
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
