"""Models that ONNX Runtime's QNN provider compiled, and DLC files, read from their bytes.

A compiled model's graph consists of EPContext nodes. Each contains a QNN context binary or names the file
that does. Field numbers are those of onnx.proto.

A DLC holds QNN graphs before compilation, as libQnnIr.so writes them, or the contexts of several chips. It
is a zip.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.artifacts.formats import OBJECT, Budget, Malformed, Message
from ci.artifacts.program import ContextStrings, TensorInfo, bytes_of, context_of
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.components import BUILD_ID

CONTEXT_OPERATOR = "EPContext"
COMPATIBILITY = "ep_compatibility_info.QNNExecutionProvider"

DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
    21: "uint4", 22: "int4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContextNode:
    """An EPContext node. If it is not a main one, its graph is in another node's context."""

    name: str
    main: bool
    file: str
    """The file beside the model that holds the context; empty if the node holds it."""
    context: ContextStrings | None


@dataclass(frozen=True, slots=True)
class CompiledModel:
    size: int
    soc_id: int
    """From the provider's note; 0 if there is none."""
    arch: int
    inputs: tuple[tuple[str, TensorInfo], ...]
    outputs: tuple[tuple[str, TensorInfo], ...]
    kernels: dict[str, int]
    """Operators outside the contexts, which run on the CPU, and how often each occurs."""
    nodes: tuple[ContextNode, ...]

    @property
    def contexts(self) -> list[ContextStrings]:
        return [node.context for node in self.nodes if node.context]

    @property
    def files(self) -> list[str]:
        """The files beside the model that hold its contexts."""
        return list(dict.fromkeys(node.file for node in self.nodes if node.file))


def read_model(path: Path) -> CompiledModel:
    """Raises CheckFailed if the model is not compiled, is damaged, or was moved away from its context."""
    data = bytes_of(path)
    try:
        return parse_model(memoryview(data), path)
    except Malformed as error:
        raise CheckFailed(
            f"{path}: expected a compiled ONNX model, found {error}", fix="compile or copy it again"
        ) from error


def parse_model(data: memoryview, path: Path) -> CompiledModel:
    budget = Budget(len(data))
    model = Message(data)
    graph = model.message(7)
    note = _last(model.messages(14), COMPATIBILITY).text(2)
    nodes = _Nodes(path, *arch_and_soc(note), budget)
    kernels: Counter[str] = Counter()
    compiled: list[ContextNode] = []
    for node in graph.messages(1):
        operator = node.text(4)
        if operator == CONTEXT_OPERATOR:
            compiled.append(nodes.read(node))
            continue
        if operator not in kernels:
            budget.take(OBJECT)
        kernels[operator] += 1
    if not compiled and not kernels:
        first = f"it begins {bytes(data[:8]).hex(' ')}" if data else "it is empty"
        raise Malformed(f"no graph with nodes ({first})")
    if not compiled:
        raise CheckFailed(
            f"{path}: an ONNX model that is not compiled: it has no {CONTEXT_OPERATOR} node",
            fix=session("compile", path, "--soc", "SM8650", "-o", "OUT"),
        )
    inputs = tuple(_tensors(graph, 11, budget))
    names = {name for name, _ in inputs}
    constants = {name for tensor in graph.messages(5) if (name := tensor.text(8)) in names}
    return CompiledModel(
        size=len(data),
        soc_id=nodes.soc_id,
        arch=nodes.arch,
        inputs=tuple(input_ for input_ in inputs if input_[0] not in constants),
        outputs=tuple(_tensors(graph, 12, budget)),
        kernels=dict(kernels.most_common()),
        nodes=tuple(compiled),
    )


def _last(messages: Iterable[Message], name: str) -> Message:
    """The last entry or attribute of this name; without fields if there is none."""
    found = Message(memoryview(b""))
    for message in messages:
        found = message if message.text(1) == name else found
    return found


def _stored(node: Message) -> memoryview | str | None:
    """A main context, or the name of the file that holds it; None for any other node."""
    if _last(node.messages(5), "main_context").number(3, 1) != 1:
        return None
    context = _last(node.messages(5), "ep_cache_context")
    return context.bytes(4) if _last(node.messages(5), "embed_mode").number(3, 1) == 1 else context.text(4)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Reads nodes. Each file beside the model is searched once."""

    path: Path
    arch: int
    soc_id: int
    budget: Budget
    contexts: dict[Path, ContextStrings] = field(default_factory=dict)

    def read(self, node: Message) -> ContextNode:
        from provisioning.manifest import load_socs

        self.budget.take(OBJECT)
        stored = _stored(node)
        if stored is None:
            return ContextNode(node.text(3), False, "", None)
        context = self._beside(stored) if isinstance(stored, str) else context_of(stored, self.budget)
        self.budget.take(context.cost)
        claimed = self.budget.distinct(BUILD_ID, _last(node.messages(5), "ep_sdk_version").bytes(4))
        names = sorted(name for name, soc in load_socs().items() if soc.id == self.soc_id)
        return ContextNode(
            node.text(3),
            True,
            stored if isinstance(stored, str) else "",
            replace(
                context,
                build_ids=tuple(sorted({*context.build_ids, *(build_id.decode() for build_id in claimed)})),
                socs=context.socs or tuple(names),
                arches=context.arches or ((self.arch,) if self.arch else ()),
            ),
        )

    def _beside(self, name: str) -> ContextStrings:
        file = context_beside(self.path, name)
        if file not in self.contexts:
            content = memoryview(bytes_of(file))
            try:
                self.contexts[file] = context_of(content, Budget(len(content)))
            except Malformed as error:
                raise Malformed(f"in {name} beside it {error}") from None
        return self.contexts[file]


def context_beside(path: Path, name: str) -> Path:
    """The file that a compiled model names as its context. Raises CheckFailed unless it is beside it."""
    folder = path.parent.resolve()
    if not is_below(folder, name):
        raise CheckFailed(
            f"{path}: expected its context in a file beside it, found {name[:200]!r}",
            fix="compile it again",
        )
    data = (folder / name).resolve()
    if not data.is_file():
        raise CheckFailed(
            f"{path}: its context {name} is not in the same folder",
            fix=f"move {name} together with {path.name}, or compile with --embed for one file",
        )
    return data


def is_below(folder: Path, name: str) -> bool:
    """Whether a file name in a model leads below `folder` (a resolved path), after following links.

    False if no file can have this name."""
    try:
        real = (folder / name).resolve()
        # This raises if the name is too long.
        real.is_file()
    except (OSError, RuntimeError, ValueError):
        return False
    return real != folder and real.is_relative_to(folder)


def _tensors(graph: Message, number: int, budget: Budget) -> Iterator[tuple[str, TensorInfo]]:
    for value in graph.messages(number):
        budget.take(OBJECT)
        kind = value.message(2).message(1)
        dtype = kind.number(1)
        shape = tuple(size.number(1) if size.has(1) else -1 for size in kind.message(2).messages(1))
        yield value.text(1), TensorInfo(DTYPES.get(dtype, f"type {dtype}"), shape)


def arch_and_soc(note: str) -> tuple[int, int]:
    """From the provider's note `v2:<backend>:<QNN>:<HTP API>:<arch>:<chip>:…`; zeros if there is none."""
    match = re.fullmatch(r"v2:\d+:[\d.]+:[\d.]+:(\d{1,6}):(\d{1,6}):.*", note)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# DLC


DLC_MARK = b"PK\x03\x04"
_DLC_MODEL = "model"
_ENTRY, _MOST_MEMBERS = b"PK\x01\x02", 1024
"""How an entry of the directory begins. Files of QNN have about ten."""
_CACHE = re.compile(r"htp\.cache\.([a-z0-9]{1,32})\.\d{1,3}")


@dataclass(frozen=True, slots=True)
class Dlc:
    size: int
    members: dict[str, int]
    """Name → bytes."""
    builds: tuple[str, ...]
    """QNN's, where it holds their ids."""
    chips: tuple[str, ...]
    """The chips of a flexible context; none for an uncompiled graph."""


def read_dlc(path: Path) -> Dlc:
    """Its members are listed, not read. Raises CheckFailed for a damaged file or another kind of file."""
    content = bytes_of(path)
    try:
        if (count := content.count(_ENTRY)) > _MOST_MEMBERS:
            raise ValueError(f"{count:,} members")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {entry.filename: entry.file_size for entry in archive.infolist()}
        chips = tuple(cache[1].upper() for member in members if (cache := _CACHE.fullmatch(member)))
        if _DLC_MODEL not in members and not chips:
            raise ValueError(f"no member `{_DLC_MODEL}` in it: {', '.join([*members][:10]) or 'it is empty'}")
    except (zipfile.BadZipFile, ValueError, struct.error, RuntimeError) as error:
        raise CheckFailed(
            f"{path}: expected a DLC, found {error or type(error).__name__}",
            fix="copy it again, or write it again with the tool that wrote it",
        ) from error
    builds = Budget(len(content)).distinct(BUILD_ID, content)
    return Dlc(len(content), members, tuple(sorted(build.decode() for build in builds)), chips)
