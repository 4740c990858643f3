"""Take the compiled graphs out of a program or of a model that ONNX Runtime compiled."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from ci.artifacts.bounds import TIMES
from ci.artifacts.compiled_onnx import CompiledModel, context_binaries
from ci.artifacts.dlc import MARK
from ci.artifacts.program import QNN_BACKEND, CompiledProgram, bytes_of
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.files import replace_bytes

_MAGIC = 0x5678ABCD
"""The header before a context binary in a program: this in 4 bytes, a checksum in 8, its size in 8, zeros to
byte 256.
"""

_HEADER = 256


def extract(path: Path, contents: CompiledProgram | CompiledModel, into: Path) -> list[Path]:
    """Write each graph into the folder; nothing is written if one of them cannot be read."""
    parts = [*(_of_program(path, contents) if isinstance(contents, CompiledProgram) else _of_model(path))]
    if not parts:
        raise CheckFailed(f"{path}: there is nothing compiled for QNN in it", fix="name another file")
    written = []
    try:
        for name, data in parts:
            replace_bytes(into / name, data)
            written.append(into / name)
    except OSError as error:
        for file in written:
            file.unlink(missing_ok=True)
        raise EnvironmentLacking(f"{into}: {error.strerror}", fix="--extract another folder") from error
    return written


def context_in(data: memoryview) -> tuple[str, memoryview]:
    """(suffix, bytes) of a delegate's data without ExecuTorch's header."""
    if data[: len(MARK)] == MARK:
        return ".dlc", data
    if len(data) < _HEADER or struct.unpack_from("<I", data)[0] != _MAGIC:
        raise CheckFailed(
            f"expected a context binary behind the mark {_MAGIC:#x}, found {data[:8].hex(' ')}",
            fix="compile it with the executorch of the profile",
        )
    size = struct.unpack_from("<Q", data, 12)[0]
    if size != len(data) - _HEADER:
        raise CheckFailed(
            f"expected a context of {size} bytes, found {len(data) - _HEADER}",
            fix="compile or copy it again",
        )
    return ".bin", data[_HEADER:]


def _of_program(path: Path, program: CompiledProgram) -> Iterator[tuple[str, bytes | memoryview]]:
    whole = memoryview(bytes_of(path))
    size = sum(delegate.size for delegate in program.delegates)
    if size > TIMES * len(whole):
        raise CheckFailed(
            f"{path}: its delegates share their data: {size:,} bytes of a file of {len(whole):,}",
            fix="compile it again",
        )
    counts: dict[str, int] = {}
    for delegate in program.delegates:
        if delegate.backend != QNN_BACKEND:
            continue
        index = counts[delegate.method] = counts.get(delegate.method, -1) + 1
        if delegate.segment is None:
            raise CheckFailed(
                f"{path}: delegate {index} of {delegate.method} is inside the flatbuffer, not in a segment",
                fix="write the program with extract_delegate_segments, which is executorch's default",
            )
        if Path(delegate.method).name != delegate.method:
            raise CheckFailed(f"{path}: a method is called {delegate.method!r}, which is no file name")
        suffix, context = context_in(whole[delegate.offset : delegate.offset + delegate.size])
        yield f"{path.stem}.{delegate.method}_{index}{suffix}", context


def _of_model(path: Path) -> Iterator[tuple[str, bytes | memoryview]]:
    for index, data in enumerate(context_binaries(path)):
        suffix = ".dlc" if data.startswith(MARK) else ".bin"
        yield f"{path.stem}.context_{index}{suffix}", data
