"""Runs a QNN context binary on QNN's emulator of the HTP, by QNN's own C interface and no framework.

`context_runner.py LIBRARIES CONTEXT INPUTS.npz OUTPUTS.npz`: the arrays have the context's names, types and
shapes, and each has a first dimension for the samples. The layouts are those of QnnInterface.h.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from ctypes import POINTER, Structure, byref, c_char_p, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).parents[2]))
from ci.artifacts.context_reader import DTYPES, graphs_of, require

FUNCTIONS = {
    "backendCreate": (1, (c_void_p, c_void_p, c_void_p)),
    "contextCreateFromBinary": (
        13,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_uint64, c_void_p, c_void_p),
    ),
    "graphRetrieve": (20, (c_void_p, c_char_p, c_void_p)),
    "graphExecute": (21, (c_void_p, c_void_p, c_uint32, c_void_p, c_uint32, c_void_p, c_void_p)),
}
"""The place in QNN's table of functions, and the arguments."""


class BackendProvider(Structure):
    """QnnInterface_t."""

    _fields_ = [
        ("backend", c_uint32),
        ("name", c_char_p),
        ("versions", c_uint32 * 6),
        ("functions", c_void_p * 48),
    ]


class Emulator:
    def __init__(self, libraries: Path) -> None:
        providers, count = POINTER(POINTER(BackendProvider))(), c_uint32()
        library = ctypes.CDLL(str(libraries / "libQnnHtp.so"))
        require(library.QnnInterface_getProviders(byref(providers), byref(count)))
        self.functions = providers[0][0].functions

    def call(self, name: str, *arguments: Any) -> None:
        number, kinds = FUNCTIONS[name]
        require(ctypes.CFUNCTYPE(c_uint64, *kinds)(self.functions[number])(*arguments))


def run(libraries: Path, context: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of all samples, stacked."""
    content = ctypes.create_string_buffer(context, len(context))
    (graph,) = graphs_of(str(libraries / "libQnnSystem.so"), content)
    emulator, backend, loaded, handle = Emulator(libraries), c_void_p(), c_void_p(), c_void_p()
    emulator.call("backendCreate", None, None, byref(backend))
    place = ctypes.addressof(content)
    emulator.call("contextCreateFromBinary", backend, None, None, place, len(context), byref(loaded), None)
    emulator.call("graphRetrieve", loaded, graph.name, byref(handle))
    outputs: dict[str, list[Any]] = {}
    for number in range(len(next(iter(inputs.values())))):
        given = []
        for tensor in graph.inputs[: graph.input_count]:
            array = numpy.ascontiguousarray(inputs[tensor.name.decode()][number])
            assert array.dtype == DTYPES[tensor.dtype] and array.shape == tuple(shape_of(tensor))
            given.append(point(tensor, array))
        for tensor in graph.outputs[: graph.output_count]:
            array = numpy.zeros(shape_of(tensor), DTYPES[tensor.dtype])
            outputs.setdefault(tensor.name.decode(), []).append(point(tensor, array))
        emulator.call(
            "graphExecute", handle,
            ctypes.cast(graph.inputs, c_void_p), graph.input_count,
            ctypes.cast(graph.outputs, c_void_p), graph.output_count, None, None,
        )  # fmt: skip
    return {name: numpy.stack(arrays) for name, arrays in outputs.items()}


def shape_of(tensor: Any) -> list[int]:
    return list(tensor.dimensions[: tensor.rank])


def point(tensor: Any, array: Any) -> Any:
    """Let QNN read or write the array."""
    tensor.memory, tensor.data, tensor.size = 0, array.ctypes.data, array.nbytes
    return array


def main(libraries: str, context: str, inputs: str, outputs: str) -> None:
    with numpy.load(inputs) as arrays:
        values = {name: arrays[name] for name in arrays.files}
    numpy.savez(outputs, **run(Path(libraries), Path(context).read_bytes(), values))
    # QNN's library breaks down where its process ends without freeing all.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
