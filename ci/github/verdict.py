"""The one check of branch protection: fail unless every needed job succeeded."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ci.github.files import summarise
from provisioning.base.errors import UsageError
from provisioning.base.rendering.job_summary import cell
from provisioning.base.rendering.workflow_commands import command

RESULT = "QNN_CI_RESULT_"
"""Begins the name of a variable for each needed job: the workflow's `needs` as one text can pass 128 KB,
which no process may have in one variable."""


def run(environ: Mapping[str, str]) -> int:
    """Read QNN_CI_RESULT_JOB, the result of the job JOB, for each job that the workflow needs."""
    results = {
        name.removeprefix(RESULT).lower(): value or "no result"
        for name, value in sorted(environ.items())
        if name.startswith(RESULT)
    }
    if not results:
        raise UsageError(
            f"there is no {RESULT}JOB",
            fix=f"set {RESULT}STAGE to ${{{{ needs.stage.result }}}}, and so on for each needed job",
        )
    bad = {job: result for job, result in results.items() if result != "success"}
    lines = [f"## {'❌' if bad else '✅'} {len(results) - len(bad)} of {len(results)} jobs succeeded", ""]
    lines += ["| job | result |", "| --- | --- |"]
    lines += [
        f"| {cell(job)} | {'❌' if job in bad else '✅'} {cell(result)} |" for job, result in results.items()
    ]
    summarise("\n".join([*lines, "", ""]), environ)
    for job, result in results.items():
        sys.stdout.write(f"{result:<10} {job}\n")
    for job, result in bad.items():
        sys.stdout.write(command("error", f"{job}: {result}", title="verdict") + "\n")
    return 1 if bad else 0
