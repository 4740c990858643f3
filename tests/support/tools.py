"""Programs that tests hold ours against, and that a machine may lack."""

from __future__ import annotations

import shutil

import pytest

PACKAGES = {"openssl": "openssl", "readelf": "binutils"}
"""The Debian and Ubuntu package of each."""


def tool(name: str) -> str:
    """Where it is; without it the test fails and says what to install."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not on PATH: apt-get install {PACKAGES[name]}", pytrace=False)
    return found
