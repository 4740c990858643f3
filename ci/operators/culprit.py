"""Describe the operators at which a lowering fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import Node

from ci.artifacts.compiler_log import CRASHES
from ci.models.model_lines import place_in_words, source_of
from ci.operators.partition import module_of, operator_name


@dataclass(frozen=True, slots=True)
class Culprit:
    """The compiler fails at these nodes of the edge graph; the first one is in the model's own code."""

    nodes: tuple[str, ...]
    operator: str
    module: str
    line: str
    reason: str
    fix: str = ""
    source: str = ""
    """It is FILE:LINE of the line."""

    @classmethod
    def at(cls, nodes: Sequence[Node], reason: str, fix: str = "") -> Culprit:
        """Make the culprit of these nodes; its line is that of the first one that has a line."""
        line = module = source = ""
        for node in nodes:
            source = source_of(node)[0]
            if source:
                line, module = f" at {place_in_words(node)}", module_of(node)
                break
        names = tuple(node.name for node in nodes)
        return cls(names, operator_name(nodes[0]), module, line, reason, fix, source=source)

    @staticmethod
    def describe(culprits: Sequence[Culprit]) -> str:
        """Describe the culprits in one sentence; nodes of one line, as in a loop, are named once."""
        alike: dict[tuple[str, ...], list[Culprit]] = {}
        for row in culprits:
            alike.setdefault((row.operator, row.line, row.reason), []).append(row)
        return CRASHES + "; and of ".join(_sentence(group) for group in alike.values())


def _sentence(alike: Sequence[Culprit]) -> str:
    first = alike[0]
    names = [culprit.nodes[0] for culprit in alike]
    node = names[0] if len(names) == 1 else f"{len(names)} nodes, {names[0]} to {names[-1]}"
    modules = list(dict.fromkeys(culprit.module for culprit in alike if culprit.module))
    module = ""
    if modules:
        module = f" in {modules[0] if len(modules) == 1 else f'{len(modules)} modules'}"
    return f"{first.operator} ({node}){module}{first.line}: {first.reason}"


def operands_in_words(node: Node) -> str:
    """Return the types and shapes of a node's operands."""
    return ", ".join(map(_operand, node.all_input_nodes)) or "no operand"


def _operand(node: Node) -> str:
    value = node.meta.get("val")
    shape = list(getattr(value, "shape", ()))
    dequantizes = "dequantize_per" in operator_name(node) and node.all_input_nodes
    source = node.all_input_nodes[0] if dequantizes else node
    attributes = source.meta.get("quant_attrs") or node.meta.get("quant_attrs")
    if attributes and {"quant_min", "quant_max"} <= attributes.keys():
        bits = math.ceil(math.log2(attributes["quant_max"] - attributes["quant_min"] + 1))
        return f"{bits}-bit {shape}"
    return f"{str(getattr(value, 'dtype', '?')).removeprefix('torch.')} {shape}"
