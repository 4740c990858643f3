"""The toy lane is registered for these tests, as a new lane would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.lanes import registry
from ci.suite import suite_file
from tests.conformance.examples import EXAMPLES, Example, Folder
from tests.support import toy_lane


@pytest.fixture(autouse=True)
def _toys_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = {**suite_file.lanes(), "toy": toy_lane.SUITES.fields}
    monkeypatch.setattr(registry, "LANES", [*registry.LANES, toy_lane.REGISTERED])
    monkeypatch.setattr(suite_file, "lanes", lambda: lanes)


LANES = [row.head.name for row in (*registry.lanes_with_suites(), toy_lane.REGISTERED)]


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> str:
    """The name of each lane."""
    name: str = request.param
    return name


ALL_LANES = [row.head.name for row in (*registry.LANES, toy_lane.REGISTERED)]


@pytest.fixture(params=ALL_LANES)
def any_lane(request: pytest.FixtureRequest) -> str:
    """The name of each lane, also of one whose work belongs to no suite."""
    name: str = request.param
    return name


@pytest.fixture
def example(lane: str) -> Example:
    missing = f"lane {lane} has no example in tests/conformance/examples.py"
    assert lane in EXAMPLES, missing
    assert lane in suite_file.lanes(), f"manifests/lanes.toml has no lane {lane}: nox -s generate"
    return EXAMPLES[lane]


@pytest.fixture
def folder(example: Example, tmp_path: Path) -> Folder:
    return example.write(tmp_path / "suite")
