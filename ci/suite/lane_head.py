"""What can be read about a lane without importing it, which takes a second. Imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.flags import TIMEOUT

COMPILE, QUANTIZE, AUDIT, DIVERGENCE, REPAIR, TUNE, FORECAST, RUN = (
    "compile",
    "quantize",
    "audit",
    "divergence",
    "repair",
    "tune",
    "forecast",
    "run",
)
FROM_MODEL = (COMPILE, QUANTIZE, AUDIT, DIVERGENCE, REPAIR, TUNE, FORECAST)
"""The verbs that take a model and make a program of it."""
ONE_MODEL = (*FROM_MODEL, RUN)
"""The commands for one model. A lane supports some of them."""
STAGE, KEEPING_STAGE, LANGUAGE_STAGE, DEVICE_STAGE, TESTS = (
    "a lane's stage",
    "a lane's stage that can keep files",
    "the stage of language models",
    "a lane's stage on devices",
    "a stage of ExecuTorch's own tests",
)
"""The sets of flags that stages have. A flag says in which of them it is, as it says which verbs take it."""
STAGES = (STAGE, KEEPING_STAGE, LANGUAGE_STAGE, DEVICE_STAGE)
"""Stages with these flags run a suite."""


@dataclass(frozen=True, slots=True)
class LaneStage:
    """A stage of a lane is a command, a session of nox, and a report."""

    name: str
    verb: str
    """MODULE or MODULE:NAME, which has its command line."""
    summary: str
    """The summary that the list of commands shows."""
    page: str
    """The page of docs/ that explains it, with a heading of that page."""
    flags: str = STAGE
    """The set of flags that its command takes."""
    environment: str = ""
    """The locked Python that it runs in; empty means the lane's."""


def _takes_no_path(path: Path) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class LaneHead:
    """The description of a lane, without its work."""

    name: str
    """The name that suites and reports use."""
    environment: str
    """The locked Python that it runs in."""
    stages: tuple[LaneStage, ...]
    """The first stage compiles a program, and the last that a gate starts runs it; one may do both."""
    models: str = ""
    """The models that the lane takes, in words."""
    timeout: float = TIMEOUT
    """A step on one model ends after this many seconds, unless --timeout says otherwise."""
    verbs: tuple[str, ...] = ()
    """The commands for one model that it supports."""
    takes_path: Callable[[Path], bool] = _takes_no_path
    """Whether this path is one of its models. What no lane claims is a PyTorch model."""
    takes_text: bool = False
    """Whether its programs go on with a text, as language models do."""
    draws_samples: bool = False
    """Whether samples are drawn at random if the user names none, even where the model comes with some."""
    runtime: str = ""
    """The runtime whose faults are known here, as pages call it."""
    mark: str = ""
    """The mark that distinguishes its programs from others of the same case on a page."""

    @property
    def stage_names(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages)

    @property
    def gate_stages(self) -> tuple[str, ...]:
        """The names of the stages that a gate starts. A device is only asked by those who have one."""
        return tuple(stage.name for stage in self.stages if stage.flags != DEVICE_STAGE)

    def stage(self, name: str) -> LaneStage:
        return next(stage for stage in self.stages if stage.name == name)


JUDGING = "QNN_CI_JUDGING"
"""The gate sets it where several stages judge one pass over a suite: to their names."""


def judging(stages: Iterable[str]) -> dict[str, str]:
    """Return the variable for a pass that these stages judge."""
    return {JUDGING: " ".join(stages)}


def judging_stages() -> tuple[str, ...]:
    """Return the stages that judge this process's pass; empty if its own stage alone does."""
    return tuple(os.environ.get(JUDGING, "").split())
