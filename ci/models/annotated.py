"""The digest of a model that a quantizer, and a suite's own functions, have annotated.

It covers the graph, its tensors, and what each node's annotation says, down to the settings of the observers.
Code counts by its name where it is of the environment, whose files are in every key; a user's class or
function may compute anything, so the model then has no digest."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from ci.models.exported import NoDigest, node_line, value_line
from ci.models.untouched import is_of_environment

TOLD_BY_GRAPH = (
    *("val", "tensor_meta", "example_value", "nn_module_stack", "source_fn_stack", "torch_fn"),
    *("from_node", "seq_nr", "stack_trace", "original_aten"),
)
"""The line of a node says these, or they say where in the code it comes from."""

PLAIN = (
    *(types.NoneType, bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.layout, torch.memory_format, torch.device, torch.Size),
)


def digest_of_annotated(module: fx.GraphModule) -> str:
    """Return the digest. Raises NoDigest."""
    digest = hashlib.sha256()
    for line in _lines(module):
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _lines(module: fx.GraphModule, path: str = "") -> Iterator[str]:
    for node in module.graph.nodes:
        notes = {key: value for key, value in node.meta.items() if key not in TOLD_BY_GRAPH}
        yield f"{node_line(node, path)} {_describe(notes, node.name)}"
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            yield from _lines(child, f"{path}{name}.")
        else:
            yield f"module {path}{name} {_describe(child, f'{path}{name}')}"
    fields = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
    for name, tensor in sorted({**module._parameters, **module._buffers, **fields}.items()):
        yield f"tensor {path}{name} {value_line(tensor) if tensor is not None else None}"


Code: TypeAlias = "type | types.FunctionType | types.BuiltinFunctionType"


def _describe(value: object, where: str) -> str:
    return json.dumps(_Description(where).of(value))


class _Description:
    """Describes a value by plain values. An object that is in itself, or met again, is described once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._met: dict[int, int] = {}

    def of(self, value: object) -> object:
        if isinstance(value, enum.Enum):
            return [self._name(type(value)), value.name]
        if type(value) in PLAIN:
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, fx.Node):
            return f"node {value.name}"
        if isinstance(value, OpOverload | torch.qscheme):
            return str(value)
        if id(value) in self._met:
            return self._met[id(value)]
        self._met[id(value)] = len(self._met)
        if isinstance(value, Tensor):
            return value_line(value)
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return self._code(value)
        return self._object(value)

    def _object(self, value: object) -> object:
        if isinstance(value, Mapping):
            rows = [[self.of(key), self.of(inner)] for key, inner in value.items()]
            return [self._name(type(value)), rows]
        if isinstance(value, list | tuple | deque):
            return [self._name(type(value)), *map(self.of, value)]
        if isinstance(value, set | frozenset):
            return [self._name(type(value)), *sorted(json.dumps(self.of(inner)) for inner in value)]
        if isinstance(value, functools.partial):
            return ["partial", self.of(value.func), self.of(value.args), self.of(value.keywords)]
        if isinstance(value, types.MethodType):
            return ["method", self.of(value.__func__), self.of(value.__self__)]
        fields = getattr(value, "__dict__", None)
        if fields is None and dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if fields is None:
            raise NoDigest(f"{self._where} has a {type(value).__name__}")
        return [self._name(type(value)), [[name, self.of(inner)] for name, inner in fields.items()]]

    def _code(self, code: Code) -> object:
        if not isinstance(code, types.FunctionType):
            return self._name(code)
        cells = [cell.cell_contents for cell in code.__closure__ or ()]
        return [self._name(code), self.of(cells), self.of(code.__defaults__), self.of(code.__kwdefaults__)]

    def _name(self, code: Code) -> str:
        """Name a function or class of the environment; refuse a user's."""
        name = f"{code.__module__}.{code.__qualname__}"
        found: Any = sys.modules.get(str(code.__module__))
        for part in code.__qualname__.split("."):
            found = getattr(found, part, None)
        # A function in a function is found by no name.
        is_own = found is code or "<locals>" in code.__qualname__
        if not is_own or not is_of_environment(code):
            raise NoDigest(f"{self._where} has {name}, whose code is not in the environment")
        return name
