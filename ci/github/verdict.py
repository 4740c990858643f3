"""The one check of branch protection: fail unless every needed job succeeded."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from ci.github.files import summarise
from provisioning.base.errors import UsageError
from provisioning.base.rendering.job_summary import cell
from provisioning.base.rendering.workflow_commands import command


def run(environ: Mapping[str, str]) -> int:
    """Read QNN_CI_NEEDS, the JSON of the workflow's `needs` context."""
    results = results_of(environ.get("QNN_CI_NEEDS", ""))
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


def results_of(text: str) -> dict[str, str]:
    remedy = "set QNN_CI_NEEDS to ${{ toJSON(needs) }}, in a job that needs others"
    try:
        needs = json.loads(text)
        results = {str(job): str(need["result"]) for job, need in needs.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"QNN_CI_NEEDS={text!r}: expected the needs context as JSON", remedy=remedy
        ) from error
    if not results:
        raise UsageError("QNN_CI_NEEDS names no job", remedy=remedy)
    return results
