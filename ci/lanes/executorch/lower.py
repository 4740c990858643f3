"""One program: build the model, quantize and lower it, and save inputs and expected outputs beside it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig, QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchBackendType
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_lpai_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.exir import ExecutorchBackendConfig
from torch import Tensor
from torchao.quantization.pt2e import (
    FusedMovingAvgObsFakeQuantize,
    MinMaxObserver,
    disable_fake_quant,
    enable_fake_quant,
    move_exported_model_to_eval,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

from ci.artifacts.compiler_log import total, traffic
from ci.artifacts.program import digest_without_time
from ci.child import doing, new_text, size_of, text_since
from ci.explain.losses import Loss, Scores
from ci.explain.torch_graph import (
    beyond_half,
    normed,
    outputs_of,
    units_of,
    worst_losses,
)
from ci.lanes.executorch import PROGRAM, QUANTIZED
from ci.lanes.executorch.choices import choices_of
from ci.lanes.executorch.export import ChipModel, Failed, figures_in_torch
from ci.lanes.executorch.records import (
    BeforeCompile,
    ChipProgram,
    CompileRequest,
    InTorch,
    KeptOnCpu,
    Lacking,
    Quantized,
    QuantizeRequest,
    ScoreRequest,
)
from ci.lanes.executorch.suite import ExecutorchRun
from ci.models.factory import (
    computed_weights,
    copied,
    explained,
    find,
    is_quantized,
    known_of,
    refuse_computed,
    refuse_halves,
    require_float32,
    run_copied,
    where_input_changes,
)
from ci.models.model_lines import OperatorAt, place_in_words, source_of
from ci.models.user_model import BadFactory
from ci.operators.partition import CpuOperator, GraphPart
from ci.operators.partition.decisions import (
    DELEGATE,
    PartitionerSpy,
    cpu_kernels,
    delegated_nodes,
    is_quantizer,
    left_on_cpu,
    module_of,
    module_path,
    operator_name,
    partition_of,
)
from ci.operators.partition.failing_operators import (
    CONSTANT,
    SEARCHED_SECONDS,
    Search,
    Workaround,
    constant_results,
    workaround_of,
)
from ci.suite.accuracy import Inferences, TensorFile
from ci.trouble import of_error
from provisioning.base.commands import Fix, joined, session
from provisioning.components import KINDS, QNN_SDK
from provisioning.environment import HOST_LIBRARIES
from provisioning.known_faults import words_of

SEGMENT_ALIGNMENT = 4096
"""The alignment of delegate data in the file: a page, so that it can be mapped alone."""

FLOAT = "fp16"
"""The precision of nodes that are not quantized."""
TRAIN_RATE = 1e-4
LPAI_LIBRARY = "libQnnLpai.so"
"""What compiles for the LPAI on this machine; official SDKs have it, wheels do not."""
NAMED = 3
"""How many of the operators at which quantizing loses accuracy are remembered of a program."""
MOST_IN_A_FIX = 8
"""How many nodes a fix lists; --keep-going prints all of them."""


class Patterns(set[str]):
    """A set of names with patterns: `*` matches anything. It records which patterns matched nothing."""

    def __init__(self, option: str, patterns: Iterable[str]) -> None:
        super().__init__(patterns)
        self.option = option
        self.used: set[str] = set()

    def matching(self, name: object) -> str | None:
        for pattern in self:
            if isinstance(name, str) and fnmatchcase(name, pattern):
                self.used.add(pattern)
                return pattern
        return None

    def __contains__(self, name: object) -> bool:
        return self.matching(name) is not None

    def require_used(self) -> None:
        if unused := sorted(set(self) - self.used):
            raise Failed("suite", f"{self.option} = {unused[0]!r} matches no node")


class Discarded(set[str]):
    """What the quantizer leaves out: the nodes of a pattern, and those of whole numbers alone, which it would
    observe as floats."""

    def __init__(self, patterns: Patterns, graph: Any) -> None:
        super().__init__(node.name for node in graph.nodes if _is_of_whole_numbers(node))
        self.patterns = patterns

    def __contains__(self, name: object) -> bool:
        # Asked first, as it remembers what it matched.
        return name in self.patterns or super().__contains__(name)


def _is_of_whole_numbers(node: Any) -> bool:
    values = [tensor.meta.get("val") for tensor in (node, *node.all_input_nodes)]
    return len(values) > 1 and all(
        isinstance(value, Tensor) and not value.is_floating_point() for value in values
    )


class BlockSizes(Patterns):
    def __init__(self, sizes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__("block_sizes", sizes)
        self.sizes = sizes

    def get(self, name: str) -> tuple[int, ...] | None:
        pattern = self.matching(name)
        return self.sizes[pattern] if pattern is not None else None


@dataclass(frozen=True, slots=True)
class ComputedModel:
    """What is compiled: the quantized model, or a float one as it is."""

    module: Any
    reference: Sequence[Sequence[Tensor]]
    """Its outputs."""
    losses: tuple[Loss, ...] = ()

    @classmethod
    def of(cls, chip_model: ChipModel) -> ComputedModel:
        require_float32([*chip_model.sample, *chip_model.expected[0]])
        _require_scheme(chip_model.model, chip_model.run)
        if not chip_model.run.quantizes:
            return cls(chip_model.model, chip_model.expected)
        module, losses = prepared_model(chip_model).quantized()
        with _step("quantize"):
            doing("run on CPU")
            reference = [run_copied(module, sample) for sample in chip_model.compared]
        return cls(module, reference, losses)

    def in_torch(self, chip_model: ChipModel) -> InTorch:
        figures = figures_in_torch(chip_model.expected, self.reference, chip_model.case.non_finite)
        return InTorch(*figures)


def quantize(chip_model: ChipModel, request: QuantizeRequest) -> Quantized:
    """Write the quantized model into the folder of the request."""
    computed, into = ComputedModel.of(chip_model), request.into
    into.mkdir(parents=True, exist_ok=True)
    with _step("quantize"):
        exported = torch.export.export(computed.module, copied(chip_model.sample))
        torch.export.save(exported, into / QUANTIZED)
    return Quantized(
        notes=tuple(chip_model.exported.loaded.notes),
        used=chip_model.used,
        losses=computed.losses,
        in_torch=computed.in_torch(chip_model),
        inputs=save_raw(into, "input", chip_model.compared),
    )


def lower(chip_model: ChipModel, request: CompileRequest) -> ChipProgram | Lacking:
    """Write the program, inputs and expected outputs into the folder of the request."""
    run, samples, expected = chip_model.run, chip_model.compared, chip_model.expected
    into, log, computed = request.into, request.log, ComputedModel.of(chip_model)
    module, reference, worst = computed.module, computed.reference, computed.losses[:NAMED]
    notes, used = tuple(chip_model.exported.loaded.notes), chip_model.used
    on_lpai = None
    if chip_model.backend == "lpai":
        on_lpai = before_compile(module, computed.in_torch(chip_model))
        if on_lpai.lacks:
            return Lacking(notes=notes, used=used, losses=worst, lpai=on_lpai)
    on_cpu = Patterns("cpu_nodes", run.cpu_nodes), Patterns("cpu_operators", run.cpu_operators)
    watch = PartitionerSpy(new_text(log))
    search = Search(log, watch)
    begin = 0

    def lowered_with(more: Collection[str] = ()) -> Any:
        nonlocal begin
        nodes = Patterns("cpu_nodes", {*run.cpu_nodes, *more}) if more else on_cpu[0]
        begin, watch.on_cpu = size_of(log), nodes
        return lowered_module(chip_model, module, nodes, on_cpu[1])

    with _step("compile"), watch.installed():
        edge, workaround = _with_workaround(search, lowered_with, chip_model, module)
        lowered = edge.exported_program()
        parts, nodes = partition_of(lowered, chip_model.backend), delegated_nodes(lowered, module)
        cpu_operators = left_on_cpu(lowered.graph_module.graph, watch, cpu_kernels())
        if workaround and not request.keep_going:
            raise _dies_of(workaround, parts, cpu_operators, module, chip_model.sample)
        _require_indices(lowered.graph_module)
        try:
            program = edge.to_executorch(ExecutorchBackendConfig(segment_alignment=SEGMENT_ALIGNMENT))
        except RuntimeError as error:
            if missing := _missing_operator(error, cpu_operators):
                raise missing from error
            raise
        _require_types(lowered, expected[0])
    for rule in on_cpu:
        rule.require_used()
    into.mkdir(parents=True, exist_ok=True)
    (into / PROGRAM).write_bytes(program.buffer)
    graphs = traffic(text_since(log, begin))
    floats = save_raw(into, "float", expected)
    quantized = save_raw(into, "quantized", reference) if run.quantizes else ()
    choices = choices_of(chip_model.model, module, samples, floats, quantized, into)
    return ChipProgram(
        notes=notes,
        used=used,
        losses=worst,
        inputs=save_raw(into, "input", samples),
        expected=choices.expected,
        reference=choices.reference,
        choices=choices.places,
        beyond=beyond_half(chip_model.model, samples) if run.precision.startswith("fp16") else (),
        kept_on_cpu=KeptOnCpu(tuple(workaround.cpu_nodes), workaround.message) if workaround else None,
        left=tuple(cpu_operators),
        partition=tuple(parts),
        nodes=nodes,
        least=_least_of(samples),
        lpai=on_lpai,
        ddr=total(graphs),
        graphs=len(graphs),
        loads=_loads(into / PROGRAM),
        without_time=digest_without_time(into / PROGRAM),
    )


def _least_of(samples: Sequence[tuple[Tensor, ...]]) -> float:
    """The least value of the inputs of floats; -inf counts as the least number."""
    floats = [tensor for sample in samples for tensor in sample if tensor.is_floating_point()]
    return min((float(tensor.nan_to_num().min()) for tensor in floats if tensor.numel()), default=0.0)


def lowered_module(chip_model: ChipModel, module: Any, nodes: Patterns, operators: Patterns) -> Any:
    """With these nodes and operators on the CPU."""
    options = generate_lpai_compiler_spec()
    if chip_model.backend != "lpai":
        options = generate_htp_compiler_spec(use_fp16=chip_model.run.precision.startswith("fp16"))
    spec = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[chip_model.soc], backend_options=options
    )
    sample = copied(chip_model.sample)
    return to_edge_transform_and_lower_to_qnn(
        module, sample, spec, skip_node_id_set=nodes, skip_node_op_set=operators
    )


def scored(chip_model: ChipModel, request: ScoreRequest) -> Scores:
    """The groups of operators that change their precision together, with what each adds to the outputs' noise
    at the run's precision and at the exact one, as far as the seconds go. Scored by a batch of the
    calibration: the samples judge."""
    precision = chip_model.run.precision
    require_float32([*chip_model.sample])
    _require_scheme(chip_model.model, chip_model.run)
    # What is not quantized adds nothing that quantizing would take away.
    schemes = [precision] if request.exact == FLOAT else [precision, request.exact]
    # Quantizing changes what was prepared, so that the float model is one of its own.
    floats = prepared_model(replace(chip_model, calibrating=())).module
    models = [prepared_model(chip_model.at(scheme)).module for scheme in schemes]
    with _step("quantize"):
        quantized = [convert_pt2e(model) for model in models]
        return units_of(floats, quantized, chip_model.calibrating[0], request.seconds)


def _require_scheme(model: Any, run: ExecutorchRun) -> None:
    """A quantized model is taken as it is, and only that."""
    quantized = is_quantized(model)
    if quantized and run.precision != "qdq":
        message = f"the model is already quantized, and {run.precision} would quantize it again"
        raise BadFactory(message, 'precision = "qdq" takes it as it is')
    if run.quantizes:
        refuse_halves(model, run.precision)
    if run.precision == "qdq" and not quantized:
        message = "precision qdq needs a quantized model, but this one is not quantized"
        raise BadFactory(message, 'name the precision to quantize it to, such as "8a8w"')


def _require_types(lowered: Any, expected: Sequence[Tensor]) -> None:
    """Refuse a program with an output of another type than the model's."""
    module = lowered.graph_module
    (output,) = module.graph.find_nodes(op="output")
    # What the model changes in place stands before its outputs.
    nodes = output.args[0][-len(expected) :]
    for index, (node, wanted) in enumerate(zip(nodes, expected, strict=True)):
        found = node.meta["val"].dtype
        # The delegate writes indices, which QNN has in int32, into a tensor of int64.
        if found == torch.int64 and _is_part_of_an_operators_result(module, node):
            found = torch.int32
        if found != wanted.dtype:
            where = f" ({line})" if (line := place_in_words(node)) else ""
            raise Failed(
                "compile",
                f"output {index} is {_kind(found)} in the program and {_kind(wanted.dtype)} in the model, so"
                f" that its values are misread{where}",
                f"let the model return it .to({found}), or compute it outside the program",
            )


def _require_indices(module: Any) -> None:
    """Refuse a program in which an operator on the CPU reads indices that a delegate gives."""
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is getitem or operator_name(node) == DELEGATE:
            continue
        for operand in node.all_input_nodes:
            value = operand.meta.get("val")
            is_long = isinstance(value, Tensor) and value.dtype == torch.int64
            if is_long and _is_part_of_an_operators_result(module, operand):
                where = f" at {line}" if (line := place_in_words(node)) else ""
                raise Failed(
                    "compile",
                    f"{operator_name(node)}{where} stays on the CPU and reads indices as int64, which the"
                    " delegate writes as int32, so that they are misread",
                    words_of("indices-as-int64"),
                )


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_part_of_an_operators_result(module: Any, node: Any) -> bool:
    """Whether a delegate gives it just as an operator of several results, such as topk, gave it."""
    if node.target is not getitem or operator_name(node.args[0]) != DELEGATE:
        return False
    call, index = node.args
    (output,) = getattr(module, call.args[0].target).original_module.graph.find_nodes(op="output")
    return output.args[0][index].target is getitem


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model whose ranges were observed, before it is quantized by them."""

    module: Any
    floats: Mapping[str, Tensor]
    """The outputs of the float model's nodes for the sample."""
    folded: Mapping[str, str]
    patterns: Sequence[Patterns]
    sample: tuple[Tensor, ...]

    def quantized(self) -> tuple[Any, tuple[Loss, ...]]:
        with _step("quantize"):
            module = convert_pt2e(self.module)
            _narrow_shared_zero_points(module)
            losses = worst_losses(self.floats, self.folded, module, copied(self.sample))
            for pattern in self.patterns:
                pattern.require_used()
            return module, losses


def _narrow_shared_zero_points(module: Any) -> None:
    """Of weights per channel that several calls read. ExecuTorch casts int64 in the program: a cast that two
    partitions need is handed from one to the other, which then has an input that QNN does not know."""
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, str(node.target), None)
        shared = len(node.users) > 1 and all(
            "dequantize_per_channel" in str(user.target) for user in node.users
        )
        if shared and isinstance(value, Tensor) and value.dtype == torch.int64:
            setattr(module, str(node.target), value.to(torch.int32))


def prepared_model(chip_model: ChipModel) -> Prepared:
    run, sample, batches = chip_model.run, chip_model.sample, chip_model.calibrating
    kinds = {"htp": QnnExecuTorchBackendType.kHtpBackend, "lpai": QnnExecuTorchBackendType.kLpaiBackend}
    quantizer = QnnQuantizer(kinds[chip_model.backend], QcomChipset[chip_model.soc])
    quantizer.set_default_quant_config(_dtype(run.precision), **_how(run, run.per_channel, run.precision))
    with _step("export"):
        exported: Any = chip_model.exported.program(sample).module()
        floats, folded = outputs_of(exported, copied(sample)), normed(exported.graph)
    mixed: dict[str, Patterns] = {scheme: Patterns("nodes", names) for scheme, names in run.nodes.items()}
    unquantized = Patterns("unquantized_nodes", [*run.unquantized_nodes, *mixed.pop(FLOAT, ())])
    patterns = [unquantized, *mixed.values()]
    quantizer.discard_nodes = Discarded(unquantized, exported.graph)
    if run.unquantized_operators:
        quantizer.add_discard_ops([_operator(name) for name in run.unquantized_operators])
    if run.block_sizes:
        sizes = BlockSizes(run.block_sizes)
        _refuse_linear(exported.graph, sizes)
        patterns.append(sizes)
        quantizer.set_block_size_map(sizes)
    quantizer.set_submodule_qconfig_list(
        [
            *(_nodes_scheme(scheme, names, run) for scheme, names in mixed.items()),
            *(_module_scheme(module, run, patterns) for module in run.modules),
        ]
    )
    quantizer.add_custom_quant_annotations([find(name, chip_model.search_path) for name in run.annotations])
    with _step("quantize"):
        if run.qat:
            prepared = _trained(chip_model.model, exported, quantizer, batches)
        else:
            prepared = prepare_pt2e(exported, quantizer)
            for batch in batches:
                prepared(*copied(batch))
    return Prepared(prepared, floats, folded, patterns, sample)


def _how(run: ExecutorchRun, per_channel: bool, scheme: str = "") -> dict[str, object]:
    return {
        "is_qat": run.qat,
        "is_conv_per_channel": per_channel,
        "is_linear_per_channel": per_channel,
        "act_observer": MinMaxObserver if run.sees_widest(scheme) else None,
    }


def _nodes_scheme(scheme: str, names: Patterns, run: ExecutorchRun) -> tuple[Any, Any]:
    config = ModuleQConfig(_dtype(scheme), **_how(run, run.per_channel, scheme))
    return (lambda node: node.name in names), config


def _refuse_linear(graph: Any, sizes: BlockSizes) -> None:
    """Block sizes of a linear layer do not reach QNN correctly: its outputs differ in every compile."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.linear.default and sizes.get(node.name):
            raise Failed(
                "suite",
                f"block_sizes takes {node.name}, a linear layer, whose block scales executorch does not hand"
                " on right: every compile computes something else; make it a convolution first, with"
                " executorch.backends.qualcomm.utils.utils.convert_linear_to_conv2d",
            )


def _trained(model: Any, exported: Any, quantizer: Any, batches: Sequence[tuple[Tensor, ...]]) -> Any:
    """One training step for each batch towards the float model's outputs: enough to run every part of QAT."""
    wanted = [run_copied(model, batch) for batch in batches]
    with torch.enable_grad():
        model.requires_grad_(True)
        # Batch norms in eval mode: their statistics are settled, and one step's batch is too small for new
        # ones.
        prepared = move_exported_model_to_eval(prepare_qat_pt2e(exported, quantizer))
        _settle_ranges(prepared, batches)
        optimizer = torch.optim.SGD(prepared.parameters(), lr=TRAIN_RATE)
        for batch, outputs in zip(batches, wanted, strict=True):
            loss = sum(
                torch.nn.functional.mse_loss(ours, theirs)
                for ours, theirs in zip(
                    torch.utils._pytree.tree_leaves(prepared(*copied(batch))), outputs, strict=True
                )
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return prepared


def _settle_ranges(prepared: Any, batches: Sequence[tuple[Tensor, ...]]) -> None:
    """Keep the widest range of all batches: a moving average of a few steps is close to the first batch."""
    observed: dict[Any, tuple[Tensor, Tensor]] = {}

    def note(module: Any, inputs: tuple[Tensor, ...]) -> None:
        low, high = inputs[0].aminmax()
        least, most = observed.get(module, (low, high))
        observed[module] = torch.minimum(least, low), torch.maximum(most, high)

    fakes = [module for module in prepared.modules() if isinstance(module, FusedMovingAvgObsFakeQuantize)]
    fakes = [fake for fake in fakes if not fake.is_per_channel]
    handles = [fake.register_forward_pre_hook(note) for fake in fakes]
    prepared.apply(disable_fake_quant)
    with torch.no_grad():
        for batch in batches:
            prepared(*copied(batch))
    prepared.apply(enable_fake_quant)
    for handle in handles:
        handle.remove()
    for module, (least, most) in observed.items():
        observer = module.activation_post_process
        observer.min_val.copy_(least)
        observer.max_val.copy_(most)
        observer.averaging_constant = 0.0
        scale, zero_point = module.calculate_qparams()
        module.scale.copy_(scale)
        module.zero_point.copy_(zero_point)


def _dtype(scheme: str) -> Any:
    return QuantDtype[f"use_{scheme}"]


def _operator(name: str) -> Any:
    try:
        return reduce(getattr, name.split("."), torch.ops)
    except AttributeError as error:
        raise Failed("suite", f"unquantized_operators = {name!r}: torch has no such operator") from error


def _module_scheme(scheme: Any, run: ExecutorchRun, patterns: list[Patterns]) -> tuple[Any, Any]:
    wanted = Patterns("modules", [scheme.name or scheme.type])
    patterns.append(wanted)

    def inside(node: Any) -> bool:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            kind_name = kind if isinstance(kind, str) else kind.__name__
            label = module_path(path) if scheme.name else kind_name.rpartition(".")[2]
            if label in wanted:
                return True
        return False

    return inside, ModuleQConfig(_dtype(scheme.precision), **_how(run, scheme.per_channel))


def save_raw(into: Path, kind: str, inferences: Sequence[Sequence[Tensor]]) -> Inferences:
    rows = []
    for number, tensors in enumerate(inferences):
        row = []
        for index, tensor in enumerate(tensors):
            path = into / f"{kind}_{number}_{index}.raw"
            tensor.numpy().tofile(path)
            row.append(TensorFile(path.name, _kind(tensor.dtype), tuple(tensor.shape)))
        rows.append(tuple(row))
    return tuple(rows)


def _loads(program: Path) -> str:
    """Empty if ExecuTorch's runtime loads the program, else its message."""
    from executorch.runtime import Runtime, Verification

    try:
        loaded = Runtime.get().load_program(program, verification=Verification.InternalConsistency)
        return "" if "forward" in loaded.method_names else f"methods are {sorted(loaded.method_names)}"
    except RuntimeError as error:
        if of_error(error):
            raise
        return str(error)


@contextmanager
def _step(name: str) -> Any:
    """Wrap errors with the step's name, by which the process says what it does."""
    doing(name)
    try:
        yield
    except (Failed, BadFactory):
        raise
    except Exception as error:
        message, fix = explained(error)
        raise Failed(name, message, fix) from error


def _refuse_model(model: Any, sample: tuple[Tensor, ...]) -> None:
    """One that changes its inputs in place, or computes weights in each run: the compiler wants those of a
    convolution constant."""
    if place := where_input_changes(model, sample):
        message = f"the model changes its input in place{place}, which the delegate does not support"
        fix = (
            "make a new tensor there: x = x + 1 for x.add_(1), ReLU() for ReLU(inplace=True), torch.where for"
            " an assignment to a part"
        )
        raise Failed("compile", message, fix)
    if computed := computed_weights(model):
        raise Failed("compile", *refuse_computed(computed))


def _missing_operator(error: RuntimeError, cpu_operators: Sequence[CpuOperator]) -> Failed | None:
    """The line of an operator that ExecuTorch does not have at all."""
    known = known_of(error)
    names = re.findall(r"'(\w+)::(\w+)", str(error))
    meant = [row for row in cpu_operators if any(row.operator.startswith(".".join(name)) for name in names)]
    if not known or not meant:
        return None
    lines = "; ".join(f"{operator.source} `{operator.code}`" for operator in meant)
    return Failed("compile", f"{known.with_text} ({lines})", known.fix, meant[0].source)


def _with_workaround(
    search: Search, lower: Callable[..., Any], chip_model: ChipModel, module: Any
) -> tuple[Any, Workaround | None]:
    """The lowered program, with the nodes that had to stay on the CPU for it."""
    begun = time.process_time()
    try:
        with search.installed():
            return lower(), None
    except (Failed, BadFactory):
        raise
    except Exception as error:
        if of_error(error):
            # Neither the model nor a search for what the compiler crashes on says anything then.
            raise
        _refuse_model(chip_model.model, chip_model.sample)
        node = search.node
        if node is not None and (known := known_of(error)):
            message = f"{known.with_text} ({place_in_words(node)})"
            raise Failed("compile", message, known.fix, source_of(node)[0]) from error
        # A search of several lowerings must not turn a compile error into a time-out.
        brief = time.process_time() - begun < SEARCHED_SECONDS
        if not (workaround := workaround_of(search, error, lower, brief=brief)):
            raise
        if workaround.lowered is None:
            raise _failed(workaround, workaround.tried, module, chip_model.sample) from error
        return workaround.lowered, workaround


def _constants_of(module: Any, sample: tuple[Tensor, ...]) -> list[str]:
    if not hasattr(module, "graph"):
        module = torch.export.export(module, copied(sample), strict=True).module()
    return constant_results(module.graph)


def _dies_of(
    workaround: Workaround,
    parts: Sequence[GraphPart],
    cpu_operators: Sequence[CpuOperator],
    module: Any,
    sample: tuple[Tensor, ...],
) -> Failed:
    delegates = sum(not part.on_cpu for part in parts)
    count = sum(part.count for part in parts if part.on_cpu)
    cost = ", but nothing is left for the NPU"
    if delegates:
        cost = f"; delegates = {delegates} and cpu_budget = {count} allow what it costs"
    lacking = sorted({operator.operator for operator in cpu_operators if not operator.kernel})
    return _failed(workaround, f"tried: the rest lowers{cost}", module, sample, lacking)


def _failed(
    workaround: Workaround, tried: str, module: Any, sample: tuple[Tensor, ...], lacking: Sequence[str] = ()
) -> Failed:
    nodes = ", ".join(f'"{name}"' for name in workaround.cpu_nodes)
    named = f" (in a suite's run cpu_nodes = [{nodes}])" if len(workaround.cpu_nodes) <= MOST_IN_A_FIX else ""
    fixes = list(dict.fromkeys(culprit.fix for culprit in workaround.culprits if culprit.fix))
    if CONSTANT in fixes and (last := _constants_of(module, sample)):
        # Half of such a computation as a buffer leaves the other half, which dies as well.
        value = "this value" if len(last) == 1 else "each of these values"
        fixes[fixes.index(CONSTANT)] = Fix(
            "compute {} once, in __init__, and keep it with register_buffer: {}; {} writes the model so",
            value,
            ", ".join(last),
            session("repair", "MODEL", "-o", "DIR"),
        )
    if rows := list(dict.fromkeys(culprit.more_bits for culprit in workaround.culprits if culprit.more_bits)):
        # Without all of them it still dies.
        eight = rows[0].split('"')[-2]
        modules = f"modules = [{', '.join(rows)}]"
        fixes += [f"--precision {eight}, or for these modules alone, in a suite's run: {modules}"]
    if lacking:
        names = ", ".join(lacking)
        fixes += [f"on the CPU ExecuTorch has no kernel for it ({names}): write it in another way"]
    else:
        fixes += [f"--keep-going leaves it on the CPU{named}: {tried}"]
    source = next((culprit.source for culprit in workaround.culprits if culprit.source), "")
    return Failed("compile", workaround.message, joined(fixes, "; or "), source)


ANNOTATION = "quantization_annotation"
MOVES = ("clone", "contiguous", "alias", "detach")
"""Operators without a rule that export removes before the partitioner runs."""


def before_compile(quantized: Any, in_torch: InTorch) -> BeforeCompile:
    """The quantized model's accuracy in PyTorch, operators without a rule, and a missing library."""
    library = Path(os.environ[KINDS[QNN_SDK].variable], "lib", HOST_LIBRARIES, LPAI_LIBRARY)
    return BeforeCompile(
        in_torch,
        unannotated(quantized.graph),
        "" if library.is_file() else str(library.relative_to(library.parents[2])),
    )


def unannotated(graph: Any) -> tuple[OperatorAt, ...]:
    """Operators that LPAI's annotator left in float: one for each line of the model."""
    operators: dict[tuple[str, str], OperatorAt] = {}
    for node in graph.nodes:
        if node.op != "call_function" or is_quantizer(node) or ANNOTATION in node.meta:
            continue
        name = operator_name(node)
        if name.removeprefix("aten.").partition(".")[0] in MOVES:
            continue
        source, code = source_of(node)
        operators.setdefault((name, source), OperatorAt(name, module_of(node), source, code))
    return tuple(operators.values())
