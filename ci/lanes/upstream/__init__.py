"""This lane runs the tests that ExecuTorch ships with its wheel, and shows which pairs of ExecuTorch and QNN
work."""

from ci.suite.lane_head import TESTS, LaneHead, LaneStage
from provisioning.base.settings import MANIFESTS

SUITES = MANIFESTS / "upstream" / "suites.toml"
"""The table of ExecuTorch's suites."""

HEAD = LaneHead(
    name="upstream",
    environment="upstream",
    stages=(
        LaneStage(
            "test_delegate",
            "ci.lanes.upstream.verb:DELEGATE",
            "run ExecuTorch's own delegate suite on the HTP emulator",
            "building.md#executorchs-own-tests",
            environment="executorch",
            flags=TESTS,
        ),
        LaneStage(
            "test_upstream",
            "ci.lanes.upstream.verb:ALL",
            "run any of ExecuTorch's own suites on the HTP emulator: operators, passes, models",
            "building.md#executorchs-own-tests",
            flags=TESTS,
        ),
    ),
)
