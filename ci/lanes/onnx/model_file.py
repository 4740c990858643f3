"""Reads an .onnx, the user's or ours: what is in it, what of it cannot be compiled, and the record of a
compiled one."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ci.artifacts.compiled_onnx import (
    CONTEXT_OPERATOR,
    context_beside,
    is_below,
    read_model,
)
from ci.artifacts.records import record_path, require_recorded
from ci.models.inputs import GraphSignature, Tensor, is_fixed
from ci.models.user_model import fix_of_content
from ci.one_model.forecast import ModelSize
from ci.suite.precision import precision_named
from ci.work import read, to_json
from provisioning.base.commands import add_flags, join_fixes
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.manifest import Soc, load_socs

if TYPE_CHECKING:
    import onnx


Size: TypeAlias = "int | tuple[int, ...]"
"""Gives the size of a named dimension, or all sizes of a named input."""

REWRITTEN = "rewritten.onnx"
"""A rewritten model has this name in a result's folder."""
LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

SHOWN = 5
"""A model's message names this many of its problems; `audit` names all."""
NOT_ON_HTP = {"STRING": "string", "DOUBLE": "float64", "COMPLEX64": "complex64", "COMPLEX128": "complex128"}

DRAWING = (
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"
)  # fmt: skip
"""These operators draw random numbers."""


@dataclass(frozen=True, slots=True)
class GraphProblem:
    rule: str
    subject: str
    message: str
    fix: str

    def __str__(self) -> str:
        is_named = self.message.startswith(self.subject)
        return self.message if is_named else f"{self.subject}: {self.message}"


class NotCompilable(CheckFailed):
    """Reports a model with problems that are found before the provider is asked."""

    def __init__(self, path: Path, problems: Sequence[GraphProblem]) -> None:
        words = "; ".join(map(str, problems[:SHOWN]))
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        fixes = dict.fromkeys(problem.fix for problem in problems[:SHOWN])
        super().__init__(f"{path}: {words}{more}", fix=join_fixes(fixes))
        self.problems = tuple(problems)


def load_graph(path: Path) -> onnx.ModelProto:
    """Load the model without its external data. Raises our errors for a missing or damaged file."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    model, content = onnx.ModelProto(), ""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        fix = "name an .onnx that is there, and that you may read"
        raise UsageError(f"{path}: {error.strerror or error}", fix=fix) from error
    except (DecodeError, ValueError):
        content = f"{path.stat().st_size} bytes that are not one or only a part of one"
    if not path.stat().st_size:
        content = "an empty file"
    elif not content and not (model.graph.node and model.opset_import):
        content = f"one without {'an operator set' if model.graph.node else 'nodes'}"
    if content:
        message = f"{path}: expected an ONNX model, found {content}"
        raise CheckFailed(message, fix=fix_of_content(path, "export or copy it again"))
    return model


def signature_of(model: onnx.ModelProto) -> GraphSignature:
    constants = {initializer.name for initializer in model.graph.initializer}
    return GraphSignature(
        tuple(_tensor(value) for value in model.graph.input if value.name not in constants),
        tuple(_tensor(value) for value in model.graph.output),
    )


def source_digest(model: Path) -> str:
    files = [model, *external_files(load_graph(model), model.parent)]
    return hash_file(model) if len(files) == 1 else " ".join(hash_file(file) for file in files)


def digest_without_metadata(path: Path) -> str:
    """Return the digest of a model and its external data, without the stack traces that exporters write into
    the nodes' metadata."""
    model = load_graph(path)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    files = [hash_file(file) for file in external_files(model, path.parent)]
    text = model.SerializeToString(deterministic=True)
    return hashlib.sha256(text + "".join(files).encode()).hexdigest()


def external_files(model: onnx.ModelProto, folder: Path) -> list[Path]:
    """Return the files of external data. Raises CheckFailed if one is missing, cut off or not below `folder`:
    a model must not read others."""
    root = folder.resolve()
    files: dict[Path, None] = {}
    for owner, tensor in _tensors(model.graph):
        if not tensor.external_data:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        path = root / location
        where = f"external data of {tensor.name or owner}"
        if Path(location).is_absolute() or not is_below(root, location):
            # os.path accepts names that no file can have, and circular links; Path raises for them.
            linked = f", a link to {os.path.realpath(path)}" if os.path.islink(path) else ""  # noqa: PTH114
            message = f"{where}: expected a file below {root}, found {location[:200]!r}{linked}"
            fix = "save the model again with its data in the same folder, under a relative name"
            raise CheckFailed(message, fix=fix)
        if not path.is_file():
            message = f"{where}: {path} is missing"
            raise CheckFailed(message, fix=f"copy {location} into the model's folder, under that name")
        try:
            offset, length = int(entries.get("offset") or 0), int(entries.get("length") or 0)
        except ValueError:
            raise CheckFailed(
                f"{where}: expected numbers, found offset {entries.get('offset')!r} and length"
                f" {entries.get('length')!r}",
                fix="export the model again",
            ) from None
        size = path.stat().st_size
        if offset < 0 or length < 0 or offset + length > size:
            message = f"{where}: expected {length} bytes at {offset} of {path}, which has {size}"
            raise CheckFailed(message, fix=f"copy {location} again")
        files[path] = None
    return list(files)


def fix_dimensions(model: onnx.ModelProto, sizes: Mapping[str, Size]) -> None:
    """Set the sizes of named dimensions wherever the names occur, and all sizes of named inputs."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    dimensions = [dimension for value in values for dimension in value.type.tensor_type.shape.dim]
    params = {dimension.dim_param for dimension in dimensions if dimension.dim_param}
    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    by_name: dict[str, int] = {}
    for name, size in sizes.items():
        if isinstance(size, int) and name in params:
            by_name[name] = size
        elif name in inputs:
            by_name |= _fix_input(name, inputs[name], (size,) if isinstance(size, int) else size)
        else:
            names = sorted(params) if isinstance(size, int) else list(inputs)
            raise UsageError(
                f"--dimension {name}: no {'dimension' if isinstance(size, int) else 'input'} has that name",
                fix=f"use one of: {', '.join(names)}" if names else "leave --dimension out",
            )
    for dimension in dimensions:
        if dimension.dim_param in by_name:
            dimension.dim_value = by_name[dimension.dim_param]


def _fix_input(name: str, kind: onnx.TypeProto.Tensor, sizes: Sequence[int]) -> dict[str, int]:
    """Fix an input's sizes; returns those that have a name, which may occur elsewhere."""
    shape = [dimension.dim_value or dimension.dim_param or -1 for dimension in kind.shape.dim]
    if not kind.HasField("shape"):
        kind.shape.dim.extend([type(kind.shape).Dimension() for _ in sizes])
        shape = [-1 for _ in sizes]
    if len(shape) != len(sizes) or any(
        isinstance(old, int) and old not in (-1, size) for old, size in zip(shape, sizes, strict=True)
    ):
        message = f"--dimension {name}={','.join(map(str, sizes))}: {name} is [{', '.join(map(str, shape))}]"
        raise UsageError(message, fix=add_flags("--dimension", _sizes(Tensor(name, "", tuple(shape)))))
    for dimension, size in zip(kind.shape.dim, sizes, strict=True):
        dimension.dim_value = size
    return {str(old): size for old, size in zip(shape, sizes, strict=True) if _is_name(old)}


def _is_name(size: int | str) -> bool:
    """Whether the size has a name. Exporters write `?` for an unknown size, and two of these need not be
    equal."""
    return isinstance(size, str) and size != "?"


def _example(index: int) -> int:
    """Return a size to begin with: one sample, and enough for a model that halves it several times."""
    return 1 if index == 0 else 64


def _sizes(tensor: Tensor) -> str:
    """Return all sizes of an input, as --dimension takes them."""
    shape = (size if is_fixed(size) else _example(index) for index, size in enumerate(tensor.shape))
    return f"{tensor.name}={','.join(map(str, shape))}"


def opset_of(model: onnx.ModelProto) -> int:
    """Return the opset of ONNX's own operators."""
    return max((row.version for row in model.opset_import if row.domain in ("", "ai.onnx")), default=1)


def simplify_gathers(model: onnx.ModelProto) -> None:
    """Replace each GatherND that looks up by one index with a Gather.

    PyTorch's exporter writes `table[position]` as a GatherND, which refuses int32 positions. Gather takes
    them.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    for index, node in enumerate(graph.node):
        if node.op_type != "GatherND" or any(helper.get_attribute_value(item) for item in node.attribute):
            continue
        unsqueeze = makers.get(node.input[1])
        if unsqueeze is None or unsqueeze.op_type != "Unsqueeze" or unsqueeze.input[1] not in constants:
            continue
        if numpy_helper.to_array(constants[unsqueeze.input[1]]).tolist() == [-1]:
            inputs = [node.input[0], unsqueeze.input[0]]
            gather = helper.make_node("Gather", inputs, list(node.output), name=node.name, axis=0)
            graph.node[index].CopyFrom(gather)


def overrides_of(
    model: onnx.ModelProto, nodes: Mapping[str, Sequence[str]]
) -> tuple[dict[str, str], list[str]]:
    """Return the type of each tensor that these nodes compute, and the nodes that stay in float."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model)
    values = [*inferred.graph.value_info, *model.graph.output]
    floats = {row.name for row in values if row.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    types: dict[str, str] = {}
    excluded: list[str] = []
    for precision, patterns in nodes.items():
        for pattern in patterns:
            matching = [node for node in model.graph.node if fnmatchcase(node.name, pattern)]
            if not matching:
                message = f"nodes = {pattern!r} matches no node"
                raise CheckFailed(message, fix="tune the model again, or correct it")
            if activations := precision_named(precision).activations:
                tensors = [name for node in matching for name in node.output if name in floats]
                types |= dict.fromkeys(tensors, activations)
            else:
                excluded += [node.name for node in matching]
    return types, excluded


def all_in_float(model: onnx.ModelProto) -> bool:
    """Whether the model takes or gives floats, and quantizes none of them."""
    import onnx

    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}
    values = [*model.graph.input, *model.graph.output]
    return not any(node.op_type == "QuantizeLinear" for node in model.graph.node) and any(
        value.type.tensor_type.elem_type in floats for value in values
    )


def problems_of(model: onnx.ModelProto) -> list[GraphProblem]:
    """Return why the model cannot be compiled for HTP. The provider is asked only if there is no such
    problem."""
    return [*open_inputs(model), *_types(model), *_random_numbers(model)]


def is_context(model: onnx.ModelProto) -> bool:
    return any(node.op_type == CONTEXT_OPERATOR for node in model.graph.node)


def open_inputs(model: onnx.ModelProto) -> Iterator[GraphProblem]:
    """Report the inputs whose sizes are not all fixed, so that nothing can be drawn for them."""
    for tensor in signature_of(model).inputs:
        if not tensor.static:
            open_ = [(size, index) for index, size in enumerate(tensor.shape) if not is_fixed(size)]
            sizes = [_sizes(tensor)]
            if all(_is_name(size) for size, _ in open_):
                sizes = [f"{name}={_example(index)}" for name, index in dict(reversed(open_)).items()][::-1]
            fix = "fix it: " + " ".join(f"--dimension {shlex.quote(text)}" for text in sizes)
            message = f"{tensor}: HTP needs every size fixed"
            yield GraphProblem("onnx-dynamic-shape", tensor.name, message, fix)


def _types(model: onnx.ModelProto) -> Iterator[GraphProblem]:
    names: set[str] = set()
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    kinds = [(value.name, value.type.tensor_type.elem_type) for value in values]
    kinds += [(tensor.name, tensor.data_type) for tensor in model.graph.initializer]
    for name, number in kinds:
        kind = _kind(number)
        if kind in NOT_ON_HTP and name not in names:
            names.add(name)
            message = f"{name} is {NOT_ON_HTP[kind]}, which HTP does not have"
            fix = "export in float32" if kind != "STRING" else "turn text into numbers outside the model"
            yield GraphProblem("onnx-type", name, message, fix)


def _random_numbers(model: onnx.ModelProto) -> Iterator[GraphProblem]:
    """Report the operators that draw random numbers: no run on the NPU can be compared with another."""
    for node in model.graph.node:
        if node.op_type in DRAWING and node.domain in ("", "ai.onnx"):
            name = _name(node)
            message = f"{name} is a {node.op_type}, which draws random numbers in each run"
            fix = "draw them outside and make them an input, or export the model in its inference mode"
            yield GraphProblem("onnx-random", name, message, fix)


def _tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in graph.initializer:
        yield graph.name, tensor
    for sparse in graph.sparse_initializer:
        yield graph.name, sparse.values
        yield graph.name, sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield _name(node), attribute.t
            for tensor in attribute.tensors:
                yield _name(node), tensor
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _tensors(inner)


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    from onnx import helper

    kind = value.type.tensor_type
    try:
        dtype = str(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    except (KeyError, ValueError, TypeError):
        dtype = _kind(kind.elem_type).lower()
    if not kind.HasField("shape"):
        return Tensor(value.name, dtype, (-1,))
    dims = kind.shape.dim
    sizes = (dim.dim_value if dim.HasField("dim_value") else dim.dim_param or -1 for dim in dims)
    return Tensor(value.name, dtype, tuple(sizes))


def _kind(number: int) -> str:
    """Return ONNX's name of a type, or its number if this onnx version does not know it."""
    import onnx

    types = onnx.TensorProto.DataType
    return types.Name(number) if number in types.values() else f"type {number}"


def _name(node: onnx.NodeProto) -> str:
    return node.name or f"the {node.op_type} that makes {next(iter(node.output), 'nothing')}"


def size_of(model: onnx.ModelProto) -> ModelSize:
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    weights = {tensor.name: list(tensor.dims) for tensor in inferred.initializer}
    values = {}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        if value.name not in weights:
            values[value.name] = [size.dim_value for size in value.type.tensor_type.shape.dim]
    shapes, macs = {**weights, **values}, 0
    for node in inferred.node:
        if node.op_type not in LAYERS:
            continue
        first, second, out = (shapes.get(name) or [0] for name in (*node.input[:2], node.output[0]))
        if node.op_type == "Conv":
            macs += prod(out) * prod(second[1:])
        elif node.op_type == "ConvTranspose":
            macs += prod(first) * prod(second[1:])
        else:
            transposed = any(item.name == "transA" and item.i for item in node.attribute)
            macs += prod(out) * first[0 if transposed else -1]
    return ModelSize(macs, sum(map(prod, weights.values())), sum(map(prod, values.values())))


SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ContextRecord:
    """`<model>_ctx.json`, beside the .onnx. Written last, so if it exists, all files are complete."""

    model: str
    files: Mapping[str, str]
    """Maps every file to its SHA-256."""
    soc: str
    soc_id: int
    arch: int
    precision: str
    build_id: str
    packages: Mapping[str, str]
    source: str
    """This is the SHA-256 of the model that was compiled, with its external data."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    schema: int = SCHEMA
    origin: str = ""
    """This is the path of the model, relative to the record's folder."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(to_json(self), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> ContextRecord:
        try:
            record = read(cls, json.loads(path.read_text(encoding="utf-8")))
            if record.schema != SCHEMA:
                raise ValueError(f"schema {record.schema}")
        except (OSError, ValueError) as error:
            content = f"something else ({str(error).splitlines()[0]})"
            message = f"{path}: expected the record that `compile` wrote, found {content}"
            raise CheckFailed(message, fix="compile the model again") from error
        return record


@dataclass(frozen=True, slots=True)
class OnnxContext:
    """Holds what a compiled .onnx says of itself."""

    path: Path
    data_files: tuple[Path, ...]
    """The contexts are in these files; there are none if the contexts are embedded."""
    build_ids: tuple[str, ...]
    arch: int
    soc_id: int
    half_floats: bool | None
    record: ContextRecord | None


def read_context(path: Path) -> OnnxContext:
    """Read a compiled model. Raises CheckFailed if it was moved away from its data, or holds no context."""
    compiled = read_model(path)
    record = record_path(path)
    flags = {context.half_floats for context in compiled.contexts}
    return OnnxContext(
        path=path,
        data_files=tuple(context_beside(path, name) for name in compiled.files),
        build_ids=tuple(sorted({build for context in compiled.contexts for build in context.build_ids})),
        arch=compiled.arch,
        soc_id=compiled.soc_id,
        half_floats=None if None in flags or not flags else False not in flags,
        record=ContextRecord.read(record) if record.is_file() else None,
    )


def soc_of(context: OnnxContext) -> str:
    for name, soc in load_socs().items():
        if soc.id == context.soc_id:
            return name
    message = f"{context.path} is for chip {context.soc_id}, which manifests/socs.toml does not have"
    raise CheckFailed(message, fix="say which chip with --soc")


def nodes_beside_context(path: Path) -> list[str]:
    """Return the nodes of a compiled model that are outside its contexts, and so run on the CPU."""
    nodes = load_graph(path).graph.node
    return [f"{node.name} ({node.op_type})" for node in nodes if node.op_type != CONTEXT_OPERATOR]


def require_fit(context: OnnxContext, build_id: str, soc: Soc) -> None:
    """Raise CheckFailed unless the context is whole, made by this QNN build, and for this chip."""
    require_recorded(context.path, context.data_files)
    if context.build_ids and set(context.build_ids) != {build_id}:
        raise CheckFailed(
            f"{context.path}: made by QNN {', '.join(context.build_ids)}, and this provider is {build_id}",
            fix="compile it again with this provider, or install the one it was made with",
        )
    if (context.soc_id, context.arch) != (soc.id, soc.arch):
        made_for = f"made for chip {context.soc_id} (v{context.arch}), not for {soc.id} (v{soc.arch})"
        raise CheckFailed(f"{context.path}: {made_for}", fix="compile it for that chip, with --soc")
