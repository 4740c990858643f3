"""Lower a case's model for a chip.

`lower` is the whole work of one process: it computes the model that the run compiles, lowers it, and writes
the program with its inputs and expected outputs. `Lowering` lowers one module. If the compiler crashes, it
looks for the operators at which it does, and lowers again with these on the CPU. What is no correct program
is refused (`refused_programs`); values that fp16 cannot hold are found in `half_range`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_lpai_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch import Tensor, nn

from ci.artifacts.compiler_log import total, traffic
from ci.artifacts.program import digest_without_time
from ci.explain.audit import KeptNodes
from ci.explain.inner_choices import inner_choices
from ci.explain.torch_graph import TorchGraph
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.export import ChipModel, Failed
from ci.lanes.executorch.half_range import beyond_half_of
from ci.lanes.executorch.index_outputs import save_expected
from ci.lanes.executorch.orders import ChipProgram, CompileRequest
from ci.lanes.executorch.quantization import ComputedModel, Patterns, save_raw, step_of
from ci.lanes.executorch.refused_programs import (
    missing_operator,
    refuse_model,
    require_indices,
    require_types,
)
from ci.models.compiler_errors import known_of
from ci.models.inference import copy_sample
from ci.models.model_lines import place_in_words, source_of
from ci.models.user_model import BadFactory
from ci.operators import CpuOperator, GraphPart, Traits
from ci.operators.failing_operators import Search, Workaround, workaround_of
from ci.operators.node_traits import delegated_nodes
from ci.operators.partition import PartitionerSpy, cpu_kernels, left_on_cpu, partition_of
from ci.operators.partition_trials import SEARCHED_SECONDS
from ci.work import printed_so_far, text_since, trouble_of_error
from provisioning.base.commands import join_fixes

SEGMENT_ALIGNMENT = 4096
"""Delegate data is aligned to a page in the file, so that it can be mapped alone."""

NAMED = 3
"""A program's record names this many of the operators at which quantizing loses accuracy."""


def lower(chip_model: ChipModel, request: CompileRequest) -> ChipProgram:
    """Write the program, inputs and expected outputs into the folder of the request."""
    computed = ComputedModel.of(chip_model)
    lowering = Lowering(chip_model, computed.module)
    with step_of("compile"), lowering.spy.installed():
        lowered = lowering.compile(crashes_on_cpu=request.crashes_on_cpu)
    return write_program(lowering, lowered, computed, request.into)


def write_program(
    lowering: Lowering, lowered: LoweredModel, computed: ComputedModel, into: Path
) -> ChipProgram:
    """Write the program, inputs and expected outputs into the folder."""
    lowering.cpu_nodes.require_used()
    chip_model = lowering.chip_model
    samples = chip_model.compared
    into.mkdir(parents=True, exist_ok=True)
    (into / PROGRAM).write_bytes(lowered.program)
    graphs = traffic(text_since(lowering.log_begin))
    expected = save_expected(chip_model, computed, into)
    floats = TorchGraph(chip_model.exported.program(chip_model.sample).module(), ())
    return ChipProgram(
        notes=tuple(chip_model.exported.subject.notes),
        used=chip_model.used,
        losses=computed.losses[:NAMED],
        inputs=save_raw(into, "input", samples),
        expected=expected.exact,
        reference=expected.reference,
        choices=expected.choosers,
        chooses_inside=bool(inner_choices(floats)),
        beyond=beyond_half_of(chip_model),
        kept_on_cpu=lowered.kept_on_cpu,
        left=tuple(lowered.cpu_operators),
        partition=tuple(lowered.parts),
        nodes=lowered.nodes,
        least=_least_of(samples),
        in_torch=computed.compare_in_torch(chip_model) if chip_model.backend == "lpai" else None,
        ddr=total(graphs),
        graphs=len(graphs),
        without_time=digest_without_time(into / PROGRAM),
    )


def _least_of(samples: Sequence[tuple[Tensor, ...]]) -> float:
    """Return the least value of the float inputs; -inf counts as the lowest finite number."""
    least = []
    for sample in samples:
        for tensor in sample:
            if tensor.is_floating_point() and tensor.numel():
                least.append(float(tensor.nan_to_num().min()))
    return min(least, default=0.0)


def lowered_module(chip_model: ChipModel, module: nn.Module, cpu_nodes: Patterns) -> EdgeProgramManager:
    """Lower the module for the chip; operators whose nodes match `cpu_nodes` stay on the CPU."""
    sample, spec = copy_sample(chip_model.sample), compiler_spec_of(chip_model)
    return to_edge_transform_and_lower_to_qnn(module, sample, spec, skip_node_id_set=cpu_nodes)


def compiler_spec_of(chip_model: ChipModel) -> list[CompileSpec]:
    """Return what QNN's compiler is told about the chip and the precision."""
    if chip_model.backend == "lpai":
        options = generate_lpai_compiler_spec()
    else:
        options = generate_htp_compiler_spec(use_fp16=chip_model.run.precision.startswith("fp16"))
    chip = QcomChipset[chip_model.soc]
    spec: list[CompileSpec] = generate_qnn_executorch_compiler_spec(soc_model=chip, backend_options=options)
    return spec


@dataclass(frozen=True)
class LoweredModel:
    """Holds a program's bytes, and which operators are where in it."""

    program: bytes
    parts: Sequence[GraphPart]
    nodes: dict[str, Traits]
    cpu_operators: Sequence[CpuOperator]
    kept_on_cpu: KeptNodes | None
    """The compiler crashes on these, so they stay on the CPU."""


class Lowering:
    """Lowers one module, as often as it takes to find what the compiler crashes on."""

    def __init__(self, chip_model: ChipModel, module: nn.Module) -> None:
        self.chip_model, self.module = chip_model, module
        self.cpu_nodes = Patterns("cpu_nodes", chip_model.run.cpu_nodes)
        self.spy = PartitionerSpy()
        self.log_begin = 0
        """What the last attempt printed begins at this byte of the log."""

    def compile(self, *, crashes_on_cpu: bool) -> LoweredModel:
        """Lower the module. Unless operators on which the compiler crashes may stay on the CPU, a crash is a
        failure that names them."""
        edge, workaround = self._lower_around_crashes()
        return self.finish(edge, workaround, crashes_on_cpu=crashes_on_cpu)

    def finish(
        self, edge: EdgeProgramManager, workaround: Workaround | None = None, *, crashes_on_cpu: bool = False
    ) -> LoweredModel:
        """Check what was lowered, and make the program of it."""
        exported = edge.exported_program()
        parts = partition_of(exported, self.chip_model.backend)
        cpu_operators = left_on_cpu(exported.graph_module.graph, self.spy, cpu_kernels())
        if workaround and not crashes_on_cpu:
            raise _crash_with_cost(workaround, parts, cpu_operators)
        require_indices(exported.graph_module)
        nodes = delegated_nodes(exported, self.module)
        program = _program_of(edge, cpu_operators)
        require_types(exported, self.chip_model.float_outputs[0])
        kept = KeptNodes(workaround.message, tuple(workaround.cpu_nodes)) if workaround else None
        return LoweredModel(program, parts, nodes, cpu_operators, kept)

    def attempt(self, more: Collection[str] = ()) -> EdgeProgramManager:
        """Lower the module with the run's nodes and these on the CPU."""
        cpu_nodes = self.cpu_nodes
        if more:
            cpu_nodes = Patterns("cpu_nodes", {*self.cpu_nodes, *more})
        self.spy.on_cpu = cpu_nodes
        self.log_begin = printed_so_far()
        return lowered_module(self.chip_model, self.module, cpu_nodes)

    def _lower_around_crashes(self) -> tuple[EdgeProgramManager, Workaround | None]:
        """Return the lowered program, and what had to stay on the CPU for it."""
        search = Search(self.spy)
        begun = time.process_time()
        try:
            with search.installed():
                return self.attempt(), None
        except (Failed, BadFactory):
            raise
        except Exception as error:
            if trouble_of_error(error):
                # Neither the model nor a search for what the compiler crashes on says anything then.
                raise
            refuse_model(self.chip_model.model, self.chip_model.sample)
            _raise_known(error, search)
            # A search of several lowerings must not turn a compile error into a time-out.
            # After a longer compile, operators are tried alone and nothing is lowered again.
            brief = time.process_time() - begun < SEARCHED_SECONDS
            workaround = workaround_of(search, error, self.attempt, brief=brief)
            if workaround is None:
                raise
            if workaround.lowering is None:
                raise _crash_of(workaround, workaround.attempt) from error
            return workaround.lowering, workaround


def _program_of(edge: EdgeProgramManager, cpu_operators: Sequence[CpuOperator]) -> bytes:
    config = ExecutorchBackendConfig(segment_alignment=SEGMENT_ALIGNMENT)
    try:
        return bytes(edge.to_executorch(config).buffer)
    except RuntimeError as error:
        if failure := missing_operator(error, cpu_operators):
            raise failure from error
        raise


def _raise_known(error: Exception, search: Search) -> None:
    """Raise the known explanation of a compiler's error, with the line at which it failed, if there is
    one."""
    node = search.node
    if node is None:
        return
    if explanation := known_of(error):
        message = f"{explanation.cause_and_text} ({place_in_words(node)})"
        raise Failed("compile", message, explanation.fix, source_of(node)[0]) from error


def _crash_with_cost(
    workaround: Workaround, parts: Sequence[GraphPart], cpu_operators: Sequence[CpuOperator]
) -> Failed:
    """Describe a crash whose operators could stay on the CPU, and what that would cost."""
    delegates = sum(not part.is_on_cpu for part in parts)
    budget = sum(part.count for part in parts if part.is_on_cpu)
    if delegates:
        cost = f"; delegates = {delegates} and cpu_budget = {budget} allow what it costs"
    else:
        cost = ", but nothing is left for the NPU"
    without_kernel = sorted({operator.operator for operator in cpu_operators if not operator.kernel})
    return _crash_of(workaround, f"tried: the rest lowers{cost}", without_kernel)


def _crash_of(workaround: Workaround, evidence: str, without_kernel: Sequence[str] = ()) -> Failed:
    """Describe a crash with its fixes. `evidence` says what keeping its operators on the CPU was proved to
    do."""
    fixes = list(dict.fromkeys(culprit.fix for culprit in workaround.culprits if culprit.fix))
    if without_kernel:
        names = ", ".join(without_kernel)
        fixes.append(f"on the CPU ExecuTorch has no kernel for it ({names}): write it in another way")
    else:
        flags = " ".join(shlex.join(("--keep-on-cpu", name)) for name in workaround.cpu_nodes)
        nodes = ", ".join(f'"{name}"' for name in workaround.cpu_nodes)
        fixes.append(f"{flags}, or in a suite's run cpu_nodes = [{nodes}], leaves it on the CPU: {evidence}")
    source = next((culprit.source for culprit in workaround.culprits if culprit.source), "")
    return Failed("compile", workaround.message, join_fixes(fixes, "; or "), source)
