"""QNN's documented estimate of a graph's time, where who compiles throws it away. Imported only by workers.

QNN gives it in a profile that a graph is finalized with. ExecuTorch finalizes graphs without one: so what
creates a context and what finalizes a graph are replaced in the table that this process got from QNN."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ci.pipeline.qnn_table import (
    CREATE_CONTEXT,
    CREATE_PROFILE,
    EVENT_DATA,
    FINALIZE_GRAPH,
    FREE_PROFILE,
    PROFILE_EVENTS,
    PROFILE_SUB_EVENTS,
    Interface,
    replaced,
)

DETAILED = 2
"""The least level of a profile with estimates."""
FIX = "export the model to ONNX, and name the .onnx"

_CONTEXT = ctypes.CFUNCTYPE(
    ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
_FINALIZE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_PROFILE = ctypes.CFUNCTYPE(
    ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p)
)
_EVENTS = ctypes.CFUNCTYPE(
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)),
    ctypes.POINTER(ctypes.c_uint32),
)
"""Of a profile or of an event, which are both 64 bits."""
_FREE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)


class _Event(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("unit", ctypes.c_uint32),
        ("value", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
    )


_DATA = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(_Event))


@dataclass
class Estimating:
    """What QNN said of the graphs that were finalized meanwhile."""

    backend: int | None = None
    events: list[tuple[str, int]] = field(default_factory=list)


@contextmanager
def estimating(backend: Path) -> Iterator[Estimating]:
    """`backend` tells what it estimates of graphs that are finalized meanwhile."""
    found = Estimating()
    makers = {CREATE_CONTEXT: partial(_context, found), FINALIZE_GRAPH: partial(_finalizer, found)}
    with replaced(backend, makers, FIX):
        yield found


def _context(found: Estimating, interface: Interface) -> Any:
    create = _CONTEXT(interface.calls[CREATE_CONTEXT])

    def created(backend: int, device: int, configs: int, context: Any) -> int:
        found.backend = backend
        status: int = create(backend, device, configs, context)
        return status

    return _CONTEXT(created)


def _finalizer(found: Estimating, interface: Interface) -> Any:
    finalize = _FINALIZE(interface.calls[FINALIZE_GRAPH])
    create, free = _PROFILE(interface.calls[CREATE_PROFILE]), _FREE(interface.calls[FREE_PROFILE])

    def finalized(graph: int, profile: int, signal: int) -> int:
        own = ctypes.c_void_p()
        if create(found.backend, DETAILED, ctypes.byref(own)):
            return int(finalize(graph, profile, signal))
        status: int = finalize(graph, own, signal)
        if not status:
            found.events += _events(interface, own.value or 0)
        free(own)
        return status

    return _FINALIZE(finalized)


def _events(interface: Interface, profile: int) -> Iterator[tuple[str, int]]:
    """All names and values, those of an event after it."""
    of_profile, of_event = (_EVENTS(interface.calls[place]) for place in (PROFILE_EVENTS, PROFILE_SUB_EVENTS))
    data = _DATA(interface.calls[EVENT_DATA])

    def below(get: Any, above: int) -> Iterator[tuple[str, int]]:
        identities, count = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint32()
        if get(above, ctypes.byref(identities), ctypes.byref(count)):
            return
        for identity in identities[: count.value]:
            event = _Event()
            if not data(identity, ctypes.byref(event)):
                yield (event.name or b"").decode(errors="replace").strip(), event.value
            yield from below(of_event, identity)

    yield from below(of_profile, profile)
