"""The digests of what a job of the gate found, as outputs of the job.

Whoever runs in a workflow can upload an artifact of any name. Only a job itself sets its outputs, so they say
which files are the gate's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from ci.github.files import set_outputs
from ci.github.stage import reports_of
from provisioning.base.errors import CheckFailed
from provisioning.base.files import hash_file
from provisioning.base.foreign import in_line

REPORT = "test_emulator.json"
"""The report whose programs are attested."""

NAME, OUTPUTS = "digests-", 16
"""gate.yml has so many outputs, one for each job that has such a report: of two jobs of a matrix that set one
output, the later one overwrites the other's."""


def run(environ: Mapping[str, str]) -> int:
    """Set an output to the digest of each such report of this job."""
    digests = {hash_file(file) for file in reports_of(environ).rglob(REPORT)}
    set_outputs({"digests": " ".join(sorted(digests))}, environ)
    return 0


def reports_of_the_gate(folder: Path, environ: Mapping[str, str]) -> list[Path]:
    """The reports below a folder whose digests QNN_CI_DIGESTS has, the outputs of the gate as JSON."""
    outputs = json.loads(environ.get("QNN_CI_DIGESTS") or "{}")
    said = {name: str(text).split() for name, text in outputs.items() if name.startswith(NAME)}
    found = {hash_file(file): file for file in sorted(folder.rglob(REPORT))}
    for name, digests in said.items():
        if missing := [digest for digest in digests if digest not in found]:
            raise CheckFailed(
                f"{name}: no downloaded {REPORT} has the SHA-256 {in_line(missing[0])} that its job said",
                fix="something replaced an artifact of the gate: see what else uploads in this workflow",
            )
    ours = {digest for digests in said.values() for digest in digests}
    for digest in found.keys() - ours:
        name = in_line(str(found[digest].relative_to(folder)))
        sys.stdout.write(f"left out: {name} is not of this call of the gate\n")
    return sorted(found[digest] for digest in ours)
