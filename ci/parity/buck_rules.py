"""Turn the calls of Buck's rules into targets: each attribute of a call is read as files, dependencies, flags
or labels, with the line on which it was written."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as MappingOf
from typing import TYPE_CHECKING, cast

from ci.parity.tree import NamedItem, NotEvaluated, Side, Target, Tree, TreePlace, normal

if TYPE_CHECKING:
    from ci.parity.buck_config import BuckConfig
    from ci.parity.buck_places import BuckPlaces
    from ci.parity.mapping import Buck

FILES = ("srcs", "src", "headers", "exported_headers", "raw_headers", "public_headers")
DEPENDENCIES = (
    *("deps", "exported_deps", "runtime_deps", "preload_deps"),
    *("fbcode_deps", "fbcode_exported_deps"),
)
_INCLUDED = frozenset({"headers", "exported_headers"})
"""Attributes whose files have the library's namespace before their names."""
FLAGS = ("preprocessor_flags", "exported_preprocessor_flags", "compiler_flags", "exported_compiler_flags")

_UNKNOWN_FILES = re.compile(r"(?:^|_)(?:srcs|headers|sources)$")
_UNKNOWN_DEPENDENCIES = re.compile(r"(?:^|_)deps$")
_NOT_COMPARED = frozenset({"external_deps", "exported_external_deps", "xplat_deps", "xplat_exported_deps"})
"""Names of packages outside any repository, and the prefix that the open-source build removes."""

UNKNOWN_BRANCH = "select() on "
"""The prefix of an element that stands for a branch that may be taken."""

TWIN = "_static"

_PROGRAMS = ("exe", "actual")
"""Attributes that are one label."""

_IN_TEXT = re.compile(r"\$\((?:location|exe|exe_target) ([^\s)\[]+)")


class RuleRecorder:
    """Records the rules that one package calls, in `side`."""

    def __init__(
        self, package: str, side: Side, tree: Tree, rules: Buck, config: BuckConfig, places: BuckPlaces
    ) -> None:
        self.package = package
        self.side = side
        self._tree = tree
        self._rules = rules
        self._config = config
        self._places = places

    def record(self, stack: str, kind: str, arguments: dict[str, object]) -> None:
        name = arguments.get("name")
        if not isinstance(name, str):
            raise ValueError(f"{kind}() without a name")
        place = self._places.find(stack, name)
        target = Target(f"//{self.package}:{name}", kind, place, self.package)
        alone = arguments.get("define_static_target") is False
        self.side.declared |= {target.name} if alone else twins(target.name)
        namespace = arguments.get("header_namespace")
        if isinstance(namespace, str):
            target.namespace = self._places.find_attribute(target.place, "header_namespace")
        else:
            namespace = self.package
        for attribute in _INCLUDED & arguments.keys():
            self._name_headers(target, namespace, arguments[attribute], stack)
        for attribute, value in arguments.items():
            for label, text in _labels_within(attribute, value):
                self.side.labels.append(NamedItem(self._label(label), self._places.find(stack, text)))
            try:
                self._attribute(target, attribute, value, stack)
            except ValueError as error:
                self._not_understood(place, attribute, f"{target.name}: {error}")
        if kind in self._rules.other_rules:
            self._record_rule(target, arguments, stack)
            return
        if target.standard is None and kind.startswith("cxx_"):
            target.standard = self._config.default_standard
        declaration = self.side.libraries.setdefault(target.name, target)
        if _same(declaration) != _same(target):
            why = f"{target.name} is declared again, and otherwise than in {declaration.place}"
            self._not_understood(place, target.name, why)

    def _record_rule(self, rule: Target, arguments: dict[str, object], stack: str) -> None:
        """A rule that compiles nothing; its dependencies are the targets whose files it reads."""
        if rule.kind == "export_file" and not arguments.get("src"):
            self._add_file(rule, rule.name.rpartition(":")[2], stack)
        if isinstance(command := arguments.get("cmd"), str):
            words = command.partition("&&")[0].removeprefix("$(exe ").split()
            program = re.search(r"[\w.+-]+(?=\)*$)", words[0])
            rule.command = (program[0] if program else "", *words[1:])
        self.side.rules.append(rule)

    def _attribute(self, library: Target, attribute: str, value: object, stack: str) -> None:
        scope = "PUBLIC" if attribute.startswith("exported_") else "PRIVATE"
        if attribute in FILES:
            for path in self._elements(library, attribute, _files_of(value)):
                self._add_file(library, path, stack)
        elif attribute in DEPENDENCIES:
            for label in self._elements(library, attribute, value):
                item = NamedItem(self._label(label), self._places.find(stack, label), scope)
                library.dependencies.append(item)
                self.side.labels.append(item)
        elif attribute in FLAGS:
            for flag in self._elements(library, attribute, value):
                library.add_flag(flag, self._places.find(stack, flag), scope)
        elif attribute == "resources":
            if isinstance(value, dict):
                # The keys of a Python library are the files; of a C++ library the values are.
                value = list(value if library.kind.startswith("python_") else value.values())
            for path in self._elements(library, attribute, value):
                self._add_file(library, path, stack, into=self.side.resources)
        elif attribute == "link_whole":
            library.archive = self._places.find_attribute(library.place, attribute) if value else None
        elif attribute == "platforms":
            names = value if isinstance(value, (list, tuple)) else [value]
            library.platforms = tuple(str(name) for name in names if name)
        elif attribute in _NOT_COMPARED or not value or isinstance(value, (bool, int)):
            return
        elif library.kind in self._rules.other_rules:
            return  # It compiles nothing.
        elif _UNKNOWN_FILES.search(attribute) or _UNKNOWN_DEPENDENCIES.search(attribute):
            why = f"{library.name} has {attribute}, which is not understood here"
            self._not_understood(library.place, attribute, why)

    def _name_headers(self, library: Target, namespace: str, value: object, stack: str) -> None:
        pairs = value.items() if isinstance(value, dict) else [(path, path) for path in _files_of(value)]
        for name, path in pairs:
            if not isinstance(name, str) or not isinstance(path, str):
                continue
            if _is_label(path):
                folder = posixpath.join(self._rules.namespace, namespace)
                library.generated.add(normal(posixpath.join(folder, name)))
            if _is_label(path) or path.startswith(UNKNOWN_BRANCH):
                continue
            full = normal(posixpath.join(self.package, path))
            included = normal(posixpath.join(namespace, name))
            if included not in (full, posixpath.join(self._rules.namespace, full)):
                library.included[included] = NamedItem(full, self._place_of_file(stack, path, full))

    def _elements(self, library: Target, attribute: str, value: object) -> Iterator[str]:
        for text in _texts(attribute, value):
            if text.startswith(UNKNOWN_BRANCH):
                self._not_understood(library.place, f"{library.name} {attribute}", text)
            else:
                yield text

    def _not_understood(self, place: TreePlace, construct: str, why: str) -> None:
        self.side.troubles.append(NotEvaluated(place, construct, why))

    def _add_file(self, library: Target, path: str, stack: str, into: list[NamedItem] | None = None) -> None:
        if _is_label(path):
            item = NamedItem(self._label(path), self._places.find(stack, path))
            self.side.labels.append(item)
            if library.kind in self._rules.other_rules:
                library.dependencies.append(item)
            return
        full = normal(posixpath.join(self.package, path))
        item = NamedItem(full, self._place_of_file(stack, path, full))
        if full in self._tree.files:
            (library.files if into is None else into).append(item)
        else:
            self.side.missing_files.append(item)

    def _label(self, label: str) -> str:
        folder, colon, name = label.partition("[")[0].partition(":")
        if not folder:
            return f"//{self.package}:{name}"
        where = self._config.folder_of(folder)
        if where is None:
            return label
        return f"//{where}:{name if colon else posixpath.basename(where)}"

    def _place_of_file(self, stack: str, path: str, full: str) -> TreePlace:
        globs = [glob for glob in self.side.globs if glob.package == self.package]
        return self._places.find_file(stack, path, full, globs)


def _files_of(value: object) -> list[object]:
    """The files of `srcs` and of headers: a list, or a dict from name to file. A source may have flags."""
    if isinstance(value, dict):
        return list(cast("MappingOf[str, object]", value).values())
    elements = cast("list[object]", value) if isinstance(value, (list, tuple)) else [value]
    return [element[0] if isinstance(element, (list, tuple)) and element else element for element in elements]


def _is_label(text: str) -> bool:
    return re.match(r":|@?[\w.-]*//", text) is not None


def _labels_within(attribute: str, value: object) -> Iterator[tuple[str, str]]:
    """Labels of programs, and those in texts as `$(location :x)`; each with its text."""
    if isinstance(value, str):
        labels = [value] if attribute in _PROGRAMS and _is_label(value) else _IN_TEXT.findall(value)
        yield from ((label, value) for label in labels)
    elif isinstance(value, (list, tuple, dict)):
        for element in value.values() if isinstance(value, dict) else value:
            yield from _labels_within("", element)


def _texts(attribute: str, value: object) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{attribute}: expected a list, found {value!r}")
    for element in cast("Iterable[object]", value):
        if not isinstance(element, str):
            raise ValueError(f"{attribute}: expected text, found {element!r}")
        yield element


def _same(library: Target) -> object:
    return (
        library.kind,
        sorted(item.name for item in library.files),
        sorted(item.name for item in library.dependencies),
    )


def twins(label: str) -> set[str]:
    """Buck's wrappers declare a second target with the same files, for static linking."""
    return {label, f"{label}{TWIN}"}
