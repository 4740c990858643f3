"""ExecuTorch's QNN tests want heavy modules that are not installed, and the network; they get stand-ins. A
stand-in for a module can be imported and its names bound. Using one raises `NotAvailableHere`, so that a
missing module does not count as a failed test. An installed module is never replaced."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

OPTIONAL = ("graphviz", "pydot", "timm", "torchaudio", "torchsr", "torchvision")


class NotAvailableHere(Exception):
    """Reports that a test used a module that is not installed, or the network."""


_touched: list[str] = []


def touched_modules() -> list[str]:
    """Return sentences about the absent modules used since `forget`, even if the exception was caught."""
    return list(_touched)


def forget() -> None:
    _touched.clear()


def install(names: Iterable[str] = OPTIONAL) -> list[str]:
    """Make absent modules, and all modules below them, importable; return those that are absent."""
    absent = [name for name in names if name not in sys.modules and importlib.util.find_spec(name) is None]
    if absent:
        # Last on the path, so that an installed module wins.
        sys.meta_path.append(_Finder(frozenset(absent)))
    return absent


def refuse_network() -> None:
    """Refuse the network for good: a verdict must not depend on a server, nor a test run what it downloads.
    The error is no OSError, because some libraries try again and again after one."""
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        os.environ.pop(proxy, None)
        os.environ.pop(proxy.upper(), None)
    sys.addaudithook(_refuse_network)


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host and host != "localhost" and not host.startswith(("127.", "::1")):
        raise NotAvailableHere(f"it wants {host}, and tests run without network")


def _use(name: str) -> NoReturn:
    _touched.append(f"{name} is used, and {name.partition('.')[0]} is not installed here")
    raise NotAvailableHere(_touched[-1])


class _Absent:
    """Stands for a name of an absent module: it may be passed on and used in annotations, but nothing
    else."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __repr__(self) -> str:
        return f"<absent {self._name}>"

    def __or__(self, other: object) -> _Absent:
        return self

    __ror__ = __or__

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        _use(str(self._name))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        _use(f"{self._name}.{name}")

    __bool__ = __enter__ = __getitem__ = __iter__ = __len__ = __call__
    __instancecheck__ = __mro_entries__ = __subclasscheck__ = __call__

    def __exit__(self, *args: object) -> None:
        """Never reached: entering raises."""


class _AbsentModule(types.ModuleType):
    def __getattr__(self, name: str) -> _Absent:
        # inspect and pickle ask every module for such names.
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""
