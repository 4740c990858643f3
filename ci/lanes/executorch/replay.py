"""The steps that quantize and lower a model are called here as the lane calls them, and each is observed: the
passes of ExecuTorch and torchao, what annotates and observes, and decompositions. Nothing that judges or
ships is replaced: a replay is work of its own, and ends before QNN compiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import wraps
from typing import Any

import torch
from executorch.backends.qualcomm import qnn_preprocess
from executorch.backends.qualcomm._passes import qnn_pass_manager
from executorch.backends.qualcomm.partition.utils import generate_qnn_executorch_option
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer
from executorch.backends.qualcomm.serialization.qc_schema_serialize import flatbuffer_to_option
from executorch.exir.program import _program
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase
from torchao.quantization.pt2e import quantize_pt2e

from ci.explain.replay import BrokenStep, Replay, ReplayRequest, ReplayResult
from ci.explain.torch_graph import TorchGraph, operator_at
from ci.explain.torch_steps import StepGraph, copy_with_own_weights
from ci.explain.torch_values import Tensors
from ci.lanes.executorch.export import ChipModel
from ci.lanes.executorch.lower import lowered_module
from ci.lanes.executorch.quantization import Patterns, prepared_model
from ci.models.compiler_errors import CompilerStep, compiler_step, failed_step, node_at_hand
from ci.models.factory import run_copied
from ci.models.model_lines import source_of
from ci.operators.partition import operator_name

RUNS = 40
"""A model runs this often: once after each step that changes its graph."""
SHARE_OF_RUNS = 1 / 4
"""These runs may take this share of a replay's seconds."""

WATCHED: Sequence[tuple[Any, Sequence[str]]] = (
    (quantize_pt2e, ("_fuse_conv_bn_", "_fuse_linear_bn_", "prepare")),
    (quantize_pt2e, ("_convert_to_reference_decomposed_fx", "_fold_conv_bn_qat", "constant_fold")),
    (QnnQuantizer, ("annotate",)),
    (PassBase, ("__call__",)),
    (torch.export, ("export",)),
    (ExportedProgram, ("run_decompositions",)),
    (_program, ("lift_constant_tensor_pass",)),
    (qnn_pass_manager, ("lift_constant_tensor_pass",)),
    (_program.EdgeProgramManager, ("to_backend",)),
)
"""Steps are observed by wrapping these functions. A step that another one calls is a part of it."""
ROUNDS = ("constant_fold",)
"""These steps round weights on purpose."""
CHANGES_WEIGHTS = ("annotate",)
"""These steps can change weights without changing the graph."""
LAST_GLUE = ("quantized_decomposed", "aten.permute", "aten.transpose", "aten._to_copy", "dim_order_ops", "<")
"""The last pipeline may remove these operators: quantizers, layouts, casts, and what takes one of several
results."""


NEAR = 4
"""A node this many operators behind another is still near it."""


class _Done(BaseException):
    """Ends a replay. It is no exception that the compiler may catch."""


class StepObserver:
    """Shows a Replay the model after each step."""

    def __init__(self, replay: Replay, samples: Sequence[Tensors], outputs: int, until: float) -> None:
        self.replay, self.samples, self.outputs, self.until = replay, samples, outputs, until
        self.programs: list[ExportedProgram] = []
        """The programs' signatures say which weights placeholders stand for."""
        self.late = False
        """Whether the time limit ended the replay."""
        self._depth = 0
        self._text: Sequence[str] = ()
        """This is the graph after the last step, as text."""
        self._partition: TorchGraph | None = None
        """The last pipeline works on this partition; it is the state before its current step."""

    def begin(self, program: ExportedProgram) -> None:
        """Show the model before any step."""
        self._see(compiler_step(torch.export.export), program.module())

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe every step that begins inside the `with` block."""
        backend = qnn_preprocess.QnnBackend
        originals = [(owner, name, getattr(owner, name)) for owner, names in WATCHED for name in names]
        compile_partitions = backend.preprocess_multimethod
        for owner, name, function in originals:
            setattr(owner, name, self._observed(function))
        backend.preprocess_multimethod = staticmethod(self._run_last_pipeline)
        try:
            yield
        finally:
            for owner, name, function in originals:
                setattr(owner, name, function)
            backend.preprocess_multimethod = staticmethod(compile_partitions)

    def _observed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            self._depth += 1
            try:
                result = function(*arguments, **options)
            finally:
                self._depth -= 1
            if self._depth == 0:
                self._see_subject(function, (result, *arguments))
            return result

        return call

    def _see_subject(self, function: Callable[..., Any], subjects: Sequence[Any]) -> None:
        """Show the first of these values that is a model: the step returned it."""
        step = compiler_step(function)
        for subject in subjects:
            if isinstance(subject, PassBase):
                step = compiler_step(subject.call, type(subject).__name__)
        for subject in subjects:
            if isinstance(subject, ExportedProgram):
                self.programs.append(subject)
            module = getattr(subject, "graph_module", subject)
            if isinstance(module, GraphModule):
                self._see(step, module)
                return

    def _see(self, step: CompilerStep, module: GraphModule) -> None:
        if self._partition is not None:
            before, self._partition = self._partition, _structure_of(module)
            self.replay.see_structure(step, before, self._partition, LAST_GLUE)
        elif (text := _text_of(module)) != self._text or step.name in CHANGES_WEIGHTS:
            self._text = text
            graph = StepGraph(module, self.samples, self._weights(), self.outputs)
            self.replay.see(step, graph, rounds=step.name in ROUNDS)
        self.late = time.process_time() > self.until
        if self.replay.found or self.late:
            raise _Done

    def _weights(self) -> Mapping[str, Tensor]:
        """Return the weights of all programs, by the names of placeholders; those of the latest program come
        first."""
        weights: dict[str, Tensor] = {}
        for program in self.programs:
            signature, tensors = program.graph_signature, {**program.constants, **program.state_dict}
            targets = {
                **signature.inputs_to_parameters,
                **signature.inputs_to_buffers,
                **signature.inputs_to_lifted_tensor_constants,
            }
            weights |= {name: tensors[target] for name, target in targets.items() if target in tensors}
        return weights

    def _run_last_pipeline(self, programs: Mapping[str, Sequence[Any]], specs: Mapping[str, Any]) -> None:
        """Run, instead of the compiler, the pipeline that comes before it, for each partition."""
        for method, partitions in programs.items():
            for program, spec in zip(partitions, specs[method], strict=True):
                options = flatbuffer_to_option(generate_qnn_executorch_option(spec))
                manager = qnn_pass_manager.get_qnn_pass_manager_cls(options.backend_options.backend_type)
                self._partition, self._depth = _structure_of(program.graph_module), 0
                manager().transform_for_preprocess_pipeline(program, use_mha2sha=options.use_mha2sha)
        raise _Done


def _text_of(module: GraphModule) -> Sequence[str]:
    return [f"{node.name} {node.target} {node.args} {node.kwargs}" for node in module.graph.nodes]


def _structure_of(module: GraphModule) -> TorchGraph:
    return TorchGraph(copy_with_own_weights(module, {}), ())


def _step_that_raised(error: Exception) -> BrokenStep | None:
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


def replay(chip_model: ChipModel, request: ReplayRequest) -> ReplayResult:
    """Quantize and lower the model until a step breaks it, or the seconds are used up."""
    begin = time.process_time()
    outputs = run_copied(chip_model.model, chip_model.sample)
    seconds_of_runs = RUNS * (time.process_time() - begin)
    count = max(1, int(SHARE_OF_RUNS * request.seconds / seconds_of_runs))
    judge = Replay(request.program_db)
    observer = StepObserver(judge, chip_model.compared[:count], len(outputs), begin + request.seconds)
    try:
        observer.begin(chip_model.exported.program(chip_model.sample))
        with observer.installed():
            module = (
                prepared_model(chip_model).quantized()[0] if chip_model.run.quantizes else chip_model.model
            )
            lowered_module(chip_model, module, Patterns("cpu_nodes", chip_model.run.cpu_nodes))
    except _Done:
        pass
    except Exception as error:
        if request.program_db is not None:
            raise
        judge.end(_step_that_raised(error))
    return ReplayResult(judge.broken, judge.steps, observer.late)
