"""Say whether the libraries that compile a model are still as a process imported them.

A model's code may replace a function of ExecuTorch's quantizer, or a row of one of its tables, and no
exported graph shows that. Therefore a process remembers torch, torchao, executorch and numpy before it runs a
user's code: each function with its code, each class and each table. Afterwards it names the first one that is
another."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import importlib
import os
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter, is_
from typing import Any

import numpy
import torch
from torch._C import DispatchKey
from torch._ops import OpOverload, OpOverloadPacket, _OpNamespace
from torch._subclasses import fake_impls

from ci.models import exported
from ci.models.exported import NoDigest, remember_operators
from ci.models.user_model import OURS
from ci.work import TEMPORARY, known_folders
from provisioning.base.findings import Metric
from provisioning.base.settings import ROOT

CONSTANT = ("executorch", "torchao")
"""Nothing in these packages changes while models are exported: numbers and texts count, too."""
PACKAGES = (*CONSTANT, "torch", "numpy")
ADDED_TO = "numpy"
"""Code often adds names that an older numpy had, as numpy.float. Nothing that compiles reads them."""
TRACERS = ("torch._dynamo", "torch._inductor")
"""These modules keep in their tables what they traced; the exported graph shows that."""
LAZY = ("__slotnames__", "__warningregistry__", "__annotations__")
"""Python adds these to classes and modules when it needs them."""
OWN_STATE = {
    "torch.fx.traceback.current_meta",
    "executorch.backends.qualcomm.quantizer.backend_opinfo_adapter._WARNED_ABOUT_FALLBACK",
    "executorch.backends.qualcomm.utils.qnn_sdk_setup._sdk_ready",
}
"""torch and ExecuTorch assign these anew while they export and quantize."""

DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
LISTS = (list, set, collections.deque)
CODE = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.GetSetDescriptorType, types.ClassMethodDescriptorType),
    *(staticmethod, classmethod, property, functools.partial, functools.cached_property),
    *(type(functools.lru_cache(len)), numpy.ufunc, type(numpy.concatenate)),
)
INSIDE: Mapping[type, Callable[[Any], Iterable[object]]] = {
    types.MethodType: lambda value: (value.__func__,),
    staticmethod: lambda value: (value.__func__,),
    classmethod: lambda value: (value.__func__,),
    property: lambda value: (value.fget, value.fset),
    functools.partial: lambda value: (value.func, *value.args, *value.keywords.values()),
    functools.cached_property: lambda value: (value.func,),
    type(functools.lru_cache(len)): lambda value: (value.__wrapped__,),
}
"""Functions are found inside these."""

SHIPPED = f"{ROOT}/ci/models/shipped/"
"""The models that the toolkit ships are treated like a user's."""

LOCKS = (type(threading.Lock()), type(threading.RLock()))
"""A fork gets new ones."""

CODE_OF = attrgetter("__code__", "__defaults__", "__kwdefaults__")
MISSING = object()


def _is_code(value: object) -> bool:
    return isinstance(value, (*CODE, type))


def _counts(value: object) -> bool:
    return isinstance(value, (*CODE, type, *DICTS, *LISTS))


@dataclass(slots=True)
class _Table:
    """Remembers what a module, a class, an instance or a dictionary holds."""

    now: Any
    """This mapping shows what it holds now."""
    parent: int
    """The number of the table that it is in; -1 for a module."""
    name: object
    is_constant: bool
    keys: tuple[object, ...] = ()
    values: tuple[object, ...] = ()

    def is_same(self) -> bool:
        now = self.now
        return (
            len(now) == len(self.keys)
            and all(map(is_, now.values(), self.values))
            and all(map(is_, now, self.keys))
        )


@dataclass(slots=True)
class _Row:
    """Remembers a list or a set."""

    now: Any
    parent: int
    name: object
    is_constant: bool
    values: tuple[object, ...]

    def is_same(self) -> bool:
        return len(self.now) == len(self.values) and all(map(is_, self.now, self.values))


@dataclass(slots=True)
class Libraries:
    """Remembers the libraries of this process."""

    tables: list[_Table] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)
    functions: list[tuple[types.FunctionType, int, object]] = field(default_factory=list)
    codes: list[tuple[object, ...]] = field(default_factory=list)
    cells: list[types.CellType] = field(default_factory=list)
    contents: list[object] = field(default_factory=list)
    modules: Mapping[str, types.ModuleType] = field(default_factory=dict)
    finders: list[object] = field(default_factory=list)
    """Python finds modules by these."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment variables."""
    registered: frozenset[str] = frozenset()
    kernels: dict[OpOverload, dict[DispatchKey, Callable[..., object]]] = field(default_factory=dict)

    @classmethod
    def imported(cls) -> Libraries:
        libraries = cls()
        # Everything that is remembered stays, so that collecting would only cost time.
        with _collector_is_off():
            libraries._remember_modules()
        libraries.finders, libraries.variables = _finders(), dict(os.environ)
        libraries.registered = frozenset(torch.library._impls)
        libraries.kernels = {operator: dict(operator.py_kernels) for operator in _loaded_operators()}
        return libraries

    def _remember_modules(self) -> None:
        self.modules = _modules()
        seen: set[int] = set()
        stack: list[tuple[Any, str, int, object, bool]] = []
        # The last is the first that is looked into: what others import from torch is torch's.
        for title, module in sorted(self.modules.items(), key=lambda row: not _is_constant(row[0])):
            stack.append((module, "module", -1, title, _is_constant(title)))
        while stack:
            value, sort, parent, name, is_constant = stack.pop()
            inner: Iterable[tuple[object, object]]
            if sort == "function":
                inner = ((name, part) for part in self._remember_function(value, parent, name))
            elif sort == "wrapper":
                inner = ((name, part) for part in INSIDE[type(value)](value))
            elif sort == "row":
                values = tuple(value)
                self.rows.append(_Row(value, parent, name, is_constant, values))
                inner = ((name, part) for part in values)
            else:
                now = value if sort == "table" else vars(value)
                table = _Table(now, parent, name, is_constant, tuple(now), tuple(now.values()))
                parent = len(self.tables)
                self.tables.append(table)
                inner = zip(table.keys, table.values, strict=True)
            for key, part in inner:
                kind: Any = type(part)
                sort = _sort_of(kind)
                if sort == "plain" or id(part) in seen:
                    continue
                if sort == "instance" and not is_constant:
                    continue
                seen.add(id(part))
                if isinstance(part, type):
                    if (home := str(part.__module__)).partition(".")[0] in PACKAGES:
                        stack.append((part, sort, parent, key, _is_constant(home)))
                else:
                    stack.append((part, sort, parent, key, is_constant))

    def _remember_function(self, function: Any, parent: int, name: object) -> Iterator[object]:
        """Yield what the function contains."""
        self.functions.append((function, parent, name))
        self.codes.append(CODE_OF(function))
        for cell in function.__closure__ or ():
            content = _content(cell)
            if _counts(content):
                self.cells.append(cell)
                self.contents.append(content)
                yield content
        if hasattr(function, "__wrapped__"):
            yield function.__wrapped__

    def first_change(self) -> str:
        """Name the first thing that is another than it was; empty if nothing is."""
        return next(self._changes(), "")

    def _changes(self) -> Iterator[str]:
        for number, table in enumerate(self.tables):
            if not table.is_same():
                yield from self._changes_in(number, table)
        for row in self.rows:
            if not row.is_same() and self._is_changed(row):
                yield self._path(row.parent, row.name)
        codes = [CODE_OF(function) for function, _, _ in self.functions]
        if codes != self.codes:
            for (_, parent, name), now, before in zip(self.functions, codes, self.codes, strict=True):
                if not all(map(is_, now, before)):
                    yield self._path(parent, name)
        for cell, content in zip(self.cells, self.contents, strict=True):
            if _content(cell) is not content:
                yield f"what {_name_of(content)} was bound to"
        yield from self._changed_kernels()
        for finder in _finders():
            kind = finder if _is_code(finder) else type(finder)
            if not any(finder is other for other in self.finders) and not is_of_environment(kind):
                yield f"how modules are imported, by {_name_of(finder)}"
        yield from _foreign_code(name for name in _modules() if name not in self.modules)

    def _changes_in(self, number: int, table: _Table) -> Iterator[str]:
        for key, before in zip(table.keys, table.values, strict=True):
            is_relevant = _counts(before) or (table.is_constant and not isinstance(before, LOCKS))
            if is_relevant and table.now.get(key, MISSING) is not before and key not in LAZY:
                path = self._path(number, key)
                if path not in OWN_STATE and not path.startswith(TRACERS):
                    yield path
        for key in table.now.keys() - set(table.keys):
            value = table.now[key]
            if key in LAZY or isinstance(value, types.ModuleType):
                continue
            path = self._path(number, key)
            if (table.is_constant or _is_code(value)) and not path.startswith((*TRACERS, ADDED_TO)):
                yield path

    def _is_changed(self, row: _Row) -> bool:
        if self._path(row.parent, row.name).startswith(TRACERS):
            return False
        if row.is_constant:
            return True
        now, before = {id(value): value for value in row.now}, {id(value): value for value in row.values}
        removed = [before[number] for number in before.keys() - now.keys()]
        added = [now[number] for number in now.keys() - before.keys()]
        return any(map(_is_code, (*removed, *added)))

    def _changed_kernels(self) -> Iterator[str]:
        for entry in set(torch.library._impls) - self.registered:
            # It is "namespace/name/dispatch key"; an overload is behind a dot.
            namespace, name, *_ = entry.split("/")
            if f"{namespace}::{name}" in (exported.known_operators or ()):
                yield f"the operator {namespace}::{name}"
        for operator in _loaded_operators():
            if operator.py_kernels != self.kernels.get(operator, {}):
                yield f"the operator {operator}"
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            yield "a mode that intercepts every call of torch"

    def _path(self, number: int, key: object) -> str:
        parts = [_shown(key)]
        while number >= 0:
            table = self.tables[number]
            parts.append(_shown(table.name))
            number = table.parent
        return ".".join(reversed(parts))


@cache
def _sort_of(kind: type) -> str:
    """How the values of a class are remembered; "plain" if nothing is looked for in them."""
    if kind is types.FunctionType:
        return "function"
    if kind in INSIDE:
        return "wrapper"
    if kind in LISTS:
        return "row"
    if kind in DICTS:
        return "table"
    if issubclass(kind, type):
        return "class"
    is_own = str(kind.__module__).partition(".")[0] in CONSTANT
    has_fields = is_own and "__dict__" in dir(kind)
    return "instance" if has_fields and not issubclass(kind, types.ModuleType) else "plain"


@contextlib.contextmanager
def _collector_is_off() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _finders() -> list[object]:
    return [*sys.meta_path, *sys.path_hooks]


def _modules() -> dict[str, types.ModuleType]:
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in PACKAGES and isinstance(module, types.ModuleType)
    }


def _is_constant(module: str) -> bool:
    return module.partition(".")[0] in CONSTANT


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _loaded_operators() -> Iterator[OpOverload]:
    for namespace in list(vars(torch.ops).values()):
        if isinstance(namespace, _OpNamespace):
            for packet in list(vars(namespace).values()):
                if isinstance(packet, OpOverloadPacket):
                    yield from (
                        value for value in list(vars(packet).values()) if isinstance(value, OpOverload)
                    )


def _shown(key: object) -> str:
    return key if isinstance(key, str) else f"[{str(key)[:60]}]"


def _name_of(value: object) -> str:
    return str(getattr(value, "__qualname__", None) or type(value).__name__)


def is_of_environment(code: Any) -> bool:
    """Whether a function or class is of a module in the environment, and no user's."""
    module = sys.modules.get(str(getattr(code, "__module__", "")))
    of_function = code.__globals__.get("__file__") if isinstance(code, types.FunctionType) else None
    file: object = of_function or getattr(module, "__file__", None)
    # What is built in has no file.
    return _is_in_environment(file) if isinstance(file, str) else module is not None


@cache
def _is_in_environment(file: str) -> bool:
    path = os.path.realpath(file)
    return path.startswith((*known_folders(), *_python_path(), *OURS)) and not path.startswith(SHIPPED)


@cache
def _python_path() -> tuple[str, ...]:
    """The folders of PYTHONPATH, whose code is in every key, too."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return tuple(f"{os.path.realpath(folder)}/" for folder in folders if folder)


def users_modules() -> Iterator[str]:
    """The files of imported modules that are not of the environment."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not _is_in_environment(file):
            yield file


def _foreign_code(modules: Iterable[str]) -> Iterator[str]:
    """Name functions and classes of the user's in modules that were imported after the others."""
    for name in modules:
        for key, value in list(vars(sys.modules[name]).items()):
            inner = list(vars(value).values()) if isinstance(value, type) else []
            for code in (value, *inner):
                if isinstance(code, types.FunctionType | type) and not is_of_environment(code):
                    yield f"{name}.{key}"


_libraries: Libraries | None = None


def remember_libraries(*packages: str) -> None:
    """Remember the libraries of this process, before it runs a user's code. All modules of `packages` are
    imported first: what the work imports later, a user's code could change before it is remembered."""
    global _libraries
    for package in packages:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    # torch fills this table when it first meets sizes that vary.
    fake_impls.get_fast_op_impls()
    remember_operators()
    _libraries = Libraries.imported()
    # Forks of this process have these modules too. Now that it is known where each lies, they need not look.
    list(users_modules())


def changed_variables() -> dict[str, Metric]:
    """Return the environment variables that differ from those that were remembered; None if one is gone."""
    before = _libraries.variables if _libraries else os.environ
    names = {*before, *os.environ} - {*TEMPORARY}
    return {name: os.environ.get(name) for name in sorted(names) if os.environ.get(name) != before.get(name)}


def require_untouched() -> None:
    """Raise NoDigest if the libraries are not as they were remembered."""
    if _libraries and (changed := _libraries.first_change()):
        raise NoDigest(f"its code has changed {changed}, which no graph shows")
