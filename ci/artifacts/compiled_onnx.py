"""Models that ONNX Runtime's QNN provider compiled, and DLC files, read from their bytes.

A compiled model's graph consists of EPContext nodes. Each contains a QNN context binary or names the file
that does.

A DLC holds QNN graphs before compilation, as libQnnIr.so writes them, or the contexts of several chips. It
is a zip.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.artifacts.formats import Malformed, onnx_model, readable
from ci.artifacts.program import ContextStrings, TensorInfo, bytes_of, context_of, distinct
from provisioning.archive import DAMAGE
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.build_ids import BUILD_ID

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
    """The number of the chip, which the provider's note states; 0 if there is no note."""
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
    """Read a compiled model.

    Raises CheckFailed if the model is not compiled, is damaged, or was moved away from its context."""
    data = bytes(bytes_of(path))
    try:
        with readable():
            return parse_model(data, path)
    except Malformed as error:
        raise CheckFailed(
            f"{path}: expected a compiled ONNX model, found {error}", fix="compile or copy it again"
        ) from error


def parse_model(data: bytes, path: Path) -> CompiledModel:
    model = onnx_model(data)
    graph = model.graph
    notes = {entry.key: entry.value for entry in model.metadata_props}
    nodes = _Nodes(path, *arch_and_soc(notes.get(COMPATIBILITY, "")))
    kernels = Counter(node.op_type for node in graph.node if node.op_type != CONTEXT_OPERATOR)
    rows = tuple(nodes.read(node) for node in graph.node if node.op_type == CONTEXT_OPERATOR)
    if not rows and not kernels:
        first = f"it begins {data[:8].hex(' ')}" if data else "it is empty"
        raise Malformed(f"no graph with nodes ({first})")
    if not rows:
        raise CheckFailed(
            f"{path}: an ONNX model that is not compiled: it has no {CONTEXT_OPERATOR} node",
            fix=session("compile", path, "--soc", "SM8650", "-o", "OUT"),
        )
    constants = {tensor.name for tensor in graph.initializer}
    return CompiledModel(
        size=len(data),
        soc_id=nodes.soc_id,
        arch=nodes.arch,
        inputs=tuple(_tensor(value) for value in graph.input if value.name not in constants),
        outputs=tuple(map(_tensor, graph.output)),
        kernels=dict(kernels.most_common()),
        nodes=rows,
    )


def context_of_model(path: Path) -> bytes:
    """Return the first context of a compiled model, which `read_model` has read."""
    graph = onnx_model(bytes(bytes_of(path))).graph
    for node in graph.node:
        if node.op_type == CONTEXT_OPERATOR:
            value = _content_of({attribute.name: attribute for attribute in node.attribute})
            if value is not None:
                return bytes(bytes_of(context_beside(path, value))) if isinstance(value, str) else value
    raise CheckFailed(f"{path}: no node of it has a context", fix="compile it again")


def _tensor(value: Any) -> tuple[str, TensorInfo]:
    tensor = value.type.tensor_type
    shape = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in tensor.shape.dim)
    return value.name, TensorInfo(DTYPES.get(tensor.elem_type, f"type {tensor.elem_type}"), shape)


def _content_of(attributes: Mapping[str, Any]) -> bytes | str | None:
    """A main context, or the name of the file that holds it; None for any other node."""
    context = attributes["ep_cache_context"].s if "ep_cache_context" in attributes else b""

    def is_set(name: str) -> bool:
        """Whether an attribute is 1; onnxruntime defines that an absent one is."""
        return name not in attributes or attributes[name].i == 1

    if not is_set("main_context"):
        return None
    return context if is_set("embed_mode") else context.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Reads nodes. Each file beside the model is searched once."""

    path: Path
    arch: int
    soc_id: int
    contexts: dict[Path, ContextStrings] = field(default_factory=dict)

    def read(self, node: Any) -> ContextNode:
        from provisioning.manifest import load_socs

        attributes = {attribute.name: attribute for attribute in node.attribute}
        value = _content_of(attributes)
        if value is None:
            return ContextNode(node.name, False, "", None)
        context = self._context_file(value) if isinstance(value, str) else context_of(memoryview(value))
        version = attributes["ep_sdk_version"].s if "ep_sdk_version" in attributes else b""
        names = sorted(name for name, soc in load_socs().items() if soc.id == self.soc_id)
        return ContextNode(
            node.name,
            True,
            value if isinstance(value, str) else "",
            replace(
                context,
                build_ids=tuple(sorted({*context.build_ids, *distinct(BUILD_ID, version)})),
                socs=context.socs or tuple(names),
                arches=context.arches or ((self.arch,) if self.arch else ()),
            ),
        )

    def _context_file(self, name: str) -> ContextStrings:
        file = context_beside(self.path, name)
        if file not in self.contexts:
            try:
                self.contexts[file] = context_of(bytes_of(file))
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


def arch_and_soc(note: str) -> tuple[int, int]:
    """Read arch and chip from the provider's note `v2:<backend>:<QNN>:<HTP API>:<arch>:<chip>:…`; both are 0
    if the note has another form."""
    match = re.fullmatch(r"v2:\d+:[\d.]+:[\d.]+:(\d{1,6}):(\d{1,6}):.*", note)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# DLC


_DLC_MODEL = "model"
_CACHE = re.compile(r"htp\.cache\.([a-z0-9]{1,32})\.\d{1,3}")


@dataclass(frozen=True, slots=True)
class Dlc:
    size: int
    members: dict[str, int]
    """The size in bytes of each member, by its name."""
    builds: tuple[str, ...]
    """The build ids of QNN that the file holds, if any."""
    chips: tuple[str, ...]
    """The chips of a flexible context; none for an uncompiled graph."""


def read_dlc(path: Path) -> Dlc:
    """List a DLC's members without reading them. Raises CheckFailed for a damaged file or another kind of
    file."""
    content = bytes_of(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {entry.filename: entry.file_size for entry in archive.infolist()}
        chips = tuple(cache[1].upper() for member in members if (cache := _CACHE.fullmatch(member)))
        if _DLC_MODEL not in members and not chips:
            raise ValueError(f"no member `{_DLC_MODEL}` in it: {', '.join([*members][:10]) or 'it is empty'}")
    except DAMAGE as error:
        raise CheckFailed(
            f"{path}: expected a DLC, found {error or type(error).__name__}",
            fix="copy it again, or write it again with the tool that wrote it",
        ) from error
    return Dlc(len(content), members, tuple(distinct(BUILD_ID, content)), chips)
