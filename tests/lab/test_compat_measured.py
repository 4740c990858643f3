"""The measurement of a pair, with the installed executorch, the provisioned SDK and the built runner."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from ci.suite.runner import DIST
from lab.builds import variables_for_sdk
from lab.compat import stage
from lab.compat.stage import STEPS, load_measured
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, DEFAULT_TARGET, Selection
from provisioning.build_ids import build_ids
from provisioning.dist import OURS, RUNNER
from provisioning.stage_variables import HOST_LIBRARIES
from tests.support.runner import dist, runner_reports
from tests.support.sdk import sdk_root

__all__ = ["dist", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


def measured_in(folder: Path, *flags: str) -> stage.PairMeasure:
    selection = Selection(DEFAULT_PROFILE, DEFAULT_TARGET, DEFAULT_SOC, folder / "store", folder / "reports")
    return stage.PairMeasure(selection, flags, os.environ)


@pytest.mark.whole
def test_measuring_the_profiles_build_gives_what_was_committed(dist: Path, tmp_path: Path) -> None:
    (build_id,) = build_ids(sdk_root() / "lib" / HOST_LIBRARIES / "libQnnHtp.so")
    executorch = importlib.metadata.version("executorch")
    (committed,) = (
        pair for pair in load_measured() if (pair.executorch, pair.build_id) == (executorch, build_id)
    )
    variables = variables_for_sdk(
        {**os.environ, "QNN_EXECUTOR_RUNNER": str(DIST / OURS / RUNNER)}, sdk_root()
    )
    tools = measured_in(tmp_path, "--timeout", "600")
    assert stage.measure(tools, committed.soc, variables, tmp_path / "logs", DEFAULT_PROFILE) == {
        step: value for step, value in committed.values.items() if step in STEPS
    }


def test_a_folder_without_libraries_makes_no_device(tmp_path: Path) -> None:
    (tmp_path / "lib" / HOST_LIBRARIES).mkdir(parents=True)
    variables = variables_for_sdk(os.environ, tmp_path)
    steps = stage.measure(measured_in(tmp_path), "SM8650", variables, tmp_path / "logs", DEFAULT_PROFILE)
    assert list(steps) == ["device"] and "libQnnHtp.so" in steps["device"]
