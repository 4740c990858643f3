"""Compile parts of a partition alone, and read in the log why QNN refuses them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

from torch.fx import Node

from ci.artifacts.compiler_log import NATIVE_ERROR
from ci.diagnose.logs import name_data_types
from ci.one_model.smallest_part import smallest
from ci.operators.culprit import operands_in_words
from ci.operators.partition import operator_name
from ci.operators.partition_parts import Partition
from ci.work import printed_so_far, text_since

NO_KERNEL = re.compile(r"Could not prepare op with id|generated: could not create op|Graph prepare failed")
SEARCHED_SECONDS = 60
"""A search for the operators at fault takes so long. These are CPU seconds, because a busy machine must
change no finding."""


class PartitionTrials:
    """It compiles parts of a partition, for some time, and keeps what QNN says of single operators."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.messages: dict[str, str] = {}
        """It says, by node, why QNN does not compile the node alone."""
        self._deadline = time.process_time() + SEARCHED_SECONDS

    def fails(self, nodes: Sequence[Node]) -> bool:
        """Whether QNN does not compile these nodes as a program of their own."""
        begin = printed_so_far()
        if not self.partition.error_of(nodes):
            return False
        # Without an error of QNN's, it is not QNN that fails, but memory or our own part of a graph.
        errors = qnn_errors_since(begin)
        if errors and len(nodes) == 1:
            self.messages[nodes[0].name] = _describe_errors(errors)
        return bool(errors)

    def find_failing_alone(self) -> list[Node]:
        """Return the operators that fail alone. One of each kind is tried."""
        failing: list[Node] = []
        for alike in _group_by_kind(self.partition.operators):
            first = alike[0]
            if self._is_late() or not self.fails([first]):
                continue
            failing += alike
            for node in alike:
                self.messages[node.name] = self.messages[first.name]
        return failing

    def find_smallest(self, suspects: Sequence[Node]) -> list[Node]:
        """Return the smallest set of operators that fails, with the one at fault last: one of `suspects`, if
        it fails alone. It is empty if all operators together do not fail."""
        for node in suspects:
            if self.fails([node]):
                return [node]
        operators = self.partition.operators
        if not self.fails(operators):
            return []
        return list(smallest(operators, self._first_failing, self._is_late))

    def find_alike(self, culprit: Node) -> list[Node]:
        """Return the other operators of the culprit's name that fail alone, too."""
        alike = []
        for node in self.partition.operators:
            is_other = node is not culprit and operator_name(node) == operator_name(culprit)
            if is_other and self.fails([node]):
                alike.append(node)
        return alike

    def _first_failing(self, parts: Iterable[tuple[Node, ...]]) -> tuple[Node, ...] | None:
        return next(filter(self.fails, parts), None)

    def _is_late(self) -> bool:
        return time.process_time() > self._deadline


def qnn_errors_since(begin: int) -> list[str]:
    """Return the errors that QNN has printed to the log of this process after this byte."""
    return [match.strip() for match in NATIVE_ERROR.findall(text_since(begin))]


def _group_by_kind(nodes: Sequence[Node]) -> list[list[Node]]:
    """Group nodes that differ only in their place and the values of their constants."""
    kinds: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        arguments = [argument for argument in node.args if not isinstance(argument, Node)]
        kind = operator_name(node), operands_in_words(node), str(arguments), str(node.kwargs)
        kinds.setdefault(kind, []).append(node)
    return list(kinds.values())


def _describe_errors(errors: Sequence[str]) -> str:
    """Describe the first error that says more than that there is no kernel."""
    for error in errors:
        if not NO_KERNEL.search(error):
            return f" ({name_data_types(error)[:200]})"
    return " (the HTP's compiler has no kernel for it)" if errors else ""
