"""What needs a container engine never goes missing unsaid."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT

HELD = "tests/integration/test_image.py"


def told(path: Path, *flags: str, **environ: str) -> str:
    """What pytest says where PATH has no engine."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags],
        cwd=ROOT,
        env={"PATH": str(path), "HOME": str(path), **environ},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    return told(tmp_path_factory.mktemp("empty"), "--collect-only", HELD)


def test_where_no_engine_can_be_the_number_and_the_reason_are_said(said: str) -> None:
    assert "checks marked engine did not run: needs buildah, docker.io, mmdebstrap" in said


def test_each_of_them_is_named(said: str) -> None:
    assert f"  {HELD}::test_an_image_built_twice_is_the_same" in said


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """As held as HELD is, and quicker to import; the hooks are the same."""
    file = tmp_path / "test_small.py"
    file.write_text("import pytest\n\n\n@pytest.mark.engine\ndef test_small() -> None: ...\n")
    return ["-c", "pyproject.toml", "-p", "tests.conftest", str(file)]


def test_where_one_is_required_they_run_all_the_same(small: list[str], tmp_path: Path) -> None:
    assert "did not run" in told(tmp_path, *small)
    assert "1 passed" in told(tmp_path, *small, QNN_CI_TEST_ENGINE="required")


def test_with_workers_each_is_named_too(small: list[str], tmp_path: Path) -> None:
    assert "::test_small\n" in told(tmp_path, "-n", "1", *small)
