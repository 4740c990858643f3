"""From CMake's answers about its targets to libraries, each file and flag with the line that names it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from ci.parity.cmake import genex, words
from ci.parity.cmake.trace import (
    DECLARING,
    SOURCE,
    UNKNOWN,
    ConfigureInput,
    ExecutedCommand,
    Trace,
    in_tree,
    plain,
    traces,
)
from ci.parity.cmake.unknowns import unknowns
from ci.parity.model import SCHEMAS, GeneratingRule, Glob, Library, NamedItem, NotEvaluated, Side, TreePlace
from ci.parity.tree import Tree, glob_regex

_WHOLE = ("executorch_target_link_options_shared_lib", "target_link_options_shared_lib")
_OF_CUSTOM_COMMANDS = frozenset(
    {
        *("OUTPUT", "COMMAND", "ARGS", "MAIN_DEPENDENCY", "DEPENDS", "BYPRODUCTS", "IMPLICIT_DEPENDS"),
        *("WORKING_DIRECTORY", "COMMENT", "DEPFILE", "JOB_POOL", "VERBATIM", "APPEND", "USES_TERMINAL"),
        *("COMMAND_EXPAND_LISTS", "DEPENDS_EXPLICIT_ONLY", "CODEGEN", "JOB_SERVER_AWARE"),
    }
)


def evaluate(tree: Tree, projects: Sequence[ConfigureInput]) -> list[Side]:
    """CMake's side, for each project. Sides are kept for later trees, so nobody may change them."""
    done = traces(tree, projects)
    [memory] = tree.evaluated.setdefault("CMake's sides", [{}])
    key = tuple(map(id, done)), frozenset(tree.files)
    if key not in memory:
        sides = [_Reader(tree, project, trace).side() for project, trace in zip(projects, done, strict=True)]
        memory[key] = done, sides
    kept: list[Side] = memory[key][1]
    return kept


class _Reader:
    def __init__(self, tree: Tree, project: ConfigureInput, trace: Trace) -> None:
        self.tree, self.project, self.trace = tree, project, trace
        self.texts = {event.file: tree.read(event.file) for event in trace.events}
        self.commands = {file: words.by_line(text) for file, text in self.texts.items()}
        self.result = Side(troubles=list(trace.troubles), stopped=not trace.ended)
        self.result.packages = {posixpath.dirname(file) for file in self.texts}
        self.naming: dict[str, list[ExecutedCommand]] = {}
        """Events by the elements of their arguments; files and directories by their paths."""
        self.written: dict[str, list[TreePlace]] = {}
        """Where the last part of a path, or another word, was stored in a variable."""
        self.generated: set[str | None] = set()
        self.aliases: dict[str, str] = {}
        self.declared: dict[str, ExecutedCommand] = {}
        self.elsewhere = tuple(f"{value}/" for value in project.variables.values() if posixpath.isabs(value))
        """Directories of others that the mapping names."""
        self.languages = {"CXX"}
        """Those of the current target's sources."""

    def side(self) -> Side:
        for event in self.trace.events:
            self._index(event)
            if event.command == "file" and event.args[:1] in (("GLOB",), ("GLOB_RECURSE",)):
                self._glob(event)
            elif event.command == "add_custom_command":
                self._custom_command(event)
            elif event.command == "configure_file" and len(event.args) > 1:
                self.generated.add(in_tree(event.args[1], event.folder))
            elif event.command in DECLARING and event.args:
                self.declared.setdefault(event.args[0], event)
                if event.args[1:2] == ("ALIAS",) and len(event.args) > 2:
                    self.aliases[event.args[0]] = event.args[2]
        order = {name: position for position, name in enumerate(self.declared)}
        for target in sorted(self.trace.targets, key=lambda target: order.get(target["NAME"], len(order))):
            if target["IMPORTED"] == "TRUE":
                self.result.outside[target["NAME"]] = self._library(target)
            elif target["TYPE"] != "UTILITY":
                self.result.libraries[target["NAME"]] = self._library(target)
        for event in self.trace.events:
            library = self.result.libraries.get(event.args[0]) if event.args else None
            if event.command in _WHOLE and library is not None:
                library.whole = library.whole or event.place
        for trouble in unknowns(self.trace, self.project, self.texts):
            self._trouble(trouble)
        return self.result

    # Lines

    def _index(self, event: ExecutedCommand) -> None:
        for arg in event.args:
            for element in split(arg):
                keys = {element, element.removeprefix("-D")}
                if "/" in element or "." in element:
                    keys.add(in_tree(element, event.folder) or element)
                for key in keys:
                    self.naming.setdefault(key, []).append(event)
        command = self.commands[event.file].get((event.line, event.command))
        if command is None or event.command.startswith(("target_", "add_", "if", "include")):
            return
        for word in command.words:
            for piece in re.split(r"[;/\s]", word.literal):
                if piece:
                    self.written.setdefault(piece, []).append(TreePlace(event.file, word.line))

    def _place(self, target: str, element: str, text: str) -> TreePlace:
        """Where a target got a value: the line that names it, if there is one."""
        events = self.naming.get(element) or self.naming.get(text) or []
        own = [event for event in events if target in event.args[:1] or "PROPERTIES" in event.args]
        adding = [event for event in events if event.command.startswith(("add_", "target_", "include_"))]
        event = next(iter(own or adding or events), None)
        if event is None:
            # Within a generator expression, or a list that is one argument.
            event = next(
                (event for event in self.trace.events if any(text in arg for arg in event.args)), None
            )
        if event is None:
            return self._declaration(target)
        line = self._line(event, element)
        if line is not None:
            return TreePlace(event.file, line)
        return self._writing(element) or event.place

    def _writing(self, path: str) -> TreePlace | None:
        """Where a file's name, or its stem, was written: of several places the one nearest to the file."""
        last = path.rpartition("/")[2]
        places = self.written.get(last) or self.written.get(posixpath.splitext(last)[0]) or []
        return max(places, key=lambda place: len(posixpath.commonprefix((place.file, path))), default=None)

    def _place_of_flag(self, target: str, flag: str) -> TreePlace:
        """The place of one of several flags in a text: CMAKE_CXX_FLAGS, or the target's COMPILE_FLAGS."""
        for event in self.trace.events:
            if (
                not {target, "CMAKE_CXX_FLAGS"}.isdisjoint(event.args)
                and flag in " ".join(event.args).split()
            ):
                return event.place
        return self._declaration(target)

    def _line(self, event: ExecutedCommand, element: str) -> int | None:
        command = self.commands[event.file].get((event.line, event.command))
        last = element.rpartition("/")[2].partition("=")[0]
        best: tuple[int, int] | None = None
        for word in command.words if command else ():
            if last and last in word.literal:
                alike = len(posixpath.commonprefix((element[::-1], word.literal[::-1])))
                if best is None or alike > best[0]:
                    best = alike, word.line
        return best[1] if best else None

    def _declaration(self, target: str) -> TreePlace:
        event = self.declared.get(target)
        return event.place if event else TreePlace(self.project.entries[0], 1)

    # Targets

    def _library(self, target: Mapping[str, str]) -> Library:
        name = target["NAME"]
        kind = target["TYPE"].removesuffix("_LIBRARY").lower()
        folder = in_tree(target["SOURCE_DIR"], "") or ""
        library = Library(name, kind, self._declaration(name), folder)
        files = self._scoped(target, "SOURCES")
        sets = self._elements(target, "HEADERS")
        scope = "PUBLIC" if target["INTERFACE_HEADER_SETS"] else "PRIVATE"
        for element, text, scope in [*files, *((element, text, scope) for element, text in sets)]:
            self._add_file(library, element, text, scope, folder)
        self.languages = {"C" if item.name.endswith(".c") else "CXX" for item in library.compiled} or {"CXX"}
        for element, text, scope in self._scoped(target, "LINK_LIBRARIES"):
            if not element.startswith(("-", "::@")) and not posixpath.isabs(element):
                linked = self.aliases.get(element, element)
                library.dependencies.append(NamedItem(linked, self._place(name, element, text), scope))
        directory = [] if kind == "interface" else self._elements(target, "DEFINITIONS")
        own = self._scoped(target, "COMPILE_DEFINITIONS")
        for element, text, scope in [*own, *((element, text, "PRIVATE") for element, text in directory)]:
            library.add_definition(element, self._place(name, element, text), scope)
        library.standard = self._standard(target)
        for element, text, scope in self._scoped(target, "COMPILE_OPTIONS"):
            library.add_flag(element, self._place(name, element, text), scope)
        for flag in () if kind == "interface" else f"{target['FLAGS']} {target['COMPILE_FLAGS']}".split():
            if UNKNOWN not in flag:
                library.add_flag(flag, self._place_of_flag(name, flag))
        for element, text, scope in self._scoped(target, "INCLUDE_DIRECTORIES"):
            path = in_tree(element, folder)
            if path is not None and (path in self.tree.directories or not path):
                library.includes.append(NamedItem(path, self._place(name, path, text), scope))
        return library

    def _add_file(self, library: Library, element: str, text: str, scope: str, folder: str) -> None:
        path = in_tree(element, folder)
        if path is None:
            return
        item = NamedItem(path, self._place(library.name, path, text), scope)
        if path in self.tree.files:
            library.files.append(item)
        elif path not in self.generated:
            self.result.missing.append(item)

    def _standard(self, target: Mapping[str, str]) -> NamedItem | None:
        """The newest standard that is requested anywhere, as CMake decides."""
        name, place = target["NAME"], self._declaration(target["NAME"])
        requested: dict[str, set[str]] = {}
        """The texts that ask for each."""
        for key, pattern in (("CXX_STANDARD", r"(.+)"), ("COMPILE_FEATURES", r"cxx_std_(.+)")):
            for element, text in self._elements(target, key):
                match = re.fullmatch(pattern, element)
                if match and match[1].isdecimal():
                    requested.setdefault(match[1], set()).update((key, text))
                elif match:
                    why = f"{name} needs a C++ standard, which is a number"
                    self._trouble(NotEvaluated(self._place(name, element, text), plain(text), why))
        if not requested:
            return None
        number = max(requested, key=lambda standard: int(standard) % 98)
        folder = in_tree(target["SOURCE_DIR"], "") or ""
        for event in self.trace.events:
            around = not event.folder or f"{folder}/".startswith(f"{event.folder}/")
            sets = event.command == "set" and event.args[:2] == ("CMAKE_CXX_STANDARD", number)
            own = name in event.args and requested[number] & {*event.args}
            if (sets and around) or own:
                place = event.place
        return NamedItem(number, place)

    def _scoped(self, target: Mapping[str, str], name: str) -> list[tuple[str, str, str]]:
        """Elements of a property and of its INTERFACE twin, with their texts and scopes."""
        own = self._elements(target, name)
        handed = self._elements(target, f"INTERFACE_{name}", linking=False)
        both = {element for element, _ in handed}
        names = {element for element, _ in own}
        interface = target["TYPE"] == "INTERFACE_LIBRARY"
        return [
            *((item, text, "PUBLIC" if item in both else "PRIVATE") for item, text in own if not interface),
            *((item, text, "INTERFACE") for item, text in handed if interface or item not in names),
        ]

    def _elements(
        self, target: Mapping[str, str], name: str, *, linking: bool = True
    ) -> list[tuple[str, str]]:
        """The elements that generator expressions give, each with its original text."""
        elements: list[tuple[str, str]] = []
        text = ""
        for piece in split(target[name]):
            text = f"{text};{piece}" if text else piece
            if text.count("$<") > text.count(">"):
                continue
            whole, text = text, ""
            if re.fullmatch(r"\$<TARGET_OBJECTS:[^<>]+>", whole) or (
                not linking and whole.startswith("$<LINK_ONLY:")
            ):
                continue
            try:
                values = self._values(whole) if "$<" in whole else split(whole)
            except genex.Unevaluable as error:
                if name.endswith("INCLUDE_DIRECTORIES"):
                    continue  # Those of the tree are plain paths; others are of other projects.
                place = self._place(target["NAME"], whole, whole)
                self._trouble(NotEvaluated(place, plain(whole), f"{target['NAME']} needs {error}"))
                continue
            elements += [(element, whole) for element in values if element and UNKNOWN not in element]
        if text:
            place = self._place(target["NAME"], text, text)
            self._trouble(NotEvaluated(place, plain(text), "a generator expression is not closed"))
        return elements

    def _values(self, text: str) -> list[str]:
        """The elements for any language of the target: Buck's flags are for all sources of a library."""
        variables = self.project.variables
        values: dict[str, None] = {}
        for language in sorted(self.languages):
            expressions = genex.Expressions({**variables, "COMPILE_LANGUAGE": language}, self._is_target)
            values |= dict.fromkeys(split(expressions.evaluate(text)))
        return list(values)

    def _is_target(self, name: str) -> bool:
        return name in self.declared or name in self.project.targets

    def _trouble(self, trouble: NotEvaluated) -> None:
        if trouble not in self.result.troubles:
            self.result.troubles.append(trouble)

    # Files that are found or made

    def _glob(self, event: ExecutedCommand) -> None:
        patterns = list(event.args[2:])
        for option in ("RELATIVE", "LIST_DIRECTORIES"):
            if option in patterns:
                position = patterns.index(option)
                del patterns[position : position + 2]
        for pattern in patterns:
            if pattern in ("CONFIGURE_DEPENDS", "FOLLOW_SYMLINKS") or UNKNOWN in pattern:
                continue
            path = in_tree(pattern, event.folder)
            if path is None and pattern.startswith(self.elsewhere):
                continue
            if path is None:
                why = f"file(GLOB) of {pattern}, which is outside the tree"
                self._trouble(NotEvaluated(event.place, pattern, why))
                continue
            if event.args[0] == "GLOB_RECURSE":
                folder, _, last = path.rpartition("/")
                fits = glob_regex(last).fullmatch
                matched = {path for path in self.tree.under(folder) if fits(posixpath.basename(path))}
            else:
                matched = set(self.tree.match(path))
            for file in matched:
                self.written.setdefault(posixpath.basename(file), []).append(event.place)
            shown = pattern.removeprefix(f"{SOURCE}/")
            self.result.globs.append(Glob(shown, event.folder, event.place, frozenset(matched)))

    def _custom_command(self, event: ExecutedCommand) -> None:
        parts: list[tuple[str, list[str]]] = []
        for arg in event.args:
            if arg in _OF_CUSTOM_COMMANDS:
                parts.append((arg, []))
            elif parts:
                parts[-1][1].extend(split(arg))

        def elements_of(*kinds: str) -> list[str]:
            return [element for kind, elements in parts for element in elements if kind in kinds]

        self.generated |= {in_tree(name, event.folder) for name in elements_of("OUTPUT", "BYPRODUCTS")}
        working = elements_of("WORKING_DIRECTORY")
        folders = [event.folder, *(in_tree(folder, event.folder) or "" for folder in working)]
        needed = elements_of("DEPENDS", "IMPLICIT_DEPENDS")
        for kind, elements in parts:
            if kind == "COMMAND" and elements:
                inputs = dict(self._inputs([*needed, *elements], folders, event))
                program = re.sub(r"^\$<TARGET_FILE:([^<>]+)>$", r"\1", elements[0])
                command = tuple(map(plain, (program, *elements[1:])))
                self.result.generated.append(GeneratingRule(tuple(inputs.values()), command, event.place))

    def _inputs(
        self, elements: Sequence[str], folders: Sequence[str], event: ExecutedCommand
    ) -> Iterator[tuple[str, NamedItem]]:
        for element in (element for element in elements if not element.startswith("-")):
            paths = [path for folder in folders if (path := in_tree(element, folder)) is not None]
            existing = [path for path in paths if path in self.tree.files]
            for path in existing or paths[-1:]:
                line = self._line(event, path)
                place = TreePlace(event.file, line) if line else self._writing(path) or event.place
                item = NamedItem(path, place)
                if existing:
                    yield path, item
                elif path.endswith((*SCHEMAS, ".yaml")) and path not in self.generated:
                    self.result.missing.append(item)


def split(value: str) -> list[str]:
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
