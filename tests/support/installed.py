"""Our files as a wheel installs them, built once for all workers of a run."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from provisioning.base.settings import ROOT
from tests.support.runner import shared_folder


def installed_site(factory: pytest.TempPathFactory) -> Path:
    """The folder of installed packages, with ours in it as the newest release of the backend that
    pyproject.toml names builds it."""
    into = shared_folder(factory) / "a site"
    with FileLock(f"{into}.lock"):
        if not (site := into / "site-packages").is_dir():
            uv = Path(sys.executable).with_name("uv")
            subprocess.run([uv, "build", "--quiet", "--wheel", "-o", into, ROOT], check=True)
            (wheel,) = into.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
    return site
