"""Quantize a case's model as its run says, by PyTorch's own quantizer for QNN, or leave it as it is.

`ComputedModel` is what is compiled; `quantize` writes the model for a user; `score_groups` measures what each
group of operators adds to the noise, for `tune`. Options that match no node are refused. Only workers import
this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig, QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchBackendType
from torch import Tensor, fx, nn
from torch.fx import Graph, GraphModule, Node
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ci.explain.losses import Loss, ScoreRequest, Scores, scores_of
from ci.explain.torch_graph import TorchGraph, norms_of, outputs_of, worst_losses
from ci.lanes.executorch import QUANTIZED
from ci.lanes.executorch.export import ChipModel, Failed
from ci.lanes.executorch.orders import (
    InTorch,
    Quantized,
    QuantizeRequest,
)
from ci.lanes.executorch.suite import UNOBSERVED_SCHEMES, ExecutorchRun
from ci.models.annotated import digest_of_annotated
from ci.models.compiler_errors import explain_error
from ci.models.exported import NoDigest
from ci.models.factory import find
from ci.models.inference import copy_sample, run_copied
from ci.models.model_checks import is_quantized, refuse_halves, require_float32
from ci.models.user_model import BadFactory
from ci.operators.partition import module_path
from ci.suite.accuracy import Pair, Unusable, compare_with_slices
from ci.suite.tensor_files import Inferences, TensorFile
from ci.work import doing

FLOAT = "fp16"
"""Nodes that are not quantized have this precision."""


NAMED = 12
"""A message names at most so many nodes."""


class Patterns(set[str]):
    """Holds names with patterns, in which `*` matches anything, and records which patterns matched
    nothing."""

    def __init__(self, option: str, patterns: Iterable[str]) -> None:
        super().__init__(patterns)
        self.option = option
        self.matches: set[str] = set()
        self.names: set[str] = set()
        """The nodes that were looked up."""

    def matching(self, name: object) -> str | None:
        if not isinstance(name, str):
            return None
        self.names.add(name)
        for pattern in self:
            if fnmatchcase(name, pattern):
                self.matches.add(pattern)
                return pattern
        return None

    def __contains__(self, name: object) -> bool:
        return self.matching(name) is not None

    def require_used(self) -> None:
        if unused := sorted(set(self) - self.matches):
            names = sorted(self.names)
            near = [name for name in names if unused[0].strip("*") in name] or names
            listed = ", ".join(near[:NAMED]) + (" …" if near[NAMED:] else "")
            raise Failed("suite", f"{self.option} = {unused[0]!r} matches no node; nodes are {listed}")


class Discarded(set[str]):
    """Names what the quantizer leaves out: nodes that match a pattern, and nodes of integers alone, which it
    would observe as floats."""

    def __init__(self, patterns: Patterns, graph: Graph) -> None:
        super().__init__(node.name for node in graph.nodes if _is_of_whole_numbers(node))
        self.patterns = patterns

    def __contains__(self, name: object) -> bool:
        # Asked first, as it remembers what it matched.
        return name in self.patterns or super().__contains__(name)


def _is_of_whole_numbers(node: Node) -> bool:
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
    """Holds what is compiled: the quantized model, or a float one as it is."""

    module: nn.Module
    reference: Sequence[Sequence[Tensor]]
    """The model that is compiled computed these outputs."""
    losses: tuple[Loss, ...] = ()

    @classmethod
    def of(cls, chip_model: ChipModel) -> ComputedModel:
        require_float32([*chip_model.sample, *chip_model.float_outputs[0]])
        _require_scheme(chip_model.model, chip_model.run)
        if not chip_model.run.quantizes:
            return cls(chip_model.model, chip_model.float_outputs)
        module, losses = prepared_model(chip_model).quantized()
        with step_of("quantize"):
            doing("run on CPU")
            reference = [run_copied(module, sample) for sample in chip_model.compared]
        return cls(module, reference, losses)

    def compare_in_torch(self, chip_model: ChipModel) -> InTorch:
        """Return how near the quantized model's outputs are to the float model's, both computed by
        PyTorch."""
        pairs = [
            Pair(f"output {index} of inference {number}", exact.numpy(), value.numpy(), index)
            for number, rows in enumerate(zip(chip_model.float_outputs, self.reference, strict=True))
            for index, (exact, value) in enumerate(zip(*rows, strict=True))
        ]
        try:
            figures, slices = compare_with_slices(pairs, non_finite=chip_model.case.non_finite)
        except Unusable as error:
            fix = "give samples of which the float model's outputs are numbers"
            raise BadFactory(str(error), fix) from error
        return InTorch(figures, tuple(slices))


def quantize(chip_model: ChipModel, request: QuantizeRequest) -> Quantized:
    """Write the quantized model into the folder of the request."""
    computed, into = ComputedModel.of(chip_model), request.into
    into.mkdir(parents=True, exist_ok=True)
    with step_of("quantize"):
        exported = torch.export.export(computed.module, copy_sample(chip_model.sample))
        torch.export.save(exported, into / QUANTIZED)
    return Quantized(
        notes=tuple(chip_model.exported.subject.notes),
        used=chip_model.used,
        losses=computed.losses,
        in_torch=computed.compare_in_torch(chip_model),
        inputs=save_raw(into, "input", chip_model.compared),
    )


def score_groups(chip_model: ChipModel, request: ScoreRequest) -> Scores:
    """Score the groups of operators that change their precision together: what each adds to the outputs'
    noise at the run's precision, and at the exact one. Scoring uses one batch of the calibration, because the
    samples judge, and ends when the seconds are used up."""
    precision = chip_model.run.precision
    require_float32([*chip_model.sample])
    _require_scheme(chip_model.model, chip_model.run)
    # What is not quantized adds nothing that quantizing would take away.
    schemes = [precision] if request.exact == FLOAT else [precision, request.exact]
    # Quantizing changes what was prepared, so that the float model is one of its own. It has the names of the
    # quantized models' nodes, and observers, which pass values on.
    floats = prepared_model(replace(chip_model, calibrating=())).module
    models = [prepared_model(chip_model.at(scheme)).module for scheme in schemes]
    with step_of("quantize"):
        sample = [chip_model.calibrating[0]]
        quantized = [TorchGraph(convert_pt2e(model), sample) for model in models]
        return scores_of(TorchGraph(floats, sample), quantized, request.seconds)


def _require_scheme(model: nn.Module, run: ExecutorchRun) -> None:
    """Refuse to quantize a model that is quantized already, and to take one as quantized that is not."""
    quantized = is_quantized(model)
    if quantized and run.precision != "qdq":
        message = f"the model is already quantized, and {run.precision} would quantize it again"
        raise BadFactory(message, 'precision = "qdq" takes it as it is')
    if run.quantizes:
        refuse_halves(model, run.precision)
    if run.precision == "qdq" and not quantized:
        message = "precision qdq needs a quantized model, but this one is not quantized"
        raise BadFactory(message, 'name the precision to quantize it to, such as "8a8w"')


@dataclass(frozen=True, slots=True)
class Prepared:
    """Holds a model after its ranges were observed, before it is quantized by them."""

    module: GraphModule
    floats: Mapping[str, Tensor]
    """Maps nodes of the float model to their outputs for the sample."""
    folded: Mapping[str, str]
    patterns: Sequence[Patterns]
    sample: tuple[Tensor, ...]

    def quantized(self) -> tuple[GraphModule, tuple[Loss, ...]]:
        with step_of("quantize"):
            module = convert_pt2e(self.module)
            _narrow_shared_zero_points(module)
            losses = worst_losses(self.floats, self.folded, module, copy_sample(self.sample))
            for pattern in self.patterns:
                pattern.require_used()
            return module, losses


def _narrow_shared_zero_points(module: GraphModule) -> None:
    """Narrow the int64 zero points of weights per channel that several calls read. ExecuTorch casts them in
    the program: if two partitions need the cast, one gets it from the other, as an input that QNN does not
    know."""
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, str(node.target), None)
        shared = len(node.users) > 1 and all(
            "dequantize_per_channel" in str(user.target) for user in node.users
        )
        if shared and isinstance(value, Tensor) and value.dtype == torch.int64:
            setattr(module, str(node.target), value.to(torch.int32))


def prepared_model(chip_model: ChipModel) -> Prepared:
    sample = chip_model.sample
    with step_of("export"):
        exported = chip_model.exported.program(sample).module()
        floats, folded = outputs_of(exported, copy_sample(sample)), norms_of(exported.graph)
    quantizer, patterns = _quantizer_of(chip_model, exported.graph)
    with step_of("quantize"):
        prepared = prepare_pt2e(exported, quantizer)
        if expected := chip_model.exported.annotated.get(chip_model.name):
            _compare_annotations(chip_model, prepared, expected)
        for batch in chip_model.calibrating:
            prepared(*copy_sample(batch))
    return Prepared(prepared, floats, folded, patterns, sample)


def _quantizer_of(chip_model: ChipModel, graph: Graph) -> tuple[QnnQuantizer, list[Patterns]]:
    """Return the quantizer that the run asks for, and the patterns that must match a node."""
    run = chip_model.run
    kinds = {"htp": QnnExecuTorchBackendType.kHtpBackend, "lpai": QnnExecuTorchBackendType.kLpaiBackend}
    quantizer = QnnQuantizer(kinds[chip_model.backend], QcomChipset[chip_model.soc])
    quantizer.set_default_quant_config(_dtype(run.precision), **_settings(run.per_channel, run.precision))
    mixed: dict[str, Patterns] = {scheme: Patterns("nodes", names) for scheme, names in run.nodes.items()}
    unquantized = mixed.pop(FLOAT, Patterns("nodes", ()))
    patterns = [unquantized, *mixed.values()]
    quantizer.discard_nodes = Discarded(unquantized, graph)
    if run.block_sizes:
        sizes = BlockSizes(run.block_sizes)
        _refuse_linear(graph, sizes)
        patterns.append(sizes)
        quantizer.set_block_size_map(sizes)
    quantizer.set_submodule_qconfig_list(
        [
            *(_nodes_scheme(scheme, names, run) for scheme, names in mixed.items()),
            *(_module_scheme(module, run, patterns) for module in run.modules),
        ]
    )
    quantizer.add_custom_quant_annotations([find(name, chip_model.search_path) for name in run.annotations])
    return quantizer, patterns


def annotated_digest(chip_model: ChipModel) -> str:
    """Return the digest of what the run's annotations make of the model. Raises NoDigest."""
    return digest_of_annotated(prepared_model(replace(chip_model, calibrating=())).module)


def chips_annotated_alike(chip_model: ChipModel, chips: Iterable[str]) -> list[str]:
    """Return those of the chips for which the quantizer annotates the model as for its own chip: it asks a
    chip what it can compute. Raises NoDigest."""
    exported = chip_model.exported.program(chip_model.sample).module()
    quantizer, _ = _quantizer_of(chip_model, exported.graph)
    transformed = quantizer.transform_for_annotation(exported)
    own = _digest_for_chip(chip_model, transformed)
    return [chip for chip in chips if _digest_for_chip(replace(chip_model, soc=chip), transformed) == own]


def _digest_for_chip(chip_model: ChipModel, transformed: fx.GraphModule) -> str:
    """Return the digest of what the quantizer annotates; empty if it refuses something for this chip."""
    annotated = fx.GraphModule(transformed, deepcopy(transformed.graph))
    quantizer, _ = _quantizer_of(chip_model, annotated.graph)
    quantizer.annotate(annotated)
    try:
        quantizer.validate(annotated)
    except ValueError:
        return ""
    return digest_of_annotated(annotated)


def _compare_annotations(chip_model: ChipModel, prepared: GraphModule, expected: str) -> None:
    try:
        is_same = digest_of_annotated(prepared) == expected
    except NoDigest:
        is_same = False
    if not is_same:
        chip_model.exported.not_repeated = "its annotations made something else the second time"


def _settings(per_channel: bool, scheme: str) -> dict[str, object]:
    return {
        "is_conv_per_channel": per_channel,
        "is_linear_per_channel": per_channel,
        "act_observer": None if scheme in UNOBSERVED_SCHEMES else MinMaxObserver,
    }


def _nodes_scheme(scheme: str, names: Patterns, run: ExecutorchRun) -> tuple[Any, Any]:
    config = ModuleQConfig(_dtype(scheme), **_settings(run.per_channel, scheme))
    return (lambda node: node.name in names), config


def _refuse_linear(graph: Graph, sizes: BlockSizes) -> None:
    """Refuse block sizes of a linear layer: they do not reach QNN correctly, and its outputs differ in every
    compile."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.linear.default and sizes.get(node.name):
            raise Failed(
                "suite",
                f"block_sizes takes {node.name}, a linear layer, whose block scales executorch does not hand"
                " on right: every compile computes something else; make it a convolution first, with"
                " executorch.backends.qualcomm.utils.utils.convert_linear_to_conv2d",
            )


def _dtype(scheme: str) -> QuantDtype:
    return QuantDtype[f"use_{scheme}"]


def _module_scheme(scheme: Any, run: ExecutorchRun, patterns: list[Patterns]) -> tuple[Any, Any]:
    pattern = Patterns("modules", [scheme.name or scheme.type])
    patterns.append(pattern)

    def inside(node: Node) -> bool:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            kind_name = kind if isinstance(kind, str) else kind.__name__
            label = module_path(path) if scheme.name else kind_name.rpartition(".")[2]
            if label in pattern:
                return True
        return False

    return inside, ModuleQConfig(_dtype(scheme.precision), **_settings(scheme.per_channel, scheme.precision))


def save_raw(into: Path, kind: str, inferences: Sequence[Sequence[Tensor]]) -> Inferences:
    rows = []
    for number, tensors in enumerate(inferences):
        row = []
        for index, tensor in enumerate(tensors):
            path = into / f"{kind}_{number}_{index}.raw"
            tensor.numpy().tofile(path)
            row.append(TensorFile(path.name, kind_of(tensor.dtype), tuple(tensor.shape)))
        rows.append(tuple(row))
    return tuple(rows)


@contextmanager
def step_of(name: str) -> Any:
    """Add the step's name to errors, and say that this process is at this step."""
    doing(name)
    try:
        yield
    except (Failed, BadFactory):
        raise
    except Exception as error:
        message, fix = explain_error(error)
        raise Failed(name, message, fix) from error


def kind_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
