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


def variables(sdk: Path) -> dict[str, str]:
    libraries = sdk / "lib" / HOST_LIBRARIES
    return {**os.environ, "QNN_SDK_ROOT": str(sdk), "LD_LIBRARY_PATH": str(libraries)}


def test_measuring_the_profiles_build_gives_what_was_committed(runner: Path, tmp_path: Path) -> None:
    (build_id,) = build_ids(sdk_root() / "lib" / HOST_LIBRARIES / "libQnnHtp.so")
    executorch = importlib.metadata.version("executorch")
    (committed,) = load_measured().of(executorch, build_id)
    steps = stage.measure(committed.soc, variables(sdk_root()), runner, 600, tmp_path / "logs")
    assert steps == committed.steps
    assert sorted(log.stem for log in (tmp_path / "logs").iterdir()) == sorted(STEPS)


def test_a_directory_without_libraries_makes_no_device(runner: Path, tmp_path: Path) -> None:
    (tmp_path / "lib" / HOST_LIBRARIES).mkdir(parents=True)
    steps = stage.measure("SM8650", variables(tmp_path), runner, 600, tmp_path / "logs")
    assert [steps[name].result for name in STEPS] == ["failed", *["not_reached"] * 4]
    assert "libQnnHtp.so" in steps["device"].error
