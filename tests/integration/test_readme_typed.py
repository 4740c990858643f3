"""README's table, typed as it is printed, one line after the other, in a folder that is empty at first."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from provisioning.base.settings import ROOT
from tests.support.journey_files import FILES
from tests.support.journeys import Stage, journeys, promised
from tests.support.runner import runner_reports

__all__ = ["runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.journey, pytest.mark.whole, pytest.mark.timeout(3600)]

CODES = {"gate": 1}
"""Verbs that end with another code than 0; the page says why."""
ELSEWHERE = {
    "compile": "tests/journeys.toml types it, on its page's first screen or of a checkpoint",
    "bundle": "it needs Qualcomm's SDK; with a stand-in tests/integration/test_device.py types it",
    "run_device": "it needs a phone; with a stand-in tests/integration/test_device.py types it",
}


@pytest.mark.usefixtures("runner_reports")
def test_each_line_of_the_readmes_table_does_what_it_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    stage = Stage(tmp_path_factory, journeys())
    folder = tmp_path_factory.mktemp("empty")
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## What to type\n")[2]
    commands = promised("README.md", f"\n## What to type\n{table}")
    verbs = {line: shlex.split(line)[1] for line in commands if line.startswith("qnn-ci ")}
    FILES["build log"](folder / "build.log")
    typed = ["qnn-ci example", *(line for line, verb in verbs.items() if verb not in ELSEWHERE)]
    wrong = []
    for line in typed:
        ran = subprocess.run(
            ["sh", "-c", line],
            cwd=folder,
            env={**stage.variables, "QNN_CI_REPORTS": str(folder / "reports")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ran.returncode != CODES.get(verbs.get(line, ""), 0):
            wrong.append(f"$ {line}\n{ran.stdout}\nexit code {ran.returncode}")
    assert len(typed) > 6 and not wrong, "\n".join(wrong)
