"""Functions of a QNN backend, replaced for a while in the table that this process got from it. Imported only
by workers."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provisioning.base.errors import EnvironmentLacking

CREATE_GRAPH, SET_GRAPH_CONFIG = 15, 17
"""Places in QnnInterface's table."""
READ_WRITE = 3


class Interface(ctypes.Structure):
    _fields_ = (
        ("backend", ctypes.c_uint32),
        ("provider", ctypes.c_char_p),
        ("versions", ctypes.c_uint32 * 6),
        ("calls", ctypes.c_void_p * 64),
    )


Maker = Callable[[Interface], Any]
"""From a table as it was, the ctypes function that takes a place in it."""


@contextmanager
def replaced(backend: Path, makers: Mapping[int, Maker], fix: str) -> Iterator[None]:
    """The table of `backend` with these functions, by their places. `fix` is what to type where it cannot be
    changed."""
    library = ctypes.CDLL(str(backend))
    table, count = ctypes.POINTER(ctypes.POINTER(Interface))(), ctypes.c_uint32()
    if library.QnnInterface_getProviders(ctypes.byref(table), ctypes.byref(count)):
        raise EnvironmentLacking(f"{backend.name} gives no interface", fix=fix)
    earlier: list[tuple[int, int, Any]] = []
    try:
        for index in range(count.value):
            interface = table[index].contents
            owns = {place: make(interface) for place, make in makers.items()}
            for place, own in owns.items():
                address = ctypes.addressof(interface) + Interface.calls.offset + 8 * place
                earlier.append((address, interface.calls[place], own))
                _write(address, ctypes.cast(own, ctypes.c_void_p).value or 0, fix)
        yield
    finally:
        for address, real, _own in earlier:
            _write(address, real, fix)


def _write(address: int, value: int, fix: str) -> None:
    """The table lies in memory that is for reading."""
    page = address & ~(mmap.PAGESIZE - 1)
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(page), 2 * mmap.PAGESIZE, READ_WRITE):
        raise EnvironmentLacking("QNN's table of functions cannot be changed here", fix=fix)
    ctypes.c_void_p.from_address(address).value = value
