"""Evaluate Buck's files with a Starlark interpreter: every library that they declare, for each variant.

Small functions of ours replace Buck's. `evaluate` goes through the packages; an `Evaluation` runs the files
of one package, with the files that they load. What a file reads and calls is answered here; each call of a
rule is recorded by `buck_rules`. Anything else that a file needs and the mapping does not define is reported
as not evaluated.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingOf
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from ci.parity.buck_config import BuckConfig
from ci.parity.buck_places import PRELUDE, BuckPlaces, cause_of
from ci.parity.buck_rules import UNKNOWN_BRANCH, RuleRecorder
from ci.parity.mapping import MACROS
from ci.parity.starlark_texts import loads, used_as_values
from ci.parity.tree import Glob, NotEvaluated, Side, Tree
from provisioning.base.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ci.parity.mapping import Buck, Load, Mapping, Variant

_ANY_SYSTEM = "ovr_config//os:"
"""A constraint on an operating system that no variant is for is false."""

_GLOBALS = ("glob", "select", "native", "read_config", "package_name", "oncall")
"""Names that a line before each file loads. So the interpreter's line numbers are one too high; `buck_places`
corrects that."""

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
        raise CheckFailed(f"cannot evaluate {path}: {cause_of(str(error))}", fix=f"correct {path}") from error
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
        self.places = BuckPlaces(tree)
        self.config = BuckConfig(tree, self.rules.cells, self._report)
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

    def _report(self, problem: NotEvaluated) -> None:
        self.side.troubles.append(problem)

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
            self._report(self.places.describe_error(path, str(error)))

    def _module(self, path: str, text: str) -> Any:
        module = self.sl.Module()
        self.by_builder = self.by_builder or any(question in text for question in self.builder)
        names = [*_GLOBALS]
        if posixpath.basename(path) in self.rules.files:
            # A .bzl file reaches the rules through `native` alone.
            imports = {name for _, names in loads(text) for name in names}
            names += [name for name in self._rule_names if name not in imports]
        first = f"load({', '.join(json.dumps(name) for name in (PRELUDE, *names))})\n"
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
        if label == PRELUDE:
            return self.prelude
        outside = next((load for load in self.rules.loads if load.label == label), None)
        if outside is not None:
            return self._stand_in(label, outside)
        path = self.path_of(label)
        if path is None:
            return self._evaluate_lines(label, self._undefined(label))
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
                self.modules[path] = f"and {path} cannot be evaluated: {cause_of(str(error))}"
        if isinstance(why := self.modules[path], str):
            return self._evaluate_lines(label, self._undefined(label, why=why))
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
        if path := self.config.file_in_cell(folder, name):
            return path
        where = self.config.folder_of(folder)
        return None if where is None else posixpath.join(where, name)

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
        return self._evaluate_lines(label, lines + self._undefined(label, globals_))

    def _evaluate_lines(self, label: str, lines: list[str]) -> Any:
        names = ("make_rule", "make_text", "make_answer", "make_undefined", "calls")
        key = (label, *lines)
        if key not in self.stand_ins:
            lines = [f'load("{PRELUDE}", {", ".join(map(json.dumps, names))})', *lines]
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
            "_read_config": self.config.get,
            "_package": lambda: self.package,
            "_record": self._record,
        }
        for name, function in functions.items():
            module.add_callable(name, function)
        rules = "".join(f"{name} = make_rule({json.dumps(name)})\n" for name in self._rule_names)
        fields = ("glob", "read_config", "package_name", *self._rule_names)
        text = f"{_FUNCTIONS}{rules}native = struct({', '.join(f'{name} = {name}' for name in fields)})\n"
        self.sl.eval(module, self.sl.parse(PRELUDE, text, self._dialect), self.globals)
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
        place = self.places.find(stack, pattern)
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
            f"{UNKNOWN_BRANCH}{key}, which no variant of the mapping names"
            for key in keys
            if key != "DEFAULT" and key not in self.constraints and not key.startswith(_ANY_SYSTEM)
        ]
        self.by_variant = self.by_variant or not self.constraints.isdisjoint(keys)
        for key in (*self.selected, "DEFAULT"):
            if key in keys:
                return key, unknown
        if not unknown:
            unknown = [f"{UNKNOWN_BRANCH}{sorted(keys)}, none of which holds, and there is no DEFAULT"]
        return None, unknown

    def _record(self, stack: str, kind: str, arguments: dict[str, object]) -> None:
        recorder = RuleRecorder(self.package, self.side, self.tree, self.rules, self.config, self.places)
        recorder.record(stack, kind, arguments)
