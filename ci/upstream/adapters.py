"""How the tests of a suite are set up for the emulator, and what they report beyond passed and failed."""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


class Plain:
    """Tests that need nothing, or set themselves up by environment variables."""

    def prepare(self) -> None:
        """Called once, after the suite's modules can be imported and before its tests are collected."""

    def parts(self, item: pytest.Item) -> list[dict[str, Any]]:
        """The result of each part of a test, read before the test is torn down."""
        return []


class Delegate(Plain):
    """The classes of test_qnn_delegate.py, which its own command line sets up."""

    def prepare(self) -> None:
        shared = importlib.import_module("executorch.backends.qualcomm.tests.utils").TestQNN
        shared.enable_x86_64 = True
        shared.backend = os.environ.get("QNN_BACKEND", "htp")
        shared.soc_model = os.environ["QNN_SOC_MODEL"]
        shared.build_folder = os.environ["QNN_BUILD_FOLDER"]
        shared.executorch_root = shared.artifact_dir = str(Path.cwd())
        shared.target = "x86_64-linux-clang"


class Backend(Plain):
    """ExecuTorch's suite for all backends: each test gives a summary for every model that it tries."""

    def prepare(self) -> None:
        tester: Any = importlib.import_module("executorch.backends.qualcomm.tests.tester")
        reporting = importlib.import_module("executorch.backends.test.suite.reporting")
        stage = tester.ToEdgeTransformAndLower
        # The tester has its own default chip, and no way to name another.
        tester.ToEdgeTransformAndLower = functools.partial(stage, soc_model=os.environ["QNN_SOC_MODEL"])
        # Without a session each run draws another seed.
        reporting.begin_test_session(None, seed=0)

    def parts(self, item: pytest.Item) -> list[dict[str, Any]]:
        runner = getattr(item, "funcargs", {}).get("test_runner")
        flow = str(getattr(runner, "_flow", ""))
        return [part_of(summary, flow) for summary in getattr(runner, "_results", ())]


ADAPTERS: Mapping[str, type[Plain]] = {"plain": Plain, "delegate": Delegate, "backend": Backend}

FLOAT_FLOW = "qnn"

EXACT = 200.0
"""The SQNR in dB of outputs that are equal."""


def part_of(summary: Any, flow: str) -> dict[str, Any]:
    """One model of a test: where it ran, its least SQNR in dB, and the operators that stayed on the CPU."""
    on_htp = {name for name, count in (summary.delegated_op_counts or {}).items() if count > 0}
    on_cpu = sorted(name for name in summary.undelegated_op_counts or {} if "quantize" not in name)
    figures = [float(each.sqnr) for each in summary.tensor_error_statistics if each.sqnr is not None]
    # min() of a NaN and a number depends on their order.
    least = math.nan if any(map(math.isnan, figures)) else min(figures, default=None)
    error = "" if summary.error is None else f"{type(summary.error).__name__}: {summary.error}"[:500]
    name = summary.result.name
    if name == "SUCCESS":
        result = "part" if on_cpu else "whole"
        if result == "whole" and flow != FLOAT_FLOW and not any("quantize" in each for each in on_htp):
            result = "float"
    elif name == "SUCCESS_UNDELEGATED":
        result = "cpu"
    elif name == "SKIPPED":
        # Without an error, upstream gave up because ExecuTorch has no CPU kernel for the rest.
        result = "bad_test" if error else "no_kernel"
    else:
        result = "wrong" if name == "OUTPUT_MISMATCH_FAIL" else "dies"
    if result in ("whole", "part", "float") and (least is None or math.isnan(least) or least == -math.inf):
        # The suite compares with `sqnr < limit`, which is false for these.
        result = "bad_test"
        error = f"compared nothing: its SQNR is {least}"
    compared = result in ("whole", "part", "float", "wrong") and least is not None and least > -math.inf
    return {
        "result": result,
        "sqnr_db": round(min(least, EXACT), 1) if compared and least is not None else None,
        "cpu": on_cpu,
        "error": error,
    }


ORDER = ("dies", "wrong", "bad_test", "no_kernel", "cpu", "part", "float", "whole")
"""From the worst result of a part to the best."""


def worst(parts: list[dict[str, Any]]) -> str:
    return min((part["result"] for part in parts), key=ORDER.index, default="")
