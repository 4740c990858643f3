"""Turn CMake's answers about its targets into libraries, each file and flag with the line that names it.

CMake says what each property of a target holds (`cmake_trace`). `cmake_places` finds the lines, and
`cmake_unknowns` what could not be known.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ci.parity.cmake_configure import traces
from ci.parity.cmake_places import CMakePlaces
from ci.parity.cmake_texts import Expressions, Unevaluable, list_elements
from ci.parity.cmake_trace import (
    DECLARING,
    SOURCE,
    UNKNOWN,
    ConfigureInput,
    ExecutedCommand,
    Trace,
    plain,
    tree_path,
)
from ci.parity.cmake_unknowns import unknowns
from ci.parity.tree import SCHEMAS, Glob, NamedItem, NotEvaluated, Side, Target, Tree, TreePlace, fits

_WHOLE = ("executorch_target_link_options_shared_lib", "target_link_options_shared_lib")
"""Commands that say that users of a library link all of it."""

_CUSTOM_COMMAND_WORDS = frozenset(
    {
        *("OUTPUT", "COMMAND", "ARGS", "MAIN_DEPENDENCY", "DEPENDS", "BYPRODUCTS", "IMPLICIT_DEPENDS"),
        *("WORKING_DIRECTORY", "COMMENT", "DEPFILE", "JOB_POOL", "VERBATIM", "APPEND", "USES_TERMINAL"),
        *("COMMAND_EXPAND_LISTS", "DEPENDS_EXPLICIT_ONLY", "CODEGEN", "JOB_SERVER_AWARE"),
    }
)
"""The words of add_custom_command that begin a part."""

Properties = Mapping[str, str]
"""A target's properties by name."""


class Value(NamedTuple):
    """An element of a property."""

    element: str
    text: str
    """The element before generator expressions were evaluated."""
    scope: str = "PRIVATE"


def evaluate(tree: Tree, projects: Sequence[ConfigureInput]) -> list[Side]:
    """CMake's side, for each project."""
    results = traces(tree, projects)
    return [_Reader(tree, project, trace).side() for project, trace in zip(projects, results, strict=True)]


class _Reader:
    """Reads the trace of one project."""

    def __init__(self, tree: Tree, project: ConfigureInput, trace: Trace) -> None:
        self.tree, self.project, self.trace = tree, project, trace
        self.texts = {event.file: tree.read(event.file) for event in trace.events}
        self.places = CMakePlaces(self.texts, project.entries[0])
        self.result = Side(troubles=list(trace.troubles), stopped=not trace.complete)
        self.result.packages = {posixpath.dirname(file) for file in self.texts}
        self.generated: set[str | None] = set()
        """Paths of files that the build makes."""
        self.aliases: dict[str, str] = {}
        self.elsewhere = tuple(f"{value}/" for value in project.variables.values() if posixpath.isabs(value))
        """Directories of others that the mapping names."""

    def side(self) -> Side:
        for event in self.trace.events:
            self.places.add(event)
            self._read_event(event)
        order = {name: position for position, name in enumerate(self.places.declared)}
        for properties in sorted(self.trace.targets, key=lambda row: order.get(row["NAME"], len(order))):
            if properties["IMPORTED"] == "TRUE":
                self.result.outside[properties["NAME"]] = self._library(properties)
            elif properties["TYPE"] != "UTILITY":
                self.result.libraries[properties["NAME"]] = self._library(properties)
        for event in self.trace.events:
            library = self.result.libraries.get(event.args[0]) if event.args else None
            if event.command in _WHOLE and library is not None:
                library.archive = library.archive or event.place
        for trouble in unknowns(self.trace, self.project, self.texts):
            self.add_trouble(trouble)
        return self.result

    def _read_event(self, event: ExecutedCommand) -> None:
        if event.command == "file" and event.args[:1] in (("GLOB",), ("GLOB_RECURSE",)):
            self._glob(event)
        elif event.command == "add_custom_command":
            self._custom_command(event)
        elif event.command == "configure_file" and len(event.args) > 1:
            self.generated.add(tree_path(event.args[1], event.folder))
        elif event.command in DECLARING and event.args[1:2] == ("ALIAS",) and len(event.args) > 2:
            self.aliases[event.args[0]] = event.args[2]

    def _library(self, properties: Properties) -> Target:
        name = properties["NAME"]
        kind = properties["TYPE"].removesuffix("_LIBRARY").lower()
        folder = tree_path(properties["SOURCE_DIR"], "") or ""
        library = Target(name, kind, self.places.place_of_target(name), folder)
        self._add_files(library, properties)
        languages = {"C" if item.name.endswith(".c") else "CXX" for item in library.compiled} or {"CXX"}
        reader = _PropertyReader(self, properties, languages)
        for value in reader.scoped("LINK_LIBRARIES"):
            if not value.element.startswith(("-", "::@")) and not posixpath.isabs(value.element):
                linked = self.aliases.get(value.element, value.element)
                library.dependencies.append(NamedItem(linked, reader.place(value), value.scope))
        self._add_flags(library, properties, reader)
        for value in reader.scoped("INCLUDE_DIRECTORIES"):
            path = tree_path(value.element, folder)
            if path is not None and (path in self.tree.directories or not path):
                place = self.places.place_of_value(name, path, value.text)
                library.includes.append(NamedItem(path, place, value.scope))
        return library

    def _add_files(self, library: Target, properties: Properties) -> None:
        # The languages of the target, which expressions may ask for, are not known before its files are.
        reader = _PropertyReader(self, properties, {"CXX"})
        scope = "PUBLIC" if properties["INTERFACE_HEADER_SETS"] else "PRIVATE"
        headers = [value._replace(scope=scope) for value in reader.values("HEADERS")]
        for value in [*reader.scoped("SOURCES"), *headers]:
            path = tree_path(value.element, library.folder)
            if path is None:
                continue
            place = self.places.place_of_value(library.name, path, value.text)
            item = NamedItem(path, place, value.scope)
            if path in self.tree.files:
                library.files.append(item)
            elif path not in self.generated:
                self.result.missing_files.append(item)

    def _add_flags(self, library: Target, properties: Properties, reader: _PropertyReader) -> None:
        """Add definitions, the standard and other options: the target's own, and those of its directory,
        which an interface has none of."""
        is_interface = library.kind == "interface"
        definitions = reader.scoped("COMPILE_DEFINITIONS")
        if not is_interface:
            definitions += reader.values("DEFINITIONS")
        for value in definitions:
            library.add_definition(value.element, reader.place(value), value.scope)
        library.standard = self._standard(properties, reader)
        for value in reader.scoped("COMPILE_OPTIONS"):
            library.add_flag(value.element, reader.place(value), value.scope)
        if is_interface:
            return
        for flag in f"{properties['FLAGS']} {properties['COMPILE_FLAGS']}".split():
            if UNKNOWN not in flag:
                library.add_flag(flag, self.places.place_of_flag(library.name, flag))

    def _standard(self, properties: Properties, reader: _PropertyReader) -> NamedItem | None:
        """The newest standard that is requested anywhere, as CMake decides."""
        name = properties["NAME"]
        texts: dict[str, set[str]] = {}
        """The texts that ask for each standard."""
        for key, pattern in (("CXX_STANDARD", r"(.+)"), ("COMPILE_FEATURES", r"cxx_std_(.+)")):
            for value in reader.values(key):
                match = re.fullmatch(pattern, value.element)
                if match and match[1].isdecimal():
                    texts.setdefault(match[1], set()).update((key, value.text))
                elif match:
                    why = f"{name} needs a C++ standard, which is a number"
                    self.add_trouble(NotEvaluated(reader.place(value), plain(value.text), why))
        if not texts:
            return None
        # 98 is the oldest.
        number = max(texts, key=lambda standard: int(standard) % 98)
        folder = tree_path(properties["SOURCE_DIR"], "") or ""
        place = self.places.place_of_target(name)
        for event in self.trace.events:
            is_around = not event.folder or f"{folder}/".startswith(f"{event.folder}/")
            sets = event.command == "set" and event.args[:2] == ("CMAKE_CXX_STANDARD", number)
            asks = name in event.args and not texts[number].isdisjoint(event.args)
            if (sets and is_around) or asks:
                place = event.place
        return NamedItem(number, place)

    def is_target(self, name: str) -> bool:
        return name in self.places.declared or name in self.project.targets

    def add_trouble(self, trouble: NotEvaluated) -> None:
        if trouble not in self.result.troubles:
            self.result.troubles.append(trouble)

    def _glob(self, event: ExecutedCommand) -> None:
        patterns = list(event.args[2:])
        for option in ("RELATIVE", "LIST_DIRECTORIES"):
            if option in patterns:
                position = patterns.index(option)
                del patterns[position : position + 2]
        for pattern in patterns:
            if pattern in ("CONFIGURE_DEPENDS", "FOLLOW_SYMLINKS") or UNKNOWN in pattern:
                continue
            path = tree_path(pattern, event.folder)
            if path is None and pattern.startswith(self.elsewhere):
                continue
            if path is None:
                why = f"file(GLOB) of {pattern}, which is outside the tree"
                self.add_trouble(NotEvaluated(event.place, pattern, why))
                continue
            if event.args[0] == "GLOB_RECURSE":
                folder, _, last = path.rpartition("/")
                matched = {path for path in self.tree.under(folder) if fits(posixpath.basename(path), last)}
            else:
                matched = set(self.tree.match(path))
            for file in matched:
                self.places.add_word(posixpath.basename(file), event.place)
            text = pattern.removeprefix(f"{SOURCE}/")
            self.result.globs.append(Glob(text, event.folder, event.place, frozenset(matched)))

    def _custom_command(self, event: ExecutedCommand) -> None:
        parts: list[tuple[str, list[str]]] = []
        for arg in event.args:
            if arg in _CUSTOM_COMMAND_WORDS:
                parts.append((arg, []))
            elif parts:
                parts[-1][1].extend(list_elements(arg))

        def elements_of(*kinds: str) -> list[str]:
            return [element for kind, elements in parts for element in elements if kind in kinds]

        self.generated |= {tree_path(name, event.folder) for name in elements_of("OUTPUT", "BYPRODUCTS")}
        directories = elements_of("WORKING_DIRECTORY")
        folders = [event.folder, *(tree_path(folder, event.folder) or "" for folder in directories)]
        inputs, name = elements_of("DEPENDS", "IMPLICIT_DEPENDS"), ";".join(elements_of("OUTPUT"))
        for kind, elements in parts:
            if kind == "COMMAND" and elements:
                rule = Target(name, event.command, event.place, event.folder)
                rule.files = [*dict(self._inputs([*inputs, *elements], folders, event)).values()]
                program = re.sub(r"^\$<TARGET_FILE:([^<>]+)>$", r"\1", elements[0])
                rule.command = tuple(map(plain, (program, *elements[1:])))
                self.result.rules.append(rule)

    def _inputs(
        self, elements: Sequence[str], folders: Sequence[str], event: ExecutedCommand
    ) -> Iterator[tuple[str, NamedItem]]:
        """Yield the tree's files that a command reads, by path; report schemas that are not there."""
        for element in elements:
            if element.startswith("-"):
                continue
            paths = [path for folder in folders if (path := tree_path(element, folder)) is not None]
            files = [path for path in paths if path in self.tree.files]
            for path in files or paths[-1:]:
                item = NamedItem(path, self.places.place_in_command(event, path))
                if files:
                    yield path, item
                elif path.endswith((*SCHEMAS, ".yaml")) and path not in self.generated:
                    self.result.missing_files.append(item)


class _PropertyReader:
    """Reads the properties of one target."""

    def __init__(self, reader: _Reader, properties: Properties, languages: set[str]) -> None:
        self._reader, self._properties = reader, properties
        self._name = properties["NAME"]
        self._languages = languages
        """The languages of the target's sources."""

    def place(self, value: Value) -> TreePlace:
        return self._reader.places.place_of_value(self._name, value.element, value.text)

    def scoped(self, name: str) -> list[Value]:
        """The values of a property and of its INTERFACE twin. What both have is PUBLIC."""
        own = self.values(name)
        exported = self.values(f"INTERFACE_{name}", linking=False)
        if self._properties["TYPE"] == "INTERFACE_LIBRARY":
            own = []
        own_elements = {value.element for value in own}
        exported_elements = {value.element for value in exported}
        values = []
        for value in own:
            values.append(value._replace(scope="PUBLIC") if value.element in exported_elements else value)
        for value in exported:
            if value.element not in own_elements:
                values.append(value._replace(scope="INTERFACE"))
        return values

    def values(self, name: str, *, linking: bool = True) -> list[Value]:
        """The elements that generator expressions give. Without `linking`, what is only linked is left
        out."""
        values: list[Value] = []
        for text in self._texts(name):
            if re.fullmatch(r"\$<TARGET_OBJECTS:[^<>]+>", text):
                continue
            if not linking and text.startswith("$<LINK_ONLY:"):
                continue
            try:
                elements = self._evaluated(text) if "$<" in text else list_elements(text)
            except Unevaluable as error:
                # Include directories of the tree are plain paths; others are of other projects.
                if not name.endswith("INCLUDE_DIRECTORIES"):
                    self._trouble(text, f"{self._name} needs {error}")
                continue
            values += [Value(element, text) for element in elements if element and UNKNOWN not in element]
        return values

    def _texts(self, name: str) -> Iterator[str]:
        """Yield the elements of a list, each with its whole generator expression, which may have semicolons
        of its own."""
        text = ""
        for piece in list_elements(self._properties[name]):
            text = f"{text};{piece}" if text else piece
            if text.count("$<") <= text.count(">"):
                yield text
                text = ""
        if text:
            self._trouble(text, "a generator expression is not closed")

    def _evaluated(self, text: str) -> list[str]:
        """The elements for any language of the target: Buck's flags are for all sources of a library."""
        variables = self._reader.project.variables
        elements: dict[str, None] = {}
        for language in sorted(self._languages):
            expressions = Expressions({**variables, "COMPILE_LANGUAGE": language}, self._reader.is_target)
            elements |= dict.fromkeys(list_elements(expressions.evaluate(text)))
        return list(elements)

    def _trouble(self, text: str, why: str) -> None:
        place = self._reader.places.place_of_value(self._name, text, text)
        self._reader.add_trouble(NotEvaluated(place, plain(text), why))
