"""Correct Buck files where the correction is certain: a change is kept only if an evaluation shows that it
removes its difference and adds none.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import TypeAlias

from ci.parity.check import Checked
from ci.parity.differences import NEW, Difference, kind_of, renamed_from
from ci.parity.mapping import Mapping
from ci.parity.model import Side, Target, is_buck, is_python, package_of
from ci.parity.starlark_text import Literal, literals, replaced, with_after, without
from ci.parity.tree import Tree

MOST_ANCHORS = 12
"""How many places are tried for one missing file; the first few have its own form, and later ones are hardly
ever right.
"""

ORDER = (
    "parity-missing-in-buck",
    "parity-dependency-missing-in-buck",
    "parity-unknown-file",
    "parity-glob-empty",
    "parity-exclude-empty",
    "parity-missing-file",
    "parity-listed-twice",
)
"""Missing files come first: one may be what an empty pattern was meant to match."""

SETTLED_BY_A_FILE = frozenset({*NEW, "parity-glob-empty", "parity-missing-file", "parity-stale-entry"})
"""Rules whose findings may go when a file is added: of its neighbours, of the name that it replaces, and of
an entry of the mapping that is about it."""

Identity: TypeAlias = tuple[str, str, str, str]

_EMPTY_LIST = re.compile(r"\[\s*\]")


def fix(tree: Tree, mapping: Mapping, current: Checked, check: Callable[[Tree], Checked]) -> dict[str, str]:
    """The changed texts by path; empty if nothing is certain. `current` is what the tree's check found."""
    changed: dict[str, str] = {}
    given_up: set[tuple[str, str, str]] = set()
    while difference := _next(current, given_up):
        step = _fixed(tree.changed(changed), mapping, check, current, difference)
        if step is None:
            given_up.add(_identity(difference)[1:])
            continue
        path, text, current = step
        changed[path] = text
    return changed


def with_line_ends_of(original: str, changed: str) -> str:
    """The changed text (with LF) with the line ends of the original."""
    return changed.replace("\n", "\r\n") if "\r\n" in original else changed


def patch(tree: Tree, changed: dict[str, str]) -> str:
    """A unified diff for `git apply`; `changed` has the texts as they are written."""
    lines: list[str] = []
    for path, text in sorted(changed.items()):
        before, after = (_lines(version) for version in (tree.original(path), text))
        for line in difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"):
            lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Lines as git counts them: by LF only."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _next(checked: Checked, given_up: set[tuple[str, str, str]]) -> Difference | None:
    for rule in ORDER:
        for difference in checked.differences:
            if difference.rule == rule and _identity(difference)[1:] not in given_up:
                return difference
    return None


def _identity(difference: Difference) -> Identity:
    """A difference without its line number, because lines move as files change."""
    return difference.place.file, difference.rule, difference.what, difference.where


def _fixed(
    tree: Tree,
    mapping: Mapping,
    check: Callable[[Tree], Checked],
    current: Checked,
    difference: Difference,
) -> tuple[str, str, Checked] | None:
    """The first change that removes all findings about the file, else the first that removes this one.

    A file for both halves of a condition belongs in the list before it."""
    before = _problems(current)
    alike = {problem for problem in before if problem[1] == difference.rule and problem[2] == difference.what}
    second: tuple[str, str, Checked] | None = None
    for path, text in _candidates(tree, mapping, current, difference):
        checked = check(tree.changed({path: text}))
        gone = before - _problems(checked)
        if not is_confirmed(current, checked):
            continue
        if not all(
            problem in alike or (difference.rule in NEW and problem[1] in SETTLED_BY_A_FILE)
            for problem in gone
        ):
            continue  # A finding disappeared that this change was not for.
        if not _package_files(checked) <= _package_files(current):
            continue  # A pattern brings an __init__.py, which may be left out on purpose.
        if _identity(difference) in gone:
            if alike <= gone:
                return path, text, checked
            second = second or (path, text, checked)
    return second


def is_confirmed(before: Checked, after: Checked) -> bool:
    """Whether no finding is new or holds for one variant more, and no library lost a dependency."""
    return _dependencies(before) <= _dependencies(after) and _counted(after) <= _counted(before)


def _bucks(checked: Checked) -> list[Side]:
    return [side for sides in checked.buck.values() for side in sides]


def _libraries(checked: Checked) -> list[Target]:
    return [library for side in _bucks(checked) for library in side.libraries.values()]


def _package_files(checked: Checked) -> set[str]:
    """Every __init__.py that a Buck library has."""
    files = (item.name for library in _libraries(checked) for item in library.files)
    return {name for name in files if posixpath.basename(name) == "__init__.py"}


def _dependencies(checked: Checked) -> set[tuple[str, str]]:
    return {(library.name, item.name) for library in _libraries(checked) for item in library.dependencies}


def _counted(checked: Checked) -> Counter[tuple[Identity, str]]:
    """Each finding, with each variant that it is for."""
    found = (*checked.differences, *checked.notes)
    return Counter((_identity(row), name) for row in found for name in row.variants or [""])


def _problems(checked: Checked) -> set[Identity]:
    return {identity for identity, _ in _counted(checked)}


def _candidates(
    tree: Tree, mapping: Mapping, checked: Checked, difference: Difference
) -> Iterator[tuple[str, str]]:
    if difference.rule in NEW:
        if posixpath.basename(difference.what) == "__init__.py":
            return
        if _swapped(checked, difference) or _left_out(checked, difference):
            return
        for file in _buck_files(tree, mapping, checked, difference):
            yield from ((file, text) for text in _with_file(tree, checked, file, difference))
    elif difference.rule == "parity-dependency-missing-in-buck":
        for file in _buck_files(tree, mapping, checked, difference):
            yield from ((file, text) for text in _with_dependency(tree, mapping, file, difference.what))
    elif is_buck(difference.place.file):
        if difference.rule == "parity-exclude-empty" and tree.match(
            difference.what, posixpath.dirname(difference.place.file)
        ):
            return  # The file exists, so somebody left it out on purpose.
        for text in _without(tree, difference):
            if difference.rule != "parity-missing-file" or not _may_be_renamed(
                tree, checked, difference, text
            ):
                yield difference.place.file, text


def _swapped(checked: Checked, difference: Difference) -> bool:
    """Whether a file of its directory is missing in Buck, and one of that name in CMake, as when a choice
    between the host's and the device's files is the wrong way round. Adding the file would bring both."""
    in_buck, in_cmake = (
        [posixpath.split(other.what) for other in checked.differences if other.rule == rule]
        for rule in ("parity-missing-in-buck", "parity-missing-in-cmake")
    )
    names = {name for _, name in in_cmake}
    return any(folder == posixpath.dirname(difference.what) and name in names for folder, name in in_buck)


def _may_be_renamed(tree: Tree, checked: Checked, difference: Difference, text: str) -> bool:
    """Whether the name of a file that is gone may stand for a new one: there is one of its directory and
    kind, CMake has the old name too, or its library would have no file left."""
    return any(
        (other.rule in NEW and kind_of(other.what) == kind_of(difference.what))
        or (other.rule == difference.rule and other.what == difference.what and not is_buck(other.place.file))
        for other in checked.differences
    ) or len(_EMPTY_LIST.findall(text)) > len(_EMPTY_LIST.findall(tree.read(difference.place.file)))


def _left_out(checked: Checked, difference: Difference) -> bool:
    """Whether an exclude names the file, so that it was left out on purpose."""
    globs = (glob for side in _bucks(checked) for glob in side.globs)
    return any(glob.exclude and difference.what in glob.matched for glob in globs)


def _buck_files(tree: Tree, mapping: Mapping, checked: Checked, difference: Difference) -> list[str]:
    """The files that declare the library that lacks it."""
    libraries = _libraries(checked)
    if difference.rule == "parity-unknown-file":
        if not is_python(difference.what):
            return []
        if old := renamed_from(difference.what, checked.differences):
            named = [other.place.file for other in checked.differences if other.what == old]
            return [path for path in dict.fromkeys(named) if is_buck(path)]
        # Only the nearest package decides about a file, and which of its libraries should have it is certain
        # only if there is one.
        folder = posixpath.dirname(difference.place.file)
        while folder and not any(posixpath.join(folder, name) in tree.files for name in mapping.buck.names):
            folder = posixpath.dirname(folder)
        own = [
            library
            for library in libraries
            if package_of(library.name) == folder and library.kind.startswith("python_")
        ]
        named = [library.place.file for library in own] if len({library.name for library in own}) == 1 else []
    else:
        # Which of several flavours should have a file is not certain.
        labels = {label for pair in mapping.pairs if pair.name == difference.where for label in pair.buck}
        own = list({library.name: library for library in libraries if library.name in labels}.values())
        times = Counter(path for library in own for path in {item.name for item in library.compiled})
        named = [library.place.file for library in own] if max(times.values(), default=1) == 1 else []
    return [path for path in dict.fromkeys(named) if path in tree.files]


def _with_file(tree: Tree, checked: Checked, file: str, difference: Difference) -> Iterator[str]:
    text = tree.read(file)
    wanted = posixpath.relpath(difference.what, posixpath.dirname(file))
    suffix = PurePosixPath(wanted).suffix
    anchors = [
        literal for literal in literals(text) if literal.value.endswith(suffix) and literal.value != wanted
    ]
    # Of equal anchors, take the one before it in the alphabet.
    anchors.sort(key=lambda literal: literal.value, reverse=True)
    anchors.sort(key=lambda literal: (_distance(literal.value, wanted), literal.value > wanted))
    dead = set(_dead(checked, file, difference))
    for literal in anchors:
        if (literal.line, literal.value) in dead:
            yield replaced(text, literal, _as(literal, wanted))
    if difference.rule == "parity-unknown-file":
        # A library that names its modules one by one leaves out others on purpose.
        anchors = [literal for literal in anchors if "*" in literal.value]
    for literal in anchors[:MOST_ANCHORS]:
        if "*" in literal.value or "/" not in wanted:
            yield with_after(text, literal, _as(literal, wanted))
        yield with_after(text, literal, wanted)


def _dead(checked: Checked, file: str, difference: Difference) -> Iterator[tuple[int, str]]:
    """Lines and values of literals that match no file: patterns, and the renamed file."""
    old = renamed_from(difference.what, checked.differences)
    for other in checked.differences:
        if other.place.file == file and other.rule == "parity-glob-empty":
            yield other.place.line, other.what
        elif other.place.file == file and other.rule == "parity-missing-file" and other.what == old:
            yield other.place.line, posixpath.relpath(other.what, posixpath.dirname(file))


def _as(anchor: Literal, wanted: str) -> str:
    """The wanted file in the form of an anchor: a pattern if the anchor is one."""
    if "*" not in anchor.value:
        return wanted
    return posixpath.join(posixpath.dirname(wanted), f"*{PurePosixPath(wanted).suffix}")


def _distance(value: str, wanted: str) -> tuple[int, int, int]:
    """How unlike two paths are: by depth, then by directories, then whether it is no pattern."""
    left, right = value.split("/")[:-1], wanted.split("/")[:-1]
    unlike = sum(one != other for one, other in zip(reversed(left), reversed(right), strict=False))
    return abs(len(left) - len(right)), unlike, 0 if "*" in value else 1


def _with_dependency(tree: Tree, mapping: Mapping, file: str, node: str) -> Iterator[str]:
    text = tree.read(file)
    names = next((entry.buck for entry in mapping.dependencies if entry.name == node), ())
    if node.startswith("//"):
        names = (node,)
    elif not names:
        names = next((pair.buck for pair in mapping.pairs if f"pair {pair.name}" == node), ())
    if len(names) != 1:
        return
    value = _spelt(mapping, names[0], posixpath.dirname(file))
    for literal in literals(text):
        if literal.value.startswith(("//", ":", "fbsource//")) and ".bzl" not in literal.value:
            yield with_after(text, literal, value)


def _spelt(mapping: Mapping, label: str, package: str) -> str:
    """A label as the files write it: their own targets as `:name`, others from the tree's cell."""
    if label.startswith(f"//{package}:"):
        return label[len(package) + 2 :]
    cells = mapping.buck.cells.items()
    cell = next((cell for cell, begins in cells if cell.startswith("//") and not begins), "")
    return f"{cell}{label[1:]}" if cell and label.startswith("//") else label


def _without(tree: Tree, difference: Difference) -> Iterator[str]:
    text = tree.read(difference.place.file)
    package = posixpath.dirname(difference.place.file)
    names = {difference.what, posixpath.relpath(difference.what, package)} if difference.what else set()
    for literal in literals(text):
        if literal.line == difference.place.line and literal.value in names:
            yield without(text, literal)
