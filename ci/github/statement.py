"""Write what GitHub is to attest of programs, from the reports of the gate's jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ci.github.digests import reports_of_the_gate
from ci.github.files import summarise
from ci.inspect.attestation import PREDICATE, AttestedProgram, Verdicts
from ci.lanes.executorch import KEPT
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.base.findings import Outcome, Report
from provisioning.base.rendering.job_summary import cell

FIELDS = ("sha256", "verdict", "soc", "scheme", "figures", "thresholds", "costs", "cached")
"""Fields of a row of the report."""


def run(environ: Mapping[str, str]) -> int:
    """Read QNN_CI_REPORTS, the folder with the jobs' reports, QNN_CI_DIGESTS, what the jobs said of them, and
    QNN_CI_WORKFLOW, which has GitHub sign.

    Write predicate.json and subjects.txt there."""
    folder = Path(environ.get("GITHUB_WORKSPACE", ""), environ.get("QNN_CI_REPORTS", "")).absolute()
    programs = [program for file in reports_of_the_gate(folder, environ) for program in verdicts(file)]
    if not programs:
        raise UsageError(
            f"{folder}: no report of this gate's jobs has a program that passed",
            fix="give attest.yml a suite with runs of lane executorch",
        )
    server, repository = environ.get("GITHUB_SERVER_URL", ""), environ.get("GITHUB_REPOSITORY", "")
    predicate = {
        "schema": 1,
        "repository": repository,
        "commit": environ.get("GITHUB_SHA", ""),
        "ref": environ.get("GITHUB_REF", ""),
        "run": f"{server}/{repository}/actions/runs/{environ.get('GITHUB_RUN_ID', '')}",
        "workflow": environ.get("QNN_CI_WORKFLOW", ""),
        "programs": tuple(programs),
    }
    text = Verdicts.model_validate(predicate).model_dump_json(by_alias=True, indent=2)
    (folder / "predicate.json").write_text(f"{text}\n", encoding="utf-8")
    subjects = "".join(dict.fromkeys(f"{program.sha256}  {program.program}.pte\n" for program in programs))
    (folder / "subjects.txt").write_text(subjects, encoding="utf-8")
    sys.stdout.write(f"{PREDICATE}\n{subjects}")
    rows = [
        f"| {cell(program.program)} | {cell(program.build_id)} | `{program.sha256}` |" for program in programs
    ]
    summarise("\n".join(["| program | QNN | SHA-256 |", "| --- | --- | --- |", *rows, "", ""]), environ)
    return 0


def verdicts(file: Path) -> Iterator[AttestedProgram]:
    try:
        report = Report.read(file)
    except ValueError as error:
        raise CheckFailed(str(error), fix="attest what a gate of this toolkit reported") from error
    rows: Any = report.metrics.get("programs", {})
    if report.outcome is not Outcome.PASS:
        raise CheckFailed(f"{file}: the gate did not pass", fix="attest after a gate that passed")
    for name, row in rows.items():
        if "sha256" not in row or row["verdict"] == "quarantined":
            continue  # expected not to run, or no pass
        kept = file.parent / KEPT / f"{name}.pte"
        if kept.exists() and hash_file(kept) != row["sha256"]:
            raise CheckFailed(f"{kept} is not the program that was run: its digest differs")
        yield AttestedProgram.model_validate(
            {
                "program": name,
                "profile": report.profile,
                "build_id": report.metrics["build_id"],
                **{field: row[field] for field in FIELDS},
            }
        )
