"""What is known of a lane before it is imported, which takes a second. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from provisioning.base.command_line import TIMEOUT


@dataclass(frozen=True, slots=True)
class LaneStage:
    """A stage of a lane: a command, a session of nox, and a report."""

    name: str
    verb: str
    """MODULE or MODULE:NAME with its command line."""
    summary: str
    """What it does, for the list of commands."""
    environment: str = ""
    """The locked Python that it runs in; empty: the lane's."""


@dataclass(frozen=True, slots=True)
class LaneHead:
    """A lane, without its work."""

    name: str
    """In suites and in reports."""
    environment: str
    """The locked Python that it runs in."""
    stages: tuple[LaneStage, ...]
    """The first compiles a program, the last runs it; one stage may do both."""
    models: str = ""
    """The models that it takes, in words."""
    timeout: float = TIMEOUT
    """Seconds after which a step on one model ends, unless --timeout says otherwise."""
    only_compiles: bool = False
    """Whether of the commands for one model it has `compile` and `run` alone."""
    mark: str = ""
    """What tells its programs from others of the same case, on a page."""
    has_suites: bool = True
    """Whether its programs are those of suites: gate, page and comparisons then show them."""

    @property
    def stage_names(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages)
