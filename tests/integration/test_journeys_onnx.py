"""What the pages' first screens promise of ONNX models and checkpoints, typed as a reader does."""

from __future__ import annotations

import pytest

from tests.support.journeys import Row, Stage, journeys

pytestmark = [pytest.mark.heavy, pytest.mark.journey, pytest.mark.timeout(1800)]

TABLE = journeys()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory, TABLE)


@pytest.mark.parametrize("row", TABLE.of_lane("onnx"))
def test_the_command_does_what_the_page_says(stage: Stage, row: Row) -> None:
    if problem := stage.problem(row):
        pytest.fail(problem, pytrace=False)
