"""From a text to commands in their blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r]+)
  | (?P<newline>\n)
  | (?P<bracket_comment>\#\[(?P<c>=*)\[.*?\](?P=c)\])
  | (?P<comment>\#[^\n]*)
  | (?P<bracket>\[(?P<b>=*)\[\n?(?P<inside>.*?)\](?P=b)\])
  | (?P<quoted>"(?:[^"\\]|\\.)*")
  | (?P<paren>[()])
  | (?P<plain>(?:\$\([^)\n]*\)|"(?:[^"\\\n]|\\.)*"|[^\s()\#"\\]|\\.)+)
    """,
    re.VERBOSE | re.DOTALL,
)


class SyntaxFault(Exception):
    def __init__(self, line: int, says: str) -> None:
        super().__init__(says)
        self.line = line
        self.says = says


@dataclass(frozen=True, slots=True)
class Argument:
    """`quoted` ones are never split; `raw` ones (`[[…]]`) are not even expanded."""

    text: str
    line: int
    quoted: bool = False
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    arguments: tuple[Argument, ...]
    line: int


@dataclass(frozen=True, slots=True)
class If:
    branches: tuple[tuple[Command, Body], ...]
    """Each with the command that begins it; `else` has no condition."""
    line: int


@dataclass(frozen=True, slots=True)
class Loop:
    """`foreach`, `while` and `block`, which is run once."""

    head: Command
    body: Body
    line: int


@dataclass(frozen=True, slots=True)
class Definition:
    """`function` and `macro`."""

    head: Command
    body: Body
    line: int


Node: TypeAlias = "Command | If | Loop | Definition"
Body: TypeAlias = tuple[Node, ...]

_ENDS = {
    "foreach": "endforeach",
    "while": "endwhile",
    "function": "endfunction",
    "macro": "endmacro",
    "block": "endblock",
}


@lru_cache(maxsize=512)
def parse(text: str) -> Body:
    """Raises SyntaxFault."""
    commands = list(_commands(text))
    body, position = _body(commands, 0, frozenset())
    if position < len(commands):
        raise SyntaxFault(commands[position].line, f"{commands[position].name}() closes nothing")
    return body


def walk(body: Body) -> Iterator[Command]:
    """Every command, in whichever branch."""
    for node in body:
        if isinstance(node, Command):
            yield node
        elif isinstance(node, If):
            for head, inside in node.branches:
                yield head
                yield from walk(inside)
        else:
            yield node.head
            yield from walk(node.body)


def _body(commands: list[Command], position: int, ends: frozenset[str]) -> tuple[Body, int]:
    nodes: list[Node] = []
    while position < len(commands):
        command = commands[position]
        if command.name in ends:
            break
        if command.name == "if":
            node, position = _if(commands, position)
            nodes.append(node)
        elif command.name in _ENDS:
            end = _ENDS[command.name]
            inside, position = _body(commands, position + 1, frozenset({end}))
            _closed(commands, position, command)
            position += 1
            kind = Definition if command.name in ("function", "macro") else Loop
            nodes.append(kind(command, inside, command.line))
        elif command.name in {"elseif", "else", "endif", *_ENDS.values()}:
            break
        else:
            nodes.append(command)
            position += 1
    return tuple(nodes), position


def _if(commands: list[Command], position: int) -> tuple[If, int]:
    head = first = commands[position]
    branches: list[tuple[Command, Body]] = []
    while True:
        body, position = _body(commands, position + 1, frozenset({"elseif", "else", "endif"}))
        _closed(commands, position, first)
        branches.append((head, body))
        head = commands[position]
        if head.name == "endif":
            return If(tuple(branches), first.line), position + 1


def _closed(commands: list[Command], position: int, opened: Command) -> None:
    if position >= len(commands):
        raise SyntaxFault(opened.line, f"{opened.name}() is not closed")
    ends = {"endif", "else", "elseif"} if opened.name == "if" else {_ENDS[opened.name]}
    if commands[position].name not in ends:
        raise SyntaxFault(commands[position].line, f"{commands[position].name}() inside {opened.name}()")


def _commands(text: str) -> Iterator[Command]:
    tokens = _tokens(text)
    for kind, value, line in tokens:
        if kind != "plain" or not re.fullmatch(r"[A-Za-z_]\w*", value):
            raise SyntaxFault(line, f"expected a command, found {value!r}")
        following = next(tokens, None)
        if following is None or following[:2] != ("paren", "("):
            raise SyntaxFault(line, f"expected ( after {value}")
        arguments: list[Argument] = []
        depth = 1
        for sort, inside, at in tokens:
            if sort == "paren":
                depth += 1 if inside == "(" else -1
                if depth == 0:
                    break
            arguments.append(
                Argument(inside, at, quoted=sort in ("quoted", "bracket"), raw=sort == "bracket")
            )
        if depth:
            raise SyntaxFault(line, f"{value}( is not closed")
        yield Command(value.lower(), tuple(arguments), line)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise SyntaxFault(line, f"cannot read {text[position : position + 20]!r}")
        kind = match.lastgroup or ""
        if match["bracket"] is not None:
            yield "bracket", match["inside"], line
        elif match["quoted"] is not None:
            yield "quoted", match["quoted"][1:-1], line
        elif kind in ("paren", "plain"):
            yield kind, match[0], line
        line += match[0].count("\n")
        position = match.end()
