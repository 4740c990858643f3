"""The run of a verb of the laboratory, which becomes a report as that of any stage does."""

from __future__ import annotations

import sys

from provisioning.base.commands import session
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun


def stage_run(name: str, selection: Selection) -> StageRun:
    """With the words that were typed."""
    return StageRun(name, selection.profile, selection.target, session("lab", *sys.argv[1:]))
