"""Find what a run of CMake without a compiler could not know: conditions and arguments that rest on the
machine, or on a variable that no file sets.

CMake chose one branch of each condition, and gave each unknown value our name. Where a choice or a value
may be another one in a real build, the comparison would be wrong, so each is reported as not evaluated.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from ci.parity.cmake_texts import CMakeCommand, block, commands, commands_by_line, truth
from ci.parity.cmake_trace import BINARY, DECLARING, SOURCE, UNKNOWN, ConfigureInput, ExecutedCommand, Trace
from ci.parity.tree import NotEvaluated

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
_FILE_TESTS = frozenset(
    {"EXISTS", "IS_DIRECTORY", "IS_SYMLINK", "IS_READABLE", "IS_WRITABLE", "IS_EXECUTABLE"}
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SET_BY_CALLS = re.compile(r"ARG[CNV]\d*|CMAKE_MATCH_\w+|CMAKE_(?:CURRENT|PARENT)_\w+")
_BEFORE_NO_VARIABLE = ("COMMAND", "POLICY", "TEST", *_FILE_TESTS)
"""The word after one of these names no variable."""

_RESTS = "it rests on what only a configure step knows"


def unknowns(trace: Trace, project: ConfigureInput, texts: Mapping[str, str]) -> Iterator[NotEvaluated]:
    """Find what could not be known. `texts` are those of the files that ran."""
    return _Unknowns(trace, project, texts).find()


class _Unknowns:
    def __init__(self, trace: Trace, project: ConfigureInput, texts: Mapping[str, str]) -> None:
        self.trace, self.project, self.texts = trace, project, texts
        self.lines = {file: commands_by_line(text) for file, text in texts.items()}
        assigned = _assigned_names(trace, texts)
        self.names = assigned | trace.variables
        """Every variable that has a value somewhere."""
        self.constants = {name: value for name, value in project.variables.items() if name not in assigned}
        """Variables of the mapping that no file changes."""
        self.targets = project.targets | {
            event.args[0] for event in trace.events if event.args and event.command in DECLARING
        }
        self.tainted = set(trace.unknown)
        """Variables whose value rests on what could not be known."""

    def find(self) -> Iterator[NotEvaluated]:
        functions = _defined_functions(self.texts)
        for event in self.trace.events:
            command = self.lines[event.file].get((event.line, event.command))
            # What a function does with its arguments is among the events.
            if command is not None and event.command not in functions:
                yield from self._check_command(event, command)

    def _check_command(self, event: ExecutedCommand, command: CMakeCommand) -> Iterator[NotEvaluated]:
        is_condition = event.command in _CONDITIONS
        if is_condition and (self._is_decided(command) or not self._matters(event)):
            return
        if any(UNKNOWN in arg for arg in event.args) or self._reads_environment(command):
            if _hands_on(event):
                self.tainted.update(event.args[:2])
            elif event.command not in _HARMLESS or is_condition:
                yield _not_evaluated(event, command, _RESTS)
        elif is_condition:
            # One reason is enough.
            for why in self._doubts(event, command):
                yield _not_evaluated(event, command, why)
                break
        elif event.command.startswith(("add_", "target_")) and event.command not in _HARMLESS:
            for name in self._unset(command):
                variable = f"${{{name}}}"
                why = f"{event.command}() reads {variable}, which no file and no variable of the mapping sets"
                yield NotEvaluated(event.place, variable, why)
        elif event.command == "list" and self._rests_on_unknown(event) and not _hands_on(event):
            yield _not_evaluated(event, command, _RESTS)

    def _rests_on_unknown(self, event: ExecutedCommand) -> bool:
        """Whether the list that a command reads has a value that could not be known."""
        return not self.tainted.isdisjoint(event.args[1:2])

    def _matters(self, event: ExecutedCommand) -> bool:
        """Whether anything in the block may change what a target consists of."""
        return any(
            command.name not in _HARMLESS and command.name not in self.project.ignored
            for command in block(self.texts[event.file], event.line)
        )

    def _reads_environment(self, command: CMakeCommand) -> bool:
        for word in command.words:
            for name in re.findall(r"\$ENV\{(\w+)\}", word.text):
                if f"ENV{{{name}}}" not in self.project.variables:
                    return True
        return False

    def _is_decided(self, command: CMakeCommand) -> bool:
        """Whether the mapping's variables alone make one of several AND-ed terms false, so that the others do
        not matter."""
        terms: list[list[str]] = [[]]
        for word in command.words:
            if word.plain and word.text in ("OR", "("):
                return False
            if word.plain and word.text == "AND":
                terms.append([])
            else:
                terms[-1].append(word.text)
        return any(map(self._is_false, terms))

    def _is_false(self, term: list[str]) -> bool:
        if term[:2] == ["NOT", "DEFINED"]:
            return term[2:] != [] and term[2] in self.project.variables
        if len(term) != 1:
            return False
        return term[0] in ("FALSE", "OFF", "0") or truth(self.constants.get(term[0], "1")) == "0"

    def _unset(self, command: CMakeCommand) -> list[str]:
        """The variables that a command reads and nothing sets."""
        variables = (name for word in command.words for name in word.variables)
        return list(dict.fromkeys(name for name in variables if not self._is_known(name)))

    def _is_known(self, name: str) -> bool:
        if name in self.names or _SET_BY_CALLS.fullmatch(name):
            return True
        # cmake_parse_arguments sets names that begin with its prefix.
        return any(f"{name[: underscore.start()]}_" in self.names for underscore in re.finditer("_", name))

    def _doubts(self, event: ExecutedCommand, command: CMakeCommand) -> Iterator[str]:
        """Say why the answer of a condition cannot be relied on."""
        for name in self._unset(command):
            yield f"it reads ${{{name}}}, which no file and no variable of the mapping sets"
        before = ""
        for position, word in enumerate(command.words):
            after = command.words[position + 1].text if position + 1 < len(command.words) else ""
            if before == "TARGET":
                if "$" not in word.text and word.text not in self.targets:
                    yield f"whether there is a target {word.text}, no file says"
            elif before == "DEFINED" and (environment := re.fullmatch(r"ENV\{(\w+)\}", word.text)):
                if word.text not in self.project.variables:
                    yield f"{environment[1]} is a variable of the machine's environment"
            elif before in _BEFORE_NO_VARIABLE or _COMPARING.fullmatch(before):
                pass
            elif word.plain and after != "IN_LIST":
                yield from self._doubts_about_word(word.text)
            before = word.text if word.plain else ""
        for kind, arg in zip(event.args, event.args[1:], strict=False):
            if kind in _FILE_TESTS and posixpath.isabs(arg) and not arg.startswith((SOURCE, BINARY)):
                yield f"{arg} is outside the tree"

    def _doubts_about_word(self, text: str) -> Iterator[str]:
        """A plain word of a condition is a variable, unless it is an operator or a constant."""
        if not _NAME.fullmatch(text) or _is_word(text):
            return
        if text in self.tainted:
            yield f"the value of {text} is for a configure step to find out"
        elif not self._is_known(text):
            yield f"it reads {text}, which no file and no variable of the mapping sets"


def _not_evaluated(event: ExecutedCommand, command: CMakeCommand, why: str) -> NotEvaluated:
    arguments = " ".join(word.text for word in command.words)[:80]
    return NotEvaluated(event.place, f"{event.command}({arguments})", why)


def _defined_functions(texts: Mapping[str, str]) -> set[str]:
    names = set()
    for text in texts.values():
        for command in commands(text):
            if command.name in ("function", "macro") and command.words:
                names.add(command.words[0].text.lower())
    return names


def _hands_on(event: ExecutedCommand) -> bool:
    """Whether a command passes a value on unchanged."""
    kind = event.args[0] if event.args else ""
    return (
        event.command in _KEEPING
        or (event.command == "list" and kind in ("APPEND", "PREPEND", "INSERT"))
        or (event.command == "string" and kind in ("APPEND", "PREPEND", "CONCAT", "JOIN"))
    )


def _assigned_names(trace: Trace, texts: Mapping[str, str]) -> set[str]:
    """Every name that any command could set, in whichever branch: a missed name is worse than one too
    many."""
    calls = [(event.command, event.args) for event in trace.events]
    for text in texts.values():
        for command in commands(text):
            calls.append((command.name, tuple(word.text for word in command.words)))
    names: set[str] = set()
    for name, args in calls:
        if name not in _CONDITIONS and not name.startswith(("add_", "target_")):
            names.update(args)
        if name == "project" and args:
            names |= {f"{args[0]}_SOURCE_DIR", f"{args[0]}_BINARY_DIR", "PROJECT_NAME"}
        elif name == "cmake_parse_arguments":
            # With or without a value, these are set.
            prefixes = args[2:3] if args[:1] == ("PARSE_ARGV",) else args[:1]
            names |= {f"{prefix}_" for prefix in prefixes}
    return names


def _is_word(text: str) -> bool:
    """Whether this is a word of CMake's conditions, or a constant."""
    return (
        text in ("NOT", "AND", "OR", "DEFINED", "TARGET", "COMMAND", "POLICY", "TEST", "IN_LIST")
        or text.upper() in _CONSTANTS
        or text in _FILE_TESTS
        or _COMPARING.fullmatch(text) is not None
    )
