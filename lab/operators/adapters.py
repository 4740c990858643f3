"""ExecuTorch's suite for all backends, and our own cases in it: flows, schemes, and what each model gave."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import math
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.upstream.adapters import (
    DefaultAdapter,
    Replacement,
    least_db,
    least_of,
    part,
    round_figure,
    why_unheld,
)
from ci.lanes.upstream.suite import Part
from ci.operators.table import EXACT
from lab.operators import MEASURED_SCHEMES, PLAIN
from lab.operators.records import Draw
from lab.operators.value_cases import SAME_WITHOUT_WEIGHTS


@dataclass(slots=True)
class TriedModel:
    """What the summary of a model leaves out."""

    quantized: bool
    draws: list[Draw] = field(default_factory=list)
    """Of each comparison its figures, also with the float model."""
    in_float: list[str] = field(default_factory=list)
    """The operators that HTP computes in float."""
    several: bool = False
    """Whether it ran with several draws of inputs."""


def _tester(adapter: Backend, quantized: bool, use_fp16: bool) -> Any:
    """ExecuTorch's tester for a flow, on the chosen chip; it compares with the float model too."""
    import torch
    from torch.utils._pytree import tree_leaves

    shared: Any = importlib.import_module("executorch.backends.qualcomm.tests.tester")
    stages: Any = importlib.import_module("executorch.backends.test.harness.stages").StageType

    class Tester(shared.QualcommTester):  # type: ignore[misc]
        def __init__(self, module: Any, inputs: Any) -> None:
            self.samples: Sequence[Any] = module.__dict__.pop("draws", ())
            super().__init__(module, inputs)
            self.measured = TriedModel(quantized, several=bool(self.samples))
            adapter.tester = self
            stage = functools.partial(adapter.lowering(), soc_model=adapter.soc, use_fp16=use_fp16)
            self.stage_classes |= {stages.TO_EDGE_TRANSFORM_AND_LOWER: stage}

        def run_method_and_compare_outputs(self, *args: Any, inputs: Any = None, **named: Any) -> Any:
            adapter.ran.append(self.measured)
            refused: AssertionError | None = None
            for drawn in self.samples or (inputs,):
                try:
                    super().run_method_and_compare_outputs(*args, inputs=drawn, **named)
                except AssertionError as error:
                    # The other draws tell whether it is so of these inputs alone.
                    refused = refused or error
            if refused:
                raise refused
            return self

        def _calculate_reference_output(self, program: Any, inputs: Any) -> Any:
            self.exact: list[Any] = []
            if quantized:
                # A model may draw numbers and change its inputs.
                with torch.random.fork_rng(), torch.no_grad():
                    self.exact = tree_leaves(self.original_module(*copy.deepcopy(inputs)))
            return super()._calculate_reference_output(program, inputs)

        def _compare_outputs(
            self, reference: Any, computed: Any, scale: Any, atol: float, *others: Any
        ) -> None:
            actual, expected = tree_leaves(computed), tree_leaves(reference)
            draw = Draw(least_db(actual, expected))
            if quantized:
                draw = Draw(draw.sqnr_db, least_db(actual, self.exact), least_db(expected, self.exact))
            self.measured.draws.append(draw._replace(refused=True))
            floats = all(tensor.is_floating_point() for tensor in expected)
            within = math.inf if adapter.by_ratio and floats else atol
            super()._compare_outputs(reference, computed, scale, within, *others)
            self.measured.draws[-1] = draw

    return Tester


class Backend(DefaultAdapter):
    """ExecuTorch's suite for all backends: each test gives a summary for every model that it tries."""

    arguments: tuple[str, ...] = ("-m", "backend_qualcomm")
    by_ratio = False
    """Of floats the SQNR decides: a tolerance of 0.1 is less than a step of 8 bits of large values."""
    tester: Any = None
    """That of the model at work."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[TriedModel] = []
        self.soc = os.environ["QNN_SOC_MODEL"]

    def enter(self, scratch: Path) -> None:
        self.ran.clear()

    def replacements(self) -> Iterable[Replacement]:
        return [
            Replacement(
                "test.suite.flow:all_flows",
                "its flows have a tester that names no chip, and does not compare with the float model",
                lambda flows: lambda: {flow.name: flow for flow in self.flows(flows())},
            ),
            Replacement(
                "test.harness.error_statistics:compute_sqnr",
                "it uses the computed output as the signal, and so overrates outputs that are too large",
                lambda sqnr: lambda computed, reference: sqnr(reference, computed),
            ),
            Replacement(
                "test.suite.runner:_graph_has_unsupported_patterns",
                "ExecuTorch has no CPU kernel of a convolution in five dimensions, and it skips models that"
                " had one before they were lowered, even where HTP took it",
                self._left_on_the_cpu,
            ),
            Replacement(
                "qualcomm._passes.qnn_pass_manager:QnnPassManager.transform_for_preprocess_pipeline",
                "nothing says which operators of a delegate are not quantized",
                self._noting_floats,
            ),
        ]

    def prepare(self) -> None:
        super().prepare()
        # Without a session each run draws another seed.
        importlib.import_module("executorch.backends.test.suite.reporting").begin_test_session(None, seed=0)

    def flows(self, known: Mapping[str, Any]) -> Iterable[Any]:
        """ExecuTorch's, on the chosen chip; they compile quantized models with fp16."""
        for flow in known.values():
            own = {"tester_factory": _tester(self, flow.quantize, True)} if flow.backend == "qualcomm" else {}
            yield replace(flow, **own)

    def lowering(self) -> Any:
        """The stage that partitions and compiles."""
        tester: Any = importlib.import_module("executorch.backends.qualcomm.tests.tester")
        return tester.ToEdgeTransformAndLower

    def _left_on_the_cpu(self, has_one: Any) -> Any:
        from executorch.backends.test.suite.reporting import count_ops

        def still_has_one(program: Any) -> bool:
            left = count_ops(self.tester.get_artifact()._edge_programs)
            return "aten::convolution" in left and bool(has_one(program))

        return still_has_one

    def _noting_floats(self, transform: Any) -> Any:
        def transformed(manager: Any, *args: Any, **named: Any) -> Any:
            module = transform(manager, *args, **named)
            self.tester.measured.in_float += names_of_floats(module.graph.nodes)
            return module

        return transformed

    def skip_reason(self, item: pytest.Item) -> str:
        flow: Any = item.callspec.params["test_runner"]  # type: ignore[attr-defined]
        return built_otherwise(flow.name, flow.quantize_stage_factory) if flow.quantize else ""

    def parts(self, item: pytest.Item) -> list[Part]:
        runner = getattr(item, "funcargs", {}).get("test_runner")
        flow, ran = str(getattr(runner, "_flow", "")), iter(self.ran)
        summaries = getattr(runner, "_results", ())
        return [part_of(row, flow, next(ran) if row.result.name in RAN else None) for row in summaries]


RAN = ("SUCCESS", "OUTPUT_MISMATCH_FAIL", "PTE_RUN_FAIL")
"""Results of models that were run, or began to."""


def names_of_floats(nodes: Iterable[Any]) -> list[str]:
    """The operators among the nodes of a delegate that give floats which nothing quantizes."""
    import torch

    found = set()
    for node in nodes:
        value = node.meta.get("val")
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        if node.op == "call_function" and floats and not node.meta.get("quant_attrs"):
            found.add(str(node.target.__name__))
    return sorted(name for name in found if not NO_ARITHMETIC.search(name))


NO_ARITHMETIC = re.compile(r"quantize|getitem|_to_copy|permute_copy")


class ValuesAdapter(Backend):
    """Our own cases in ExecuTorch's suite: other values, shapes and schemes."""

    arguments = ("-p", "executorch.backends.test.suite.conftest", "-m", "backend_qualcomm")
    by_ratio = True
    linear_per_channel = False
    has_blocks = True
    fp16_of_quantized = True

    def flows(self, known: Mapping[str, Any]) -> Iterable[Any]:
        flow = known[FLOAT_FLOW]
        yield replace(flow, tester_factory=_tester(self, False, True))
        for scheme in SCHEMES:
            yield replace(
                flow,
                name=f"qnn_{scheme}",
                quantize=True,
                quantize_stage_factory=functools.partial(self.quantizing, scheme),
                tester_factory=_tester(self, True, self.fp16_of_quantized),
            )

    def quantizer(self) -> Any:
        return importlib.import_module("executorch.backends.qualcomm.quantizer.quantizer").QnnQuantizer()

    def quantizing(self, scheme: str) -> Any:
        """Calibrated with all that it will run with, and then with the widest range of it: what lies beyond
        is clipped, and the observer of ExecuTorch's flows follows later samples by 1 % alone."""
        from torchao.quantization.pt2e import MinMaxObserver, MovingAverageMinMaxObserver

        dtypes: Any = importlib.import_module("executorch.backends.qualcomm.quantizer.quantizer").QuantDtype
        tester: Any = importlib.import_module("executorch.backends.qualcomm.tests.tester")
        quantizer, samples = self.quantizer(), self.tester.samples
        quantizer.set_default_quant_config(
            dtypes[f"use_{scheme}"],
            is_conv_per_channel=True,
            is_linear_per_channel=self.linear_per_channel,
            act_observer=MinMaxObserver if samples else MovingAverageMinMaxObserver,
        )
        if self.has_blocks and scheme.endswith("_block"):
            quantizer.set_block_size_map({"conv2d": (1, BLOCK, 1, 1), "linear": (1, BLOCK)})
        return tester.Quantize(quantizer=quantizer, calibration_samples=samples or None)

    def holds(self, item: pytest.Item) -> bool:
        parameters = item.callspec.params  # type: ignore[attr-defined]
        case, scheme = parameters["case"], parameters["test_runner"].name.removeprefix("qnn_")
        if case.weights and scheme.endswith("_block"):
            return bool(case.settings.blocks and case.shape[1] % BLOCK == 0)
        return bool(case.name == PLAIN or case.weights or scheme not in SAME_WITHOUT_WEIGHTS)

    def skip_reason(self, item: pytest.Item) -> str:
        return ""


class ChainsAdapter(ValuesAdapter):
    """Our own operators between layers, quantized and lowered as `compile` does it: ExecuTorch's flows
    quantize for SM8750, whatever the chip, and call passes and partitioner themselves."""

    linear_per_channel = True
    has_blocks = False
    """Those of an operator's weights are not those of the layers around it."""
    fp16_of_quantized = False

    def quantizer(self) -> Any:
        shared: Any = importlib.import_module("executorch.backends.qualcomm.utils.utils")
        quantizers: Any = importlib.import_module("executorch.backends.qualcomm.quantizer.quantizer")
        return quantizers.QnnQuantizer(soc_model=shared.get_soc_to_chipset_map()[self.soc])

    def lowering(self) -> Any:
        shared: Any = importlib.import_module("executorch.backends.qualcomm.utils.utils")

        class Lower(super().lowering()):  # type: ignore[misc]
            def run(self, artifact: Any, inputs: Any = None, generate_etrecord: bool = False) -> None:
                self.edge_dialect_program = shared.to_edge_transform_and_lower_to_qnn(
                    artifact.module(),
                    artifact.example_inputs[0],
                    self.compiler_specs,
                    generate_etrecord=generate_etrecord,
                )

        return Lower

    def holds(self, item: pytest.Item) -> bool:
        """What has weights in blocks of its own has none beside layers that have others."""
        parameters = item.callspec.params  # type: ignore[attr-defined]
        return not (parameters["case"].weights and parameters["test_runner"].name.endswith("_block"))

    def parts(self, item: pytest.Item) -> list[Part]:
        summaries = item.funcargs["test_runner"]._results  # type: ignore[attr-defined]
        return [
            replace(part, result="cpu") if _only_layers(part, summary) else part
            for part, summary in zip(super().parts(item), summaries, strict=True)
        ]


LAYERS = ("aten::linear", "aten::convolution")
"""What stands around an operator in a chain."""


def _only_layers(part: Part, summary: Any) -> bool:
    """Whether HTP has the layers of a chain alone: the operator between them stays on the CPU."""
    taken = {name for name, count in (summary.delegated_op_counts or {}).items() if count > 0}
    return part.result == "part" and not {name for name in taken if "quantize" not in name} - {*LAYERS}


BLOCK = 32
"""How many weights of a channel share a scale."""


FLOAT_FLOW = "qnn"


SCHEMES = tuple(scheme for scheme in MEASURED_SCHEMES if scheme != "fp16")


STEPS = {
    "QUANTIZE_FAIL": "quantizing: ",
    "LOWER_FAIL": "lowering: ",
    "PTE_LOAD_FAIL": "loading the .pte: ",
    "PTE_RUN_FAIL": "running the .pte: ",
}
"""Where a model of ExecuTorch's suite failed."""


def built_otherwise(name: str, factory: Any) -> str:
    """Whether a flow is built with the scheme of another one, and so tests that one twice."""
    dtype = inspect.getclosurevars(factory).nonlocals.get("quant_dtype")
    scheme = getattr(dtype, "name", "").removeprefix("use_")
    same = not scheme or name.removeprefix("qnn_") == scheme
    return "" if same else f"ExecuTorch builds its flow {name} with the scheme {scheme}"


def part_of(summary: Any, flow: str, measured: TriedModel | None = None) -> Part:
    """One model of a test: where it ran, its least SQNR in dB, and the operators that stayed on the CPU."""
    on_htp = {name for name, count in (summary.delegated_op_counts or {}).items() if count > 0}
    on_cpu = sorted(name for name in summary.undelegated_op_counts or {} if "quantize" not in name)
    figures = [
        float(statistic.sqnr) for statistic in summary.tensor_error_statistics if statistic.sqnr is not None
    ]
    least = least_of(figures)
    draws = measured.draws if measured and measured.several else []
    if draws and all(draw.sqnr_db is not None for draw in draws):
        least = _median(draw.sqnr_db for draw in draws)
    name = summary.result.name
    error = "" if summary.error is None else f"{type(summary.error).__name__}: {summary.error}"[:500]
    if name == "SUCCESS":
        result = "part" if on_cpu else "whole"
        if result == "whole" and flow != FLOAT_FLOW and not any("quantize" in name for name in on_htp):
            result = "float"
    elif name == "SUCCESS_UNDELEGATED":
        result = "cpu"
    elif name == "SKIPPED":
        # Without an error, upstream gave up because ExecuTorch has no CPU kernel for the rest.
        result = "bad_test" if error else "no_kernel"
    else:
        result = "wrong" if name == "OUTPUT_MISMATCH_FAIL" else "dies"
        error = f"{STEPS.get(name, '')}{error}"
    if result in ("whole", "part", "float") and (least is None or math.isnan(least) or least == -math.inf):
        # The reference has nothing but zeros, or there is none.
        result = "bad_test"
        error = f"compared nothing: its SQNR is {least}"
    elif result in ("whole", "part", "float") and (unheld := why_unheld(least)):
        # It is compared with the quantized model, so the loss is not of quantizing.
        result, error = "wrong", unheld
    compared = result in ("whole", "part", "float", "wrong") and least is not None and least > -math.inf
    tested = part(result, min(least, EXACT) if compared and least is not None else None, on_cpu, error)
    if not compared:
        return tested
    kept: dict[str, object] = {}
    if measured and measured.quantized:
        for name in ("float_db", "quantized_db"):
            figures_of = [getattr(draw, name) for draw in measured.draws]
            kept[name] = round_figure(_median(figures_of) if draws else figures_of[-1])
        kept["in_float"] = measured.in_float
    if draws:
        kept["draws"] = [[*map(round_figure, draw[:3]), *([True] if draw.refused else [])] for draw in draws]
    return replace(tested, measured=kept)


def _median(figures: Iterable[float | None]) -> float | None:
    """None if one is missing; NaN if one is."""
    every = [math.nan if figure is None else figure for figure in figures]
    return math.nan if any(map(math.isnan, every)) else statistics.median(every)
