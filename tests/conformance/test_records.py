"""A lane's head says which commands for one model it supports, and its record has what each of them needs."""

from __future__ import annotations

from collections.abc import Callable

from ci.explain.lane import AnyModelLane, ModelLane
from ci.lanes.registry import lane_named, lanes_with_suites
from ci.one_model.options import ModelOptions
from ci.suite.lane_head import AUDIT, COMPILE, DIVERGENCE, FORECAST, ONE_MODEL, QUANTIZE, REPAIR, RUN, TUNE
from ci.suite.suite_file import PrecisionFile
from provisioning.base.option_fields import declared_options
from provisioning.base.settings import ROOT

PARTS: dict[str, Callable[[ModelLane], object]] = {  # type: ignore[type-arg]
    COMPILE: lambda lane: lane.product,
    QUANTIZE: lambda lane: lane.quantized,
    FORECAST: lambda lane: lane.forecasted,
    RUN: lambda lane: lane.continue_text if lane.head.takes_text else lane.run_program,
    **dict.fromkeys((AUDIT, DIVERGENCE, REPAIR, TUNE), lambda lane: lane.searches),
}
"""Maps a command to the part of a record that it needs."""


def model_lane_of(lane: str) -> AnyModelLane | None:
    row = lane_named(lane)
    return row.model_lane if row.load_model_lane else None


def test_its_record_has_what_its_commands_need_and_no_more(lane: str) -> None:
    record = model_lane_of(lane)
    supported = record.head.verbs if record else ()
    assert {*PARTS} == {*ONE_MODEL} >= {*supported} == {*lane_named(lane).head.verbs}
    if record:
        assert isinstance(record, ModelLane)
        assert {verb for verb, part in PARTS.items() if part(record)} == {*supported}
        assert issubclass(lane_named(lane).options, ModelOptions) and record.head.models


def test_its_stages_have_a_page(lane: str) -> None:
    for stage in lane_named(lane).head.stages:
        assert stage.page and (ROOT / "docs" / stage.page.partition("#")[0]).is_file()


def test_a_lane_with_searches_is_one_that_lane_names_and_that_has_precision_files() -> None:
    searching = [row.head.name for row in lanes_with_suites() if DIVERGENCE in row.head.verbs]
    assert list(declared_options(ModelOptions)["lane"].choices) == searching
    schema = PrecisionFile.model_json_schema()["properties"]["lane"]
    assert schema["enum"] == searching
