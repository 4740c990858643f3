"""The measurement of a pair, with the installed executorch, the provisioned SDK and the built runner."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.engine.installed import RUNNER
from ci.upstream.compat import stage
from provisioning.base.settings import ROOT
from provisioning.build_id import build_ids
from provisioning.compat import STEPS, load_measured
from provisioning.environment import HOST_LIBRARIES
from tests.support.sdk import sdk_root

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = [
        sys.executable,
        "-m",
        "ci",
        "build_runner",
        "--reports",
        str(tmp_path_factory.mktemp("reports")),
    ]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    return RUNNER


@pytest.mark.whole
def test_measuring_the_profiles_build_gives_what_was_committed(runner: Path, tmp_path: Path) -> None:
    (build_id,) = build_ids(sdk_root() / "lib" / HOST_LIBRARIES / "libQnnHtp.so")
    executorch = importlib.metadata.version("executorch")
    (committed,) = load_measured().of(executorch, build_id)
    variables = stage.variables({**os.environ, "QNN_EXECUTOR_RUNNER": str(runner)}, sdk_root())
    flags = ["--store", str(tmp_path / "store"), "--timeout", "600"]
    assert stage.measure(committed.soc, variables, tmp_path / "logs", flags) == committed.steps


def test_a_folder_without_libraries_makes_no_device(tmp_path: Path) -> None:
    (tmp_path / "lib" / HOST_LIBRARIES).mkdir(parents=True)
    steps = stage.measure("SM8650", stage.variables(os.environ, tmp_path), tmp_path / "logs", [])
    assert [steps[name].result for name in STEPS] == ["failed", *["not_reached"] * 4]
    assert "libQnnHtp.so" in steps["device"].error
