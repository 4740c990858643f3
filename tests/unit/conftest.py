"""Unit tests see nothing of what the user's shell selects."""

from __future__ import annotations

import pytest

from provisioning.components import KINDS
from provisioning.download import BUNDLE_VARIABLES

ROOTS = [name for kind in KINDS.values() for name in (kind.variable, *kind.aliases)]
SELECTION = [f"QNN_CI_{name}" for name in ("PROFILE", "TARGET", "SOC", "ACCEPT_LICENCES", "MIRROR")]
NETWORK = [*BUNDLE_VARIABLES, "http_proxy", "HTTP_PROXY", "NETRC"]
JOB = ["CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"]


@pytest.fixture(autouse=True)
def _without_the_users_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ROOTS, *SELECTION, *NETWORK, *JOB, "ADSP_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
