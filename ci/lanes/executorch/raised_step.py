"""Describe the step of the compiler that raised an exception, with the operator that it was processing."""

from __future__ import annotations

from dataclasses import asdict, replace

from torch.fx import Node

from ci.explain.replay import BrokenStep
from ci.explain.torch_graph import operator_at
from ci.models.compiler_errors import failed_step, node_at_hand
from ci.models.model_lines import source_of
from ci.operators.partition import operator_name

NEAR = 4
"""A node this many operators behind another is still near it."""


def step_that_raised(error: BaseException) -> BrokenStep | None:
    """Return the step that raised the error, with the operator that it was processing."""
    step, node = failed_step(error), node_at_hand(error)
    if step is None or node is None:
        return None
    place = replace(operator_at(node), operator=operator_name(node))
    lines = dict.fromkeys(source_of(near)[0] for near in _neighbours(node))
    around = tuple(line for line in lines if line)
    return BrokenStep(**asdict(place), node=node.name, kind="raises", step=step, around=around)


def _neighbours(node: Node) -> set[Node]:
    """Return the nodes that this node reads, and those that its value reaches in a few steps: a builder may
    fail at the quantizer of what a convolution reads."""
    near, last = {node, *node.all_input_nodes}, {node}
    for _ in range(NEAR):
        last = {user for reader in last for user in reader.users}
        near |= last
    return near
