"""How the tests of a suite are set up for the emulator, and what they report beyond passed and failed."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import math
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.upstream.verdict import Draw
from ci.operators.table import EXACT, PLAIN, SAME_WITHOUT_WEIGHTS
from ci.pipeline.accuracy import Pair, Unusable, least_sqnr_db
from ci.pipeline.slices import LEAST_DB
from provisioning.base.units import EXACT_DB


@dataclass(slots=True)
class UpstreamComparison:
    """What a test compared: the SQNR in dB, None if shapes or types differ, and what the test said of it."""

    figure: float | None
    passed: bool = False


class DefaultAdapter:
    """Tests that need nothing, or set themselves up by environment variables."""

    arguments: tuple[str, ...] = ()
    """For pytest."""

    def __init__(self) -> None:
        self.comparisons: list[UpstreamComparison] = []
        """Those of the test since the last report."""

    def prepare(self) -> None:
        """Called once, after the suite's modules can be imported and before its tests are collected."""

    def enter(self, scratch: Path) -> None:
        """Called before each test, in its own folder."""

    def holds(self, item: pytest.Item) -> bool:
        """Whether the test belongs to the suite."""
        return True

    def skip_reason(self, item: pytest.Item) -> str:
        """Why this test says nothing of what it is named for; it is not run then."""
        return ""

    def parts(self, item: pytest.Item) -> list[dict[str, Any]]:
        """The result of each part of a test, read before the test is torn down; none: its reports tell."""
        return []

    def watch(self, owner: Any, name: str, outputs: slice) -> None:
        """Note the figure of whatever this function compares; `outputs`: its arguments, computed and expected
        ones."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(*args: Any, **named: Any) -> Any:
            computed, expected = [*args, *named.values()][outputs]
            compared = UpstreamComparison(least_db(computed, expected))
            self.comparisons.append(compared)
            result = original(*args, **named)
            compared.passed = True
            return result

        setattr(owner, name, watched)


class ComparingAdapter(DefaultAdapter):
    """test_qnn_delegate_x86.py, which sets itself up."""

    def prepare(self) -> None:
        shared = importlib.import_module("executorch.backends.qualcomm.tests.utils").TestQNN
        self.watch(shared, "_assert_outputs_equal", slice(1, 3))


class DelegateAdapter(ComparingAdapter):
    """The classes of test_qnn_delegate.py, which its own command line sets up."""

    def prepare(self) -> None:
        super().prepare()
        shared = importlib.import_module("executorch.backends.qualcomm.tests.utils").TestQNN
        shared.enable_x86_64 = True
        shared.backend = os.environ.get("QNN_BACKEND", "htp")
        shared.soc_model = os.environ["QNN_SOC_MODEL"]
        shared.build_folder = os.environ["QNN_BUILD_FOLDER"]
        shared.executorch_root = shared.artifact_dir = str(Path.cwd())
        shared.target = "x86_64-linux-clang"


@dataclass(slots=True)
class AgainstFloat:
    """What the summary of a quantized model leaves out: how it compares with the float model."""

    float_db: float | None = None
    """The SQNR in dB on HTP against the float model."""
    quantized_db: float | None = None
    """That of the quantized model on the CPU against the float model."""
    in_float: list[str] = field(default_factory=list)
    """The operators that HTP computes in float."""


class Backend(DefaultAdapter):
    """ExecuTorch's suite for all backends: each test gives a summary for every model that it tries."""

    arguments: tuple[str, ...] = ("-m", "backend_qualcomm")

    def prepare(self) -> None:
        tester: Any = importlib.import_module("executorch.backends.qualcomm.tests.tester")
        reporting = importlib.import_module("executorch.backends.test.suite.reporting")
        stage = tester.ToEdgeTransformAndLower
        # The tester has its own default chip, and no way to name another.
        tester.ToEdgeTransformAndLower = functools.partial(stage, soc_model=os.environ["QNN_SOC_MODEL"])
        # Upstream takes what was computed for the signal, and so overrates outputs that are too large.
        statistics: Any = importlib.import_module("executorch.backends.test.harness.error_statistics")
        sqnr = statistics.compute_sqnr
        statistics.compute_sqnr = lambda computed, reference: sqnr(reference, computed)
        # Without a session each run draws another seed.
        reporting.begin_test_session(None, seed=0)
        runner = importlib.import_module("executorch.backends.test.suite.runner")
        _skip_only_what_is_left_on_the_cpu(runner)
        _compare_with_the_float_model(
            runner, importlib.import_module("executorch.backends.test.harness.tester")
        )

    def skip_reason(self, item: pytest.Item) -> str:
        flow: Any = item.callspec.params["test_runner"]  # type: ignore[attr-defined]
        return built_otherwise(flow.name, flow.quantize_stage_factory) if flow.quantize else ""

    def parts(self, item: pytest.Item) -> list[dict[str, Any]]:
        runner = getattr(item, "funcargs", {}).get("test_runner")
        flow = str(getattr(runner, "_flow", ""))
        return [part_of(summary, flow) for summary in getattr(runner, "_results", ())]


def _skip_only_what_is_left_on_the_cpu(runner: Any) -> None:
    """ExecuTorch has no CPU kernel of a convolution in five dimensions, and upstream skips models that had
    one before they were lowered, even where HTP took it."""
    count, has_one = runner.count_ops, runner._graph_has_unsupported_patterns
    left: Mapping[str, int] = {}

    def count_ops(programs: Any) -> Any:
        nonlocal left
        left = count(programs)
        return left

    runner.count_ops = count_ops
    runner._graph_has_unsupported_patterns = lambda program: "aten::convolution" in left and has_one(program)


def _compare_with_the_float_model(runner: Any, harness: Any) -> None:
    """Give each summary of a quantized model what it leaves out: upstream compares with the quantized model
    alone, and does not say which operators of a delegate are not quantized."""
    import torch
    from torch.utils._pytree import tree_leaves

    tester = harness.Tester
    test, compute, compare = runner.run_test, tester._calculate_reference_output, tester._compare_outputs
    run = tester.run_method_and_compare_outputs
    passes: Any = importlib.import_module(
        "executorch.backends.qualcomm._passes.qnn_pass_manager"
    ).QnnPassManager
    transform = passes.transform_for_preprocess_pipeline
    model: Any = None
    exact: list[Any] = []
    against_float = AgainstFloat()
    inputs_drawn: Sequence[Any] = ()
    draws: list[Draw] = []

    def run_test(module: Any, inputs: Any, flow: Any, *args: Any, **named: Any) -> Any:
        nonlocal model, against_float, inputs_drawn
        model, against_float = (module if flow.quantize else None), AgainstFloat()
        inputs_drawn = getattr(module, "__dict__", {}).pop("draws", ())
        draws.clear()
        if inputs_drawn and flow.quantize:
            create = functools.partial(_calibrated, flow.quantize_stage_factory, inputs_drawn)
            flow = replace(flow, quantize_stage_factory=create)
        summary = test(module, inputs, flow, *args, **named)
        summary.against_float = against_float if flow.quantize else None
        summary.draws = [*draws] if inputs_drawn else []
        return summary

    def run_and_compare(self: Any, *args: Any, inputs: Any = None, **named: Any) -> Any:
        refused: AssertionError | None = None
        for drawn in inputs_drawn or (inputs,):
            try:
                run(self, *args, inputs=drawn, **named)
            except AssertionError as error:
                # The other draws tell whether it is so of these inputs alone.
                refused = refused or error
        if refused:
            raise refused
        return self

    def calculate(program: Any, inputs: Any) -> Any:
        exact.clear()
        if model is not None:
            # A model may draw numbers and change its inputs.
            with torch.random.fork_rng(), torch.no_grad():
                exact.extend(tree_leaves(model(*copy.deepcopy(inputs))))
        return compute(program, inputs)

    def compare_outputs(reference: Any, computed: Any, *args: Any, **named: Any) -> Any:
        if model is not None:
            against_float.float_db = least_db(tree_leaves(computed), exact)
            against_float.quantized_db = least_db(tree_leaves(reference), exact)
        figure = least_db(tree_leaves(computed), tree_leaves(reference))
        draw = Draw(figure, against_float.float_db, against_float.quantized_db)
        draws.append(draw._replace(refused=True))
        result = compare(reference, computed, *args, **named)
        draws[-1] = draw
        return result

    def transform_for_preprocess(self: Any, *args: Any, **named: Any) -> Any:
        module = transform(self, *args, **named)
        against_float.in_float += in_float(module.graph.nodes)
        return module

    runner.run_test = run_test
    tester._calculate_reference_output = staticmethod(calculate)
    tester._compare_outputs = staticmethod(compare_outputs)
    tester.run_method_and_compare_outputs = run_and_compare
    passes.transform_for_preprocess_pipeline = transform_for_preprocess


def _calibrated(create: Callable[[], Any], samples: Sequence[Any]) -> Any:
    """With all that it will run with, and with the widest range of it: what lies beyond is clipped, and the
    observer of ExecuTorch's flows follows later samples by 1 % alone."""
    from torchao.quantization.pt2e import MinMaxObserver

    flows: Any = importlib.import_module("executorch.backends.test.suite.flows.qualcomm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flows, "MovingAverageMinMaxObserver", MinMaxObserver)
        stage = create()
    stage.calibration_samples = samples
    return stage


def in_float(nodes: Iterable[Any]) -> list[str]:
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
    linear_per_channel = False
    has_blocks = True

    def prepare(self) -> None:
        super().prepare()
        suite = "executorch.backends.test.suite"
        create: Any = importlib.import_module(f"{suite}.flows.qualcomm")._create_qnn_flow
        dtypes: Any = importlib.import_module("executorch.backends.qualcomm.quantizer.quantizer").QuantDtype
        flows = [create(FLOAT_FLOW)]
        for scheme in SCHEMES:
            flow = create(
                f"qnn_{scheme}",
                quantize=True,
                quant_dtype=dtypes[f"use_{scheme}"],
                per_channel_linear=self.linear_per_channel,
                use_fp16=False,
            )
            if self.has_blocks and scheme.endswith("_block"):
                flow.quantize_stage_factory = functools.partial(_in_blocks, flow.quantize_stage_factory)
            flows.append(flow)
        shared: Any = importlib.import_module(f"{suite}.flow")
        shared.all_flows = lambda: {flow.name: flow for flow in flows}
        # Its tolerance of 0.1 is less than a step of 8 bits of large values; of floats the SQNR decides.
        tester: Any = importlib.import_module("executorch.backends.test.harness.tester").Tester
        compare = tester._assert_outputs_equal

        def assert_outputs_equal(computed: Any, expected: Any, **named: Any) -> None:
            floats = all(tensor.is_floating_point() for tensor in expected)
            compare(computed, expected, **{**named, **({"atol": math.inf} if floats else {})})

        tester._assert_outputs_equal = staticmethod(assert_outputs_equal)

    def holds(self, item: pytest.Item) -> bool:
        parameters = item.callspec.params  # type: ignore[attr-defined]
        case, scheme = parameters["case"], parameters["test_runner"].name.removeprefix("qnn_")
        if case.weights and scheme.endswith("_block"):
            return bool(case.settings.blocks and case.shape[1] % BLOCK == 0)
        return bool(case.name == PLAIN or case.weights or scheme not in SAME_WITHOUT_WEIGHTS)

    def skip_reason(self, item: pytest.Item) -> str:
        return ""


class ChainsAdapter(ValuesAdapter):
    """Our own operators between layers, quantized and lowered as `compile` does it."""

    linear_per_channel = True
    has_blocks = False
    """Those of an operator's weights are not those of the layers around it."""

    def prepare(self) -> None:
        super().prepare()
        _lower_as_users_do(os.environ["QNN_SOC_MODEL"])

    def holds(self, item: pytest.Item) -> bool:
        """What has weights in blocks of its own has none beside layers that have others."""
        parameters = item.callspec.params  # type: ignore[attr-defined]
        return not (parameters["case"].weights and parameters["test_runner"].name.endswith("_block"))

    def parts(self, item: pytest.Item) -> list[dict[str, Any]]:
        summaries = item.funcargs["test_runner"]._results  # type: ignore[attr-defined]
        return [
            {**part, "result": "cpu"} if _only_layers(part, summary) else part
            for part, summary in zip(super().parts(item), summaries, strict=True)
        ]


def _lower_as_users_do(soc: str) -> None:
    """ExecuTorch's flows quantize for SM8750, whatever the chip, compile quantized models with fp16, and call
    passes and partitioner themselves."""
    tester: Any = importlib.import_module("executorch.backends.qualcomm.tests.tester")
    flows: Any = importlib.import_module("executorch.backends.test.suite.flows.qualcomm")
    shared: Any = importlib.import_module("executorch.backends.qualcomm.utils.utils")
    chip = shared.get_soc_to_chipset_map()[soc]
    # Before the adapter named the chip.
    stage: Any = tester.ToEdgeTransformAndLower.func

    class Lower(stage):  # type: ignore[misc]
        def __init__(self, use_fp16: Sequence[bool]) -> None:
            super().__init__(soc_model=soc, use_fp16=all(use_fp16))

        def run(self, artifact: Any, inputs: Any = None, generate_etrecord: bool = False) -> None:
            self.edge_dialect_program = shared.to_edge_transform_and_lower_to_qnn(
                artifact.module(),
                artifact.example_inputs[0],
                self.compiler_specs,
                generate_etrecord=generate_etrecord,
            )

    tester.ToEdgeTransformAndLower = Lower
    flows.QnnQuantizer = functools.partial(flows.QnnQuantizer, soc_model=chip)


LAYERS = ("aten::linear", "aten::convolution")
"""What stands around an operator in a chain."""


def _only_layers(part: Mapping[str, Any], summary: Any) -> bool:
    """Whether HTP has the layers of a chain alone: the operator between them stays on the CPU."""
    taken = {name for name, count in (summary.delegated_op_counts or {}).items() if count > 0}
    return part["result"] == "part" and not {name for name in taken if "quantize" not in name} - {*LAYERS}


BLOCK = 32
"""How many weights of a channel share a scale."""


def _in_blocks(create: Callable[[], Any]) -> Any:
    stage = create()
    stage.quantizer.set_block_size_map({"conv2d": (1, BLOCK, 1, 1), "linear": (1, BLOCK)})
    return stage


class Rework(DefaultAdapter):
    """Qualcomm's newer tests: they look for the runner in a folder build-x86, and bind a test to an
    architecture by the name of its file's folder."""

    arguments = ("-k", "not gpu and not lpai")

    def prepare(self) -> None:
        rework = "executorch.backends.qualcomm.tests.rework"
        shared = importlib.import_module(f"{rework}.conftest")
        for metrics in (shared.Tolerance, shared.Sqnr, shared.CosineSimilarity):
            self.watch(metrics, "assert_close", slice(1, 3))
        htp: Any = importlib.import_module(f"{rework}.htp.conftest")
        soc = os.environ["QNN_SOC_MODEL"]
        arch = next(int(arch) for arch, name in htp._get_htp_arch() if name == soc)
        original = htp.with_htp_context

        def bind(func: Any, hw_arch: int) -> Any:
            bound = original(func, arch)

            # It takes things out of the dictionary, which belongs to the collected test.
            def test(request: Any, kwargs: Any) -> Any:
                return bound(request, dict(kwargs))

            return test

        htp.with_htp_context = bind
        # Five tests of `feature` run on a phone even with --enable_x86_64. They are not run here, and say so.
        export: Any = importlib.import_module("executorch.backends.qualcomm.export_utils")
        export.SimpleADB._adb = lambda *args, **named: pytest.skip("needs a device over adb")

    def enter(self, scratch: Path) -> None:
        runner = scratch / "build-x86/examples/qualcomm/executor_runner/qnn_executor_runner"
        runner.parent.mkdir(parents=True)
        runner.symlink_to(os.environ["QNN_EXECUTOR_RUNNER"])
        (scratch / "build-x86/lib").symlink_to(Path(os.environ["QNN_BUILD_FOLDER"], "lib"))


class Feature(Rework):
    @property
    def arguments(self) -> tuple[str, ...]:  # type: ignore[override]
        soc = os.environ["QNN_SOC_MODEL"]
        return (*Rework.arguments, "--soc_model", soc, "--build_folder", "build-x86", "--enable_x86_64")


ADAPTERS: Mapping[str, type[DefaultAdapter]] = {
    "plain": DefaultAdapter,
    "compared": ComparingAdapter,
    "delegate": DelegateAdapter,
    "backend": Backend,
    "values": ValuesAdapter,
    "chains": ChainsAdapter,
    "rework": Rework,
    "feature": Feature,
}

FLOAT_FLOW = "qnn"

SCHEMES = ("8a8w", "16a8w", "16a4w", "16a4w_block", "16a16w", "8a4w")
"""Beside fp16."""

LOWERING = ("qnn_preprocess", "generate Qnn context binary", "to_edge_transform_and_lower", "to_backend")
"""Where an exception comes from if lowering fails."""


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


def least_db(computed: Iterable[Any], expected: Iterable[Any]) -> float | None:
    """NaN if the one has a NaN where the other has none; None if their shapes differ."""
    try:
        pairs = [
            Pair(str(i), e.detach().float(), c.detach().float())
            for i, (c, e) in enumerate(zip(computed, expected, strict=True))
        ]
        return min(least_sqnr_db(pairs), EXACT)
    except Unusable as error:
        return math.nan if error.rule == "not-finite" else None
    except (ValueError, AttributeError):
        return None


def least_of(figures: Iterable[float]) -> float | None:
    """None if there is none; NaN if one is, as min() of a NaN and a number depends on their order."""
    every = list(figures)
    return math.nan if any(map(math.isnan, every)) else min(every, default=None)


def part_of(summary: Any, flow: str) -> dict[str, Any]:
    """One model of a test: where it ran, its least SQNR in dB, and the operators that stayed on the CPU."""
    on_htp = {name for name, count in (summary.delegated_op_counts or {}).items() if count > 0}
    on_cpu = sorted(name for name in summary.undelegated_op_counts or {} if "quantize" not in name)
    figures = [
        float(statistic.sqnr) for statistic in summary.tensor_error_statistics if statistic.sqnr is not None
    ]
    least = least_of(figures)
    draws = [*getattr(summary, "draws", ())]
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
    figure = min(least, EXACT) if compared and least is not None else None
    if not compared:
        return part(result, figure, on_cpu, error)
    against_float = summary.against_float
    if against_float and draws:
        to_float, quantized = (
            _median(getattr(draw, name) for draw in draws) for name in ("float_db", "quantized_db")
        )
        against_float = replace(against_float, float_db=to_float, quantized_db=quantized)
    tested = part(result, figure, on_cpu, error, against_float=against_float)
    return {**tested, "draws": [_rounded(draw) for draw in draws]} if draws else tested


def _rounded(draw: Draw) -> list[float | bool | None]:
    return [*map(rounded, draw[:3]), *([True] if draw.refused else [])]


def _median(figures: Iterable[float | None]) -> float | None:
    """None if one is missing; NaN if one is."""
    every = [math.nan if figure is None else figure for figure in figures]
    return math.nan if any(map(math.isnan, every)) else statistics.median(every)


def part(
    result: str,
    sqnr_db: float | None = None,
    cpu: Iterable[str] = (),
    error: str = "",
    name: str = "",
    against_float: AgainstFloat | None = None,
) -> dict[str, Any]:
    """A part of a test, as JSON (ci.lanes.upstream.ledger.Part)."""
    fields = {
        "result": result,
        "sqnr_db": rounded(sqnr_db),
        "cpu": list(cpu),
        "error": ADDRESS.sub("0x…", error),
        "name": name,
    }
    if against_float is None:
        return fields
    figures = {
        "float_db": rounded(against_float.float_db),
        "quantized_db": rounded(against_float.quantized_db),
    }
    return {**fields, **figures, "in_float": against_float.in_float}


def rounded(figure: float | None) -> float | None:
    return None if figure is None or not math.isfinite(figure) else round(figure, 1)


def why_unheld(figure: float | None) -> str:
    """Why a test that passed with outputs of this SQNR says nothing of them; empty if it does."""
    if figure is None or figure >= LEAST_DB:
        return ""
    if not math.isfinite(figure) or figure <= -EXACT_DB:
        return f"any outputs pass: their SQNR is {figure:g}"
    return f"its outputs are below {LEAST_DB:g} dB, and its limits let them pass"


ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")
"""Of memory: another in each process."""

ORDER = (
    *("crash", "memory", "timeout", "dies", "wrong", "failed", "absent", "bad_test", "no_kernel", "not_run"),
    *("cpu", "part", "float", "whole", "passed"),
)
"""From the worst result of a part to the best."""

GOOD = ORDER[ORDER.index("cpu") :]


def worst(parts: list[dict[str, Any]]) -> str:
    return min((part["result"] for part in parts), key=ORDER.index, default="")
