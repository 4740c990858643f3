"""Runs parsed CMake files for one variant: scopes, expansion, control flow. `commands` has the commands."""

from __future__ import annotations

import contextlib
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ci.parity.cmake import genex
from ci.parity.cmake.conditions import Condition
from ci.parity.cmake.parser import Argument, Body, Command, Definition, If, Loop, SyntaxFault, parse, walk
from ci.parity.model import Item, Library, Place, Side, Trouble
from ci.parity.tree import Tree, normal

SOURCE = "/source"
BINARY = "/binary"
"""Where the tree and the build would be: values hold these, so that no path of a machine gets into them."""

MOST_STEPS = 20_000
DEEPEST = 60

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", ";": "\\;", "\n": ""}
MARK = "\x01"
_MARKED = re.compile(f"{MARK}([0-9]+){MARK}")
_REFERENCE = re.compile(r"\$(?P<kind>ENV|CACHE)?\{")
_WHOLE_REFERENCE = re.compile(r"\$(?:ENV|CACHE)?\{[^{}]*\}")

RELEVANT = frozenset(
    {
        *("add_library", "add_executable", "target_sources", "target_link_libraries", "link_libraries"),
        *("add_subdirectory", "include", "set", "unset", "list", "string", "file", "return", "option"),
        *("get_filename_component", "cmake_path", "math", "break", "continue", "cmake_parse_arguments"),
    }
)
"""Commands that may change what a target is made of: a condition around any of them has to be known."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only a configure step could give."""

    place: Place
    why: str
    library: str = ""
    """For find_library: the name that was looked for."""


class Return(Exception):
    pass


class Break(Exception):
    pass


class Continue(Exception):
    pass


class Stopped(Exception):
    """A fatal error of the files, or one of ours that makes going on pointless; the trouble is recorded."""


@dataclass(slots=True)
class Scope:
    variables: dict[str, str | None] = field(default_factory=dict)
    above: Scope | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """An argument after expansion; `place` is where its text was written, as well as that can be told."""

    value: str
    place: Place
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Project:
    """What evaluation starts from."""

    entry: str
    variables: Mapping[str, str]
    ignored: frozenset[str]
    outside: frozenset[str]
    targets: frozenset[str]
    """Targets that other projects define."""


def evaluate(tree: Tree, project: Project) -> Side:
    evaluator = Evaluator(tree, project)
    evaluator.start()
    return evaluator.side


class Evaluator:
    def __init__(self, tree: Tree, project: Project) -> None:
        from ci.parity.cmake.commands import COMMANDS

        self.tree, self.project = tree, project
        self.side = Side()
        self.scope = Scope(dict(project.variables))
        self.cache: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.definitions: dict[str, tuple[Definition, str]] = {}
        self.unknowns: list[Unknown] = []
        self.assigned: set[str] = set(project.variables)
        """Every name that any file could set, in whichever branch."""
        self.undefined: list[str] = []
        """Names that were read and that nothing could have set; emptied by who looks."""
        self.written: dict[str, Place] = {}
        """Where an element of a list was first written."""
        self.generated: set[str] = set()
        """Paths in the tree that a custom command makes."""
        self.macros: list[dict[str, str]] = []
        self.file = project.entry
        self.folder = posixpath.dirname(project.entry)
        self.depth = 0
        self.steps = 0
        self.commands: Mapping[str, Callable[[Evaluator, Command], None]] = COMMANDS
        self.wide: list[tuple[str, Item]] = []
        """Flags and include directories of a whole directory, by the field of a library that they go to."""
        self.own: list[Library] = []
        """The libraries of the directory."""
        self.guarded: set[str] = set()
        """Files that said include_guard()."""

    def start(self) -> None:
        if self.project.entry not in self.tree.files:
            self.trouble(Place(self.project.entry, 1), self.project.entry, "the file does not exist")
            self.side.stopped = True
            return
        for name in ("CMAKE_SOURCE_DIR", "PROJECT_SOURCE_DIR"):
            self.scope.variables.setdefault(name, SOURCE)
        for name in ("CMAKE_BINARY_DIR", "PROJECT_BINARY_DIR"):
            self.scope.variables.setdefault(name, BINARY)
        try:
            self.directory(self.folder, f"{BINARY}/{self.folder}")
        except Stopped:
            self.side.stopped = True
        except (Return, Break, Continue) as error:
            self.trouble(
                Place(self.file, 1), self.file, f"{type(error).__name__.lower()}() outside its block"
            )

    # Files and blocks

    def directory(self, folder: str, binary: str) -> None:
        """What add_subdirectory does, in a scope of its own."""
        outer_scope, outer_folder = self.scope, self.folder
        outer_wide, outer_own = self.wide, self.own
        self.scope, self.folder = Scope(above=outer_scope), folder
        self.wide, self.own = [*outer_wide], []
        try:
            self.assign("CMAKE_CURRENT_SOURCE_DIR", posixpath.join(SOURCE, folder))
            self.assign("CMAKE_CURRENT_BINARY_DIR", binary)
            self.run_file(posixpath.join(folder, "CMakeLists.txt"))
        finally:
            for library in self.own:
                for kind, item in self.wide:
                    getattr(library, kind).append(item)
            self.wide, self.own = outer_wide, outer_own
            self.scope, self.folder = outer_scope, outer_folder

    def run_file(self, path: str) -> None:
        outer, macros = self.file, self.macros
        before = {name: self.value(name) for name in ("CMAKE_CURRENT_LIST_FILE", "CMAKE_CURRENT_LIST_DIR")}
        self.file, self.macros = path, []
        self.assign("CMAKE_CURRENT_LIST_FILE", posixpath.join(SOURCE, path))
        self.assign("CMAKE_CURRENT_LIST_DIR", posixpath.join(SOURCE, posixpath.dirname(path)).rstrip("/"))
        try:
            body = parse(self.tree.read(path))
            for command in walk(body):
                self.assigned |= assigned_names(command)
            self.deeper(lambda: self.run(body), Place(path, 1))
        except SyntaxFault as fault:
            self.trouble(Place(path, fault.line), path, fault.says)
            raise Stopped from fault
        except Return:
            pass
        finally:
            self.file, self.macros = outer, macros
            self.scope.variables.update(before)

    def deeper(self, work: Callable[[], None], place: Place) -> None:
        if self.depth >= DEEPEST:
            self.trouble(place, self.file, f"files and functions call each other more than {DEEPEST} deep")
            raise Stopped
        self.depth += 1
        try:
            work()
        finally:
            self.depth -= 1

    def run(self, body: Body) -> None:
        for node in body:
            self.step(node.line)
            if isinstance(node, Command):
                self.command(node)
            elif isinstance(node, If):
                self.run(self.branch(node))
            elif isinstance(node, Definition):
                name = self.texts(node.head.arguments[:1])[0].value.lower()
                self.definitions[name] = (node, self.file)
            else:
                self.loop(node)

    def step(self, line: int) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            why = f"more than {MOST_STEPS} steps: a loop without end?"
            self.trouble(Place(self.file, line), self.file, why)
            raise Stopped

    def branch(self, node: If) -> Body:
        """The body to go on with. Where a condition is not known, which is reported, that is never one that
        stops everything: a configure step that comes to an end did not take it."""
        chosen: Body = ()
        doubtful: Body | None = None
        for head, body in node.branches:
            if head.name == "else":
                chosen = body
                break
            answer = Condition(self, head).answer()
            for why in answer.unsure:
                if self.matters(node):
                    self.trouble(Place(self.file, head.line), f"if({source_of(head)})", why)
            if answer.unsure and not _stops(body) and doubtful is None:
                doubtful = body
            if answer.holds and not (answer.unsure and _stops(body)):
                chosen = body
                break
        return doubtful if doubtful is not None and _stops(chosen) else chosen

    def matters(self, node: If) -> bool:
        return any(
            command.name in RELEVANT or command.name in self.definitions or command.name not in self.commands
            for _, body in node.branches
            for command in walk(body)
            if command.name not in self.project.ignored
        )

    def loop(self, node: Loop) -> None:
        if node.head.name == "block":
            self.block(node)
            return
        try:
            if node.head.name == "while":
                while self.holds(node.head):
                    self.turn(node)
            else:
                self.foreach(node)
        except Break:
            pass

    def block(self, node: Loop) -> None:
        words = [text.value for text in self.texts(node.head.arguments)]
        if "POLICIES" in words and "VARIABLES" not in words:
            self.run(node.body)
            return
        names = words[words.index("PROPAGATE") + 1 :] if "PROPAGATE" in words else []
        outer, self.scope = self.scope, Scope(above=self.scope)
        try:
            self.run(node.body)
        finally:
            inner, self.scope = self.scope, outer
            for name in names:
                if name in inner.variables:
                    outer.variables[name] = inner.variables[name]

    def holds(self, head: Command) -> bool:
        answer = Condition(self, head).answer()
        for why in answer.unsure:
            self.trouble(Place(self.file, head.line), f"{head.name}({source_of(head)})", why)
        return answer.holds

    def turn(self, node: Loop) -> None:
        self.step(node.line)
        with contextlib.suppress(Continue):
            self.run(node.body)

    def foreach(self, node: Loop) -> None:
        given = self.texts(node.head.arguments)
        if not given:
            return
        names = [given[0].value]
        rest = given[1:]
        words = [text.value for text in rest]
        rows: Sequence[Sequence[Text]]
        if words[:1] == ["RANGE"]:
            rows = [[Text(str(number), given[0].place)] for number in self.numbers(node, words[1:])]
        elif "ZIP_LISTS" in words:
            at = words.index("ZIP_LISTS")
            names += words[: at - 1]  # up to IN
            columns = [self.elements_of(name, node) for name in words[at + 1 :]]
            if len(names) == 1:
                names = [f"{names[0]}_{position}" for position in range(len(columns))]
            empty = Text("", given[0].place)
            rows = list(itertools.zip_longest(*columns, fillvalue=empty))
        elif words[:1] == ["IN"]:
            rows = [[text] for text in self.foreach_in(rest[1:], node)]
        else:
            rows = [[text] for text in rest]
        before = {name: self.value(name) for name in names}
        try:
            for row in rows:
                for name, text in zip(names, row, strict=False):
                    self.assign(name, text.value)
                    self.written.setdefault(text.value, text.place)
                self.turn(node)
        finally:
            self.scope.variables.update(before)

    def foreach_in(self, rest: Sequence[Text], node: Loop) -> Iterator[Text]:
        lists = False
        for text in rest:
            if text.value in ("LISTS", "ITEMS") and not text.quoted:
                lists = text.value == "LISTS"
            elif lists:
                yield from self.elements_of(text.value, node)
            else:
                yield text

    def numbers(self, node: Loop, words: Sequence[str]) -> range:
        try:
            start, stop, *given = [int(word) for word in (["0", *words] if len(words) == 1 else words)]
            step = given[0] if given else 1 if start <= stop else -1
            if (stop - start) * step < 0:
                raise ValueError("in the other direction")
            found = range(start, stop + (1 if step > 0 else -1), step)
            # Before a list of them is made; a range of any length can be asked this.
            if found[MOST_STEPS:]:
                raise ValueError("too long")
            return found
        except (ValueError, IndexError):
            self.trouble(
                Place(self.file, node.line),
                f"foreach({source_of(node.head)})",
                "the range is no range of numbers, or too long",
            )
            return range(0)

    def elements_of(self, name: str, node: Loop) -> list[Text]:
        place = Place(self.file, node.line)
        return [Text(element, self.origin(element, place)) for element in split(self.value(name) or "")]

    # Commands

    def command(self, command: Command) -> None:
        place = Place(self.file, command.line)
        if definition := self.definitions.get(command.name):
            self.deeper(lambda: self.call(*definition, command), place)
        elif command.name in self.commands:
            try:
                self.commands[command.name](self, command)
            except (IndexError, ValueError, re.error) as error:
                what = f"{command.name}({source_of(command)[:60]})"
                self.trouble(place, what, f"cannot make sense of it: {error}")
        elif command.name not in self.project.ignored:
            self.trouble(place, f"{command.name}()", f"{command.name}() is no command that is known here")

    def call(self, definition: Definition, file: str, command: Command) -> None:
        parameters = [text.value for text in self.texts(definition.head.arguments[1:])]
        given = [text.value for text in self.texts(command.arguments)]
        for text in self.texts(command.arguments):
            self.written.setdefault(text.value, text.place)
        extra = given[len(parameters) :]
        values = {
            **dict(itertools.zip_longest(parameters, given[: len(parameters)], fillvalue="")),
            "ARGC": str(len(given)),
            "ARGV": ";".join(given),
            "ARGN": ";".join(extra),
            **{f"ARGV{position}": value for position, value in enumerate(given)},
        }
        outer, self.file = self.file, file
        if definition.head.name == "macro":
            self.macros.append(values)
            try:
                self.run(definition.body)
            finally:
                self.file = outer
                self.macros.pop()
            return
        self.scope = Scope(dict(values), self.scope)
        macros, self.macros = self.macros, []
        try:
            self.run(definition.body)
        except Return:
            pass
        finally:
            assert self.scope.above is not None
            self.scope, self.file, self.macros = self.scope.above, outer, macros

    def trouble(self, place: Place, what: str, why: str) -> None:
        found = Trouble(place, what, why)
        if found not in self.side.troubles:
            self.side.troubles.append(found)

    # Variables

    def value(self, name: str) -> str | None:
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.variables:
                found = scope.variables[name]
                # Unset in an inner scope, the cache's value shows.
                return found if found is not None else self.cache.get(name)
            scope = scope.above
        return self.cache.get(name)

    def assign(self, name: str, value: str | None, *, parent: bool = False) -> None:
        self.assigned.add(name)
        if parent:
            # CMake's scopes are copies: here all stays as it is.
            self.scope.variables.setdefault(name, self.value(name))
        scope = self.scope.above if parent and self.scope.above is not None else self.scope
        scope.variables[name] = value

    def unknown(self, place: Place, why: str, library: str = "") -> str:
        self.unknowns.append(Unknown(place, why, library))
        return f"{MARK}{len(self.unknowns) - 1}{MARK}"

    def unknown_in(self, text: str) -> Unknown | None:
        found = _MARKED.search(text)
        return self.unknowns[int(found[1])] if found else None

    def mark_in(self, texts: Iterable[str]) -> str:
        """What stands for the first unknown value in these texts; empty when all is known. What a command
        makes of such a text tells nothing, so its answer is to be this."""
        return next((found[0] for text in texts if (found := _MARKED.search(text))), "")

    def origin(self, element: str, fallback: Place) -> Place:
        """Where an element was written, perhaps without the directory that was put before it since."""
        rest = element
        while rest:
            if rest in self.written:
                return self.written[rest]
            _, slash, rest = rest.partition("/")
            if not slash:
                break
        return fallback

    # Expansion

    def expand(self, argument: Argument) -> str:
        return argument.text if argument.raw else self._expanded(argument.text, 0, inside=False)[0]

    def _expanded(self, text: str, position: int, *, inside: bool) -> tuple[str, int]:
        if not inside and "$" not in text and "\\" not in text:
            return text, len(text)
        made = ""
        while position < len(text):
            sign = text[position]
            if sign == "\\":
                made += _ESCAPES.get(text[position + 1 : position + 2], text[position + 1 : position + 2])
                position += 2
            elif sign == "$" and (match := _REFERENCE.match(text, position)):
                name, position = self._expanded(text, match.end(), inside=True)
                made += self.reference(match["kind"] or "", name)
            elif sign == "}" and inside:
                return made, position + 1
            else:
                made += sign
                position += 1
        return made, position

    def reference(self, kind: str, name: str) -> str:
        if kind == "ENV":
            value = self.value(f"ENV{{{name}}}")
            return (
                value
                if value is not None
                else self.unknown(Place(self.file, 1), f"$ENV{{{name}}} is the machine's")
            )
        if kind == "CACHE":
            return self.cache.get(name, "")
        # CMake puts a macro's arguments into its own text, and into nothing that it calls.
        if self.macros and name in self.macros[-1]:
            return self.macros[-1][name]
        value = self.value(name)
        if value is None and name not in self.assigned:
            self.undefined.append(name)
        return value or ""

    def texts(self, arguments: Sequence[Argument]) -> list[Text]:
        """Arguments after expansion and, unless quoted, splitting; empty unquoted ones vanish."""
        found: list[Text] = []
        for argument in arguments:
            place = Place(self.file, argument.line)
            value = self.expand(argument)
            if argument.quoted:
                found.append(Text(value, place, quoted=True))
                continue
            for element in split(value):
                if element:
                    at = place if _says(argument.text, element) else self.origin(element, place)
                    found.append(Text(element, at))
        return found

    # Targets

    def items(self, command: Command, arguments: Sequence[Argument]) -> list[Text]:
        """Elements of a list of sources or libraries that are known, generator expressions replaced. What is
        not known is reported."""
        place = Place(self.file, command.line)
        found: list[Text] = []
        for argument in arguments:
            self.undefined = []
            pieces = self.texts([argument])
            for name in dict.fromkeys(self.undefined):
                at = Place(self.file, argument.line)
                self.trouble(
                    at,
                    f"${{{name}}}",
                    f"{command.name}() reads ${{{name}}}, which no file evaluated here sets",
                )
            for piece in pieces:
                if piece.quoted:
                    found += [Text(one, piece.place) for one in split(piece.value) if one]
                else:
                    found.append(piece)
        made: list[Text] = []
        pending: list[Text] = []
        for text in found:
            pending.append(text)
            whole = ";".join(one.value for one in pending)
            if whole.count("$<") > whole.count(">"):
                continue
            made += self._generated(command, whole, pending)
            pending = []
        if pending:
            self.trouble(pending[0].place, pending[0].value, "a generator expression is not closed")
        known: list[Text] = []
        for text in made:
            unknown = self.unknown_in(text.value)
            if unknown is None:
                known.append(text)
            elif unknown.library and text.value.count(MARK) == 2:
                known.append(Text(unknown.library, text.place))
            else:
                self.trouble(
                    place, f"{command.name}({source_of(command)[:60]})", f"{unknown.why} ({unknown.place})"
                )
        return known

    def _generated(self, command: Command, whole: str, pieces: Sequence[Text]) -> list[Text]:
        if "$<" not in whole:
            return list(pieces)
        if re.fullmatch(r"\$<TARGET_OBJECTS:[^<>]+>", whole):
            return []
        variables = {
            name: value for name in genex.VARIABLES.values() if (value := self.value(name)) is not None
        }
        try:
            value = genex.evaluate(whole, variables, self.is_target)
        except genex.Unevaluable as error:
            self.trouble(pieces[0].place, whole, f"{command.name}() needs {error}")
            return []
        found = []
        for element in split(value):
            if element:
                said = (piece.place for piece in pieces if element in piece.value)
                found.append(Text(element, next(said, pieces[0].place)))
        return found

    def is_target(self, name: str) -> bool:
        return name in self.side.libraries or name in self.aliases or name in self.project.targets

    def library(self, name: str, command: Command) -> Library | None:
        name = self.aliases.get(name, name)
        found = self.side.libraries.get(name)
        if found is None and name not in self.project.targets:
            place = Place(self.file, command.line)
            self.trouble(
                place, f"{command.name}({name})", f"{command.name}() on {name}, which no file declares"
            )
        return found

    def add_files(self, library: Library, texts: Sequence[Text], scope: str = "PRIVATE") -> None:
        for text in texts:
            path = self.path(text.value)
            if path is None:
                continue
            item = Item(path, text.place, scope)
            if path in self.tree.files:
                library.files.append(item)
            elif path not in self.generated:
                self.side.missing.append(item)

    def absolute(self, text: str) -> str:
        base = posixpath.join(SOURCE, self.folder)
        return posixpath.normpath(posixpath.join(base, text))

    def path(self, text: str) -> str | None:
        """The path in the tree; None for what is outside it, as generated files are."""
        full = self.absolute(text)
        if full == SOURCE:
            return ""
        return normal(full[len(SOURCE) + 1 :]) if full.startswith(SOURCE + "/") else None

    def folder_of(self, text: str) -> str | None:
        """The same of a directory; the one above the tree is `..`."""
        return ".." if self.absolute(text) == posixpath.dirname(SOURCE) else self.path(text)


def split(value: str) -> list[str]:
    """The elements of a CMake list."""
    if ";" not in value:
        return [value] if value else []
    found, depth, element, position = [], 0, "", 0
    while position < len(value):
        sign = value[position]
        if sign == "\\" and value[position + 1 : position + 2] == ";":
            element += ";"
            position += 2
            continue
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == ";" and depth <= 0:
            found.append(element)
            element, depth = "", 0
        else:
            element += sign
        position += 1
    return [*found, element]


def source_of(command: Command) -> str:
    return " ".join(argument.text for argument in command.arguments)


def assigned_names(command: Command) -> set[str]:
    """Names that a command could set: none missed matters more than none too many."""
    words = [argument.text for argument in command.arguments]
    if command.name in ("set", "unset", "option", "cmake_dependent_option", "foreach", "math"):
        return set(words[:2])
    if command.name.startswith(("find_", "check_", "try_")) or command.name == "get_filename_component":
        return set(words[:1])
    if command.name in (
        "list",
        "string",
        "file",
        "execute_process",
        "get_property",
        "get_target_property",
        "cmake_path",
    ):
        return {word for word in words if re.fullmatch(r"\w+", word)}
    return set()


def _stops(body: Body) -> bool:
    return any(
        isinstance(node, Command)
        and node.name == "message"
        and any(argument.text == "FATAL_ERROR" for argument in node.arguments[:1])
        for node in body
    )


def _says(written: str, element: str) -> bool:
    """Whether an argument itself names the element, and not only a variable that holds it."""
    bare = _WHOLE_REFERENCE.sub("", written)
    return bool(bare.strip(";")) and posixpath.basename(element) in bare
