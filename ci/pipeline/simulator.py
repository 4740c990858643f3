"""QNN's simulator of chips, which its compiler runs if a graph asks for it. Imported only by workers.

The options that ask are not documented. QnnGraph_setConfig takes them, as Qualcomm's headers have it, once a
graph is created: so the function that creates one is replaced in the table that this process got from QNN."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.artifacts.simulation import COSTS, TRACE, Simulation, read_simulation
from provisioning.base.commands import leave_out
from provisioning.base.errors import CheckFailed, EnvironmentLacking

CREATE_GRAPH, SET_GRAPH_CONFIG = 15, 17
"""Places in QnnInterface's table of functions."""
READ_WRITE = 3
WITHOUT = "leave --simulate out"
BURST = 10
"""The highest clocks, with which phones run a benchmark. The simulator's own choice is twice too slow."""
FINALIZE_CONFIG = 7
INTEGER, TEXT = 0x32, 0x608
"""Kinds of QnnTypes.h: a signed 32-bit number, a string."""


class _Interface(ctypes.Structure):
    _fields_ = (
        ("backend", ctypes.c_uint32),
        ("provider", ctypes.c_char_p),
        ("versions", ctypes.c_uint32 * 6),
        ("calls", ctypes.c_void_p * 64),
    )


class _Scalar(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_uint32), ("value", ctypes.c_uint64))


class _Option(ctypes.Structure):
    _fields_ = (
        ("option", ctypes.c_uint32),
        ("key", ctypes.c_char_p),
        ("scalar", _Scalar),
        ("room", ctypes.c_uint64 * 12),
    )


class _Config(ctypes.Structure):
    _fields_ = (("option", ctypes.c_uint32), ("custom", ctypes.c_void_p))


_CREATE = ctypes.CFUNCTYPE(
    ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
_SET = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))


@dataclass
class Simulating:
    folder: Path
    graphs: int = 0
    refused: list[str] = field(default_factory=list)
    """Options that QNN does not take."""

    @property
    def options(self) -> dict[str, int | str]:
        return {
            "hextimate": 1,
            "sim_core_voltage_corner": BURST,
            "sim_bus_voltage_corner": BURST,
            "sim_trace_final": str(self.folder / TRACE),
            "sim_model_stats": str(self.folder / COSTS),
        }

    def simulation(self) -> Simulation:
        """Of the one graph. Raises CheckFailed."""
        if self.graphs != 1:
            raise CheckFailed(
                f"it is cut into {self.graphs} graphs, but QNN simulates only one",
                fix="change the model so that all of it runs on HTP: audit names the operators that do not",
            )
        why = f"it refuses {', '.join(self.refused)}"
        try:
            if not self.refused:
                return read_simulation(self.folder / TRACE, self.folder / COSTS)
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"what it writes has another form, {type(error).__name__}: {error}"
        raise EnvironmentLacking(f"this QNN has no simulator: {why}", fix=leave_out("--simulate"))


@contextmanager
def simulating(backend: Path, folder: Path) -> Iterator[Simulating]:
    """Graphs that `backend` creates meanwhile are simulated; files go to `folder`."""
    found, earlier = Simulating(folder), list[tuple[int, int, Any]]()
    library = ctypes.CDLL(str(backend))
    table, count = ctypes.POINTER(ctypes.POINTER(_Interface))(), ctypes.c_uint32()
    if library.QnnInterface_getProviders(ctypes.byref(table), ctypes.byref(count)):
        raise EnvironmentLacking(f"{backend.name} gives no interface", fix=WITHOUT)
    try:
        for index in range(count.value):
            interface = table[index].contents
            own = _creator(found, interface)
            address = ctypes.addressof(interface) + _Interface.calls.offset + 8 * CREATE_GRAPH
            earlier.append((address, interface.calls[CREATE_GRAPH], own))
            _write(address, ctypes.cast(own, ctypes.c_void_p).value or 0)
        yield found
    finally:
        for address, real, _own in earlier:
            _write(address, real)


def _write(address: int, value: int) -> None:
    """The table lies in memory that is for reading."""
    page = address & ~(mmap.PAGESIZE - 1)
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(page), 2 * mmap.PAGESIZE, READ_WRITE):
        raise EnvironmentLacking("QNN's table of functions cannot be changed here", fix=WITHOUT)
    ctypes.c_void_p.from_address(address).value = value


def _creator(found: Simulating, interface: _Interface) -> Any:
    create = _CREATE(interface.calls[CREATE_GRAPH])
    configure = _SET(interface.calls[SET_GRAPH_CONFIG])

    def created(context: int, name: bytes, configs: int, graph: Any) -> int:
        status: int = create(context, name, configs, graph)
        if status:
            return status
        found.graphs += 1
        for key, value in found.options.items():
            held = ctypes.c_char_p(value.encode()) if isinstance(value, str) else None
            number = ctypes.cast(held, ctypes.c_void_p).value if held else value
            kind = TEXT if held else INTEGER
            option = _Option(FINALIZE_CONFIG, key.encode(), _Scalar(kind, number))
            config = _Config(0, ctypes.addressof(option))
            if configure(graph[0], (ctypes.c_void_p * 2)(ctypes.addressof(config), None)):
                found.refused.append(key)
        return status

    return _CREATE(created)
