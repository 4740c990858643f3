"""Unit tests see nothing of what the user's shell selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.components import KINDS
from provisioning.http_answers import BUNDLE_VARIABLES

ROOTS = [name for kind in KINDS.values() for name in (kind.variable, *kind.aliases)]
SELECTION = [f"QNN_CI_{name}" for name in ("PROFILE", "TARGET", "SOC", "ACCEPT_LICENCES", "MIRROR")]
NETWORK = [*BUNDLE_VARIABLES, "http_proxy", "HTTP_PROXY", "NETRC"]
JOB = ["CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"]


@pytest.fixture(scope="module")
def stand_in_folder(tmp_path_factory: pytest.TempPathFactory, one_template: None) -> Path:
    """Of tests/support/onnx_worker.py: one for all tests of a file, since a variable names it."""
    return tmp_path_factory.mktemp("stand-in")


@pytest.fixture(autouse=True)
def _without_the_users_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ROOTS, *SELECTION, *NETWORK, *JOB, "ADSP_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store and reports of the test's own."""
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "reports"))
