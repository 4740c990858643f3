"""Find where a value of Buck's files was written: the interpreter gives the stack of calls, and the files on
it are searched for the literal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ci.parity.starlark_texts import Literal, literals, nearest
from ci.parity.tree import Glob, NotEvaluated, Tree, TreePlace

PRELUDE = ":prelude"
"""The module with our own functions; a frame in it is none of the tree's."""

_FRAME = re.compile(r"^  \* (?P<file>[^\n]+?):(?P<line>\d+), in ", re.MULTILINE)
_ERROR_AT = re.compile(r"^\s*--> (?P<file>[^\n]+?):(?P<line>\d+):\d+(?:-[\d:]+)?$", re.MULTILINE)
_ERROR_SAYS = re.compile(r"^error: (?P<says>.+)$", re.MULTILINE)
_WRAPPED = re.compile(r"^(?:(?:StarlarkError|LookupError|ValueError|error|fail): )+")


class BuckPlaces:
    """Finds the file and line of a value, from the stack of the call that it was given to."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._literals: dict[str, Sequence[Literal]] = {}

    def find(self, stack: str, value: str) -> TreePlace:
        """Return the place of the literal, in the file of any caller; else the line of the call."""
        calls = calls_of(stack)
        for call in calls:
            if literal := nearest(self._literals_of(call.file), value, call.line):
                return TreePlace(call.file, literal.line)
        return calls[0]

    def find_file(self, stack: str, path: str, full: str, globs: Sequence[Glob]) -> TreePlace:
        """Return the place of a file's name, else of the last of these globs that matched it. `path` is as it
        is written, `full` from the tree's root."""
        for glob in reversed(globs):
            if not glob.exclude and full in glob.matched:
                calls = calls_of(stack)
                if not any(nearest(self._literals_of(call.file), path, call.line) for call in calls):
                    return glob.place
        return self.find(stack, path)

    def find_attribute(self, declared: TreePlace, attribute: str) -> TreePlace:
        """Return the first line that names the attribute, from the library's name on."""
        lines = self._tree.read(declared.file).split("\n")
        for number, line in enumerate(lines[declared.line - 1 :], declared.line):
            if re.match(rf"\s*{attribute}\b", line):
                return TreePlace(declared.file, number)
        return declared

    def describe_error(self, path: str, text: str) -> NotEvaluated:
        """Return the cause of an interpreter's error in the evaluation of `path`, and its place in the
        tree."""
        candidates = [_place_at(match) for match in _ERROR_AT.finditer(text)]
        candidates += calls_of(text)
        place = next((place for place in candidates if place.file in self._tree.files), TreePlace(path, 1))
        last_line = self._tree.read(place.file).count("\n") + 1
        return NotEvaluated(TreePlace(place.file, min(place.line, last_line)), path, cause_of(text))

    def _literals_of(self, file: str) -> Sequence[Literal]:
        if file not in self._literals:
            self._literals[file] = literals(self._tree.read(file)) if file in self._tree.files else ()
        return self._literals[file]


def cause_of(text: str) -> str:
    """Return an interpreter's error without its frames."""
    match = _ERROR_SAYS.search(text)
    return _WRAPPED.sub("", match["says"] if match else text.strip())


@lru_cache(maxsize=64)
def calls_of(stack: str) -> tuple[TreePlace, ...]:
    """Return the calls of a stack from the innermost outwards, without our own functions."""
    places = [_place_at(match) for match in _FRAME.finditer(stack)]
    return tuple(place for place in reversed(places) if place.file != PRELUDE)


def _place_at(match: re.Match[str]) -> TreePlace:
    # A line of ours before each file makes the interpreter's numbers one too high.
    return TreePlace(match["file"], max(int(match["line"]) - 1, 1))
