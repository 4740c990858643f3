"""The suites that measure operators: ExecuTorch's for all backends, and our own cases in it."""

from __future__ import annotations

from ci.lanes.upstream.suite import UpstreamSuite, upstream_suites
from provisioning.base.settings import ROOT

NEWER = "rework-op"
"""Qualcomm's newer tests. They count where the other suites measure nothing."""

COMMAND = ("lab", "operator_tests")
ADAPTERS = "lab.operators.adapters"
VALUES = str(ROOT / "lab" / "operators" / "values.py")

SUITES = {
    suite.name: suite.model_copy(update={"command": COMMAND, "worker": "lab.operators.worker"})
    for suite in (
        UpstreamSuite(
            name="operators",
            path="backends/test/suite/operators",
            summary="each operator in every scheme, compared with the quantized model",
            adapter=f"{ADAPTERS}:Backend",
            warm_up="test_abs.test_abs_shapes[qnn_8a8w]",
        ),
        UpstreamSuite(
            name="zoo",
            path="backends/test/suite/models",
            summary="torchvision's and others' models",
            adapter=f"{ADAPTERS}:Backend",
            models=True,
        ),
        UpstreamSuite(
            name="values",
            path=VALUES,
            summary="operators with other values, shapes and schemes: manifests/upstream/values.toml",
            classes=("test_values",),
            adapter=f"{ADAPTERS}:ValuesAdapter",
            warm_up="test_values[qnn_8a8w-relu-plain]",
        ),
        UpstreamSuite(
            name="chains",
            path=VALUES,
            summary="operators between two layers, in the forms that models have, with five draws of inputs",
            classes=("test_chains",),
            adapter=f"{ADAPTERS}:ChainsAdapter",
            warm_up="test_chains[qnn_8a8w-relu-chain]",
        ),
        upstream_suites()[NEWER],
    )
}
