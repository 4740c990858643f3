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
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.upstream.verdict import Draw
from ci.operators.table import EXACT, PLAIN, SAME_WITHOUT_WEIGHTS
from ci.pipeline.accuracy import Pair, Unusable, least_sqnr_db
from ci.pipeline.lost_parts import LEAST_DB
from ci.pipeline.precision import MEASURED_SCHEMES
from provisioning.base.units import EXACT_DB


@dataclass(slots=True)
class UpstreamComparison:
    """What a test compared: the SQNR in dB, None if shapes or types differ, and what the test said of it."""

    figure: float | None
    passed: bool = False


@dataclass(frozen=True, slots=True)
class Replacement:
    """What is replaced in ExecuTorch, because none of its options, fixtures or variables does it."""

    where: str
    """MODULE:NAME below executorch.backends."""
    why: str
    by: Callable[[Any], Any]
    """From what was there."""

    def apply(self) -> None:
        module, _, path = self.where.partition(":")
        owner: Any = importlib.import_module(f"executorch.backends.{module}")
        *names, last = path.split(".")
        for name in names:
            owner = getattr(owner, name)
        setattr(owner, last, self.by(getattr(owner, last)))


class DefaultAdapter:
    """Tests that need nothing, or set themselves up by environment variables."""

    arguments: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.comparisons: list[UpstreamComparison] = []
        """Those of the test since the last report."""

    def replacements(self) -> Iterable[Replacement]:
        return ()

    def prepare(self) -> None:
        """Called once, after the suite's modules can be imported and before its tests are collected."""
        for replacement in self.replacements():
            replacement.apply()

    def enter(self, scratch: Path) -> None:
        """Called before each test, in its own folder."""

    def holds(self, item: pytest.Item) -> bool:
        return True

    def skip_reason(self, item: pytest.Item) -> str:
        """Why this test says nothing of what it is named for; it is not run then."""
        return ""

    def parts(self, item: pytest.Item) -> list[dict[str, Any]]:
        """The result of each part of a test, read before the test is torn down; none: its reports tell."""
        return []

    def watching(self, where: str) -> Replacement:
        """Note the figure of what this function compares: its second and third argument."""
        why = "a test says whether its outputs are near enough, and not how near"
        return Replacement(where, why, self._watched)

    def _watched(self, original: Any) -> Any:
        @functools.wraps(original)
        def watched(*args: Any, **named: Any) -> Any:
            computed, expected = [*args, *named.values()][1:3]
            compared = UpstreamComparison(least_db(computed, expected))
            self.comparisons.append(compared)
            result = original(*args, **named)
            compared.passed = True
            return result

        return watched


class ComparingAdapter(DefaultAdapter):
    """test_qnn_delegate_x86.py, which sets itself up."""

    def replacements(self) -> Iterable[Replacement]:
        return [self.watching("qualcomm.tests.utils:TestQNN._assert_outputs_equal")]


class DelegateAdapter(ComparingAdapter):
    """The classes of test_qnn_delegate.py, which its own command line sets up."""

    def replacements(self) -> Iterable[Replacement]:
        target = "qualcomm.tests.utils:TestQNN.target"
        why = "its command line has only targets for devices"
        return [*super().replacements(), Replacement(target, why, lambda _: "x86_64-linux-clang")]

    def prepare(self) -> None:
        suite = importlib.import_module("executorch.backends.qualcomm.tests.test_qnn_delegate")
        here = str(Path.cwd())
        words = ["--soc_model", os.environ["QNN_SOC_MODEL"], "--build_folder", os.environ["QNN_BUILD_FOLDER"]]
        words += ["--executorch_root", here, "--artifact_dir", here, "--enable_x86_64"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [sys.argv[0], *words])
            suite.setup_environment()
        super().prepare()


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
            self.tester.measured.in_float += in_float(module.graph.nodes)
            return module

        return transformed

    def skip_reason(self, item: pytest.Item) -> str:
        flow: Any = item.callspec.params["test_runner"]  # type: ignore[attr-defined]
        return built_otherwise(flow.name, flow.quantize_stage_factory) if flow.quantize else ""

    def parts(self, item: pytest.Item) -> list[dict[str, Any]]:
        runner = getattr(item, "funcargs", {}).get("test_runner")
        flow, ran = str(getattr(runner, "_flow", "")), iter(self.ran)
        summaries = getattr(runner, "_results", ())
        return [part_of(row, flow, next(ran) if row.result.name in RAN else None) for row in summaries]


RAN = ("SUCCESS", "OUTPUT_MISMATCH_FAIL", "PTE_RUN_FAIL")
"""Results of models that were run, or began to."""


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

    def parts(self, item: pytest.Item) -> list[dict[str, Any]]:
        summaries = item.funcargs["test_runner"]._results  # type: ignore[attr-defined]
        return [
            {**part, "result": "cpu"} if _only_layers(part, summary) else part
            for part, summary in zip(super().parts(item), summaries, strict=True)
        ]


LAYERS = ("aten::linear", "aten::convolution")
"""What stands around an operator in a chain."""


def _only_layers(part: Mapping[str, Any], summary: Any) -> bool:
    """Whether HTP has the layers of a chain alone: the operator between them stays on the CPU."""
    taken = {name for name, count in (summary.delegated_op_counts or {}).items() if count > 0}
    return part["result"] == "part" and not {name for name in taken if "quantize" not in name} - {*LAYERS}


BLOCK = 32
"""How many weights of a channel share a scale."""


class Rework(DefaultAdapter):
    """Qualcomm's newer tests: they look for the runner in a folder build-x86."""

    arguments = ("-k", "not gpu and not lpai")

    def replacements(self) -> Iterable[Replacement]:
        metrics = ("Tolerance", "Sqnr", "CosineSimilarity")
        return [
            *(self.watching(f"qualcomm.tests.rework.conftest:{name}.assert_close") for name in metrics),
            Replacement(
                "qualcomm.tests.rework.htp.conftest:with_htp_context",
                "a test is for the architecture that its file's folder is called by",
                _for_the_chosen_chip,
            ),
            Replacement(
                "qualcomm.export_utils:SimpleADB._adb",
                "five tests of `feature` run on a phone even with --enable_x86_64: they are not run",
                lambda _: lambda *args, **named: pytest.skip("needs a device over adb"),
            ),
        ]

    def enter(self, scratch: Path) -> None:
        runner = scratch / "build-x86/examples/qualcomm/executor_runner/qnn_executor_runner"
        runner.parent.mkdir(parents=True)
        runner.symlink_to(os.environ["QNN_EXECUTOR_RUNNER"])
        (scratch / "build-x86/lib").symlink_to(Path(os.environ["QNN_BUILD_FOLDER"], "lib"))


def _for_the_chosen_chip(original: Any) -> Any:
    htp: Any = importlib.import_module("executorch.backends.qualcomm.tests.rework.htp.conftest")
    soc = os.environ["QNN_SOC_MODEL"]
    arch = next(int(arch) for arch, name in htp._get_htp_arch() if name == soc)

    def bind(func: Any, hw_arch: int) -> Any:
        bound = original(func, arch)

        # No lambda, which pytest does not collect. The dictionary, of which things are taken, is the test's.
        def test(request: Any, kwargs: Any) -> Any:
            return bound(request, dict(kwargs))

        return test

    return bind


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

SCHEMES = tuple(scheme for scheme in MEASURED_SCHEMES if scheme != "fp16")

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


def part_of(summary: Any, flow: str, measured: TriedModel | None = None) -> dict[str, Any]:
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
    if measured and measured.quantized:
        for name in ("float_db", "quantized_db"):
            figures_of = [getattr(draw, name) for draw in measured.draws]
            tested[name] = rounded(_median(figures_of) if draws else figures_of[-1])
        tested["in_float"] = measured.in_float
    if draws:
        tested["draws"] = [[*map(rounded, draw[:3]), *[True] * draw.refused] for draw in draws]
    return tested


def _median(figures: Iterable[float | None]) -> float | None:
    """None if one is missing; NaN if one is."""
    every = [math.nan if figure is None else figure for figure in figures]
    return math.nan if any(map(math.isnan, every)) else statistics.median(every)


def part(
    result: str, sqnr_db: float | None = None, cpu: Iterable[str] = (), error: str = "", name: str = ""
) -> dict[str, Any]:
    """A part of a test, as JSON (ci.lanes.upstream.ledger.Part)."""
    return {
        "result": result,
        "sqnr_db": rounded(sqnr_db),
        "cpu": list(cpu),
        "error": ADDRESS.sub("0x…", error),
        "name": name,
    }


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
