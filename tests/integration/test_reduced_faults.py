"""`reduce` of models that meet a known fault: what is left shows it alone, with nothing of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from provisioning.known_faults import load_faults
from tests.support.lowering_suites import environment
from tests.support.reducible_models import FAULTS
from tests.support.typed import typed

pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_left_of_a_model_with_a_known_fault_shows_it_alone(name: str, tmp_path: Path) -> None:
    fault, answer = FAULTS[name], tmp_path / "found.json"
    source = (ROOT / "tests" / "support" / "reducible_models.py").read_text()
    (tmp_path / "net.py").write_text(f"{source}\n\ndef make():\n    return made({name!r})\n")
    asked = ("--when", fault.when, "--precision", fault.precision, "--soc", "SM8650", "-o", tmp_path)
    done = typed(
        "reduce",
        f"{tmp_path}/net.py:make",
        *asked,
        "--json",
        answer,
        "--reports",
        tmp_path / "r",
        env=environment(),
    )
    found = json.loads(answer.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["verdict"].startswith("still") and len(found["kept"]) <= 4


def test_each_of_these_faults_is_a_known_one() -> None:
    assert {*FAULTS} <= {fault.id for fault in load_faults()}
