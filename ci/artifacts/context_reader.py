"""The child process that asks QNN which graphs a context binary has: `context_reader.py LIBRARY FILE`.

It imports nothing of ours, calls `QnnSystemContext_getMetaData` of libQnnSystem, and prints JSON.
The layouts are those of QNN's public headers QnnSystemInterface.h, QnnSystemContext.h and QnnTypes.h.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from ctypes import POINTER, Structure, c_char_p, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

DTYPES = {
    0x008: "int8", 0x016: "int16", 0x032: "int32", 0x064: "int64",
    0x108: "uint8", 0x116: "uint16", 0x132: "uint32", 0x164: "uint64",
    0x216: "float16", 0x232: "float32", 0x264: "float64",
    0x308: "int8", 0x316: "int16", 0x332: "int32",
    0x408: "uint8", 0x416: "uint16", 0x432: "uint32",
    0x508: "bool",
}  # fmt: skip
"""Maps Qnn_DataType_t to numpy's name of the stored values."""
BINARY_INFO_3 = 3


class QnnVersion(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32)]


class QnnTensor(Structure):
    """Qnn_Tensor_t. Its second version only adds to the first."""

    _fields_ = [
        ("version", c_uint32),
        ("id", c_uint64),
        ("name", c_char_p),
        ("type", c_uint32),
        ("format", c_uint32),
        ("dtype", c_uint32),
        ("quantization", c_uint64 * 5),
        ("rank", c_uint32),
        ("dimensions", POINTER(c_uint32)),
        ("memory", c_uint32),
        ("data", c_void_p),
        ("size", c_uint64),
        ("dynamic", c_void_p),
        ("sparse", c_uint32 * 3),
        ("produced", c_uint8),
    ]


class QnnGraph(Structure):
    """QnnSystemContext_GraphInfo_t. Its later versions only add to the first."""

    _fields_ = [
        ("version", c_uint32),
        ("name", c_char_p),
        ("input_count", c_uint32),
        ("inputs", POINTER(QnnTensor)),
        ("output_count", c_uint32),
        ("outputs", POINTER(QnnTensor)),
        ("later", c_uint64 * 5),
    ]


class InfoHead(Structure):
    """The beginning of QnnSystemContext_BinaryInfo_t, of whatever version."""

    _fields_ = [
        ("version", c_uint32),
        ("backend", c_uint64),
        ("build_id", c_char_p),
        ("core", QnnVersion),
        ("backend_version", QnnVersion),
        ("soc", c_char_p),
    ]


class InfoGraphs(Structure):
    """What all versions have of graphs."""

    _fields_ = [
        ("context_size", c_uint64),
        ("tensor_count", c_uint32),
        ("tensors", c_void_p),
        ("count", c_uint32),
        ("rows", POINTER(QnnGraph)),
    ]


class InfoV1(Structure):
    """Versions 1 and 2."""

    _fields_ = [
        ("head", InfoHead),
        ("hardware_version", QnnVersion),
        ("context_version", QnnVersion),
        ("hardware_size", c_uint32),
        ("hardware", c_void_p),
        ("graphs", InfoGraphs),
    ]


class InfoV3(Structure):
    _fields_ = [("head", InfoHead), ("context_version", QnnVersion), ("graphs", InfoGraphs)]


class SystemProvider(Structure):
    """QnnSystemInterface_t, as far as it is used."""

    _fields_ = [
        ("backend", c_uint32),
        ("name", c_char_p),
        ("version", QnnVersion),
        ("create", ctypes.CFUNCTYPE(c_uint64, POINTER(c_void_p))),
        ("info", c_void_p),
        ("metadata", ctypes.CFUNCTYPE(c_uint64, c_void_p, c_void_p, c_uint64, POINTER(c_void_p))),
    ]


def graphs_of(library: str, content: Any) -> Sequence[Any]:
    """Return the graphs of a context in a ctypes buffer. They live as long as this process."""
    providers, count = POINTER(POINTER(SystemProvider))(), c_uint32()
    require(
        ctypes.CDLL(library).QnnSystemInterface_getProviders(ctypes.byref(providers), ctypes.byref(count))
    )
    provider, handle, place = providers[0][0], c_void_p(), c_void_p()
    require(provider.create(ctypes.byref(handle)))
    address = ctypes.addressof(content)
    require(provider.metadata(handle, address, ctypes.sizeof(content), ctypes.byref(place)))
    version = ctypes.cast(place, POINTER(c_uint32))[0]
    info = ctypes.cast(place, POINTER(InfoV3 if version == BINARY_INFO_3 else InfoV1))[0]
    return [info.graphs.rows[index] for index in range(info.graphs.count)]


def require(code: int) -> None:
    if code:
        raise SystemExit(f"QNN's error {code}")


def rows_of(tensors: Any, count: int) -> Iterator[dict[str, object]]:
    for tensor in tensors[:count]:
        dtype = DTYPES.get(tensor.dtype, f"type 0x{tensor.dtype:04x}")
        shape = tensor.dimensions[: tensor.rank]
        yield {"name": tensor.name.decode(), "dtype": dtype, "shape": shape}


def main(library: str, file: str) -> None:
    content = ctypes.create_string_buffer(Path(file).read_bytes(), Path(file).stat().st_size)
    rows = [
        {
            "name": graph.name.decode(),
            "inputs": [*rows_of(graph.inputs, graph.input_count)],
            "outputs": [*rows_of(graph.outputs, graph.output_count)],
        }
        for graph in graphs_of(library, content)
    ]
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
