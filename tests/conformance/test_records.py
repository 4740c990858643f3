"""A lane's head says which commands for one model it supports, and its record has what each of them needs."""

from __future__ import annotations

from collections.abc import Callable

from ci.explain.lane import AnyModelLane, ModelLane
from ci.lanes.registry import lane_named, lanes_by_stage, lanes_with_suites
from ci.one_model.options import ModelOptions
from ci.suite.lane_head import (
    AUDIT,
    COMPILE,
    DIVERGENCE,
    FORECAST,
    ONE_MODEL,
    QUANTIZE,
    REPAIR,
    RUN,
    STAGES,
    TUNE,
)
from ci.suite.options import Choice, StageFlags
from ci.suite.precision_file import PrecisionFile
from provisioning.base.command_line import Verb, module_of
from provisioning.base.option_fields import declared_options
from provisioning.base.parser import Parser
from provisioning.base.settings import ROOT
from tests.support.typed import actions

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


def test_its_record_has_what_its_commands_need_and_no_more(any_lane: str) -> None:
    row, record = lane_named(any_lane), model_lane_of(any_lane)
    supported = record.head.verbs if record else ()
    assert {*PARTS} == {*ONE_MODEL} >= {*supported} == {*row.head.verbs}
    if record:
        assert isinstance(record, ModelLane)
        assert {verb for verb, part in PARTS.items() if part(record)} == {*supported}
        assert issubclass(row.options, ModelOptions) and record.head.models


def test_its_stages_have_a_page(any_lane: str) -> None:
    for stage in lane_named(any_lane).head.stages:
        assert stage.page and (ROOT / "docs" / stage.page.partition("#")[0]).is_file()


def test_its_stages_take_the_flags_that_its_head_names(any_lane: str) -> None:
    rows = [row for kind in (Choice, StageFlags) for row in declared_options(kind).values()]
    for stage in lane_named(any_lane).head.stages:
        parser = Parser(stage.name)
        module_of(Verb(stage.verb, stage.summary)).configure(parser)
        taken = {word for action in actions(parser) for word in action.option_strings}
        assert {row.flag for row in rows} & taken == {row.flag for row in rows if stage.flags in row.verbs}


def test_a_lane_has_suites_if_its_stages_take_their_flags(any_lane: str) -> None:
    row = lane_named(any_lane)
    assert {stage.flags in STAGES for stage in row.head.stages} == {row.load_suites is not None}
    assert (row in lanes_with_suites()) == ({*row.head.stage_names} <= {*lanes_by_stage()})


def test_a_lane_with_searches_is_one_that_lane_names_and_that_has_precision_files() -> None:
    searching = [row.head.name for row in lanes_with_suites() if DIVERGENCE in row.head.verbs]
    assert list(declared_options(ModelOptions)["lane"].choices) == searching
    schema = PrecisionFile.model_json_schema()["properties"]["lane"]
    assert schema["enum"] == searching
