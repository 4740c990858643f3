"""Turn CMake's answers about its targets into libraries, each file and flag with the line that names it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ci.parity.cmake_texts import (
    CMakeCommand,
    Expressions,
    Unevaluable,
    block,
    commands,
    commands_by_line,
    truth,
)
from ci.parity.cmake_trace import (
    BINARY,
    DECLARING,
    SOURCE,
    UNKNOWN,
    ConfigureInput,
    ExecutedCommand,
    Trace,
    plain,
    traces,
    tree_path,
)
from ci.parity.tree import SCHEMAS, Glob, NamedItem, NotEvaluated, Side, Target, Tree, TreePlace, fits

_WHOLE = ("executorch_target_link_options_shared_lib", "target_link_options_shared_lib")
_OF_CUSTOM_COMMANDS = frozenset(
    {
        *("OUTPUT", "COMMAND", "ARGS", "MAIN_DEPENDENCY", "DEPENDS", "BYPRODUCTS", "IMPLICIT_DEPENDS"),
        *("WORKING_DIRECTORY", "COMMENT", "DEPFILE", "JOB_POOL", "VERBATIM", "APPEND", "USES_TERMINAL"),
        *("COMMAND_EXPAND_LISTS", "DEPENDS_EXPLICIT_ONLY", "CODEGEN", "JOB_SERVER_AWARE"),
    }
)

_HARMLESS = frozenset(
    {
        *("add_custom_target", "add_dependencies", "add_test", "cmake_minimum_required", "cmake_policy"),
        *("else", "elseif", "enable_testing", "endif", "endwhile", "export", "if", "install", "message"),
        *("mark_as_advanced", "project", "set_tests_properties", "source_group", "while"),
    }
)
"""Commands that do not change what a target consists of."""

_KEEPING = frozenset({"set", "option", "return"})
"""Commands that pass a value on unchanged."""

_CONDITIONS = ("if", "elseif", "while")

_CONSTANTS = frozenset({"ON", "OFF", "YES", "NO", "TRUE", "FALSE", "Y", "N", "IGNORE", "NOTFOUND"})
_COMPARING = re.compile(r"(?:VERSION_|STR|PATH_)?(?:EQUAL|LESS|GREATER)(?:_EQUAL)?|MATCHES|IS_NEWER_THAN")
_OF_FILES = frozenset({"EXISTS", "IS_DIRECTORY", "IS_SYMLINK", "IS_READABLE", "IS_WRITABLE", "IS_EXECUTABLE"})
_NAME = re.compile(r"[A-Za-z_]\w*")
_OF_CALLS = re.compile(r"ARG[CNV]\d*|CMAKE_MATCH_\w+|CMAKE_(?:CURRENT|PARENT)_\w+")


def evaluate(tree: Tree, projects: Sequence[ConfigureInput]) -> list[Side]:
    """CMake's side, for each project."""
    results = traces(tree, projects)
    return [_Reader(tree, project, trace).side() for project, trace in zip(projects, results, strict=True)]


class _Reader:
    def __init__(self, tree: Tree, project: ConfigureInput, trace: Trace) -> None:
        self.tree, self.project, self.trace = tree, project, trace
        self.texts = {event.file: tree.read(event.file) for event in trace.events}
        self.commands = {file: commands_by_line(text) for file, text in self.texts.items()}
        self.result = Side(troubles=list(trace.troubles), stopped=not trace.complete)
        self.result.packages = {posixpath.dirname(file) for file in self.texts}
        self.naming: dict[str, list[ExecutedCommand]] = {}
        """Maps each element of their arguments to the commands that name it; files and directories are keyed
        by their paths."""
        self.word_places: dict[str, list[TreePlace]] = {}
        """Maps the last part of a path, or another word, to the places where it was stored in a variable."""
        self.generated: set[str | None] = set()
        self.aliases: dict[str, str] = {}
        self.declared: dict[str, ExecutedCommand] = {}
        self.elsewhere = tuple(f"{value}/" for value in project.variables.values() if posixpath.isabs(value))
        """Directories of others that the mapping names."""
        self.languages = {"CXX"}
        """The languages of the current target's sources."""

    def side(self) -> Side:
        for event in self.trace.events:
            self._index(event)
            if event.command == "file" and event.args[:1] in (("GLOB",), ("GLOB_RECURSE",)):
                self._glob(event)
            elif event.command == "add_custom_command":
                self._custom_command(event)
            elif event.command == "configure_file" and len(event.args) > 1:
                self.generated.add(tree_path(event.args[1], event.folder))
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
                library.archive = library.archive or event.place
        for trouble in unknowns(self.trace, self.project, self.texts):
            self._trouble(trouble)
        return self.result

    # Lines

    def _index(self, event: ExecutedCommand) -> None:
        for arg in event.args:
            for element in split(arg):
                keys = {element, element.removeprefix("-D")}
                if "/" in element or "." in element:
                    keys.add(tree_path(element, event.folder) or element)
                for key in keys:
                    self.naming.setdefault(key, []).append(event)
        command = self.commands[event.file].get((event.line, event.command))
        if command is None or event.command.startswith(("target_", "add_", "if", "include")):
            return
        for word in command.words:
            for piece in re.split(r"[;/\s]", word.literal):
                if piece:
                    self.word_places.setdefault(piece, []).append(TreePlace(event.file, word.line))

    def _mentioning(self, text: str) -> ExecutedCommand | None:
        for event in self.trace.events:
            if any(text in argument for argument in event.args):
                return event
        return None

    def _place(self, target: str, element: str, text: str) -> TreePlace:
        """Find the line that names a value of a target, else the line that declares the target."""
        events = self.naming.get(element) or self.naming.get(text) or []
        own = [event for event in events if target in event.args[:1] or "PROPERTIES" in event.args]
        adding = [event for event in events if event.command.startswith(("add_", "target_", "include_"))]
        event = next(iter(own or adding or events), None)
        if event is None:
            # Within a generator expression, or a list that is one argument.
            event = self._mentioning(text)
        if event is None:
            return self._declaration(target)
        line = self._line(event, element)
        if line is not None:
            return TreePlace(event.file, line)
        return self._writing(element) or event.place

    def _writing(self, path: str) -> TreePlace | None:
        """Find where a file's name, or its stem, was written: of several places the one nearest to the
        file."""
        last = path.rpartition("/")[2]
        places = self.word_places.get(last) or self.word_places.get(posixpath.splitext(last)[0]) or []
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
                length = len(posixpath.commonprefix((element[::-1], word.literal[::-1])))
                if best is None or length > best[0]:
                    best = length, word.line
        return best[1] if best else None

    def _declaration(self, target: str) -> TreePlace:
        event = self.declared.get(target)
        return event.place if event else TreePlace(self.project.entries[0], 1)

    # Targets

    def _library(self, target: Mapping[str, str]) -> Target:
        name = target["NAME"]
        kind = target["TYPE"].removesuffix("_LIBRARY").lower()
        folder = tree_path(target["SOURCE_DIR"], "") or ""
        library = Target(name, kind, self._declaration(name), folder)
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
            path = tree_path(element, folder)
            if path is not None and (path in self.tree.directories or not path):
                library.includes.append(NamedItem(path, self._place(name, path, text), scope))
        return library

    def _add_file(self, library: Target, element: str, text: str, scope: str, folder: str) -> None:
        path = tree_path(element, folder)
        if path is None:
            return
        item = NamedItem(path, self._place(library.name, path, text), scope)
        if path in self.tree.files:
            library.files.append(item)
        elif path not in self.generated:
            self.result.missing_files.append(item)

    def _standard(self, target: Mapping[str, str]) -> NamedItem | None:
        """The newest standard that is requested anywhere, as CMake decides."""
        name, place = target["NAME"], self._declaration(target["NAME"])
        texts: dict[str, set[str]] = {}
        """The texts that ask for each standard."""
        for key, pattern in (("CXX_STANDARD", r"(.+)"), ("COMPILE_FEATURES", r"cxx_std_(.+)")):
            for element, text in self._elements(target, key):
                match = re.fullmatch(pattern, element)
                if match and match[1].isdecimal():
                    texts.setdefault(match[1], set()).update((key, text))
                elif match:
                    why = f"{name} needs a C++ standard, which is a number"
                    self._trouble(NotEvaluated(self._place(name, element, text), plain(text), why))
        if not texts:
            return None
        number = max(texts, key=lambda standard: int(standard) % 98)
        folder = tree_path(target["SOURCE_DIR"], "") or ""
        for event in self.trace.events:
            around = not event.folder or f"{folder}/".startswith(f"{event.folder}/")
            sets = event.command == "set" and event.args[:2] == ("CMAKE_CXX_STANDARD", number)
            own = name in event.args and texts[number] & {*event.args}
            if (sets and around) or own:
                place = event.place
        return NamedItem(number, place)

    def _scoped(self, target: Mapping[str, str], name: str) -> list[tuple[str, str, str]]:
        """Elements of a property and of its INTERFACE twin, with their texts and scopes."""
        own = self._elements(target, name)
        exports = self._elements(target, f"INTERFACE_{name}", linking=False)
        elements = {element for element, _ in exports}
        names = {element for element, _ in own}
        interface = target["TYPE"] == "INTERFACE_LIBRARY"
        return [
            *(
                (item, text, "PUBLIC" if item in elements else "PRIVATE")
                for item, text in own
                if not interface
            ),
            *((item, text, "INTERFACE") for item, text in exports if interface or item not in names),
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
            original, text = text, ""
            if re.fullmatch(r"\$<TARGET_OBJECTS:[^<>]+>", original) or (
                not linking and original.startswith("$<LINK_ONLY:")
            ):
                continue
            try:
                values = self._values(original) if "$<" in original else split(original)
            except Unevaluable as error:
                if name.endswith("INCLUDE_DIRECTORIES"):
                    continue  # Those of the tree are plain paths; others are of other projects.
                place = self._place(target["NAME"], original, original)
                self._trouble(NotEvaluated(place, plain(original), f"{target['NAME']} needs {error}"))
                continue
            elements += [(element, original) for element in values if element and UNKNOWN not in element]
        if text:
            place = self._place(target["NAME"], text, text)
            self._trouble(NotEvaluated(place, plain(text), "a generator expression is not closed"))
        return elements

    def _values(self, text: str) -> list[str]:
        """The elements for any language of the target: Buck's flags are for all sources of a library."""
        variables = self.project.variables
        values: dict[str, None] = {}
        for language in sorted(self.languages):
            expressions = Expressions({**variables, "COMPILE_LANGUAGE": language}, self._is_target)
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
            path = tree_path(pattern, event.folder)
            if path is None and pattern.startswith(self.elsewhere):
                continue
            if path is None:
                why = f"file(GLOB) of {pattern}, which is outside the tree"
                self._trouble(NotEvaluated(event.place, pattern, why))
                continue
            if event.args[0] == "GLOB_RECURSE":
                folder, _, last = path.rpartition("/")
                matched = {path for path in self.tree.under(folder) if fits(posixpath.basename(path), last)}
            else:
                matched = set(self.tree.match(path))
            for file in matched:
                self.word_places.setdefault(posixpath.basename(file), []).append(event.place)
            text = pattern.removeprefix(f"{SOURCE}/")
            self.result.globs.append(Glob(text, event.folder, event.place, frozenset(matched)))

    def _custom_command(self, event: ExecutedCommand) -> None:
        parts: list[tuple[str, list[str]]] = []
        for arg in event.args:
            if arg in _OF_CUSTOM_COMMANDS:
                parts.append((arg, []))
            elif parts:
                parts[-1][1].extend(split(arg))

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
        for element in (element for element in elements if not element.startswith("-")):
            paths = [path for folder in folders if (path := tree_path(element, folder)) is not None]
            files = [path for path in paths if path in self.tree.files]
            for path in files or paths[-1:]:
                line = self._line(event, path)
                place = TreePlace(event.file, line) if line else self._writing(path) or event.place
                item = NamedItem(path, place)
                if files:
                    yield path, item
                elif path.endswith((*SCHEMAS, ".yaml")) and path not in self.generated:
                    self.result.missing_files.append(item)


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


def unknowns(trace: Trace, project: ConfigureInput, texts: Mapping[str, str]) -> Iterator[NotEvaluated]:
    """Find what could not be known. `texts` are those of the files that ran."""
    tainted = set(trace.unknown)
    own_names = _assigned_names(trace, texts)
    names = own_names | trace.variables
    constants = {name: value for name, value in project.variables.items() if name not in own_names}
    lines = {file: commands_by_line(text) for file, text in texts.items()}
    targets = project.targets | {
        event.args[0] for event in trace.events if event.args and event.command in DECLARING
    }
    functions = {
        command.words[0].text.lower()
        for text in texts.values()
        for command in commands(text)
        if command.name in ("function", "macro") and command.words
    }
    for event in trace.events:
        command = lines[event.file].get((event.line, event.command))
        if command is None or event.command in functions:
            continue
        condition = event.command in _CONDITIONS
        if condition and (
            _is_decided(command, project, constants) or not _matters(texts[event.file], event, project)
        ):
            continue
        if any(UNKNOWN in arg for arg in event.args) or _reads_environment(command, project):
            if _hands_on(event):
                tainted.update(event.args[:2])
            elif event.command not in _HARMLESS or condition:
                yield _trouble(event, command, "it rests on what only a configure step knows")
            continue
        if condition:
            why = next(_unsure(event, command, names, tainted, targets, project), "")
            if why:
                yield _trouble(event, command, why)
        elif event.command.startswith(("add_", "target_")) and event.command not in _HARMLESS:
            for name in _unset(command, names):
                variable = f"${{{name}}}"
                why = f"{event.command}() reads {variable}, which no file and no variable of the mapping sets"
                yield NotEvaluated(event.place, variable, why)
        elif event.command == "list" and not tainted.isdisjoint(event.args[1:2]) and not _hands_on(event):
            yield _trouble(event, command, "it rests on what only a configure step knows")


def _trouble(event: ExecutedCommand, command: CMakeCommand, why: str) -> NotEvaluated:
    return NotEvaluated(
        event.place, f"{event.command}({' '.join(word.text for word in command.words)[:80]})", why
    )


def _hands_on(event: ExecutedCommand) -> bool:
    kind = event.args[0] if event.args else ""
    return (
        event.command in _KEEPING
        or (event.command == "list" and kind in ("APPEND", "PREPEND", "INSERT"))
        or (event.command == "string" and kind in ("APPEND", "PREPEND", "CONCAT", "JOIN"))
    )


def _reads_environment(command: CMakeCommand, project: ConfigureInput) -> bool:
    return any(
        f"ENV{{{name}}}" not in project.variables
        for word in command.words
        for name in re.findall(r"\$ENV\{(\w+)\}", word.text)
    )


def _assigned_names(trace: Trace, texts: Mapping[str, str]) -> set[str]:
    """Every name that any command could set, in whichever branch: a missed name is worse than one too
    many."""
    names: set[str] = set()
    statements = [command for text in texts.values() for command in commands(text)]
    words = []
    for command in statements:
        words.append((command.name, tuple(word.text for word in command.words)))
    for name, args in (*((event.command, event.args) for event in trace.events), *words):
        if name not in _CONDITIONS and not name.startswith(("add_", "target_")):
            names.update(args)
        if name == "project" and args:
            names |= {f"{args[0]}_SOURCE_DIR", f"{args[0]}_BINARY_DIR", "PROJECT_NAME"}
        elif name == "cmake_parse_arguments":
            # With or without a value, these are set.
            names |= {f"{prefix}_" for prefix in (args[2:3] if args[:1] == ("PARSE_ARGV",) else args[:1])}
    return names


def _is_known(name: str, names: set[str]) -> bool:
    if name in names or _OF_CALLS.fullmatch(name):
        return True
    return any(f"{name[: underscore.start()]}_" in names for underscore in re.finditer("_", name))


def _unset(command: CMakeCommand, names: set[str]) -> list[str]:
    variables = (name for word in command.words for name in word.variables)
    return list(dict.fromkeys(name for name in variables if not _is_known(name, names)))


def _unsure(
    event: ExecutedCommand,
    command: CMakeCommand,
    names: set[str],
    tainted: set[str],
    targets: Iterable[str],
    project: ConfigureInput,
) -> Iterator[str]:
    """Say why the answer of a condition cannot be relied on."""
    for name in _unset(command, names):
        yield f"it reads ${{{name}}}, which no file and no variable of the mapping sets"
    before = ""
    for position, word in enumerate(command.words):
        text = word.text
        after = command.words[position + 1].text if position + 1 < len(command.words) else ""
        if before == "TARGET":
            if "$" not in text and text not in targets:
                yield f"whether there is a target {text}, no file says"
        elif before == "DEFINED" and (of_machine := re.fullmatch(r"ENV\{(\w+)\}", text)):
            if text not in project.variables:
                yield f"{of_machine[1]} is a variable of the machine's environment"
        elif before in ("COMMAND", "POLICY", "TEST", *_OF_FILES) or _COMPARING.fullmatch(before):
            pass
        elif word.plain and _NAME.fullmatch(text) and not _is_word(text) and after != "IN_LIST":
            if text in tainted:
                yield f"the value of {text} is for a configure step to find out"
            elif not _is_known(text, names):
                yield f"it reads {text}, which no file and no variable of the mapping sets"
        before = text if word.plain else ""
    for kind, arg in zip(event.args, event.args[1:], strict=False):
        if kind in _OF_FILES and posixpath.isabs(arg) and not arg.startswith((SOURCE, BINARY)):
            yield f"{arg} is outside the tree"


def _is_decided(command: CMakeCommand, project: ConfigureInput, constants: Mapping[str, str]) -> bool:
    """Whether the mapping's variables alone make one of several AND-ed terms false, so that the others do not
    matter."""
    terms: list[list[str]] = [[]]
    for word in command.words:
        if word.plain and word.text in ("OR", "("):
            return False
        if word.plain and word.text == "AND":
            terms.append([])
        else:
            terms[-1].append(word.text)
    return any(_is_false(term, project, constants) for term in terms)


def _is_false(term: list[str], project: ConfigureInput, constants: Mapping[str, str]) -> bool:
    if term[:2] == ["NOT", "DEFINED"]:
        return term[2:] != [] and term[2] in project.variables
    return len(term) == 1 and (truth(constants.get(term[0], "1")) == "0" or term[0] in ("FALSE", "OFF", "0"))


def _is_word(text: str) -> bool:
    return (
        text in ("NOT", "AND", "OR", "DEFINED", "TARGET", "COMMAND", "POLICY", "TEST", "IN_LIST")
        or text.upper() in _CONSTANTS
        or text in _OF_FILES
        or _COMPARING.fullmatch(text) is not None
    )


def _matters(text: str, event: ExecutedCommand, project: ConfigureInput) -> bool:
    """Whether anything in the block may change what a target consists of."""
    return any(
        command.name not in _HARMLESS and command.name not in project.ignored
        for command in block(text, event.line)
    )
