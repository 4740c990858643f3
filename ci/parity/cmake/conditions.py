"""What `if()` and `while()` ask."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.parity.cmake.genex import FALSE

if TYPE_CHECKING:
    from ci.parity.cmake.evaluator import Evaluator
    from ci.parity.cmake.parser import Command

_TRUE = frozenset({"1", "ON", "YES", "TRUE", "Y"})
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")

_UNARY = frozenset(
    {
        "COMMAND",
        "POLICY",
        "TARGET",
        "TEST",
        "DEFINED",
        "EXISTS",
        "IS_DIRECTORY",
        "IS_SYMLINK",
        "IS_ABSOLUTE",
        "IS_READABLE",
    }
)
_BINARY: dict[str, Callable[[str, str], bool]] = {
    "STREQUAL": lambda left, right: left == right,
    "STRLESS": lambda left, right: left < right,
    "STRGREATER": lambda left, right: left > right,
    "STRLESS_EQUAL": lambda left, right: left <= right,
    "STRGREATER_EQUAL": lambda left, right: left >= right,
    "PATH_EQUAL": lambda left, right: left.rstrip("/") == right.rstrip("/"),
    "EQUAL": lambda left, right: _number(left) == _number(right),
    "LESS": lambda left, right: _number(left) < _number(right),
    "GREATER": lambda left, right: _number(left) > _number(right),
    "LESS_EQUAL": lambda left, right: _number(left) <= _number(right),
    "GREATER_EQUAL": lambda left, right: _number(left) >= _number(right),
    "VERSION_EQUAL": lambda left, right: _version(left) == _version(right),
    "VERSION_LESS": lambda left, right: _version(left) < _version(right),
    "VERSION_GREATER": lambda left, right: _version(left) > _version(right),
    "VERSION_LESS_EQUAL": lambda left, right: _version(left) <= _version(right),
    "VERSION_GREATER_EQUAL": lambda left, right: _version(left) >= _version(right),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a part of a condition says, and what that rests on that is not known."""

    holds: bool
    unsure: tuple[str, ...] = ()

    def both(self, other: Answer) -> Answer:
        return self._joined(other, self.holds and other.holds, decisive=False)

    def either(self, other: Answer) -> Answer:
        return self._joined(other, self.holds or other.holds, decisive=True)

    def _joined(self, other: Answer, holds: bool, *, decisive: bool) -> Answer:
        """One part that is known for certain can decide alone, whatever the other would be."""
        for part in (self, other):
            if part.holds is decisive and not part.unsure:
                return part
        return Answer(holds, tuple(dict.fromkeys((*self.unsure, *other.unsure))))


class Condition:
    """`answer` says what CMake would, and what that rests on that is not known."""

    def __init__(self, evaluator: Evaluator, head: Command) -> None:
        self.evaluator = evaluator
        self.doubts: list[str] = []
        """Of the part that is being looked at."""
        self.words: list[tuple[str, bool]] = []
        """Each with whether it was quoted."""
        self.bare: set[int] = set()
        """Positions of words that are names as they were written, and not what a variable held."""
        self.undefined: dict[int, list[str]] = {}
        """By the position of a word: names in it that nothing sets."""
        for argument in head.arguments:
            evaluator.undefined = []
            texts = evaluator.texts([argument])
            if evaluator.undefined:
                self.undefined.setdefault(len(self.words), []).extend(evaluator.undefined)
            if not argument.quoted and _NAME.fullmatch(argument.text):
                self.bare.add(len(self.words))
            self.words += [(text.value, text.quoted) for text in texts]
        self.position = 0

    def answer(self) -> Answer:
        if not self.words:
            return Answer(False, self._taken(0, 1))
        found = self._compound()
        if self.position < len(self.words):
            return Answer(
                found.holds, (*found.unsure, f"cannot make sense of {self.words[self.position][0]!r}")
            )
        return found

    def _doubt(self, why: str) -> None:
        if why not in self.doubts:
            self.doubts.append(why)

    def _unset(self, name: str) -> None:
        self._doubt(f"it reads {name}, which neither the files nor the mapping set")

    def _lacks(self, name: str) -> bool:
        return self.evaluator.value(name) is None and name not in self.evaluator.assigned

    def _taken(self, begin: int, end: int) -> tuple[str, ...]:
        """The doubts of the part that these words make, which it takes with it."""
        for position in range(begin, end):
            for name in self.undefined.get(position, ()):
                self._unset(name)
            word = self.words[position][0] if position < len(self.words) else ""
            if unknown := self.evaluator.unknown_in(word):
                self._doubt(f"{unknown.why} ({unknown.place})")
        found = tuple(self.doubts)
        self.doubts.clear()
        return found

    def _next_is(self, word: str) -> bool:
        if self.position < len(self.words) and self.words[self.position] == (word, False):
            self.position += 1
            return True
        return False

    def _compound(self) -> Answer:
        """AND and OR from left to right, neither first: so CMake does it, whatever its manual says."""
        found = self._not()
        while True:
            if self._next_is("AND"):
                found = found.both(self._not())
            elif self._next_is("OR"):
                found = found.either(self._not())
            else:
                return found

    def _not(self) -> Answer:
        if self._next_is("NOT"):
            found = self._not()
            return Answer(not found.holds, found.unsure)
        if self._next_is("("):
            found = self._compound()
            if not self._next_is(")"):
                found = Answer(found.holds, (*found.unsure, "a parenthesis is not closed"))
            return found
        begin = self.position
        holds = self._term()
        # A variable that is not set leaves no argument: CMake then reads the next word in its place.
        return Answer(holds, self._taken(begin, max(self.position, begin + 1)))

    def _term(self) -> bool:
        if self.position >= len(self.words):
            self._doubt("it ends too early")
            return False
        word, quoted = self.words[self.position]
        following = self.words[self.position + 1] if self.position + 1 < len(self.words) else ("", True)
        operator = following[0] if not following[1] else ""
        if word in _UNARY and not quoted and self.position + 1 < len(self.words) and operator not in _BINARY:
            self.position += 2
            return self._unary(word, following[0])
        if operator in _BINARY or operator in ("MATCHES", "IN_LIST"):
            if self.position + 2 >= len(self.words):
                self._doubt(f"nothing follows {operator}")
                self.position += 2
                return False
            right = self.words[self.position + 2]
            if operator != "IN_LIST" and self.position in self.bare and self._lacks(word):
                self._unset(word)
            self.position += 3
            return self._binary((word, quoted), operator, right)
        self.position += 1
        return self._truth(word, quoted)

    def _truth(self, word: str, quoted: bool) -> bool:
        upper = word.upper()
        if upper in _TRUE:
            return True
        if upper in FALSE or upper.endswith("-NOTFOUND"):
            return False
        if _NUMBER.fullmatch(word):
            return float(word) != 0
        if quoted:
            return False
        value = self._value_of(word)
        return value is not None and value.upper() not in FALSE and not value.upper().endswith("-NOTFOUND")

    def _value_of(self, name: str) -> str | None:
        value = self.evaluator.value(name)
        if value is None:
            if self._lacks(name):
                self._unset(name)
        elif unknown := self.evaluator.unknown_in(value):
            self._doubt(f"{unknown.why} ({unknown.place})")
        return value

    def _operand(self, word: tuple[str, bool]) -> str:
        """Unquoted names of variables stand for their values."""
        text, quoted = word
        if quoted or self.evaluator.value(text) is None:
            return text
        return self._value_of(text) or ""

    def _binary(self, left: tuple[str, bool], operator: str, right: tuple[str, bool]) -> bool:
        if operator == "IN_LIST":
            from ci.parity.cmake.evaluator import split

            return self._operand(left) in split(self._value_of(right[0]) or "")
        if operator == "MATCHES":
            return self._matches(self._operand(left), right[0])
        try:
            return _BINARY[operator](self._operand(left), self._operand(right))
        except ValueError:
            return False

    def _matches(self, text: str, pattern: str) -> bool:
        try:
            match = re.search(cmake_regex(pattern), text)
        except re.error as error:
            self._doubt(f"{pattern!r} is no regular expression ({error})")
            return False
        matched(self.evaluator, match, self.evaluator.mark_in((text, pattern)))
        return match is not None

    def _unary(self, operator: str, operand: str) -> bool:
        evaluator = self.evaluator
        if operator == "DEFINED":
            name = (
                operand.removeprefix("CACHE{").removesuffix("}") if operand.startswith("CACHE{") else operand
            )
            if self._lacks(name):
                self._unset(name)
            return evaluator.value(name) is not None
        if operator == "TARGET":
            if not evaluator.is_target(operand):
                self._doubt(f"no file evaluated here declares the target {operand}")
            return evaluator.is_target(operand)
        if operator == "COMMAND":
            name = operand.lower()
            known = name in evaluator.definitions or name in evaluator.commands
            if not known and name not in evaluator.project.ignored:
                self._doubt(f"{operand}() is no command that is known here")
            return known or name in evaluator.project.ignored
        if operator == "POLICY":
            return True
        if operator == "IS_ABSOLUTE":
            return posixpath.isabs(operand)
        if not operand:
            return False
        path = evaluator.path(operand)
        if path is None or operator not in ("EXISTS", "IS_DIRECTORY"):
            self._doubt(f"{operator} {operand} is outside the tree")
            return False
        if operator == "EXISTS" and path in evaluator.tree.files:
            return True
        return path in evaluator.tree.directories


def matched(evaluator: Evaluator, match: re.Match[str] | None, unknown: str) -> None:
    """Set what a match leaves behind; `unknown` stands for all of it where the text was not known."""
    for number in range(10):
        value = match[number] if match and number <= match.re.groups else ""
        evaluator.assign(f"CMAKE_MATCH_{number}", unknown or value or "")
    groups = [number for number in range(1, match.re.groups + 1) if match[number]] if match else []
    evaluator.assign("CMAKE_MATCH_COUNT", unknown or str(max(groups, default=0)))


def cmake_regex(pattern: str) -> str:
    """CMake's dialect has no escapes for classes and no counted repetition; Python reads the rest alike."""
    plain = re.sub(r"\\([\\A-Za-z0-9])", lambda found: r"\\" if found[1] == "\\" else found[1], pattern)
    return re.sub(r"(?<!\\)([{}])", r"\\\1", plain).replace("[[", "[\\[")


def _number(text: str) -> float:
    """What a text begins with, as C reads it."""
    found = re.match(r"\s*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", text)
    if found is None:
        raise ValueError(text)
    return float(found[0])


def _version(text: str) -> list[int]:
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    parts = [int(part) for part in match[0].split(".")] if match else []
    while parts and parts[-1] == 0:
        parts.pop()
    return parts
