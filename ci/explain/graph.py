"""Describe a model as the searches see it: nodes with a kind, a place and operands; their values on samples;
the model that ends at a node; the model with other values at some nodes. Two adapters implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ci.models.inputs import Array
from ci.models.model_lines import OperatorAt
from ci.operators import Traits

FLOAT_MODEL = "the float model"
QUANTIZED_MODEL = "the quantized model on the CPU"
"""A program is compared with one of these."""

INPUT, CONSTANT = "input", "constant"
"""No operator computes nodes of these kinds."""

Arrays = Mapping[str, Sequence[Array]]
"""Maps a node to its value for each sample."""
NOTHING: Arrays = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    kind: str
    reads: tuple[str, ...]
    size: int = 0
    """Its tensor has so many elements."""
    floats: bool = False
    """Whether it gives floats."""
    several: bool = False
    """Whether it gives several tensors; each is a node that reads it."""
    quantizes: bool = False
    joins: bool = False
    """Whether its operands must have its precision."""
    part: int | None = None
    """The place of its tensor among the several of the node that it reads; None for other nodes."""


class Graph(ABC):
    """It computes a model on some samples, which are known by their number."""

    reference: str
    """Names the graph where a program is compared with it."""
    samples: Sequence[Any]

    @property
    @abstractmethod
    def nodes(self) -> Mapping[str, Node]:
        """Return the nodes by name, each behind what it reads."""

    @property
    @abstractmethod
    def results(self) -> Sequence[str]:
        """Return the nodes that give the outputs, one for each output."""

    @abstractmethod
    def operator_at(self, name: str) -> OperatorAt:
        """Return the node's operator."""

    @abstractmethod
    def dimension(self, name: str) -> int | None:
        """Return the dimension along which the node's operator works; None if it works on all values at
        once."""

    def number(self, name: str) -> float | None:
        """Return the number that the node's operator compares its operand with; None if it has none."""
        return None

    def traits(self, name: str) -> dict[str, Traits]:
        """Return the traits by which known faults are recognized."""
        return {}

    def step(self, name: str) -> float:
        """Return the distance between two neighbours of the values that its output can have; 0 if it is not
        known."""
        return 0.0

    @abstractmethod
    def ending_at(self, name: str) -> Graph:
        """Return the model as far as this node, with the quantizers of its output."""

    def showing(self, names: Sequence[str]) -> Graph | None:
        """Return the model that also returns what these nodes give, behind its own outputs; None if it
        cannot."""
        return None

    @abstractmethod
    def outputs(self, replaced: Arrays = NOTHING) -> list[list[Array]]:
        """Return the outputs of each sample on the CPU. Nodes in `replaced` have other values, for all that
        reads them."""

    @cached_property
    def exact(self) -> list[list[Array]]:
        """They are the outputs of each sample on the CPU."""
        return self.outputs()

    @abstractmethod
    def values(self, sample: int) -> dict[str, Array]:
        """Return the value of each node that gives one tensor of floats."""

    @abstractmethod
    def values_at(self, names: Sequence[str]) -> Arrays:
        """Return the values of these nodes, which may give numbers of any type."""

    def own_values(self, names: Sequence[str], chosen: Arrays) -> Arrays | None:
        """Return what these nodes compute themselves if readers get the values in `chosen` instead of what
        its nodes compute; None if the graph cannot tell."""
        return None

    @abstractmethod
    def errors_of(self, quantized: Any) -> dict[str, Array]:
        """Return what quantizing changes at each operator that gets this model's values of the first
        sample."""

    @abstractmethod
    def disturbed(self, errors: Iterable[Mapping[str, Array]]) -> Iterable[Sequence[Array]]:
        """Return the outputs for the first sample, with each of these sets of errors added at nodes."""

    def operator_names(self, names: Sequence[str]) -> list[str]:
        """Return the names that a precision file has for nodes."""
        return list(names)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[str]]:
        readers: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for name in dict.fromkeys(node.reads):
                readers.setdefault(name, []).append(node.name)
        return readers

    def everywhere(self, name: str) -> list[str]:
        """Return the node and each dequantizer behind it: every reader has its own."""
        quantizers = [reader for reader in self.readers[name] if self.nodes[reader].quantizes]
        behind = [reader for quantizer in quantizers for reader in self.readers[quantizer]]
        return [name, *(reader for reader in behind if self.nodes[reader].quantizes)]

    def end_of(self, name: str) -> str:
        """Return the dequantizer behind the node, if its output is quantized, else the node."""
        return self.everywhere(name)[:2][-1]

    @cached_property
    def operators(self) -> Mapping[str, Node]:
        """They are the nodes at which a program can end, in order: nodes that depend on an input."""
        variables, ends = set[str](), self.ends
        by_name = {}
        for name, node in self.nodes.items():
            if node.kind == INPUT or not variables.isdisjoint(node.reads):
                variables.add(name)
            computes = node.kind not in (INPUT, CONSTANT) and not (node.quantizes or node.several)
            if computes and name in variables and (node.floats or name in ends):
                by_name[name] = node
        return by_name

    @cached_property
    def ends(self) -> Sequence[str]:
        """They are the operators that compute the model's outputs."""
        return self._makers(self.results)

    def operands_of(self, name: str) -> list[str]:
        """Return the operators that compute what the node reads, some of them through integers."""
        makers: dict[str, None] = {}
        todo = [name]
        while todo:
            for maker in self._makers(self.nodes[todo.pop(0)].reads):
                if maker not in makers and maker not in self.operators:
                    todo.append(maker)
                makers[maker] = None
        return [maker for maker in makers if maker in self.operators]

    def integers_of(self, name: str) -> list[str]:
        """Return what the node reads that is computed from floats, and holds no floats itself."""
        makers = self._makers(self.nodes[name].reads)
        return [maker for maker in makers if maker not in self.operators and self.operands_of(maker)]

    def behind_integers(self, source: str) -> list[str]:
        """Return the operators that read the integers of a source."""
        behind: dict[str, None] = {}
        todo = [source]
        while todo:
            readers = [reader for reader in self.readers[todo.pop()] if reader not in behind]
            behind |= dict.fromkeys(readers)
            todo += [reader for reader in readers if reader not in self.operators]
        return [name for name in behind if name in self.operators]

    def _makers(self, names: Iterable[str]) -> list[str]:
        """Return the nodes that compute these, looking through quantizers and through nodes with several
        tensors."""
        makers: dict[str, None] = {}
        todo = list(names)
        while todo:
            node = self.nodes.get(todo.pop(0))
            if node is not None and (node.quantizes or node.several):
                todo += node.reads
            elif node is not None:
                makers[node.name] = None
        return list(makers)


Trial = Callable[[Any, Sequence[Sequence[Array]]], Sequence[Sequence[Array]]]
"""It returns a graph's outputs for each sample on the emulator, compiled at a program's precision for its
chip, in the types and shapes that are expected. If there are none, it raises the reason."""


def groups_of(graph: Graph) -> list[list[Node]]:
    """Group each operator with those behind it that only it feeds, and that have no other operand or weights:
    a convolution with its activation, a product with its softmax. A conversion between them would gain
    nothing. The parts of several results are in the group of their operator. A concatenation is in one group
    with its operands, because HTP computes one of 16 bits over operands of 8 bits wrongly."""
    group: dict[str, list[Node]] = {}
    groups: list[list[Node]] = []
    for node in graph.nodes.values():
        if node.kind in (INPUT, CONSTANT) or not node.floats:
            continue
        operands = dict.fromkeys(node.reads)
        first = next(iter(operands), "")
        alone = graph.readers.get(first, ()) == [node.name] and first not in graph.results
        if len(operands) == 1 and first in group and (alone or graph.nodes[first].several):
            group[node.name] = group[first]
        elif node.joins and operands.keys() & group.keys():
            fed_by = {id(group[name]) for name in operands if name in group}
            parts = [members for members in groups if id(members) in fed_by]
            groups = [members for members in groups if members not in parts]
            groups.append([member for members in parts for member in members])
            group |= {member.name: groups[-1] for member in groups[-1]}
            group[node.name] = groups[-1]
        else:
            groups.append([])
            group[node.name] = groups[-1]
        group[node.name].append(node)
    return groups
