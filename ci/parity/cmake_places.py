"""Find the line of CMake's files that wrote a value: the properties of targets come without lines."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from ci.parity.cmake_texts import commands_by_line, list_elements
from ci.parity.cmake_trace import DECLARING, ExecutedCommand, tree_path
from ci.parity.tree import TreePlace


class CMakePlaces:
    """The executed commands by what they name, and the places of words that were stored in variables."""

    def __init__(self, texts: Mapping[str, str], entry: str) -> None:
        """`texts` are those of the files that ran; what nothing declares is at the begin of `entry`."""
        self.declared: dict[str, ExecutedCommand] = {}
        """Maps each target to the command that declares it."""
        self._entry = entry
        self._events: list[ExecutedCommand] = []
        self._commands = {file: commands_by_line(text) for file, text in texts.items()}
        self._naming: dict[str, list[ExecutedCommand]] = {}
        """Maps each element of their arguments to the commands that name it; files and directories are keyed
        by their paths."""
        self._word_places: dict[str, list[TreePlace]] = {}
        """Maps the last part of a path, or another word, to the places where it was stored in a variable."""

    def add(self, event: ExecutedCommand) -> None:
        """Add a command that was executed. What is looked up meanwhile was written before."""
        self._events.append(event)
        self._add_arguments(event)
        self._add_words(event)
        if event.command in DECLARING and event.args:
            self.declared.setdefault(event.args[0], event)

    def _add_arguments(self, event: ExecutedCommand) -> None:
        for arg in event.args:
            for element in list_elements(arg):
                keys = {element, element.removeprefix("-D")}
                if "/" in element or "." in element:
                    keys.add(tree_path(element, event.folder) or element)
                for key in keys:
                    self._naming.setdefault(key, []).append(event)

    def _add_words(self, event: ExecutedCommand) -> None:
        command = self._commands[event.file].get((event.line, event.command))
        if command is None or event.command.startswith(("target_", "add_", "if", "include")):
            return
        for word in command.words:
            for piece in re.split(r"[;/\s]", word.literal):
                if piece:
                    self.add_word(piece, TreePlace(event.file, word.line))

    def add_word(self, word: str, place: TreePlace) -> None:
        self._word_places.setdefault(word, []).append(place)

    def place_of_value(self, target: str, element: str, text: str) -> TreePlace:
        """Find the line that names a value of a target, else the line that declares the target. `text` is the
        value before generator expressions were evaluated."""
        # Within a generator expression, or a list that is one argument, it is no element.
        event = self._naming_command(target, element, text) or self._mentioning_command(text)
        if event is None:
            return self.place_of_target(target)
        return self.place_in_command(event, element)

    def _naming_command(self, target: str, element: str, text: str) -> ExecutedCommand | None:
        events = self._naming.get(element) or self._naming.get(text) or []
        own = [event for event in events if target in event.args[:1] or "PROPERTIES" in event.args]
        adding = [event for event in events if event.command.startswith(("add_", "target_", "include_"))]
        return next(iter(own or adding or events), None)

    def _mentioning_command(self, text: str) -> ExecutedCommand | None:
        for event in self._events:
            if any(text in argument for argument in event.args):
                return event
        return None

    def place_in_command(self, event: ExecutedCommand, element: str) -> TreePlace:
        """Find the word of a command that names an element; else where its file was written into a variable;
        else the command."""
        line = self._line(event, element)
        if line is not None:
            return TreePlace(event.file, line)
        return self._place_of_word(element) or event.place

    def _line(self, event: ExecutedCommand, element: str) -> int | None:
        """The line of the word that ends most like the element."""
        command = self._commands[event.file].get((event.line, event.command))
        last = element.rpartition("/")[2].partition("=")[0]
        if command is None or not last:
            return None
        words = [word for word in command.words if last in word.literal]
        nearest = max(words, key=lambda word: _common_end(element, word.literal), default=None)
        return nearest.line if nearest else None

    def _place_of_word(self, path: str) -> TreePlace | None:
        """Find where a file's name, or its stem, was written: of several places the one nearest to the
        file."""
        last = path.rpartition("/")[2]
        places = self._word_places.get(last) or self._word_places.get(posixpath.splitext(last)[0]) or []
        return max(places, key=lambda place: len(posixpath.commonprefix((place.file, path))), default=None)

    def place_of_flag(self, target: str, flag: str) -> TreePlace:
        """The place of one of several flags in a text: CMAKE_CXX_FLAGS, or the target's COMPILE_FLAGS."""
        for event in self._events:
            is_near = not {target, "CMAKE_CXX_FLAGS"}.isdisjoint(event.args)
            if is_near and flag in " ".join(event.args).split():
                return event.place
        return self.place_of_target(target)

    def place_of_target(self, target: str) -> TreePlace:
        event = self.declared.get(target)
        return event.place if event else TreePlace(self._entry, 1)


def _common_end(text: str, other: str) -> int:
    return len(posixpath.commonprefix((text[::-1], other[::-1])))
