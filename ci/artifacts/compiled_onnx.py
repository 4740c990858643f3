"""Models that ONNX Runtime's QNN provider compiled, read from their bytes.

Their graph consists of EPContext nodes. Each contains a QNN context binary or names the file that does. Field
numbers are those of onnx.proto.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ci.artifacts.program import ContextStrings, TensorInfo, bytes_of, context_of
from ci.artifacts.protobuf import Malformed, Message
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed

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
    model = Message(data)
    graph = model.message(7)
    nodes = list(graph.messages(1))
    if not nodes:
        first = f"it begins {bytes(data[:8]).hex(' ')}" if data else "it is empty"
        raise Malformed(f"no graph with nodes ({first})")
    kernels = Counter(node.text(4) for node in nodes if node.text(4) != CONTEXT_OPERATOR)
    compiled = [node for node in nodes if node.text(4) == CONTEXT_OPERATOR]
    if not compiled:
        raise CheckFailed(
            f"{path}: an ONNX model that is not compiled: it has no {CONTEXT_OPERATOR} node",
            fix=session("compile", path, "--soc", "SM8650", "-o", "OUT"),
        )
    notes = {entry.text(1): entry.text(2) for entry in model.messages(14)}
    arch, soc_id = arch_and_soc(notes.get(COMPATIBILITY, ""))
    constants = {tensor.text(8) for tensor in graph.messages(5)}
    return CompiledModel(
        size=len(data),
        soc_id=soc_id,
        arch=arch,
        inputs=tuple(each for each in _tensors(graph, 11) if each[0] not in constants),
        outputs=tuple(_tensors(graph, 12)),
        kernels=dict(kernels.most_common()),
        nodes=tuple(_node(node, path, arch, soc_id) for node in compiled),
    )


def context_binaries(path: Path) -> list[bytes]:
    """The context binary of each node that has one, from the model or from the file beside it."""
    try:
        nodes = list(Message(memoryview(bytes_of(path))).message(7).messages(1))
        return [bytes(stored[1]) for node in nodes if (stored := _stored(node, path)) is not None]
    except Malformed as error:
        raise CheckFailed(
            f"{path}: expected a compiled ONNX model, found {error}", fix="compile or copy it again"
        ) from error


def _stored(node: Message, path: Path) -> tuple[str, memoryview] | None:
    """(file, content) of a main context's node; None for any other node."""
    attributes = {attribute.text(1): attribute for attribute in node.messages(5)}
    none = Message(memoryview(b""))
    if node.text(4) != CONTEXT_OPERATOR or attributes.get("main_context", none).number(3, 1) != 1:
        return None
    stored = attributes.get("ep_cache_context", none)
    if attributes.get("embed_mode", none).number(3, 1) == 1:
        return "", stored.bytes(4)
    file = stored.text(4)
    return file, memoryview(bytes_of(context_beside(path, file)))


def _node(node: Message, path: Path, arch: int, soc_id: int) -> ContextNode:
    attributes = {attribute.text(1): attribute for attribute in node.messages(5)}
    none = Message(memoryview(b""))
    stored = _stored(node, path)
    if stored is None:
        return ContextNode(node.text(3), False, "", None)
    file, content = stored
    context = context_of(content)
    from provisioning.manifest import load_socs

    claimed = attributes.get("ep_sdk_version", none).text(4)
    names = sorted(name for name, soc in load_socs().items() if soc.id == soc_id)
    return ContextNode(
        node.text(3),
        True,
        file,
        replace(
            context,
            build_ids=tuple(sorted({*context.build_ids, *([claimed] if claimed else [])})),
            socs=context.socs or tuple(names),
            arches=context.arches or ((arch,) if arch else ()),
        ),
    )


def context_beside(path: Path, name: str) -> Path:
    """The file that a compiled model names as its context. Raises CheckFailed unless it is beside it."""
    folder = path.parent.resolve()
    if not is_below(folder, name):
        raise CheckFailed(
            f"{path}: expected its context in a file beside it, found {name[:200]!r}",
            fix="compile it again",
        )
    data = folder / name
    if not data.is_file():
        raise CheckFailed(
            f"{path}: its context {name} is not beside it",
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


def _tensors(graph: Message, field: int) -> Iterator[tuple[str, TensorInfo]]:
    for value in graph.messages(field):
        kind = value.message(2).message(1)
        number = kind.number(1)
        shape = tuple(size.number(1) if size.has(1) else -1 for size in kind.message(2).messages(1))
        yield value.text(1), TensorInfo(DTYPES.get(number, f"type {number}"), shape)


def arch_and_soc(note: str) -> tuple[int, int]:
    """From the provider's note `v2:<backend>:<QNN>:<HTP API>:<arch>:<chip>:…`; zeros if there is none."""
    match = re.fullmatch(r"v2:\d+:[\d.]+:[\d.]+:(\d{1,6}):(\d{1,6}):.*", note)
    return (int(match[1]), int(match[2])) if match else (0, 0)
