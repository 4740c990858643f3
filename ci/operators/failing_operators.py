"""Find the operators at which a lowering fails, and prove it by compiling parts of the partition alone.

QNN's first error is often not the cause. It may concern an operator that falls back to the CPU without harm,
while the partition that the fallback leaves behind has nothing but constants and cannot be compiled."""

from __future__ import annotations

import itertools
import logging
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from executorch.backends.qualcomm import qnn_preprocess
from torch.export import ExportedProgram
from torch.fx import Node

from ci.models.model_lines import fix_inside, is_inside
from ci.operators.culprit import Culprit, operands_in_words
from ci.operators.partition import PASS_THROUGH, PartitionerSpy, is_glue, is_quantizer, operator_name
from ci.operators.partition_parts import Partition, restore_builtins
from ci.operators.partition_trials import SEARCHED_SECONDS, PartitionTrials, qnn_errors_since
from ci.work import printed_so_far
from provisioning.base.commands import Fix, session
from provisioning.known_faults import fix_for

VISITING = re.compile(r"Visiting: (\S+), ")
MANY = 3
ATTEMPTS = 5
"""Lowering is tried at most this often in search of a fix; each attempt takes as long as the failed one."""

CONSTANT = Fix(
    "compute the constant once, in __init__, and keep it with register_buffer, or make it an input; {} writes"
    " the model so",
    session("repair", "MODEL", "-o", "DIR"),
)

RECURRENT = (
    "export the model as an .onnx: ONNX Runtime compiles recurrent layers as a whole; or give the layer its"
    " first state as an input: self.rnn(x, h0)"
)


class Search:
    """Remembers the partition that is being compiled, and what QNN printed about it."""

    def __init__(self, watch: PartitionerSpy) -> None:
        self.watch = watch
        self.partition: Partition | None = None
        self.later: list[Any] = []
        """These are the programs of the partitions that come after it, with their compile specs."""
        self.visit_name = ""
        self.begin = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        backend = qnn_preprocess.QnnBackend
        multimethod, build = backend.preprocess_multimethod, backend._build_op_wrappers
        handler = logging.Handler()

        def visit(record: logging.LogRecord) -> None:
            if match := VISITING.match(record.getMessage()):
                self.visit_name = match[1]

        def preprocess(
            programs: Mapping[str, list[ExportedProgram]], compile_specs: Mapping[str, list[object]]
        ) -> object:
            partitions = [zip(programs[method], compile_specs[method], strict=True) for method in programs]
            self.later = list(itertools.chain(*partitions))
            return multimethod(programs, compile_specs)

        def build_and_remember(edge_program: ExportedProgram, *rest: object, **options: object) -> object:
            specs = [spec for program, spec in self.later if program is edge_program]
            if not specs:
                # It is a part that the search compiles.
                return build(edge_program, *rest, **options)
            self.begin, self.visit_name = printed_so_far(), ""
            self.later = [pair for pair in self.later if pair[0] is not edge_program]
            self.partition = Partition(edge_program, specs[0])
            wrappers = build(edge_program, *rest, **options)
            self.visit_name = ""
            return wrappers

        handler.emit = visit  # type: ignore[method-assign]
        backend.preprocess_multimethod = staticmethod(preprocess)
        backend._build_op_wrappers = staticmethod(build_and_remember)
        qnn_preprocess.logger.addHandler(handler)
        self.partition, self.watch.current = None, None
        try:
            yield
        finally:
            backend.preprocess_multimethod = staticmethod(multimethod)
            backend._build_op_wrappers = staticmethod(build)
            qnn_preprocess.logger.removeHandler(handler)
            restore_builtins()

    @property
    def node(self) -> Node | None:
        """It is the node that the partitioner or the backend's builder was working on when it failed."""
        if self.watch.current is not None or self.partition is None:
            return self.watch.current
        calls = (node for node in self.partition.calls if not is_glue(node))
        return next((node for node in calls if node.name == self.visit_name), None)

    def culprits(self, error: BaseException, *, alone: bool = False) -> list[Culprit]:
        """Find the nodes at which the lowering with this error fails, and all others of their kind.

        With `alone`, only nodes that fail alone are found: nothing larger is compiled."""
        node, partition = self.node, self.partition
        if node is not None:
            return [_culprit_of_builder(node, partition, error)]
        if partition is None:
            return []
        if not partition.inputs:
            reason = "QNN cannot compile a partition that holds nothing but constants"
            calls = [node for node in partition.calls if not is_glue(node)]
            return [self._handed_out(calls, reason), *self._later_constants()]
        trials = PartitionTrials(partition)
        if alone:
            failing = trials.find_failing_alone()
            return self._culprits_of(failing, trials.messages, "QNN does not compile it alone", partition)
        minimal_set = trials.find_smallest(self._mentioned_in_errors(partition))
        if not minimal_set:
            return []
        *needed_before, culprit = minimal_set
        if needed_before:
            together = ", ".join(f"{operator_name(node)} ({node.name})" for node in needed_before)
            reason = f"QNN does not compile it after {together}"
            return self._culprits_of([culprit], {}, reason, partition)
        failing = [culprit, *trials.find_alike(culprit)]
        reason = "QNN does not compile it, neither in the model nor alone"
        return self._culprits_of(failing, trials.messages, reason, partition)

    def _mentioned_in_errors(self, partition: Partition) -> list[Node]:
        """Return the operators that QNN's errors name, in the order of the errors."""
        operators = [node for node in partition.operators if not is_glue(node)]
        mentioned = []
        for error in qnn_errors_since(self.begin):
            mentioned += [node for node in operators if _names(error, node.name)]
        return mentioned

    def _culprits_of(
        self, nodes: Collection[Node], messages: Mapping[str, str], reason: str, partition: Partition
    ) -> list[Culprit]:
        """Return the culprits in the order of the program. If one of them is a constant, the constants of
        later partitions would fail next, so they are culprits, too."""
        culprits = []
        for node in sorted(nodes, key=partition.calls.index):
            message = messages.get(node.name, "")
            culprits.append(self._culprit_of(node, f"{reason}{message}", partition))
        if not partition.live.issuperset(nodes):
            culprits += self._later_constants()
        return culprits

    def _later_constants(self) -> list[Culprit]:
        """Return the constants that a partition which was not compiled yet hands out: it would fail next."""
        culprits = []
        for program, spec in self.later:
            partition = Partition(program, spec)
            for node in partition.operators:
                if node not in partition.live:
                    culprits.append(self._culprit_of(node, "", partition))
        return culprits

    def _culprit_of(self, node: Node, reason: str, partition: Partition) -> Culprit:
        nodes = [node, *partition.constants_of(node)]
        if node not in partition.live:
            return self._handed_out(nodes, "QNN cannot hand out a constant")
        reason, fix = f"{reason}, with {operands_in_words(node)}", fix_inside(node)
        if not all(map(_is_passed_on, nodes[1:])) and not partition.error_of([node], buffers=True):
            reason += "; it compiles if the constants that it reads are not computed in the program"
            fix = CONSTANT
        return Culprit.at(nodes, reason, fix)

    def _handed_out(self, nodes: Sequence[Node], reason: str) -> Culprit:
        """Describe a constant that a partition hands out, and say why the operator that uses it is on the
        CPU."""
        users = [user for node in nodes for user in self.watch.users.get(node.name, ())]
        for user in users:
            decision = self.watch.decisions.get(user)
            if decision and not decision.supported and user not in {node.name for node in nodes}:
                reason += f"; {decision.operator} needs it, and stays on the CPU: {decision.reason}"
                break
        fix: str = CONSTANT
        if is_quantizer(nodes[0]):
            fix = ""
        elif any(is_inside(node, "torch.nn.modules.rnn") for node in nodes):
            fix = RECURRENT
        return Culprit.at(nodes, reason, fix)


@dataclass(frozen=True, slots=True)
class Workaround:
    """It says what must stay on the CPU, and has the lowering that proves it."""

    culprits: tuple[Culprit, ...]
    cpu_nodes: list[str]
    """They are named as in a suite."""
    lowering: object
    """It is None if nothing proves that the rest lowers."""
    attempt: str = ""
    """If there is no lowering, it says what was tried."""

    @property
    def message(self) -> str:
        return Culprit.describe(self.culprits)


def workaround_of(
    search: Search, error: BaseException, lower: Callable[[frozenset[str]], object], *, brief: bool
) -> Workaround | None:
    """Find what must stay on the CPU so that the rest lowers; None if not found.

    Call it after a failed lowering. `lower` lowers again with nodes on the CPU, and raises if that fails. It
    is called only after a `brief` lowering."""
    rows, names = list[Culprit](), set[str]()
    lowering, attempt = None, "not tried, as this lowering takes long"
    begun = time.process_time()
    for _ in range(ATTEMPTS):
        culprits = [row for row in search.culprits(error, alone=not brief) if not names.issuperset(row.nodes)]
        if not culprits:
            break
        rows += culprits
        names.update(name for row in culprits for name in row.nodes)
        # For readers of the log, in case the compiler crashes next.
        sys.stderr.write(f"{Culprit.describe(rows)}\n")
        if not brief or time.process_time() - begun > SEARCHED_SECONDS:
            break
        try:
            with search.installed():
                lowering = lower(frozenset(names))
            break
        except Exception as another:
            sys.stderr.write(f"tried with {', '.join(sorted(names))} on the CPU: {another}\n")
            first_line = str(another).partition("\n")[0]
            error, attempt = another, f"tried, and the rest does not lower either: {first_line}"
    return Workaround(tuple(rows), _patterns(names, search.watch.users), lowering, attempt) if rows else None


@contextmanager
def naming() -> Iterator[None]:
    """Add to the error of a lowering in this block which operators fail alone."""
    watch = PartitionerSpy()
    search, backend = Search(watch), qnn_preprocess.QnnBackend
    with watch.installed(), search.installed():
        lower = backend.preprocess_multimethod

        def preprocess(*programs: object) -> object:
            try:
                return lower(*programs)
            except Exception as error:
                if culprits := search.culprits(error, alone=True):
                    error.args = (f"{str(error).rstrip('.')}: {Culprit.describe(culprits)}",)
                raise

        backend.preprocess_multimethod = staticmethod(preprocess)
        yield


def _patterns(names: Collection[str], nodes: Collection[str]) -> list[str]:
    """Return the names; many that differ only by their number become one pattern."""
    patterns: dict[str, None] = {}
    order = {name: number for number, name in enumerate(nodes)}
    for name in sorted(names, key=lambda name: order.get(name, len(order))):
        stem = re.sub(r"_\d+$", "", name)
        alike = {node for node in nodes if re.fullmatch(rf"{re.escape(stem)}(_\d+)?", node)}
        all_of_them = len(alike) > MANY and alike <= set(names)
        patterns[f"{stem}*" if all_of_them else name] = None
    return list(patterns)


def _names(error: str, name: str) -> bool:
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", error))


def _is_passed_on(node: Node) -> bool:
    return is_quantizer(node) or operator_name(node) in PASS_THROUGH


def _culprit_of_builder(node: Node, partition: Partition | None, error: BaseException) -> Culprit:
    """Describe the node at which the partitioner or the backend's builder fails."""
    constants = partition.constants_of(node) if partition else []
    reason = f"the backend's builder fails: {type(error).__name__}: {error}"
    fix = fix_for(operator_name(node), "", where="builder", reason=str(error))
    return Culprit.at([node, *constants], reason, str(fix))
