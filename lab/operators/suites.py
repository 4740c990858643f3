"""The suites that measure operators: ExecuTorch's for all backends, and our own cases in it."""

from __future__ import annotations

from dataclasses import replace

from ci.lanes.upstream.suite import SUITES as UPSTREAM
from ci.lanes.upstream.suite import UpstreamSuite
from provisioning.base.settings import ROOT

NEWER = "rework-op"
"""Qualcomm's newer tests. They count where the other suites measure nothing."""

COMMAND = ("lab", "operator_tests")
ADAPTERS = "lab.operators.adapters"
VALUES = str(ROOT / "lab" / "operators" / "values.py")

SUITES = {
    suite.name: replace(suite, command=COMMAND, worker="lab.operators.worker")
    for suite in (
        UpstreamSuite(
            "operators",
            "backends/test/suite/operators",
            "each operator in every scheme, compared with the quantized model",
            adapter=f"{ADAPTERS}:Backend",
            warm_up="test_abs.test_abs_shapes[qnn_8a8w]",
        ),
        UpstreamSuite(
            "zoo",
            "backends/test/suite/models",
            "torchvision's and others' models",
            adapter=f"{ADAPTERS}:Backend",
            models=True,
        ),
        UpstreamSuite(
            "values",
            VALUES,
            "operators with other values, shapes and schemes: manifests/upstream/values.toml",
            classes=("test_values",),
            adapter=f"{ADAPTERS}:ValuesAdapter",
            warm_up="test_values[qnn_8a8w-relu-plain]",
        ),
        UpstreamSuite(
            "chains",
            VALUES,
            "operators between two layers, in the forms that models have, with five draws of inputs",
            classes=("test_chains",),
            adapter=f"{ADAPTERS}:ChainsAdapter",
            warm_up="test_chains[qnn_8a8w-relu-chain]",
        ),
        UPSTREAM[NEWER],
    )
}
