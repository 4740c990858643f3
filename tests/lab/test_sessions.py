"""`nox -s lab -- VERB`, as a user types it, with a stand-in for the Python of its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from tests.support.scripts import locked_environment


def nox(folder: Path, session: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", session, "--", *words]
    environ = {**os.environ, "QNN_CI_ENVIRONMENTS": str(folder)}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "environment", "called"),
    [
        ("lint --only tree", "lint", "lint --only tree"),
        ("lab lint --only tree", "lint", "lint --only tree"),
        ("bench gate --rounds 1", "executorch", "bench gate --rounds 1"),
        ("bench --rounds 1 onnx", "onnx", "bench --rounds 1 onnx"),
        ("lab golden", "onnx", "golden"),
        ("lab golden --lane executorch", "executorch", "golden --lane executorch"),
    ],
)
def test_a_verb_runs_in_the_environment_that_it_needs(
    tmp_path: Path, words: str, environment: str, called: str
) -> None:
    locked_environment(tmp_path, environment, 'echo "$@"')
    assert nox(tmp_path, *words.split()).stdout == f"-m lab {called}\n"


def test_the_table_of_verbs_needs_no_environment(tmp_path: Path) -> None:
    shown = nox(tmp_path, "lab", "--help")
    assert shown.returncode == 0 and "  lint " in shown.stdout
    assert not [*tmp_path.iterdir()]


def test_a_wrong_verb_names_the_one_that_was_meant(tmp_path: Path) -> None:
    refused = nox(tmp_path, "lab", "lnt")
    assert refused.returncode != 0 and "did you mean lint" in refused.stdout + refused.stderr
