"""Decide which of the gate's stages have something to do, and with which words each is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ci.gate.options import GateOptions
from ci.gate.table import GateStage
from ci.lanes.registry import lane_named
from ci.suite.options import Choice, parse_shard, shard
from ci.suite.suite_file import lanes_of
from ci.work import Job
from provisioning.base.commands import Fix
from provisioning.base.errors import UsageError
from provisioning.base.settings import Selection

LANE = "executorch"
"""The gate runs this lane of the shipped suite, but all lanes of a user's own suite."""


def planned_stages(stages: Sequence[GateStage], options: GateOptions) -> list[GateStage]:
    """Return the stages that have something to do. A stage of a lane gets the words for its own programs.

    Raises UsageError if no lane has a program for this shard."""
    planned: list[GateStage] = []
    for stage in stages:
        if not stage.lane:
            planned.append(stage)
        elif choice := _choice_for_stage(stage, options):
            words = options.words_for_stage(choice)
            planned.append(stage.model_copy(update={"flags": (*stage.flags, *words)}))
    if options.choice.shard and not any(stage.lane for stage in planned):
        raise UsageError(
            f"--shard {options.choice.shard}: no program is left for this part",
            fix=Fix("{}, which makes no empty parts", ("matrix",)),
        )
    return planned


def _choice_for_stage(stage: GateStage, options: GateOptions) -> Choice | None:
    """Return what a stage of a lane runs; None if it has nothing to do."""
    choice = choice_for_lane(stage.lane, options.programs)
    # A stage that the user names stays: it reports itself if it has nothing to do.
    if choice is None and stage.name in options.flags.only:
        choice = options.programs
    if choice and choice.shard and not _has_part(stage.lane, choice, options.selection):
        return None
    return choice


def choice_for_lane(lane: str, choice: Choice) -> Choice | None:
    """Return the same choice among the suites that have programs of this lane; None if none has."""
    if not choice.suites:
        return choice if lane == LANE else None
    suites = tuple(suite for suite in choice.suites if lane in lanes_of(suite.absolute()))
    return replace(choice, suites=suites) if suites else None


def _has_part(lane: str, choice: Choice, selection: Selection) -> bool:
    """True if the shard has a program of this lane."""
    return bool(shard(jobs_of(lane, choice, selection), *parse_shard(choice.shard)))


def jobs_of(lane: str, choice: Choice, selection: Selection) -> list[Job]:
    """Return the lane's work on the chosen programs, of all shards. Raises the error of a suite with
    mistakes."""
    suites = tuple(suite.absolute() for suite in choice.suites)
    return lane_named(lane).lane.chosen_jobs(replace(choice, suites=suites, shard=""), selection)
