"""What the pages' first screens promise of the toolkit and of PyTorch models, typed as a reader does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.journeys import Row, Stage, journeys
from tests.support.runner import runner_reports

__all__ = ["runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.journey, pytest.mark.timeout(1800)]

TABLE = journeys()


@pytest.fixture(scope="module")
def stage(runner_reports: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory, TABLE)


@pytest.mark.parametrize("row", TABLE.of_lane("executorch"))
def test_the_command_does_what_the_page_says(stage: Stage, row: Row) -> None:
    if problem := stage.problem(row):
        pytest.fail(problem, pytrace=False)
