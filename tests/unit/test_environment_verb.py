"""`env` as people and scripts call it, over a directory that stands for the user's own SDK."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from provisioning.verbs import env
from tests.support.readers import read_github


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its path has what breaks careless quoting."""
    root = tmp_path / 'it\'s "an" $SDK'
    (root / "lib/x86_64-linux-clang").mkdir(parents=True)
    (root / "bin/x86_64-linux-clang").mkdir(parents=True)
    names = ("LD_LIBRARY_PATH", "QNN_CI_PROFILE", "QNN_CI_SOC", "HEXAGON_SDK_ROOT", "EXECUTORCH_ROOT")
    for name in (*names, "ANDROID_NDK_ROOT", "ANDROID_NDK_HOME", "ANDROID_NDK", "EXECUTORCH_RUNTIME_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QNN_SDK_ROOT", str(root))
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    return root


def _run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    env.configure(parser)
    return env.run(parser.parse_args(argv))


def test_eval_sets_the_environment_whatever_the_paths_hold(sdk: Path) -> None:
    script = f'eval "$("{sys.executable}" -m provisioning env)" && printf %s "$QNN_SDK_ROOT|$LD_LIBRARY_PATH"'
    ran = subprocess.run(
        ["sh", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == f"{sdk}|{sdk}/lib/x86_64-linux-clang"


def test_appending_on_github_adds_variables_and_path_to_their_files(
    sdk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_ENV", "GITHUB_PATH"):
        (tmp_path / name).write_text("BEFORE=1\n")
        monkeypatch.setenv(name, str(tmp_path / name))
    _run("--format", "github", "--append")
    variables = read_github((tmp_path / "GITHUB_ENV").read_text())
    assert (variables["BEFORE"], variables["QNN_SDK_ROOT"]) == ("1", str(sdk))
    assert "PATH" not in variables
    assert (tmp_path / "GITHUB_PATH").read_text() == f"BEFORE=1\n{sdk}/bin/x86_64-linux-clang\n"
