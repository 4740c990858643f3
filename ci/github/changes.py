"""Write what became worse in a pull request, from the reports of the gate's jobs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from ci.report.changes import LANES, changes_of
from provisioning.base.errors import CheckFailed
from provisioning.base.files import write_named
from provisioning.base.findings import Report

FILE = "comment.json"


def run(environ: Mapping[str, str]) -> int:
    """Read QNN_CI_REPORTS, the folder with the jobs' reports. Write comment.json there."""
    folder = Path(environ.get("GITHUB_WORKSPACE", ""), environ.get("QNN_CI_REPORTS", "")).absolute()
    files = sorted(file for stage in LANES for file in folder.rglob(f"{stage}.json"))
    try:
        changes = changes_of(map(Report.read, files))
    except ValueError as error:
        raise CheckFailed(str(error), fix="read the log of the job that uploaded it") from error
    write_named(folder / FILE, changes.as_json(), fix="name another folder with QNN_CI_REPORTS")
    sys.stdout.write(
        f"{changes.worse} of {changes.compared} programs became worse, {changes.not_compared} not compared\n"
    )
    return 0
