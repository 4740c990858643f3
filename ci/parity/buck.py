"""Buck files, evaluated by a Starlark interpreter: every library they declare, for one variant.

Small functions of our own stand in for Buck's: they record what they are called with and the line they are
called from. Anything else that a file asks for and the mapping does not give is reported as not evaluated.
"""

from __future__ import annotations

import configparser
import json
import posixpath
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

from ci.parity.model import Glob, Item, Library, Place, Side, Trouble, is_source
from ci.parity.starlark_text import TOKEN, Literal, literals, nearest
from ci.parity.tree import Tree, normal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ci.parity.mapping import Buck, Load, Value, Variant

FILES = ("srcs", "headers", "exported_headers", "raw_headers", "public_headers")
DEPENDENCIES = ("deps", "exported_deps", "runtime_deps")
KNOWN = frozenset((*FILES, *DEPENDENCIES, "name"))

MOST_SECONDS = 10.0
"""For one directory, which takes some milliseconds: a loop without end is a finding too."""

_UNKNOWN_FILES = re.compile(r"(?:^|_)(?:srcs|headers|sources)$")
_UNKNOWN_DEPENDENCIES = re.compile(r"(?:^|_)deps$")
_EXTERNAL = frozenset({"external_deps", "exported_external_deps"})
"""Names of packages outside any repository, which have no counterpart on the CMake side."""

_LABELS = (":", "//", "@")
"""How what another target makes begins."""

_PRELUDE = ":prelude"
_FIRST_LINE = f'load("{_PRELUDE}", "glob", "select", "native", "read_config", "package_name", "oncall")\n'
"""Before each file, so that the interpreter's line numbers are one too many: `_place_at` takes it off."""

_LOAD = re.compile(r"""\bload\(\s*(["'])(?P<label>[^"'\n]+)\1(?P<names>[^)]*)\)""")
_LOADED = re.compile(r"""(?:(?P<own>\w+)\s*=\s*)?["'](?P<name>\w+)["']""")
_FRAME = re.compile(r"^  \* (?P<file>[^\n]+?):(?P<line>\d+), in ", re.MULTILINE)
_ERROR_AT = re.compile(r"^\s*--> (?P<file>[^\n]+?):(?P<line>\d+):\d+(?:-[\d:]+)?$", re.MULTILINE)
_ERROR_SAYS = re.compile(r"^error: (?P<says>.+)$", re.MULTILINE)
_WRAPPED = re.compile(r"^(?:(?:StarlarkError|LookupError|ValueError|error|fail): )+")

_STRANGE = "which is outside the tree and in no [[buck.loads]]"

_FUNCTIONS = (
    f"STRANGE = {json.dumps(_STRANGE)}"
    + """
def glob(include, exclude = [], **options):
    return _glob(call_stack(), include, exclude, sorted(options.keys()))
def select(branches):
    return branches[_select(call_stack(), branches.keys())]
def read_config(section, key, default = None):
    return _read_config(section, key, default)
def package_name():
    return _package()
def oncall(*names): pass
def _rule(kind):
    return lambda **given: _record(call_stack(), kind, given)
def _other(**given): pass
def _text(name):
    return lambda *given: "//:".join([name] + [str(one) for one in given])
def _calls(_kind = None, **given):
    if _kind: _kind(**given)
def _answer(value):
    return lambda *given, **named: value
def _stranger(name, label):
    return lambda *given, **named: fail("{}() comes from {}, ".format(name, label) + STRANGE)
native = struct(glob = glob, read_config = read_config, package_name = package_name)
"""
)


def evaluate(tree: Tree, rules: Buck, variant: Variant, constraints: frozenset[str], root: str) -> Side:
    """Every library under `root`. `constraints` are those that any variant names."""
    evaluation = _Evaluation(tree, rules, variant, constraints)
    for package in packages(tree, rules, root):
        evaluation.run(package)
    evaluation.forget()
    return evaluation.side


def packages(tree: Tree, rules: Buck, root: str) -> list[str]:
    names = {*rules.files, "targets.bzl"}
    folders = {posixpath.dirname(path) for path in tree.under(root) if posixpath.basename(path) in names}
    return sorted(folders)


class _Evaluation:
    def __init__(self, tree: Tree, rules: Buck, variant: Variant, constraints: frozenset[str]) -> None:
        import starlark

        self.sl = starlark
        self.tree, self.rules, self.variant, self.constraints = tree, rules, variant, constraints
        self.side = Side()
        self.package = ""
        self.loaded: dict[str, Any] = {}
        """By path or label, for the package at hand: macros know the package that they are called from."""
        self.stand_ins: dict[tuple[str, ...], Any] = {}
        """By what they say; they know no package."""
        self.open: list[str] = []
        """The files being evaluated, each loaded by the one before."""
        self.literals: dict[str, Sequence[Literal]] = {}
        extension = starlark.LibraryExtension
        self.globals = starlark.Globals.extended_by([extension.StructType, extension.CallStack])
        self.prelude = self._prelude()
        self.deadline = time.monotonic() + MOST_SECONDS
        self.options: Any = starlark.EvalOptions(check_cancelled=lambda: time.monotonic() > self.deadline)

    def run(self, package: str) -> None:
        self.package = package
        self.loaded = {}
        self.deadline = time.monotonic() + MOST_SECONDS
        own = [name for name in self.rules.files if posixpath.join(package, name) in self.tree.files]
        for name in own:
            path = posixpath.join(package, name)
            self._guarded(path, self.tree.read(path))
        if not own:
            path = posixpath.join(package, "targets.bzl")
            if re.search(rf"^def {self.rules.entry}\b", self.tree.read(path), re.MULTILINE):
                self._guarded(path, f"{self.tree.read(path)}\n{self.rules.entry}()\n")
            else:
                self._guarded(path, self.tree.read(path))

    def forget(self) -> None:
        """Let go of the interpreter's modules, which hold our functions where no garbage collector looks."""
        self.prelude = self.options = None
        self.loaded = {}
        self.stand_ins = {}

    def _guarded(self, path: str, text: str) -> None:
        try:
            self._module(path, text)
        except self.sl.StarlarkError as error:
            self.side.failed.add(self.package)
            self._trouble(path, str(error))

    def _module(self, path: str, text: str) -> Any:
        module = self.sl.Module()
        ast = self.sl.parse(path, _FIRST_LINE + text, self._dialect)
        self.open.append(path)
        try:
            self.sl.eval_with(self.options, module, ast, self.globals, self.sl.FileLoader(self._load))
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
        path = self._path_of(label)
        given = next((load for load in self.rules.loads if load.label == label), None)
        key = label if given is not None or path is None else path
        if key not in self.loaded:
            if given is not None:
                self.loaded[key] = self._stand_in(label, given)
            elif path is None:
                self.loaded[key] = self._made(label, self._strangers(label))
            elif path not in self.tree.files:
                raise LookupError(f"{label} is {path}, which does not exist")
            elif path in self.open:
                raise LookupError(f"{label} is {path}, which is being loaded already")
            else:
                self.loaded[key] = self._module(path, self.tree.read(path))
        return self.loaded[key]

    def _path_of(self, label: str) -> str | None:
        folder, _, name = label.rpartition(":")
        if not folder and label.startswith(":"):
            return posixpath.join(posixpath.dirname(self.open[-1]), name)
        if not folder:
            # The older form: a path with slashes alone.
            folder, _, name = label.rpartition("/")
        where = self._in_tree(folder)
        return None if where is None else posixpath.join(where, name)

    def _in_tree(self, folder: str) -> str | None:
        for prefix, begins in sorted(self.rules.cells.items(), key=lambda cell: -len(cell[0])):
            if folder == prefix or folder.startswith(prefix.rstrip("/") + "/"):
                return normal(posixpath.join(begins, folder[len(prefix) :].lstrip("/")))
        return None

    def _strangers(self, label: str, given: Iterable[str] = ()) -> list[str]:
        """Functions that fail when they are called, for names that nobody gives: what is loaded and not used
        does no harm. Raises LookupError where one is used as anything else."""
        text = self.tree.read(self.open[-1])
        names = " ".join(match["names"] for match in _LOAD.finditer(text) if match["label"] == label)
        lacking = [match for match in _LOADED.finditer(names) if match["name"] not in given]
        rest = TOKEN.sub(" ", _LOAD.sub("", text)) if lacking else ""
        lines = []
        for match in lacking:
            name, own = match["name"], match["own"] or match["name"]
            if re.search(rf"(?<![\w.]){own}\b(?!\s*[(\w])", rest):
                raise LookupError(f"{own} comes from {label}, {_STRANGE}")
            lines.append(f"{name} = make_stranger({json.dumps(name)}, {json.dumps(label)})")
        return lines

    def _stand_in(self, label: str, given: Load) -> Any:
        globals_ = dict.fromkeys(given.calls, "calls")
        globals_ |= {name: f"make_answer({_literal(value)})" for name, value in given.answers.items()}
        globals_ |= {name: f"make_text({json.dumps(name)})" for name in given.texts}
        globals_ |= {name: _literal(value) for name, value in given.values.items()}
        rules = {
            **{name: f'make_rule("{name}")' for name in self.rules.rules},
            **dict.fromkeys(self.rules.other_rules, "other"),
        }
        fields = {
            **rules,
            **{name: f'make_text("{name}")' for name in self.rules.texts},
            **{name: _literal(value) for name, value in self.rules.fields.items()},
        }
        made = ", ".join(f"{name} = {value}" for name, value in fields.items())
        globals_ |= dict.fromkeys(given.rules, f"struct({made})")
        if not given.rules:
            globals_ |= rules
        lines = [f"{name} = {value}" for name, value in globals_.items()]
        return self._made(label, lines + self._strangers(label, globals_))

    def _made(self, label: str, lines: list[str]) -> Any:
        names = ("make_rule", "make_text", "make_answer", "make_stranger", "other", "calls")
        key = (label, *lines)
        if key not in self.stand_ins:
            lines = [f'load("{_PRELUDE}", {", ".join(map(json.dumps, names))})', *lines]
            module = self.sl.Module()
            ast = self.sl.parse(label, "\n".join(lines) + "\n", self._dialect)
            self.sl.eval(module, ast, self.globals, self.sl.FileLoader(self._load))
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
        text = (
            _FUNCTIONS
            + """
make_rule = _rule
make_text = _text
make_answer = _answer
make_stranger = _stranger
other = _other
calls = _calls
"""
        )
        self.sl.eval(module, self.sl.parse(_PRELUDE, text, self._dialect), self.globals)
        return module.freeze()

    # What the files call

    def _glob(self, stack: str, include: list[str], exclude: list[str], options: list[str]) -> list[str]:
        for option in options:
            if option not in ("include_dotfiles", "exclude_directories", "allow_empty"):
                raise ValueError(f"glob() with {option}")
        taken: set[str] = set()
        left_out: set[str] = set()
        for pattern in include:
            taken |= self._matched(stack, pattern, frozenset(), exclude=False)
        for pattern in exclude:
            left_out |= self._matched(stack, pattern, frozenset(taken), exclude=True)
        start = len(self.package) + 1 if self.package else 0
        return sorted(path[start:] for path in taken - left_out)

    def _matched(self, stack: str, pattern: str, among: frozenset[str], *, exclude: bool) -> frozenset[str]:
        found = self.tree.match(pattern, self.package)
        if inner := self._inner_packages(self.package):
            found = frozenset(path for path in found if not path.startswith(inner))
        if exclude:
            found &= among
        place = self._place(stack, pattern)
        self.side.globs.append(Glob(pattern, self.package, place, found, exclude))
        return found

    def _inner_packages(self, package: str) -> tuple[str, ...]:
        """Directories below a package that are packages themselves: its globs stop at them."""
        prefix = f"{package}/" if package else ""
        return tuple(f"{one}/" for one in self._packages if one.startswith(prefix) and one != package)

    @cached_property
    def _packages(self) -> tuple[str, ...]:
        names = frozenset(self.rules.files)
        found = {posixpath.dirname(path) for path in self.tree.files if posixpath.basename(path) in names}
        return tuple(sorted(found))

    def _select(self, stack: str, keys: list[str]) -> str:
        for key in keys:
            if key != "DEFAULT" and key not in self.constraints:
                raise LookupError(f"select() on {key}, which no variant of the mapping names")
        for key in self.variant.select:
            if key in keys:
                return key
        if "DEFAULT" in keys:
            return "DEFAULT"
        raise LookupError(
            f"select() has no branch for {self.variant.name} and no DEFAULT, but {sorted(keys)}"
        )

    def _read_config(self, section: str, key: str, default: object) -> object:
        if (given := self.variant.read_config.get(f"{section}.{key}")) is not None:
            return given
        return self._config.get(section, key, raw=True, fallback=default)

    @cached_property
    def _config(self) -> configparser.ConfigParser:
        config = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
        if ".buckconfig" in self.tree.files:
            try:
                config.read_string(self.tree.read(".buckconfig"))
            except configparser.Error as error:
                line = getattr(error, "lineno", None) or 1
                self.side.troubles.append(Trouble(Place(".buckconfig", line), ".buckconfig", str(error)))
        return config

    def _record(self, stack: str, kind: str, given: dict[str, object]) -> None:
        name = given.get("name")
        if not isinstance(name, str):
            raise ValueError(f"{kind}() without a name")
        place = self._place(stack, name)
        library = Library(f"//{self.package}:{name}", kind, place)
        for attribute, value in given.items():
            if attribute in FILES:
                for path in _paths(attribute, value):
                    self._add_file(library, path, stack)
                for said, path in _renamed(value):
                    full = normal(posixpath.join(self.package, path))
                    library.renamed[said] = Item(full, self._place(stack, said))
            elif attribute in DEPENDENCIES:
                for label in _texts(attribute, value):
                    item = Item(self._label(label), self._place(stack, label))
                    library.dependencies.append(item)
            elif attribute in _EXTERNAL or not value or isinstance(value, (bool, int)):
                continue
            elif _UNKNOWN_FILES.search(attribute) or _UNKNOWN_DEPENDENCIES.search(attribute):
                self.side.troubles.append(
                    Trouble(place, attribute, f"{library.name} has {attribute}, which is not understood here")
                )
        known = self.side.libraries.get(library.name)
        if known is None:
            self.side.libraries[library.name] = library
        elif _same(known) != _same(library):
            self.side.troubles.append(
                Trouble(
                    place,
                    library.name,
                    f"{library.name} is declared again, and otherwise than in {known.place}",
                )
            )

    def _add_file(self, library: Library, path: str, stack: str) -> None:
        if path.startswith(_LABELS):
            return
        full = normal(posixpath.join(self.package, path))
        item = Item(full, self._place_of_file(stack, path, full))
        if full in self.tree.files:
            library.files.append(item)
        else:
            self.side.missing.append(item)

    def _label(self, label: str) -> str:
        folder, colon, name = label.partition(":")
        if not folder:
            return f"//{self.package}:{name}"
        where = self._in_tree(folder)
        if where is None:
            return label
        return f"//{where}:{name if colon else posixpath.basename(where)}"

    # Where things were written

    def _place(self, stack: str, value: str) -> Place:
        """The literal that says it, in the file of any caller; else the line of the call."""
        frames = _frames(stack)
        for frame in frames:
            if literal := nearest(self._literals_of(frame.file), value, frame.line):
                return Place(frame.file, literal.line)
        return frames[0]

    def _place_of_file(self, stack: str, path: str, full: str) -> Place:
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
        says = _ERROR_SAYS.search(text)
        why = _WRAPPED.sub("", says["says"] if says else text.strip())
        place = next((place for place in at if place.file in self.tree.files), Place(path, 1))
        lines = self.tree.read(place.file).count("\n") + 1
        self.side.troubles.append(Trouble(Place(place.file, min(place.line, lines)), path, why))


@lru_cache(maxsize=64)
def _frames(stack: str) -> tuple[Place, ...]:
    """From the innermost call outwards, without our own functions."""
    found = [_place_at(match) for match in _FRAME.finditer(stack)]
    return tuple(place for place in reversed(found) if place.file != _PRELUDE)


def _place_at(match: re.Match[str]) -> Place:
    return Place(match["file"], max(int(match["line"]) - 1, 1))


def _paths(attribute: str, value: object) -> Iterator[str]:
    """Files of `srcs` and of headers: a list, or a dict from name to file; a source may come with flags."""
    if isinstance(value, dict):
        yield from _texts(attribute, list(cast("MappingOf[str, object]", value).values()))
        return
    for element in cast("list[object]", value) if isinstance(value, list) else [value]:
        yield from _texts(attribute, element[:1] if isinstance(element, list) else [element])


def _renamed(value: object) -> Iterator[tuple[str, str]]:
    """Of a dict from name to file, those whose name is not the end of the file's path."""
    pairs = cast("MappingOf[object, object]", value) if isinstance(value, dict) else {}
    for name, path in pairs.items():
        if not isinstance(name, str) or not isinstance(path, str) or path.startswith(_LABELS):
            continue
        if not f"/{path}".endswith(f"/{name}"):
            yield name, path


def _texts(attribute: str, value: object) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{attribute}: expected a list, found {value!r}")
    for element in cast("Iterable[object]", value):
        if not isinstance(element, str):
            raise ValueError(f"{attribute}: expected text, found {element!r}")
        yield element


def _same(library: Library) -> object:
    return (
        library.kind,
        sorted(item.name for item in library.files),
        sorted(item.name for item in library.dependencies),
    )


def _literal(value: Value) -> str:
    return ("True" if value else "False") if isinstance(value, bool) else json.dumps(value)


def duplicates(library: Library) -> list[Item]:
    """Sources that a library names more than once, which Buck refuses."""
    seen: set[str] = set()
    found = []
    for item in library.files:
        if item.name in seen and is_source(item.name):
            found.append(item)
        seen.add(item.name)
    return found
