"""Buck files, evaluated by a Starlark interpreter: every library they declare, for one variant.

Small functions of ours replace Buck's. They record their arguments and the line of the call. Anything else
that a file needs and the mapping does not define is reported as not evaluated.
"""

from __future__ import annotations

import configparser
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from ci.parity.mapping import MACROS
from ci.parity.starlark_texts import Literal, literals, loads, nearest, used_as_values
from ci.parity.tree import (
    Glob,
    NamedItem,
    NotEvaluated,
    Side,
    Target,
    Tree,
    TreePlace,
    normal,
)
from provisioning.base.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ci.parity.mapping import Buck, Load, Mapping, Variant

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

_ANY_SYSTEM = "ovr_config//os:"
"""A constraint on an operating system that no variant is for is false."""

_UNKNOWN_BRANCH = "select() on "
"""The prefix of an element that stands for a branch that may be taken."""

TWIN = "_static"

_PROGRAMS = ("exe", "actual")
"""Attributes that are one label."""

_IN_TEXT = re.compile(r"\$\((?:location|exe|exe_target) ([^\s)\[]+)")

_PRELUDE = ":prelude"
_GLOBALS = ("glob", "select", "native", "read_config", "package_name", "oncall")
"""Names that a line before each file loads. So the interpreter's line numbers are one too high; `_place_at`
corrects that."""

_FRAME = re.compile(r"^  \* (?P<file>[^\n]+?):(?P<line>\d+), in ", re.MULTILINE)
_ERROR_AT = re.compile(r"^\s*--> (?P<file>[^\n]+?):(?P<line>\d+):\d+(?:-[\d:]+)?$", re.MULTILINE)
_ERROR_SAYS = re.compile(r"^error: (?P<says>.+)$", re.MULTILINE)
_WRAPPED = re.compile(r"^(?:(?:StarlarkError|LookupError|ValueError|error|fail): )+")

_OUTSIDE = "which is outside the tree and in no [[buck.loads]]"

_FUNCTIONS = """
def glob(include, exclude = [], **options):
    return _glob(call_stack(), include, exclude, sorted(options.keys()))
def select(branches):
    key, unknown = _select(branches.keys())
    value = branches[key] if key != None else []
    if type(value) == "list":
        return value + unknown
    return value | {one: one for one in unknown} if type(value) == "dict" else value
def read_config(section, key, default = None):
    return _read_config(section, key, default)
def package_name():
    return _package()
def oncall(*names): pass
def make_rule(kind):
    return lambda **arguments: _record(call_stack(), kind, arguments)
def make_text(name):
    return lambda *arguments: "//:".join([name] + [str(one) for one in arguments])
def calls(_kind = None, **arguments):
    if _kind: _kind(**arguments)
def make_answer(value):
    return lambda *arguments, **named: value
def make_undefined(name, label, why):
    return lambda *arguments, **named: fail("{}() comes from {}, {}".format(name, label, why))
"""


def evaluate(tree: Tree, mapping: Mapping) -> dict[str, list[Side]]:
    """Every library under the mapping's roots, by variant, for each of its builders.

    A package that depends on neither variant nor builder is evaluated once."""
    rules, evaluation = mapping.buck, Evaluation(tree, mapping)
    sides: dict[str, list[Side]] = {}
    for variant in mapping.variants:
        sides[variant.name] = [Side() for _ in rules.builders]
    for package in packages(tree, rules, mapping.scope.roots):
        parts: dict[tuple[str | None, int | None], Side] = {}
        for variant, number in product(mapping.variants, range(len(rules.builders))):
            name = variant.name
            keys = ((name, number), (name, None), (None, number), (None, None))
            part = next((parts[key] for key in keys if key in parts), None)
            if part is None:
                part = evaluation.run(package, variant, rules.builders[number])
                key = name if evaluation.by_variant else None, number if evaluation.by_builder else None
                parts[key] = part
            sides[name][number].add(part)
    evaluation.forget()
    return sides


def lists(tree: Tree, path: str) -> dict[str, str]:
    """The lists of a file without load(), by name, each with `;` between its elements."""
    import starlark

    module, text = starlark.Module(), tree.read(path)
    try:
        program = starlark.parse(path, text, starlark.Dialect.extended())
        starlark.eval(module, program, starlark.Globals.standard())
    except starlark.StarlarkError as error:
        raise CheckFailed(f"cannot evaluate {path}: {_why(str(error))}", fix=f"correct {path}") from error
    values = {name: module[name] for name in re.findall(r"^(\w+) =", text, re.MULTILINE)}
    return {name: ";".join(map(str, value)) for name, value in values.items() if isinstance(value, list)}


def packages(tree: Tree, rules: Buck, roots: Sequence[str]) -> list[str]:
    paths = (path for root in roots for path in tree.under(root))
    return sorted({posixpath.dirname(path) for path in paths if posixpath.basename(path) in rules.names})


class Evaluation:
    """Evaluates one package after the other."""

    def __init__(self, tree: Tree, mapping: Mapping) -> None:
        import starlark

        self.sl = starlark
        self.tree, self.rules = tree, mapping.buck
        self.roots = tuple(f"{root}/" for root in mapping.scope.roots)
        self.constraints = {key for variant in mapping.variants for key in variant.select}
        self.side = Side()
        self.selected: tuple[str, ...] = ()
        self.builder: MappingOf[str, bool] = {}
        self.by_variant = self.by_builder = False
        """Whether the current package depends on the variant, and on who builds."""
        self.package = ""
        self.modules: dict[str, object] = {}
        """Modules of the current package by path or label: macros know the package that calls them."""
        self.stand_ins: dict[tuple[str, ...], Any] = {}
        """Stand-ins by content; these know no package."""
        self.open: list[str] = []
        """The files that are being evaluated; each was loaded by the one before."""
        self.literals: dict[str, Sequence[Literal]] = {}
        extension = starlark.LibraryExtension
        self.globals = starlark.Globals.extended_by([extension.StructType, extension.CallStack])
        self.prelude = self._prelude()

    def run(self, package: str, variant: Variant, builder: MappingOf[str, bool]) -> Side:
        self.package = package
        self.selected, self.builder = variant.select, builder
        self.by_variant = self.by_builder = False
        self.side = Side(packages={package})
        self.modules = {}
        own = [name for name in self.rules.files if posixpath.join(package, name) in self.tree.files]
        for name in own:
            path = posixpath.join(package, name)
            self._guarded(path, self.tree.read(path))
        if not own:
            path = posixpath.join(package, MACROS)
            if re.search(rf"^def {self.rules.entry}\b", self.tree.read(path), re.MULTILINE):
                self._guarded(path, f"{self.tree.read(path)}\n{self.rules.entry}()\n")
            else:
                self._guarded(path, self.tree.read(path))
        return self.side

    def forget(self) -> None:
        """Release the interpreter's modules, which hold our functions where the garbage collector does not
        look."""
        self.prelude = None
        self.modules = {}
        self.stand_ins = {}

    def _guarded(self, path: str, text: str) -> None:
        try:
            self._module(path, text)
        except self.sl.StarlarkError as error:
            self.side.failed.add(self.package)
            self._trouble(path, str(error))

    def _module(self, path: str, text: str) -> Any:
        module = self.sl.Module()
        self.by_builder = self.by_builder or any(question in text for question in self.builder)
        names = [*_GLOBALS]
        if posixpath.basename(path) in self.rules.files:
            # A .bzl file reaches the rules through `native` alone.
            imports = {name for _, names in loads(text) for name in names}
            names += [name for name in self._rule_names if name not in imports]
        first = f"load({', '.join(json.dumps(name) for name in (_PRELUDE, *names))})\n"
        program = self.sl.parse(path, first + text, self._dialect)
        self.open.append(path)
        try:
            self.sl.eval(module, program, self.globals, self.sl.FileLoader(self._load))
        finally:
            self.open.pop()
        return module.freeze()

    @cached_property
    def _dialect(self) -> Any:
        dialect = self.sl.Dialect.extended()
        dialect.enable_f_strings = True
        dialect.enable_load_reexport = True
        dialect.enable_types = self.sl.DialectTypes.PARSE_ONLY
        return dialect

    # What the files load

    def _load(self, label: str) -> Any:
        if label == _PRELUDE:
            return self.prelude
        outside = next((load for load in self.rules.loads if load.label == label), None)
        if outside is not None:
            return self._stand_in(label, outside)
        path = self.path_of(label)
        if path is None:
            return self._frozen(label, self._undefined(label))
        if path in self.open:
            raise LookupError(f"{label} is {path}, which is being loaded already")
        if path not in self.tree.files:
            raise LookupError(f"{label} is {path}, which does not exist")
        if path not in self.modules:
            try:
                self.modules[path] = self._module(path, self.tree.read(path))
            except self.sl.StarlarkError as error:
                if path.startswith(self.roots):
                    raise
                self.modules[path] = f"and {path} cannot be evaluated: {_why(str(error))}"
        if isinstance(why := self.modules[path], str):
            return self._frozen(label, self._undefined(label, why=why))
        return self.modules[path]

    @property
    def _rule_names(self) -> tuple[str, ...]:
        return (*self.rules.rules, *self.rules.other_rules)

    def path_of(self, label: str) -> str | None:
        """Find the file of a label, first in Buck's own way: by the cells of .buckconfig."""
        folder, _, name = label.rpartition(":")
        if not folder and label.startswith(":"):
            return posixpath.join(posixpath.dirname(self.open[-1]), name)
        if not folder:
            # The older form: a path with slashes only.
            folder, _, name = label.rpartition("/")
        cell, slashes, path_in_cell = folder.removeprefix("@").partition("//")
        if slashes and (begins := self._cells.get(cell)) is not None:
            path = normal(posixpath.join(begins, path_in_cell, name))
            if path in self.tree.files:
                return path
        where = self._folder_of_cell(folder)
        return None if where is None else posixpath.join(where, name)

    @cached_property
    def _cells(self) -> dict[str, str]:
        """The folder of the tree in which each cell begins, by its name and its aliases."""
        cells: dict[str, str] = {}
        for section in ("repositories", "cells"):
            if self._config.has_section(section):
                cells |= {name: normal(path or "") for name, path in self._config.items(section, raw=True)}
        for section in ("repository_aliases", "cell_aliases"):
            if self._config.has_section(section):
                aliases = self._config.items(section, raw=True)
                cells |= {name: cells[cell] for name, cell in aliases if cell in cells}
        return cells

    def _folder_of_cell(self, folder: str) -> str | None:
        for prefix, begins in sorted(self.rules.cells.items(), key=lambda cell: -len(cell[0])):
            if folder == prefix or folder.startswith(prefix.rstrip("/") + "/"):
                return normal(posixpath.join(begins, folder[len(prefix) :].lstrip("/")))
        return None

    def _undefined(self, label: str, definitions: Iterable[str] = (), why: str = _OUTSIDE) -> list[str]:
        """Functions that fail when they are called, for undefined names: a name that is loaded and not used
        does no harm.

        Raises LookupError if one is used as anything else."""
        text = self.tree.read(self.open[-1])
        names = {own: name for origin, names in loads(text) if origin == label for own, name in names.items()}
        gaps = {own: name for own, name in names.items() if name not in definitions}
        if values := gaps.keys() & used_as_values(text):
            raise LookupError(f"{min(values)} comes from {label}, {why}")
        return [
            f"{name} = make_undefined({', '.join(map(json.dumps, (name, label, why)))})"
            for name in gaps.values()
        ]

    def _stand_in(self, label: str, load: Load) -> Any:
        globals_ = dict.fromkeys(load.calls, "calls")
        globals_ |= {name: f"make_answer({value!r})" for name, value in load.answers.items()}
        globals_ |= {name: f"make_answer({self.builder[name]!r})" for name in load.asks}
        globals_ |= {name: repr(value) for name, value in load.values.items()}
        rules = {name: f'make_rule("{name}")' for name in self._rule_names}
        fields = {
            **rules,
            **{name: f'make_text("{name}")' for name in self.rules.texts},
            "is_oss": repr(self.builder["is_oss"]),
        }
        struct = ", ".join(f"{name} = {value}" for name, value in fields.items())
        globals_ |= dict.fromkeys(load.rules, f"struct({struct})")
        if not load.rules:
            globals_ |= rules
        lines = [f"{name} = {value}" for name, value in globals_.items()]
        return self._frozen(label, lines + self._undefined(label, globals_))

    def _frozen(self, label: str, lines: list[str]) -> Any:
        names = ("make_rule", "make_text", "make_answer", "make_undefined", "calls")
        key = (label, *lines)
        if key not in self.stand_ins:
            lines = [f'load("{_PRELUDE}", {", ".join(map(json.dumps, names))})', *lines]
            module = self.sl.Module()
            program = self.sl.parse(label, "\n".join(lines) + "\n", self._dialect)
            self.sl.eval(module, program, self.globals, self.sl.FileLoader(self._load))
            self.stand_ins[key] = module.freeze()
        return self.stand_ins[key]

    def _prelude(self) -> Any:
        module = self.sl.Module()
        functions: dict[str, Callable[..., object]] = {
            "_glob": self._glob,
            "_select": self._select,
            "_read_config": self._read_config,
            "_package": lambda: self.package,
            "_record": self._record,
        }
        for name, function in functions.items():
            module.add_callable(name, function)
        rules = "".join(f"{name} = make_rule({json.dumps(name)})\n" for name in self._rule_names)
        fields = ("glob", "read_config", "package_name", *self._rule_names)
        text = f"{_FUNCTIONS}{rules}native = struct({', '.join(f'{name} = {name}' for name in fields)})\n"
        self.sl.eval(module, self.sl.parse(_PRELUDE, text, self._dialect), self.globals)
        return module.freeze()

    # What the files call

    def _glob(self, stack: str, include: list[str], exclude: list[str], options: list[str]) -> list[str]:
        for option in options:
            if option not in ("include_dotfiles", "exclude_directories", "allow_empty"):
                raise ValueError(f"glob() with {option}")
        members: set[str] = set()
        exclusions: set[str] = set()
        for pattern in include:
            members |= self._matched(stack, pattern, frozenset(), exclude=False)
        for pattern in exclude:
            exclusions |= self._matched(stack, pattern, frozenset(members), exclude=True)
        start = len(self.package) + 1 if self.package else 0
        return sorted(path[start:] for path in members - exclusions)

    def _matched(self, stack: str, pattern: str, files: frozenset[str], *, exclude: bool) -> frozenset[str]:
        paths = self.tree.match(pattern, self.package)
        # The globs of a package stop where another one begins below it.
        prefix = f"{self.package}/" if self.package else ""
        subpackages = tuple(f"{name}/" for name in self._packages if name.startswith(prefix) and name)
        paths = frozenset(path for path in paths if not path.startswith(subpackages))
        if exclude:
            paths &= files
        place = self._place(stack, pattern)
        self.side.globs.append(Glob(pattern, self.package, place, paths, exclude))
        return paths

    @cached_property
    def _packages(self) -> tuple[str, ...]:
        names = frozenset(self.rules.files)
        folders = {posixpath.dirname(path) for path in self.tree.files if posixpath.basename(path) in names}
        return tuple(sorted(folders))

    def _select(self, keys: list[str]) -> tuple[str | None, list[str]]:
        """The branch to take, and a word for each other branch that may apply."""
        unknown = [
            f"{_UNKNOWN_BRANCH}{key}, which no variant of the mapping names"
            for key in keys
            if key != "DEFAULT" and key not in self.constraints and not key.startswith(_ANY_SYSTEM)
        ]
        self.by_variant = self.by_variant or not self.constraints.isdisjoint(keys)
        for key in (*self.selected, "DEFAULT"):
            if key in keys:
                return key, unknown
        if not unknown:
            unknown = [f"{_UNKNOWN_BRANCH}{sorted(keys)}, none of which holds, and there is no DEFAULT"]
        return None, unknown

    def _read_config(self, section: str, key: str, default: object) -> object:
        return self._config.get(section, key, raw=True, fallback=default)

    @cached_property
    def _config(self) -> configparser.ConfigParser:
        config = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
        if ".buckconfig" in self.tree.files:
            try:
                config.read_string(self.tree.read(".buckconfig"))
            except configparser.Error as error:
                line = getattr(error, "lineno", None) or 1
                self.side.troubles.append(
                    NotEvaluated(TreePlace(".buckconfig", line), ".buckconfig", str(error))
                )
        return config

    def _record(self, stack: str, kind: str, arguments: dict[str, object]) -> None:
        name = arguments.get("name")
        if not isinstance(name, str):
            raise ValueError(f"{kind}() without a name")
        place = self._place(stack, name)
        target = Target(f"//{self.package}:{name}", kind, place, self.package)
        alone = arguments.get("define_static_target") is False
        self.side.declared |= {target.name} if alone else twins(target.name)
        namespace = arguments.get("header_namespace")
        if isinstance(namespace, str):
            target.namespace = self._place_of_attribute(target, "header_namespace")
        else:
            namespace = self.package
        for attribute in _INCLUDED & arguments.keys():
            self._name_headers(target, namespace, arguments[attribute], stack)
        for attribute, value in arguments.items():
            for label, text in _labels_within(attribute, value):
                self.side.labels.append(NamedItem(self._label(label), self._place(stack, text)))
            try:
                self._attribute(target, attribute, value, stack)
            except ValueError as error:
                self._not_understood(place, attribute, f"{target.name}: {error}")
        if kind in self.rules.other_rules:
            self._record_rule(target, arguments, stack)
            return
        if target.standard is None and kind.startswith("cxx_"):
            target.standard = self._default_standard
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
                item = NamedItem(self._label(label), self._place(stack, label), scope)
                library.dependencies.append(item)
                self.side.labels.append(item)
        elif attribute in FLAGS:
            for flag in self._elements(library, attribute, value):
                library.add_flag(flag, self._place(stack, flag), scope)
        elif attribute == "resources":
            if isinstance(value, dict):
                # The keys of a Python library are the files; of a C++ library the values are.
                value = list(value if library.kind.startswith("python_") else value.values())
            for path in self._elements(library, attribute, value):
                self._add_file(library, path, stack, into=self.side.resources)
        elif attribute == "link_whole":
            library.archive = self._place_of_attribute(library, attribute) if value else None
        elif attribute == "platforms":
            names = value if isinstance(value, (list, tuple)) else [value]
            library.platforms = tuple(str(name) for name in names if name)
        elif attribute in _NOT_COMPARED or not value or isinstance(value, (bool, int)):
            return
        elif library.kind in self.rules.other_rules:
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
                folder = posixpath.join(self.rules.namespace, namespace)
                library.generated.add(normal(posixpath.join(folder, name)))
            if _is_label(path) or path.startswith(_UNKNOWN_BRANCH):
                continue
            full = normal(posixpath.join(self.package, path))
            included = normal(posixpath.join(namespace, name))
            if included not in (full, posixpath.join(self.rules.namespace, full)):
                library.included[included] = NamedItem(full, self._place_of_file(stack, path, full))

    def _elements(self, library: Target, attribute: str, value: object) -> Iterator[str]:
        for text in _texts(attribute, value):
            if text.startswith(_UNKNOWN_BRANCH):
                self._not_understood(library.place, f"{library.name} {attribute}", text)
            else:
                yield text

    def _not_understood(self, place: TreePlace, construct: str, why: str) -> None:
        self.side.troubles.append(NotEvaluated(place, construct, why))

    def _place_of_attribute(self, library: Target, attribute: str) -> TreePlace:
        """The first line that names it, from the library's name on."""
        lines = self.tree.read(library.place.file).split("\n")
        at = library.place.line
        line_numbers = (
            at + more for more, line in enumerate(lines[at - 1 :]) if re.match(rf"\s*{attribute}\b", line)
        )
        return TreePlace(library.place.file, next(line_numbers, at))

    @cached_property
    def _default_standard(self) -> NamedItem | None:
        """The standard that .buckconfig sets for every C++ library."""
        flags = self._config.get("cxx", "cxxflags", raw=True, fallback="") or ""
        match = re.search(r"-std=\S*?(\d+)\b", flags)
        if match is None:
            return None
        before = self.tree.read(".buckconfig").partition(match[0])[0]
        return NamedItem(match[1], TreePlace(".buckconfig", before.count("\n") + 1))

    def _add_file(self, library: Target, path: str, stack: str, into: list[NamedItem] | None = None) -> None:
        if _is_label(path):
            item = NamedItem(self._label(path), self._place(stack, path))
            self.side.labels.append(item)
            if library.kind in self.rules.other_rules:
                library.dependencies.append(item)
            return
        full = normal(posixpath.join(self.package, path))
        item = NamedItem(full, self._place_of_file(stack, path, full))
        if full in self.tree.files:
            (library.files if into is None else into).append(item)
        else:
            self.side.missing_files.append(item)

    def _label(self, label: str) -> str:
        folder, colon, name = label.partition("[")[0].partition(":")
        if not folder:
            return f"//{self.package}:{name}"
        where = self._folder_of_cell(folder)
        if where is None:
            return label
        return f"//{where}:{name if colon else posixpath.basename(where)}"

    # Where things were written

    def _place(self, stack: str, value: str) -> TreePlace:
        """The literal, in the file of any caller; else the line of the call."""
        frames = _frames(stack)
        for frame in frames:
            if literal := nearest(self._literals_of(frame.file), value, frame.line):
                return TreePlace(frame.file, literal.line)
        return frames[0]

    def _place_of_file(self, stack: str, path: str, full: str) -> TreePlace:
        for use in reversed(self.side.globs):
            if use.package == self.package and not use.exclude and full in use.matched:
                frames = _frames(stack)
                if not any(nearest(self._literals_of(frame.file), path, frame.line) for frame in frames):
                    return use.place
        return self._place(stack, path)

    def _literals_of(self, file: str) -> Sequence[Literal]:
        if file not in self.literals:
            self.literals[file] = literals(self.tree.read(file)) if file in self.tree.files else ()
        return self.literals[file]

    def _trouble(self, path: str, text: str) -> None:
        at = [_place_at(match) for match in _ERROR_AT.finditer(text)]
        at += _frames(text)
        why = _why(text)
        place = next((place for place in at if place.file in self.tree.files), TreePlace(path, 1))
        lines = self.tree.read(place.file).count("\n") + 1
        self.side.troubles.append(NotEvaluated(TreePlace(place.file, min(place.line, lines)), path, why))


def _why(text: str) -> str:
    """An interpreter's error without its frames."""
    match = _ERROR_SAYS.search(text)
    return _WRAPPED.sub("", match["says"] if match else text.strip())


@lru_cache(maxsize=64)
def _frames(stack: str) -> tuple[TreePlace, ...]:
    """Calls from the innermost outwards, without our own functions."""
    places = [_place_at(match) for match in _FRAME.finditer(stack)]
    return tuple(place for place in reversed(places) if place.file != _PRELUDE)


def _place_at(match: re.Match[str]) -> TreePlace:
    return TreePlace(match["file"], max(int(match["line"]) - 1, 1))


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
