"""A compiled model: an .onnx whose graph is a QNN context, and a record of what it was made from.

The provider runs any context that it can read, even if its bytes were changed or it is for another chip. So
bytes, chip and QNN build are compared with the record and with the installed provider before it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.artifacts.compiled_onnx import CONTEXT_OPERATOR, context_beside, contexts_by_chip, read_model
from ci.artifacts.program import SOC
from ci.artifacts.refusals import record_path, require_recorded
from ci.lanes.onnx.graph import load_graph
from ci.models.inputs import GraphSignature, Tensor
from ci.plain import as_json, read
from provisioning.base.errors import CheckFailed
from provisioning.components import BUILD_ID
from provisioning.manifest import load_socs

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ContextRecord:
    """`<model>_ctx.json`, beside the .onnx. Written last, so if it exists, all files are complete."""

    model: str
    files: Mapping[str, str]
    """Every file by name, with its SHA-256."""
    soc: str
    soc_id: int
    arch: int
    precision: str
    build_id: str
    packages: Mapping[str, str]
    source: str
    """SHA-256 of the model that was compiled, with its external data."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    schema: int = SCHEMA
    origin: str = ""
    """Where the model lies, from the folder of the record."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(as_json(self), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> ContextRecord:
        try:
            record = read(cls, json.loads(path.read_text(encoding="utf-8")))
            if record.schema != SCHEMA:
                raise ValueError(f"schema {record.schema}")
        except (OSError, ValueError) as error:
            found = f"something else ({str(error).splitlines()[0]})"
            message = f"{path}: expected the record that `compile` wrote, found {found}"
            raise CheckFailed(message, fix="compile the model again") from error
        return record


@dataclass(frozen=True, slots=True)
class OnnxContext:
    """What a compiled .onnx says of itself."""

    path: Path
    beside: tuple[Path, ...]
    """The files of its contexts; none if they are embedded."""
    build_ids: tuple[str, ...]
    arch: int
    soc_id: int
    signature: GraphSignature
    half_floats: bool | None
    record: ContextRecord | None


def read_context(path: Path) -> OnnxContext:
    """Raises CheckFailed if the context was moved away from its data or is no context at all."""
    compiled = read_model(path)
    record = record_path(path)
    known = {context.half_floats for context in compiled.contexts}
    soc_id, arch = compiled.soc_id, compiled.arch
    if not soc_id:
        # Providers before onnxruntime-qnn 2.4 note no chip; the context itself names it.
        socs = {soc for context in compiled.contexts for soc in context.socs}
        chips = {(soc.id, soc.arch) for name, soc in load_socs().items() if name in socs}
        soc_id, arch = chips.pop() if len(chips) == 1 else (0, 0)
    return OnnxContext(
        path=path,
        beside=tuple(context_beside(path, name) for name in compiled.files),
        build_ids=tuple(sorted({build for context in compiled.contexts for build in context.build_ids})),
        arch=arch,
        soc_id=soc_id,
        signature=GraphSignature(
            tuple(Tensor(name, input_.dtype, input_.shape) for name, input_ in compiled.inputs),
            tuple(Tensor(name, output.dtype, output.shape) for name, output in compiled.outputs),
        ),
        half_floats=None if None in known or not known else False not in known,
        record=ContextRecord.read(record) if record.is_file() else None,
    )


def soc_of(context: OnnxContext) -> str:
    for name, soc in load_socs().items():
        if soc.id == context.soc_id:
            return name
    message = f"{context.path} is for chip {context.soc_id}, which manifests/socs.toml does not have"
    raise CheckFailed(message, fix="say which chip with --soc")


def nodes_beside_context(path: Path) -> list[str]:
    """The nodes of a compiled model that are outside the context, and so run on the CPU."""
    nodes = load_graph(path).graph.node
    return [f"{node.name} ({node.op_type})" for node in nodes if node.op_type != CONTEXT_OPERATOR]


def require_fit(
    context: OnnxContext, build_id: str, *, soc_id: int | None = None, arch: int | None = None
) -> None:
    """Raises CheckFailed unless the context is whole and made by this QNN build, and for this chip."""
    require_recorded(context.path, context.beside)
    if context.build_ids and set(context.build_ids) != {build_id}:
        raise CheckFailed(
            f"{context.path}: made by QNN {', '.join(context.build_ids)}, and this provider is {build_id}",
            fix="compile it again with this provider, or install the one it was made with",
        )
    # What an earlier provider wrote names the chip alone.
    known = (context.soc_id or soc_id, context.arch or arch)
    if soc_id is not None and known != (soc_id, arch):
        raise CheckFailed(
            f"{context.path}: made for chip {context.soc_id} (v{context.arch}), not for {soc_id} (v{arch})",
            fix="compile it for that chip, with --soc",
        )


def require_chips(name: str, contexts: Sequence[bytes], chips: Sequence[str], build: str) -> None:
    """Raises CheckFailed if the contexts of a flexible one lack a chip, or another QNN build made them."""
    for chip in chips:
        if not contexts or any(not _holds(data, chip, build) for data in contexts):
            message = f"{name} has no context of QNN {build} for {chip}, which was requested"
            fix = "use onnxruntime-qnn 2.5 (QNN 2.49) or later, or compile for each chip by itself"
            raise CheckFailed(message, fix=fix)


def _holds(data: bytes, chip: str, build: str) -> bool:
    part = contexts_by_chip(data).get(chip.lower(), b"")
    return {*SOC.findall(part)} == {chip.encode()} and {*BUILD_ID.findall(part)} <= {build.encode()}
