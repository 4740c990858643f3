"""The commands that decide what targets are made of, and the names of those that do not."""

from __future__ import annotations

import ast
import itertools
import operator
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ci.parity.cmake.conditions import cmake_regex, matched
from ci.parity.cmake.evaluator import (
    BINARY,
    SOURCE,
    Break,
    Continue,
    Evaluator,
    Return,
    Stopped,
    Text,
    source_of,
    split,
)
from ci.parity.model import Generated, Glob, Item, Library, Place
from ci.parity.tree import glob_regex

if TYPE_CHECKING:
    from ci.parity.cmake.parser import Command

_KINDS = frozenset({"STATIC", "SHARED", "MODULE", "OBJECT", "INTERFACE", "UNKNOWN"})
_SCOPES = frozenset({"PUBLIC", "PRIVATE", "INTERFACE"})
_LINK_SCOPES = _SCOPES | {"LINK_PUBLIC", "LINK_PRIVATE"}
_LINK_WORDS = _LINK_SCOPES | {"LINK_INTERFACE_LIBRARIES", "debug", "optimized", "general"}
_STANDARD_MODULES = re.compile(
    r"CMake\w+|Check\w+|GNUInstallDirs|FetchContent|ExternalProject|Find\w+|CTest|CPack|ProcessorCount|Generate\w+"
)

# fmt: off
_WITHOUT_EFFECT = (
    "cmake_minimum_required", "cmake_policy", "install", "export", "add_custom_target",
    "add_dependencies", "remove_definitions", "add_link_options", "link_directories",
    "block", "mark_as_advanced", "source_group", "target_compile_features",
    "target_link_options", "target_link_directories", "target_precompile_headers", "enable_testing",
    "add_test", "set_tests_properties", "set_directory_properties", "define_property",
    "enable_language", "configure_package_config_file", "write_basic_package_version_file",
)
# fmt: on


_FLAGS = (
    *("add_compile_options", "add_compile_definitions", "add_definitions", "include_directories"),
    *("target_compile_options", "target_compile_definitions", "target_include_directories"),
)
_WHOLE = ("executorch_target_link_options_shared_lib", "target_link_options_shared_lib")


def _set(evaluator: Evaluator, command: Command) -> None:
    texts = evaluator.texts(command.arguments)
    if not texts:
        return
    name, values = texts[0].value, list(texts[1:])
    words = [text.value for text in values]
    for text in values:
        for element in split(text.value):
            evaluator.written.setdefault(element, text.place)
    if "CACHE" in words:
        at = words.index("CACHE")
        if "FORCE" in words[at:] or words[at + 1 : at + 2] == ["INTERNAL"] or (evaluator.value(name) is None):
            evaluator.cache[name] = ";".join(words[:at])
            evaluator.assigned.add(name)
        return
    parent = words[-1:] == ["PARENT_SCOPE"]
    words = words[:-1] if parent else words
    evaluator.assign(name, ";".join(words) if words or name.startswith("ENV{") else None, parent=parent)


def _unset(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    if "CACHE" in words[1:]:
        evaluator.cache.pop(words[0], None)
    elif words:
        evaluator.assign(words[0], None, parent="PARENT_SCOPE" in words[1:])


def _option(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    if words and evaluator.value(words[0]) is None:
        evaluator.cache[words[0]] = words[2] if len(words) > 2 else "OFF"
        evaluator.assigned.add(words[0])


def _dependent_option(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    if words and evaluator.value(words[0]) is None:
        why = f"cmake_dependent_option({words[0]}) is not evaluated; name it in the mapping"
        evaluator.cache[words[0]] = evaluator.unknown(Place(evaluator.file, command.line), why)


def _list(evaluator: Evaluator, command: Command) -> None:
    texts = evaluator.texts(command.arguments)
    words = [text.value for text in texts]
    place = Place(evaluator.file, command.line)
    if len(words) < 2:
        evaluator.trouble(place, f"list({source_of(command)})", "list() needs an operation and a list")
        return
    kind, name, given = words[0], words[1], words[2:]
    value = split(evaluator.value(name) or "")
    if kind in ("APPEND", "PREPEND", "INSERT"):
        for text in texts[2:]:
            for element in split(text.value):
                evaluator.written.setdefault(element, text.place)
        given = [element for word in given for element in (split(word) or [""])]
    try:
        changed = _list_changed(evaluator, kind, value, given, place)
        answer = _list_answer(kind, value, given) if changed is None else None
    except (ValueError, IndexError, re.error) as error:
        evaluator.trouble(place, f"list({source_of(command)})", f"{type(error).__name__}: {error}")
        return
    # An unknown element may stand for any number of them, whatever they are.
    unknown = evaluator.mark_in((*value, *given))
    if changed is not None:
        evaluator.assign(name, ";".join(_still(evaluator, changed, unknown)))
    elif answer is not None:
        evaluator.assign(answer[0], answer[1] if kind == "JOIN" else unknown or answer[1])
    elif kind in ("POP_BACK", "POP_FRONT"):
        back = kind == "POP_BACK"
        for out in given:
            evaluator.assign(out, unknown or (value[-1 if back else 0] if value else None))
            value = value[:-1] if back else value[1:]
        if not given:
            value = value[:-1] if back else value[1:]
        evaluator.assign(name, ";".join(_still(evaluator, value, unknown)))
    else:
        evaluator.trouble(place, f"list({kind})", f"list({kind}) is not evaluated here")


def _still(evaluator: Evaluator, changed: list[str], unknown: str) -> list[str]:
    """With what was not known before, if that is lost."""
    return changed if evaluator.mark_in(changed) else [*changed, *([unknown] if unknown else [])]


def _list_changed(
    evaluator: Evaluator, kind: str, value: list[str], given: list[str], place: Place
) -> list[str] | None:
    if kind == "APPEND":
        return value + given
    if kind == "PREPEND":
        return given + value
    if kind == "INSERT":
        at = int(given[0])
        return value[:at] + given[1:] + value[at:]
    if kind == "REMOVE_ITEM":
        return [element for element in value if element not in given]
    if kind == "REMOVE_AT":
        places = range(len(value))
        gone = {places[int(one)] for one in given}
        return [element for position, element in enumerate(value) if position not in gone]
    if kind == "REMOVE_DUPLICATES":
        return list(dict.fromkeys(value))
    if kind == "REVERSE":
        return value[::-1]
    if kind == "SORT":
        return _sorted(value, given)
    if kind == "FILTER":
        keep, regex = given[0] == "INCLUDE", cmake_regex(given[2])
        return [element for element in value if bool(re.search(regex, element)) == keep]
    if kind == "TRANSFORM" and not {"AT", "FOR", "OUTPUT_VARIABLE"} & set(given[1:]):
        made = [_transformed(given, element) for element in value]
        for old, new in zip(value, made, strict=True):
            evaluator.written.setdefault(new, evaluator.origin(old, place))
        return made
    return None


def _sorted(value: list[str], given: list[str]) -> list[str]:
    words = dict(itertools.pairwise(given))

    def key(element: str) -> list[tuple[int, str]]:
        text = posixpath.basename(element) if words.get("COMPARE") == "FILE_BASENAME" else element
        text = text.lower() if words.get("CASE") == "INSENSITIVE" else text
        if words.get("COMPARE") != "NATURAL":
            return [(0, text)]
        # Texts and numbers take turns.
        return [
            (int(part), "") if turn % 2 else (0, part) for turn, part in enumerate(re.split(r"(\d+)", text))
        ]

    return sorted(value, key=key, reverse=words.get("ORDER") == "DESCENDING")


def _transformed(given: list[str], element: str) -> str:
    action = given[0]
    if "REGEX" in given[1:] and not re.search(cmake_regex(given[given.index("REGEX", 1) + 1]), element):
        return element
    if action == "APPEND":
        return element + given[1]
    if action == "PREPEND":
        return given[1] + element
    if action == "REPLACE":
        return re.sub(cmake_regex(given[1]), _replacement(given[2]), element)
    if action in _TEXT_CHANGES:
        return _TEXT_CHANGES[action](element)
    raise ValueError(f"list(TRANSFORM … {action}) is not evaluated here")


_TEXT_CHANGES: Mapping[str, Callable[[str], str]] = {
    "TOUPPER": lambda text: text.upper(),
    "TOLOWER": lambda text: text.lower(),
    "STRIP": lambda text: text.strip(),
    "LENGTH": lambda text: str(len(text.encode())),
    "MAKE_C_IDENTIFIER": lambda text: re.sub(r"^(?=\d)|\W", "_", text, flags=re.ASCII),
}


def _list_answer(kind: str, value: list[str], given: list[str]) -> tuple[str, str] | None:
    if kind == "LENGTH":
        return given[0], str(len(value))
    if kind == "GET":
        return given[-1], ";".join(value[int(one)] for one in given[:-1])
    if kind == "FIND":
        return given[1], str(value.index(given[0]) if given[0] in value else -1)
    if kind == "JOIN":
        return given[1], given[0].join(value)
    if kind == "SUBLIST":
        begin, count = int(given[0]), int(given[1])
        return given[2], ";".join(value[begin:] if count < 0 else value[begin : begin + count])
    return None


def _string(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    place = Place(evaluator.file, command.line)
    try:
        answer = _string_answer(evaluator, words)
    except (ValueError, IndexError, re.error) as error:
        evaluator.trouble(place, f"string({source_of(command)})", f"{type(error).__name__}: {error}")
        return
    if answer is None:
        out = words[-1] if words else ""
        kind = words[0] if words else ""
        evaluator.assign(out, evaluator.unknown(place, f"string({kind}) is not evaluated here"))
    else:
        name, value = answer
        unknown = "" if words[0] in _STRINGING else evaluator.mark_in(words[1:])
        evaluator.assign(name, unknown or value)


_STRINGING = frozenset({"APPEND", "PREPEND", "CONCAT", "JOIN"})
"""Operations that leave whole what they are given."""


def _string_answer(evaluator: Evaluator, words: list[str]) -> tuple[str, str] | None:
    kind, given = words[0], words[1:]
    if kind == "REGEX":
        action, regex = given[0], cmake_regex(given[1])
        if action == "REPLACE":
            return given[3], _replaced(regex, _replacement(given[2]), "".join(given[4:]))
        text = "".join(given[3:])
        if action == "MATCH":
            match = re.search(regex, text)
            matched(evaluator, match, evaluator.mark_in(given))
            return given[2], match[0] if match else ""
        return given[2], ";".join(match[0] for match in _matches(regex, text))
    if kind == "REPLACE":
        text = "".join(given[3:])
        return given[2], text.replace(given[0], given[1]) if given[0] else text
    if kind in ("APPEND", "PREPEND"):
        old, new = evaluator.value(given[0]) or "", "".join(given[1:])
        return given[0], old + new if kind == "APPEND" else new + old
    if kind in _TEXT_CHANGES:
        return given[1], _TEXT_CHANGES[kind](given[0])
    if kind == "CONCAT":
        return given[0], "".join(given[1:])
    if kind == "JOIN":
        return given[1], given[0].join(given[2:])
    if kind == "SUBSTRING":
        begin, count = int(given[1]), int(given[2])
        return given[3], given[0][begin:] if count < 0 else given[0][begin : begin + count]
    if kind == "FIND":
        found = given[0].rfind(given[1]) if "REVERSE" in given[3:] else given[0].find(given[1])
        return given[2], str(found)
    return None


def _matches(regex: str, text: str) -> Iterator[re.Match[str]]:
    """As CMake looks for them before policy CMP0186: what follows a match is a text of its own, with a
    beginning that `^` matches."""
    while match := re.search(regex, text):
        if not match[0]:
            raise ValueError("the expression matches an empty text")
        yield match
        text = text[match.end() :]


def _replaced(regex: str, replacement: Callable[[re.Match[str]], str], text: str) -> str:
    parts = []
    for match in _matches(regex, text):
        parts += [match.string[: match.start()], replacement(match)]
        text = match.string[match.end() :]
    return "".join([*parts, text])


def _replacement(text: str) -> Callable[[re.Match[str]], str]:
    """CMake writes groups as `\\1`, and nothing else is special."""

    def made(match: re.Match[str]) -> str:
        return re.sub(
            r"\\(\\|[0-9])", lambda group: "\\" if group[1] == "\\" else match[int(group[1])] or "", text
        )

    return made


def _foldable(evaluator: Evaluator, path: str) -> str:
    return posixpath.normpath(posixpath.join(SOURCE, evaluator.folder, path))


def _get_filename_component(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    if len(words) < 3:
        return
    name, path, kind = words[:3]
    base = words[words.index("BASE_DIR") + 1] if "BASE_DIR" in words[3:-1] else ""
    file = posixpath.basename(path)
    stem = file.split(".", 1)[0]
    answers = {
        "DIRECTORY": posixpath.dirname(path.rstrip("/")),
        "PATH": posixpath.dirname(path.rstrip("/")),
        "NAME": file,
        "NAME_WE": stem,
        "EXT": file[len(stem) :],
        "NAME_WLE": posixpath.splitext(file)[0],
        "LAST_EXT": posixpath.splitext(file)[1],
        "ABSOLUTE": _foldable(evaluator, posixpath.join(base, path)),
        "REALPATH": _foldable(evaluator, posixpath.join(base, path)),
    }
    if kind in answers:
        evaluator.assign(name, evaluator.mark_in((path, base)) or answers[kind])
    else:
        why = f"get_filename_component({kind}) is not evaluated here"
        evaluator.assign(name, evaluator.unknown(Place(evaluator.file, command.line), why))


def _math(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    place = Place(evaluator.file, command.line)
    try:
        if "HEXADECIMAL" in words:
            raise ValueError("hexadecimal numbers are not evaluated here")
        evaluator.assign(words[1], str(_calculated(ast.parse(words[2], mode="eval").body)))
    except (IndexError, ValueError, SyntaxError, ZeroDivisionError) as error:
        evaluator.trouble(place, f"math({source_of(command)})", str(error))


_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right),
    ast.Mod: lambda left, right: left - right * int(left / right),
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_calculated(node.left), _calculated(node.right))
    raise ValueError(f"cannot calculate {ast.unparse(node)}")


def _file(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    place = Place(evaluator.file, command.line)
    kind = words[0] if words else ""
    if kind in ("GLOB", "GLOB_RECURSE") and len(words) > 1:
        _glob(evaluator, command, words)
    elif kind in ("RELATIVE_PATH",) and len(words) == 4:
        evaluator.assign(words[1], evaluator.mark_in(words[2:]) or posixpath.relpath(words[3], words[2]))
    elif kind in ("TO_CMAKE_PATH", "TO_NATIVE_PATH", "REAL_PATH") and len(words) > 2:
        source, name = (words[1], words[2])
        evaluator.assign(name, source if kind != "REAL_PATH" else _foldable(evaluator, source))
    elif kind in ("READ", "STRINGS", "SIZE", "TIMESTAMP", "SHA256", "MD5") and len(words) > 2:
        evaluator.assign(words[2], evaluator.unknown(place, f"file({kind}) is not evaluated here"))


def _glob(evaluator: Evaluator, command: Command, words: list[str]) -> None:
    recursive = words[0] == "GLOB_RECURSE"
    name, rest = words[1], words[2:]
    relative = ""
    patterns: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "RELATIVE" and rest:
            relative = rest.pop(0)
        elif word == "LIST_DIRECTORIES" and rest:
            rest.pop(0)
        elif word not in ("CONFIGURE_DEPENDS", "FOLLOW_SYMLINKS"):
            patterns.append(word)
    place = Place(evaluator.file, command.line)
    found: set[str] = set()
    for pattern in patterns:
        path = evaluator.path(pattern)
        if unknown := evaluator.unknown_in(pattern):
            evaluator.trouble(place, f"file({source_of(command)})", f"{unknown.why} ({unknown.place})")
            continue
        if path is None:
            evaluator.trouble(place, pattern, f"file(GLOB) of {pattern}, which is outside the tree")
            continue
        if recursive:
            folder, _, last = path.rpartition("/")
            fits = glob_regex(last).fullmatch
            matched = {file for file in evaluator.tree.under(folder) if fits(posixpath.basename(file))}
        else:
            matched = set(evaluator.tree.match(path))
        evaluator.side.globs.append(_as_glob(pattern, evaluator.folder, place, matched))
        found |= matched
    made = [posixpath.join(SOURCE, path) for path in sorted(found)]
    made = [posixpath.relpath(path, relative) for path in made] if relative else made
    for path in made:
        evaluator.written[path] = place
    evaluator.assign(name, ";".join(made))


def _as_glob(pattern: str, folder: str, place: Place, matched: set[str]) -> Glob:
    return Glob(pattern.removeprefix(SOURCE + "/"), folder, place, frozenset(matched))


def _include(evaluator: Evaluator, command: Command) -> None:
    texts = evaluator.texts(command.arguments)
    if not texts:
        return
    name = texts[0].value
    place = Place(evaluator.file, command.line)
    path = evaluator.path(name)
    if path in evaluator.tree.files and path is not None:
        evaluator.run_file(path)
        return
    for folder in split(evaluator.value("CMAKE_MODULE_PATH") or ""):
        inside = evaluator.path(posixpath.join(folder, f"{name}.cmake"))
        if inside is not None and inside in evaluator.tree.files:
            evaluator.run_file(inside)
            return
    optional = any(text.value == "OPTIONAL" for text in texts[1:])
    if unknown := evaluator.unknown_in(name):
        evaluator.trouble(place, f"include({source_of(command)})", f"{unknown.why} ({unknown.place})")
    elif not optional and not _STANDARD_MODULES.fullmatch(name):
        evaluator.trouble(place, f"include({source_of(command)})", f"there is no {name} in the tree")


def _include_guard(evaluator: Evaluator, command: Command) -> None:
    if evaluator.file in evaluator.guarded:
        raise Return
    evaluator.guarded.add(evaluator.file)


def _add_subdirectory(evaluator: Evaluator, command: Command) -> None:
    texts = [
        text
        for text in evaluator.texts(command.arguments)
        if text.value not in ("EXCLUDE_FROM_ALL", "SYSTEM")
    ]
    if not texts:
        return
    place = Place(evaluator.file, command.line)
    folder = evaluator.path(texts[0].value)
    if folder is not None and folder in evaluator.project.outside:
        return
    if folder is None or posixpath.join(folder, "CMakeLists.txt") not in evaluator.tree.files:
        evaluator.trouble(
            place, f"add_subdirectory({source_of(command)})", f"{texts[0].value} has no CMakeLists.txt"
        )
        return
    binary = posixpath.join(evaluator.value("CMAKE_CURRENT_BINARY_DIR") or BINARY, texts[-1].value)
    evaluator.deeper(lambda: evaluator.directory(folder, binary), place)


def _add_target(evaluator: Evaluator, command: Command) -> None:
    place = Place(evaluator.file, command.line)
    name = evaluator.expand(command.arguments[0]) if command.arguments else ""
    texts = evaluator.items(command, command.arguments[1:])
    words = [text.value for text in texts]
    if not name:
        return
    if words[:1] == ["ALIAS"] and len(words) > 1:
        evaluator.aliases[name] = evaluator.aliases.get(words[1], words[1])
        return
    kind = (
        words[0]
        if words and words[0] in _KINDS
        else ("STATIC" if command.name == "add_library" else "EXECUTABLE")
    )
    if name in evaluator.side.libraries:
        evaluator.trouble(place, name, f"{name} is declared again")
        return
    library = evaluator.side.libraries[name] = Library(name, kind.lower(), place)
    evaluator.own.append(library)
    if standard := evaluator.value("CMAKE_CXX_STANDARD"):
        library.standard = Item(standard, evaluator.origin(standard, place))
    if "IMPORTED" in words:
        library.kind = "imported"
        return
    leave_out = _KINDS | {"EXCLUDE_FROM_ALL", "WIN32", "MACOSX_BUNDLE"}
    evaluator.add_files(library, [text for text in texts if text.value not in leave_out])


def _target_sources(evaluator: Evaluator, command: Command) -> None:
    if not command.arguments:
        return
    library = evaluator.library(evaluator.expand(command.arguments[0]), command)
    texts = evaluator.items(command, command.arguments[1:])
    if library is None:
        return
    scope, taking, before = "PRIVATE", True, ""
    for text in texts:
        if text.value in _SCOPES:
            scope, taking = text.value, True
        elif text.value in ("FILE_SET", "TYPE", "BASE_DIRS"):
            taking = False
        elif text.value == "FILES" and before != "FILE_SET":
            taking = True
        elif taking:
            evaluator.add_files(library, [text], scope)
        before = text.value


def _flags(evaluator: Evaluator, command: Command) -> None:
    """Of one target, or of all of a directory and those below it."""
    arguments = command.arguments
    library = None
    if command.name.startswith("target_"):
        library = evaluator.library(evaluator.expand(arguments[0]), command)
        arguments = arguments[1:]
        if library is None:
            return
    scope = "PRIVATE"
    for text in evaluator.texts(arguments):
        value = text.value
        if value in _SCOPES:
            scope = value
        if value in _SCOPES or value in ("BEFORE", "AFTER", "SYSTEM") or "$<" in value or not value:
            continue
        kind = command.name.rpartition("_")[2]
        if kind == "directories":
            folder = evaluator.folder_of(value)
            if folder is None:
                continue
            kind, value = "includes", folder
        elif kind == "definitions" or value.startswith("-D"):
            kind, value = "definitions", value.removeprefix("-D")
        item = Item(value, text.place, scope)
        if library is not None:
            getattr(library, kind).append(item)
        else:
            evaluator.wide.append((kind, item))


def _whole(evaluator: Evaluator, command: Command) -> None:
    if library := evaluator.library(evaluator.expand(command.arguments[0]), command):
        library.whole = Place(evaluator.file, command.line)


def _target_link_libraries(evaluator: Evaluator, command: Command) -> None:
    if not command.arguments:
        return
    library = evaluator.library(evaluator.expand(command.arguments[0]), command)
    scope = "PUBLIC"
    for text in evaluator.items(command, command.arguments[1:]):
        name = text.value
        if name in _LINK_WORDS:
            scope = name.removeprefix("LINK_") if name in _LINK_SCOPES else scope
        elif library is not None and not name.startswith("-") and not posixpath.isabs(name):
            library.dependencies.append(Item(evaluator.aliases.get(name, name), text.place, scope))


def _link_libraries(evaluator: Evaluator, command: Command) -> None:
    place = Place(evaluator.file, command.line)
    evaluator.trouble(
        place, "link_libraries()", "link_libraries() is not evaluated; use target_link_libraries()"
    )


def _properties(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    for word in (
        "SOURCES",
        "INTERFACE_SOURCES",
        "HEADER_FILE_ONLY",
        "LINK_LIBRARIES",
        "INTERFACE_LINK_LIBRARIES",
    ):
        if word in words:
            place = Place(evaluator.file, command.line)
            evaluator.trouble(
                place, f"{command.name}({word})", f"{command.name}() of {word} is not evaluated here"
            )


def _get_property(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    if words:
        why = f"{command.name}() is not evaluated here"
        evaluator.assign(words[0], evaluator.unknown(Place(evaluator.file, command.line), why))


def _find(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    place = Place(evaluator.file, command.line)
    if not words:
        return
    if command.name == "find_package":
        for name in {f"{words[0]}_FOUND", f"{words[0].upper()}_FOUND"}:
            if evaluator.value(name) is None:
                evaluator.assign(name, evaluator.unknown(place, f"find_package({words[0]}) is not evaluated"))
        return
    if evaluator.value(words[0]) is None:
        names = [word for word in words[1:] if word not in ("NAMES", "REQUIRED")]
        library = names[0] if command.name == "find_library" and names else ""
        why = f"{command.name}({words[0]}) is not evaluated"
        evaluator.assign(words[0], evaluator.unknown(place, why, library))


def _execute_process(evaluator: Evaluator, command: Command) -> None:
    texts = evaluator.texts(command.arguments)
    for before, text in itertools.pairwise(texts):
        if before.value in ("OUTPUT_VARIABLE", "ERROR_VARIABLE", "RESULT_VARIABLE", "RESULTS_VARIABLE"):
            place = Place(evaluator.file, command.line)
            evaluator.assign(text.value, evaluator.unknown(place, "execute_process() is not evaluated"))


def _add_custom_command(evaluator: Evaluator, command: Command) -> None:
    words: dict[str, list[Text]] = {}
    keyword = ""
    for text in evaluator.texts(command.arguments):
        if re.fullmatch(r"[A-Z_]+", text.value):
            keyword = text.value
        else:
            words.setdefault(keyword, []).append(text)
    for text in words.get("OUTPUT", []) + words.get("BYPRODUCTS", []):
        if (path := evaluator.path(text.value)) is not None:
            evaluator.generated.add(path)
    folder = words["WORKING_DIRECTORY"][0].value if "WORKING_DIRECTORY" in words else ""
    inputs = []
    for text in words.get("COMMAND", [])[1:] + words.get("DEPENDS", []):
        path = evaluator.path(posixpath.join(folder, text.value))
        if path in evaluator.tree.files and path is not None:
            inputs.append(Item(path, text.place))
    line = [posixpath.basename(text.value) for text in words.get("COMMAND", [])]
    evaluator.side.generated.append(
        Generated(tuple(inputs), tuple(line), Place(evaluator.file, command.line))
    )


def _configure_file(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments)]
    if len(words) > 1 and (path := evaluator.path(words[1])) is not None:
        evaluator.generated.add(path)


def _message(evaluator: Evaluator, command: Command) -> None:
    texts = evaluator.texts(command.arguments)
    if texts and texts[0].value in ("FATAL_ERROR", "SEND_ERROR"):
        says = " ".join("".join(text.value for text in texts[1:]).split())
        evaluator.trouble(
            Place(evaluator.file, command.line), f"message({texts[0].value})", f"stops with: {says}"
        )
        if texts[0].value == "FATAL_ERROR":
            raise Stopped


def _parse_arguments(evaluator: Evaluator, command: Command) -> None:
    texts = evaluator.texts(command.arguments)
    words = [text.value for text in texts]
    if words[:1] == ["PARSE_ARGV"]:
        given = split(evaluator.value("ARGV") or "")[int(words[1]) :]
        words = words[2:]
    else:
        given = [element for text in texts[4:] for element in split(text.value)]
    if len(words) < 4:
        evaluator.trouble(
            Place(evaluator.file, command.line), "cmake_parse_arguments()", "it needs four arguments"
        )
        return
    prefix = words[0]
    flags, singles, lists = (split(word) for word in words[1:4])
    found: dict[str, list[str]] = {}
    unparsed: list[str] = []
    current = ""
    for word in given:
        if word in flags:
            found[word], current = ["TRUE"], ""
        elif word in singles:
            current = word
        elif word in lists:
            found.setdefault(word, [])
            current = word
        elif current in lists and current:
            found[current].append(word)
        elif current:
            found[current], current = [word], ""  # The last value counts.
        else:
            unparsed.append(word)
    for name in (*flags, *singles, *lists):
        value = ";".join(found[name]) if name in found else ("FALSE" if name in flags else None)
        evaluator.assign(f"{prefix}_{name}", value)
    evaluator.assign(f"{prefix}_UNPARSED_ARGUMENTS", ";".join(unparsed) or None)


def _raises(error: type[Exception]) -> Callable[[Evaluator, Command], None]:
    def run(evaluator: Evaluator, command: Command) -> None:
        if error is Return and "PROPAGATE" in (
            words := [text.value for text in evaluator.texts(command.arguments)]
        ):
            for name in words[1:]:
                evaluator.assign(name, evaluator.value(name), parent=True)
        raise error

    return run


def _nothing(evaluator: Evaluator, command: Command) -> None:
    """Nothing that targets are made of comes from it."""


def _project(evaluator: Evaluator, command: Command) -> None:
    words = [text.value for text in evaluator.texts(command.arguments[:1])]
    here = evaluator.value("CMAKE_CURRENT_SOURCE_DIR") or SOURCE
    evaluator.assign("PROJECT_SOURCE_DIR", here)
    evaluator.assign("PROJECT_BINARY_DIR", evaluator.value("CMAKE_CURRENT_BINARY_DIR") or BINARY)
    evaluator.assign("PROJECT_NAME", words[0] if words else "")


COMMANDS: Mapping[str, Callable[[Evaluator, Command], None]] = {
    **dict.fromkeys(_WITHOUT_EFFECT, _nothing),
    **dict.fromkeys(_FLAGS, _flags),
    **dict.fromkeys(_WHOLE, _whole),
    "add_custom_command": _add_custom_command,
    "add_executable": _add_target,
    "add_library": _add_target,
    "add_subdirectory": _add_subdirectory,
    "break": _raises(Break),
    "cmake_dependent_option": _dependent_option,
    "cmake_parse_arguments": _parse_arguments,
    "configure_file": _configure_file,
    "continue": _raises(Continue),
    "execute_process": _execute_process,
    "file": _file,
    "find_file": _find,
    "find_library": _find,
    "find_package": _find,
    "find_path": _find,
    "find_program": _find,
    "get_directory_property": _get_property,
    "get_filename_component": _get_filename_component,
    "get_property": _get_property,
    "get_target_property": _get_property,
    "include": _include,
    "include_guard": _include_guard,
    "link_libraries": _link_libraries,
    "list": _list,
    "math": _math,
    "message": _message,
    "option": _option,
    "project": _project,
    "return": _raises(Return),
    "set": _set,
    "set_property": _properties,
    "set_source_files_properties": _properties,
    "set_target_properties": _properties,
    "string": _string,
    "target_link_libraries": _target_link_libraries,
    "target_sources": _target_sources,
    "unset": _unset,
}
