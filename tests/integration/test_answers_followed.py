"""Whoever types what each answer says gets from a fault to a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.journeys import Stage, journeys
from tests.support.planted import FAULTS, Planted, followed, is_green, place
from tests.support.runner import runner_reports
from tests.support.typed import typed

__all__ = ["runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def variables(runner_reports: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    stage = Stage(tmp_path_factory, journeys())
    assert typed("provision", "--reports", stage.base, package="provisioning").returncode == 0
    return stage.variables


# The first answer to a wrong word is in each run: docs/model.md's row of tests/journeys.toml.
@pytest.mark.whole
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_following_the_answers_leads_from_a_fault_to_a_program(
    fault: Planted, variables: dict[str, str], tmp_path: Path
) -> None:
    place(fault, tmp_path / "work")
    answers = followed(fault, tmp_path / "work", variables)
    first, last = answers[0], answers[-1]
    assert not is_green(first)
    told = [(answer["command"], answer["findings"], answer["next"]) for answer in answers]
    assert is_green(last), told
    assert Path(last["programs"][0]["files"][0]).is_file()
