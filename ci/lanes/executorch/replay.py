"""The steps that quantize and lower a model are called here as the lane calls them, and each is observed: the
passes of ExecuTorch and torchao, what annotates and observes, and decompositions. Nothing that judges or
ships is replaced: a replay is work of its own, and ends before QNN compiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassBase
from torchao.quantization.pt2e import quantize_pt2e

from ci.explain.replay import Replay, ReplayRequest, ReplayResult
from ci.explain.torch_graph import TorchGraph
from ci.explain.torch_steps import StepGraph, copy_with_own_weights
from ci.explain.torch_values import Tensors
from ci.lanes.executorch.export import ChipModel
from ci.lanes.executorch.lower import lowered_module
from ci.lanes.executorch.quantization import Patterns, prepared_model
from ci.lanes.executorch.raised_step import step_that_raised
from ci.models.compiler_errors import CompilerStep, compiler_step
from ci.models.inference import run_copied

RUNS = 40
"""A model runs this often: once after each step that changes its graph."""
SHARE_OF_RUNS = 1 / 4
"""These runs may take this share of a replay's seconds."""

WATCHED: Sequence[tuple[object, Sequence[str]]] = (
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

    def _observed(self, function: Callable[..., object]) -> Callable[..., object]:
        @wraps(function)
        def call(*arguments: object, **options: object) -> object:
            self._depth += 1
            try:
                result = function(*arguments, **options)
            finally:
                self._depth -= 1
            if self._depth == 0:
                self._see_subject(function, (result, *arguments))
            return result

        return call

    def _see_subject(self, function: Callable[..., object], subjects: Sequence[object]) -> None:
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
        judge.end(step_that_raised(error))
    return ReplayResult(judge.broken, judge.steps, observer.late)
