"""What the result depends on and only a real configure step can know: an option that nothing sets, the
machine's environment, another program's output.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

from ci.parity.cmake import words
from ci.parity.cmake.genex import truth
from ci.parity.cmake.trace import BINARY, DECLARING, SOURCE, UNKNOWN, ConfigureInput, ExecutedCommand, Trace
from ci.parity.cmake.words import CMakeCommand
from ci.parity.model import NotEvaluated

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

_ASSIGNING = {"set": 1, "unset": 1, "option": 1, "cmake_dependent_option": 1, "math": 2, "foreach": None}
"""Commands that set variables, and how many of their first words may name one; None is all."""

_NAMING = frozenset(
    {
        *("list", "string", "file", "get_property", "get_target_property", "get_directory_property"),
        *("get_filename_component", "get_cmake_property", "cmake_path", "function", "macro"),
        *("execute_process", "include", "cmake_host_system_information", "separate_arguments"),
    }
)
"""Commands of which any word may name a variable that they set."""

_CONSTANTS = frozenset({"ON", "OFF", "YES", "NO", "TRUE", "FALSE", "Y", "N", "IGNORE", "NOTFOUND"})
_COMPARING = re.compile(r"(?:VERSION_|STR|PATH_)?(?:EQUAL|LESS|GREATER)(?:_EQUAL)?|MATCHES|IS_NEWER_THAN")
_OF_FILES = frozenset({"EXISTS", "IS_DIRECTORY", "IS_SYMLINK", "IS_READABLE", "IS_WRITABLE", "IS_EXECUTABLE"})
_NAME = re.compile(r"[A-Za-z_]\w*")
_OF_CALLS = re.compile(r"ARG[CNV]\d*|CMAKE_MATCH_\w+|CMAKE_(?:CURRENT|PARENT)_\w+")


def unknowns(trace: Trace, project: ConfigureInput, texts: Mapping[str, str]) -> Iterator[NotEvaluated]:
    """`texts` are those of the files that ran."""
    tainted = set(trace.unknown)
    own_names = _assigned(trace, texts)
    known = own_names | trace.variables
    fixed = {name: value for name, value in project.variables.items() if name not in own_names}
    lines = {file: words.by_line(text) for file, text in texts.items()}
    targets = project.targets | {
        event.args[0] for event in trace.events if event.args and event.command in DECLARING
    }
    own = {
        command.words[0].text.lower()
        for text in texts.values()
        for command in words.commands(text)
        if command.name in ("function", "macro") and command.words
    }
    for event in trace.events:
        command = lines[event.file].get((event.line, event.command))
        if command is None or event.command in own:
            continue
        condition = event.command in ("if", "elseif", "while")
        if condition and (
            _decided(command, project, fixed) or not _matters(texts[event.file], event, project)
        ):
            continue
        if any(UNKNOWN in arg for arg in event.args) or _reads_environment(command, project):
            if _hands_on(event):
                tainted.update(event.args[:2])
            elif event.command not in _HARMLESS or condition:
                yield _trouble(event, command, "it rests on what only a configure step knows")
            continue
        if condition:
            why = next(_unsure(event, command, known, tainted, targets, project), "")
            if why:
                yield _trouble(event, command, why)
        elif event.command.startswith(("add_", "target_")) and event.command not in _HARMLESS:
            for name in _unset(command, known):
                what = f"${{{name}}}"
                why = f"{event.command}() reads {what}, which no file and no variable of the mapping sets"
                yield NotEvaluated(event.place, what, why)
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


def _assigned(trace: Trace, texts: Mapping[str, str]) -> set[str]:
    """Every name that any command could set, in whichever branch: a missed name is worse than one too
    many."""
    known: set[str] = set()
    prefixes = []
    every: list[tuple[str, list[str]]] = [(event.command, list(event.args)) for event in trace.events]
    for text in texts.values():
        every += [(command.name, [word.text for word in command.words]) for command in words.commands(text)]
    for name, args in every:
        if name in _ASSIGNING:
            known.update(args[: _ASSIGNING[name]])
        elif name in _NAMING:
            known.update(arg for arg in args if _NAME.fullmatch(arg))
        elif name.startswith(("find_", "check_", "try_")):
            known.update(args)
        elif name == "project" and args:
            known |= {f"{args[0]}_SOURCE_DIR", f"{args[0]}_BINARY_DIR", "PROJECT_NAME"}
        elif name == "cmake_parse_arguments":
            # With or without a value, these are set.
            prefixes += args[2:3] if args[:1] == ["PARSE_ARGV"] else args[:1]
    return known | {f"{prefix}_" for prefix in prefixes}


def _is_known(name: str, known: set[str]) -> bool:
    if name in known or _OF_CALLS.fullmatch(name):
        return True
    return any(f"{name[:end]}_" in known for end in (at.start() for at in re.finditer("_", name)))


def _unset(command: CMakeCommand, known: set[str]) -> list[str]:
    names = (name for word in command.words for name in word.variables)
    return list(dict.fromkeys(name for name in names if not _is_known(name, known)))


def _unsure(
    event: ExecutedCommand,
    command: CMakeCommand,
    known: set[str],
    tainted: set[str],
    targets: Iterable[str],
    project: ConfigureInput,
) -> Iterator[str]:
    """Why the answer of a condition cannot be relied on."""
    for name in _unset(command, known):
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
            elif not _is_known(text, known):
                yield f"it reads {text}, which no file and no variable of the mapping sets"
        before = text if word.plain else ""
    for kind, arg in zip(event.args, event.args[1:], strict=False):
        if kind in _OF_FILES and posixpath.isabs(arg) and not arg.startswith((SOURCE, BINARY)):
            yield f"{arg} is outside the tree"


def _decided(command: CMakeCommand, project: ConfigureInput, fixed: Mapping[str, str]) -> bool:
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
    return any(_is_false(term, project, fixed) for term in terms)


def _is_false(term: list[str], project: ConfigureInput, fixed: Mapping[str, str]) -> bool:
    if term[:2] == ["NOT", "DEFINED"]:
        return term[2:] != [] and term[2] in project.variables
    return len(term) == 1 and (truth(fixed.get(term[0], "1")) == "0" or term[0] in ("FALSE", "OFF", "0"))


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
        for command in words.block(text, event.line)
    )
