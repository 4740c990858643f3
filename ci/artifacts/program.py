"""ExecuTorch programs and QNN context binaries, read from their bytes.

Field numbers are those of ExecuTorch's program.fbs and of its Qualcomm backend's qc_compiler_spec.fbs.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ci.artifacts.formats import Malformed, Table, readable
from provisioning.base.commands import quote_command
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file, open_regular
from provisioning.build_ids import BUILD_ID

T = TypeVar("T")

IDENTIFIER = b"ET12"
ELF = b"\x7fELF"
"""QNN's libraries contain a build id too."""

EXTENDED_HEADER = b"eh00"
LARGEST = 8 << 30

QNN_BACKEND = "QnnBackend"
QNN_OPTIONS = "qnn_compile_spec"
CONTAINER, TIME_SIZE = b"\xcd\xab\x78\x56", 8
"""How the data of a QNN delegate begins: this, the time at which it was made, the context's size in 8 bytes,
and zeros as far as the context."""

CONTAINER_SIZE = 256
DLC_MARK = b"PK\x03\x04"
CONTEXT_MARK = bytes.fromhex("00000002 00000003 00000000 00000001")
"""How context binaries of QNN 2.49 to 2.51 begin. At byte 24 follow where the data begins, and its size."""

TENSOR = 5
PLAIN_VALUES = {1: "none", 2: "int", 3: "bool", 4: "float"}
"""Inputs and outputs that are no tensors."""
KERNEL_CALL, DELEGATE_CALL = 1, 2

DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    11: "bool", 15: "bfloat16", 27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip

# Each pattern begins with letters: that searches thirty times as fast as a word boundary.
SOC = re.compile(rb"soc_type=(\w{1,32});")
ARCH = re.compile(rb"min_arch=(\d{1,3})\b")
"""The `arch` beside it comes from QNN's own table; for SSG2115P it differs from the one that is
compiled for.
"""

VTCM = re.compile(rb"vtcm_size=(\d{1,12})\b")
HALF_FLOATS = re.compile(rb"relaxed_precision_flag=(true|false)\b")
GRAPH = re.compile(rb"PICKLE/\d{1,9}/([\w.$-]{1,200})\0")
PRECISIONS = {0: "quantized", 1: "fp16"}
PROCESSORS = {1: "gpu", 2: "htp", 3: "dsp", 4: "lpai"}
"""The names of QNN's backends, by their QnnExecuTorchBackendType."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ContextStrings:
    """What the strings in a QNN context binary say; each may occur more than once."""

    size: int
    build_ids: tuple[str, ...]
    socs: tuple[str, ...]
    arches: tuple[int, ...]
    vtcm_bytes: tuple[int, ...]
    graphs: tuple[str, ...] = ()
    """Several share the weights."""
    half_floats: bool | None = None
    """Whether floats are computed in 16 bits; not on a chip without fp16."""


@dataclass(frozen=True, slots=True)
class DelegateOptions:
    """The options that a delegate was compiled with, as ExecuTorch's QNN backend reads them."""

    soc_id: int
    arch: int
    vtcm_mb: int
    online_prepare: bool
    precision: str
    processor: str = "htp"
    wrapped: bool = False
    """Whether the context was made elsewhere: its inputs then have no numbers."""


@dataclass(frozen=True, slots=True)
class Delegate:
    method: str
    backend: str
    segment: int | None
    """The segment that holds the data; None if the data is inside the flatbuffer, so that it cannot be mapped
    or freed alone."""
    offset: int
    size: int
    options: DelegateOptions | None
    context: ContextStrings | None


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    inputs: tuple[TensorInfo | str, ...]
    outputs: tuple[TensorInfo | str, ...]
    kernels: dict[str, int]
    """CPU operators and how often each is called."""
    delegate_calls: int
    planned_bytes: int
    instructions: int = 0
    """The number of its steps: calls of operators and delegates, and what moves values between them."""
    arguments: tuple[tuple[str, ...], ...] = ()
    """The inputs and then the outputs of each delegate call, in the order of the delegate: `input_0` and
    `output_0` are the method's own, and an empty text is another value."""


@dataclass(frozen=True, slots=True)
class Segment:
    offset: int
    size: int

    @property
    def alignment(self) -> int:
        """The largest power of two that the offset in the file is a multiple of."""
        return self.offset & -self.offset


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    size: int
    version: int
    methods: tuple[Method, ...]
    delegates: tuple[Delegate, ...]
    segments: tuple[Segment, ...]


def read(path: Path) -> CompiledProgram | ContextStrings:
    """Read a program or a context binary, which is any file with a QNN build id that is no library. Raises
    CheckFailed."""
    data = bytes_of(path)
    try:
        return parse(data)
    except Malformed as error:
        signing = quote_command("python", "-m", "ci", "signing", "inspect", path)
        raise CheckFailed(
            f"{path}: expected an ExecuTorch program or a QNN context binary, found {error}",
            fix=signing if data[:4] == ELF else "compile or download it again",
        ) from error


def digest_without_time(path: Path) -> str:
    """Hash a program's bytes without the times at which its contexts were made, or all bytes of any other
    file."""
    if path.suffix != ".pte":
        return hash_file(path)
    data = bytearray(bytes_of(path))
    with contextlib.suppress(Malformed):
        program = parse(bytes(data))
        for delegate in program.delegates if isinstance(program, CompiledProgram) else ():
            if delegate.backend == QNN_BACKEND and data.startswith(CONTAINER, delegate.offset):
                begin = delegate.offset + len(CONTAINER)
                data[begin : begin + TIME_SIZE] = bytes(TIME_SIZE)
    return hashlib.sha256(data).hexdigest()


def first_bytes(path: Path) -> bytes:
    """The bytes that identify a file's kind; empty for an unreadable file, whose reader reports why."""
    try:
        with open_regular(path) as stream:
            return stream.read(16)
    except OSError:
        return b""


def bytes_of(path: Path) -> memoryview:
    """Map the file's bytes into memory instead of copying them."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > LARGEST:
                raise CheckFailed(f"{path}: expected at most {LARGEST:,} bytes, found {size:,}")
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            return memoryview(content)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", fix="name a file that is there, and that you may read"
        ) from error


def parse(content: bytes | memoryview) -> CompiledProgram | ContextStrings:
    data = memoryview(content)
    if data[4:8] == IDENTIFIER:
        with readable():
            return _program(data)
    if data[:4] == ELF:
        raise Malformed("an ELF library")
    context = context_of(data)
    if not context.build_ids:
        first = f"it begins {data[:8].hex(' ')}" if data else "it is empty"
        raise Malformed(f"neither the mark {IDENTIFIER.decode()} nor a QNN build id ({first})")
    return context


def require_whole(data: memoryview) -> None:
    """Raise Malformed for a context binary, alone or in a delegate, that ends before its header says so."""
    if data[: len(CONTAINER)] == CONTAINER:
        data = data[CONTAINER_SIZE:]
    mark = bytes(data[: len(CONTEXT_MARK)])
    if not mark or not CONTEXT_MARK.startswith(mark):
        return
    size = sum(struct.unpack_from("<QQ", data, 24)) if len(data) >= 40 else 40
    if size > len(data):
        raise Malformed(f"a context binary of at least {size:,} bytes that is cut short at {len(data):,}")


def context_in(data: memoryview) -> tuple[str, memoryview]:
    """(suffix, bytes) of a delegate's data without ExecuTorch's header."""
    if data[: len(DLC_MARK)] == DLC_MARK:
        return ".dlc", data
    if len(data) < CONTAINER_SIZE or data[: len(CONTAINER)] != CONTAINER:
        raise CheckFailed(
            f"expected a context binary behind the mark {CONTAINER.hex(' ')}, found {data[:8].hex(' ')}",
            fix="compile it with the executorch of the profile",
        )
    size = struct.unpack_from("<Q", data, len(CONTAINER) + TIME_SIZE)[0]
    if size != len(data) - CONTAINER_SIZE:
        raise CheckFailed(
            f"expected a context of {size} bytes, found {len(data) - CONTAINER_SIZE}",
            fix="compile or copy it again",
        )
    return ".bin", data[CONTAINER_SIZE:]


def distinct(pattern: re.Pattern[bytes], data: bytes | memoryview) -> list[str]:
    """Return what the pattern's group, or all of it, matches."""
    return sorted({match[pattern.groups].decode() for match in pattern.finditer(data)})


def context_of(data: memoryview) -> ContextStrings:
    require_whole(data)
    flags = distinct(HALF_FLOATS, data)
    return ContextStrings(
        size=len(data),
        build_ids=tuple(distinct(BUILD_ID, data)),
        socs=tuple(distinct(SOC, data)),
        arches=tuple(sorted({int(arch) for arch in distinct(ARCH, data)})),
        vtcm_bytes=tuple(sorted({int(size) for size in distinct(VTCM, data)})),
        graphs=tuple(distinct(GRAPH, data)),
        half_floats="false" not in flags if flags else None,
    )


# The numbers of fields in ExecuTorch's program.fbs, and in the QNN backend's qc_compiler_spec.fbs


class _Program:
    VERSION, PLANS, INLINE_DATA, SEGMENTS = 0, 1, 2, 4


class _DataSegment:
    OFFSET, SIZE = 0, 1


class _Plan:
    NAME, VALUES, INPUTS, OUTPUTS, CHAINS, OPERATORS, DELEGATES, BUFFER_SIZES = 0, 2, 3, 4, 5, 6, 7, 8


class _Chain:
    INSTRUCTIONS = 2


class _Union:
    """A table that holds one of several kinds: an instruction, or a value."""

    KIND, CONTENT = 0, 1


class _KernelCall:
    OPERATOR = 0


class _DelegateCall:
    ARGUMENTS = 1


class _Operator:
    NAME, OVERLOAD = 0, 1


class _Tensor:
    DTYPE, SIZES = 0, 2


class _Delegate:
    BACKEND, DATA, SPECS = 0, 1, 2


class _DataReference:
    LOCATION, INDEX = 0, 1


class _Spec:
    KEY, VALUE = 0, 1


class _Options:
    SOC, BACKEND, ONLINE_PREPARE, WRAPPED = 0, 1, 4, 8


class _Soc:
    ID, HTP = 0, 1


class _HtpOfSoc:
    ARCH, VTCM_MB = 0, 1


class _Backend:
    KIND, HTP = 0, 1


class _HtpOptions:
    PRECISION = 2


def _program(data: memoryview) -> CompiledProgram:
    program_size, base = len(data), 0
    if data[8:12] == EXTENDED_HEADER:
        if len(data) < 32:
            raise Malformed("a header that ends early")
        length, program_size, base = struct.unpack_from("<IQQ", data, 12)
        if length < 24 or program_size > len(data) or base > len(data):
            raise Malformed(
                f"a header of {program_size} bytes and segments at {base} in a file of {len(data)}"
            )
    root = Table.root(data[:program_size])
    segments = tuple(_segments(root, base, len(data)))
    _refuse_overlaps(segments)
    reader = _Delegates(segments, root.tables(_Program.INLINE_DATA), data)
    methods: list[Method] = []
    delegates: list[Delegate] = []
    for plan in root.tables(_Program.PLANS):
        method = _method(plan)
        methods.append(method)
        delegates += [reader.read(table, method.name) for table in plan.tables(_Plan.DELEGATES)]
    if not methods:
        raise Malformed("a program without methods")
    return CompiledProgram(
        len(data), root.number(_Program.VERSION, "I"), tuple(methods), tuple(delegates), segments
    )


def _segments(root: Table, base: int, size: int) -> Iterator[Segment]:
    for table in root.tables(_Program.SEGMENTS):
        segment = Segment(base + table.number(_DataSegment.OFFSET, "Q"), table.number(_DataSegment.SIZE, "Q"))
        if segment.offset + segment.size > size:
            raise Malformed(
                f"a segment of {segment.size} bytes at {segment.offset} in a file of {size}: it is cut short"
            )
        yield segment


def _refuse_overlaps(segments: tuple[Segment, ...]) -> None:
    end = 0
    for segment in sorted((segment for segment in segments if segment.size), key=lambda part: part.offset):
        if segment.offset < end:
            raise Malformed(f"a segment at {segment.offset} inside another, which ends at {end}")
        end = segment.offset + segment.size


def _method(plan: Table) -> Method:
    values, operators = plan.tables(_Plan.VALUES), plan.tables(_Plan.OPERATORS)
    calls: Counter[int] = Counter()
    inputs, outputs = plan.numbers(_Plan.INPUTS, "i"), plan.numbers(_Plan.OUTPUTS, "i")
    names = {value: f"input_{index}" for index, value in enumerate(inputs)}
    names |= {value: f"output_{index}" for index, value in enumerate(outputs)}
    instructions = 0
    arguments = []
    for chain in plan.tables(_Plan.CHAINS):
        for instruction in chain.tables(_Chain.INSTRUCTIONS):
            instructions += 1
            kind, call = instruction.number(_Union.KIND, "B"), instruction.table(_Union.CONTENT)
            if kind == KERNEL_CALL and call is not None:
                calls[call.number(_KernelCall.OPERATOR, "i")] += 1
            if kind == DELEGATE_CALL:
                indices = call.numbers(_DelegateCall.ARGUMENTS, "i") if call is not None else ()
                arguments.append(tuple(names.get(index, "") for index in indices))
    kernels: Counter[str] = Counter()
    for index, count in calls.items():
        kernels[_operator(_at(operators, index, "operator"))] += count
    return Method(
        name=plan.text(_Plan.NAME),
        inputs=tuple(_values_at(inputs, values)),
        outputs=tuple(_values_at(outputs, values)),
        kernels=dict(kernels.most_common()),
        delegate_calls=len(arguments),
        planned_bytes=sum(plan.numbers(_Plan.BUFFER_SIZES, "q")),
        instructions=instructions,
        arguments=tuple(arguments),
    )


def _values_at(indices: Sequence[int], values: Sequence[Table]) -> Iterator[TensorInfo | str]:
    for index in indices:
        yield _value(_at(values, index, "value"))


def _operator(table: Table) -> str:
    name, overload = table.text(_Operator.NAME), table.text(_Operator.OVERLOAD)
    return f"{name}.{overload}" if overload else name


def _value(table: Table) -> TensorInfo | str:
    kind, value = table.number(_Union.KIND, "B"), table.table(_Union.CONTENT)
    if kind != TENSOR or value is None:
        return PLAIN_VALUES.get(kind, f"value of kind {kind}")
    number = value.number(_Tensor.DTYPE, "b")
    return TensorInfo(DTYPES.get(number, f"dtype {number}"), value.numbers(_Tensor.SIZES, "i"))


@dataclass(frozen=True, slots=True)
class _Delegates:
    """Reads delegates. Methods may share a context, which is searched once."""

    segments: tuple[Segment, ...]
    inline: Sequence[Table]
    content: memoryview
    contexts: dict[tuple[bool, int], ContextStrings] = field(default_factory=dict)

    def read(self, table: Table, method: str) -> Delegate:
        reference = table.table(_Delegate.DATA)
        if reference is None:
            raise Malformed("a delegate without data")
        in_segment = reference.number(_DataReference.LOCATION, "b") == 1
        index = reference.number(_DataReference.INDEX, "I")
        if in_segment:
            segment = _at(self.segments, index, "segment")
            offset, data = segment.offset, self.content[segment.offset : segment.offset + segment.size]
        else:
            offset, data = 0, _at(self.inline, index, "inline data").bytes(0)
        backend = table.text(_Delegate.BACKEND)
        specs = {spec.text(_Spec.KEY): spec.bytes(_Spec.VALUE) for spec in table.tables(_Delegate.SPECS)}
        return Delegate(
            method=method,
            backend=backend,
            segment=index if in_segment else None,
            offset=offset,
            size=len(data),
            options=_options(specs[QNN_OPTIONS]) if QNN_OPTIONS in specs else None,
            context=self._context((in_segment, index), data) if backend == QNN_BACKEND else None,
        )

    def _context(self, place: tuple[bool, int], data: memoryview) -> ContextStrings:
        if place not in self.contexts:
            self.contexts[place] = context_of(data)
        return self.contexts[place]


def _options(data: memoryview) -> DelegateOptions:
    root = Table.root(data)
    soc, backend = root.table(_Options.SOC), root.table(_Options.BACKEND)
    htp_info = soc.table(_Soc.HTP) if soc else None
    htp = backend.table(_Backend.HTP) if backend else None
    precision = htp.number(_HtpOptions.PRECISION, "i") if htp else -1
    return DelegateOptions(
        soc_id=soc.number(_Soc.ID, "i") if soc else 0,
        arch=htp_info.number(_HtpOfSoc.ARCH, "i") if htp_info else 0,
        vtcm_mb=htp_info.number(_HtpOfSoc.VTCM_MB, "I") if htp_info else 0,
        online_prepare=bool(root.number(_Options.ONLINE_PREPARE, "?")),
        precision=PRECISIONS.get(precision, "unknown"),
        processor=PROCESSORS.get(backend.number(_Backend.KIND, "i") if backend else 0, "unknown"),
        wrapped=bool(root.number(_Options.WRAPPED, "?")),
    )


def _at(items: Sequence[T], index: int, noun: str) -> T:
    if not 0 <= index < len(items):
        raise Malformed(f"a reference to {noun} {index} of {len(items)}")
    return items[index]
