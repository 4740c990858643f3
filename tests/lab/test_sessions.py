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


@pytest.mark.parametrize("words", [("lint", "--only", "tree"), ("lab", "lint", "--only", "tree")])
def test_a_verb_runs_in_its_own_environment(tmp_path: Path, words: tuple[str, ...]) -> None:
    locked_environment(tmp_path, "lint", 'echo "$@"')
    assert nox(tmp_path, *words).stdout == "-m lab lint --only tree\n"


def test_the_table_of_verbs_needs_no_environment(tmp_path: Path) -> None:
    shown = nox(tmp_path, "lab", "--help")
    assert shown.returncode == 0 and "  lint " in shown.stdout
    assert not [*tmp_path.iterdir()]


def test_a_wrong_verb_names_the_one_that_was_meant(tmp_path: Path) -> None:
    refused = nox(tmp_path, "lab", "lnt")
    assert refused.returncode != 0 and "did you mean lint" in refused.stdout + refused.stderr
