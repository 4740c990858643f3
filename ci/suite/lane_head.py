"""What can be read about a lane without importing it, which takes a second. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from provisioning.base.command_line import TIMEOUT


@dataclass(frozen=True, slots=True)
class LaneStage:
    """A stage of a lane is a command, a session of nox, and a report."""

    name: str
    verb: str
    """MODULE or MODULE:NAME, which has its command line."""
    summary: str
    """The summary that the list of commands shows."""
    environment: str = ""
    """The locked Python that it runs in; empty means the lane's."""


@dataclass(frozen=True, slots=True)
class LaneHead:
    """The description of a lane, without its work."""

    name: str
    """The name that suites and reports use."""
    environment: str
    """The locked Python that it runs in."""
    stages: tuple[LaneStage, ...]
    """The first stage compiles a program, the last runs it; one stage may do both."""
    models: str = ""
    """The models that the lane takes, in words."""
    timeout: float = TIMEOUT
    """A step on one model ends after this many seconds, unless --timeout says otherwise."""
    only_compiles: bool = False
    """Whether `compile` and `run` are the only commands for one model that it supports."""
    mark: str = ""
    """The mark that distinguishes its programs from others of the same case on a page."""
    has_suites: bool = True
    """Whether its programs come from suites: the gate, the page and comparisons then show them."""

    @property
    def stage_names(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages)
