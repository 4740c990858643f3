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
from ci.github.place import PACKED, new_memory
from ci.github.stage import reports_of
from provisioning.base.errors import CheckFailed
from provisioning.base.files import hash_file
from provisioning.base.foreign import in_line

REPORT = "test_emulator.json"
"""The report whose programs are attested."""

NAME, OUTPUTS = "digests-", 16
"""gate.yml has so many outputs, one for each job that has such a report or a memory: of two jobs of a matrix
that set one output, the later one overwrites the other's."""


OF_MEMORY = "memory:"
"""Begins the digest of what a job packed of its memory."""


def run(environ: Mapping[str, str]) -> int:
    """Set an output to the digest of each such report of this job, and of what it packed of its memory."""
    digests = {hash_file(file) for file in reports_of(environ).rglob(REPORT)}
    packed = new_memory(environ) / PACKED
    digests |= {f"{OF_MEMORY}{hash_file(packed)}"} if packed.is_file() else set()
    set_outputs({"digests": " ".join(sorted(digests))}, environ)
    return 0


def packed_by_the_gate(folder: Path, environ: Mapping[str, str], most: int) -> list[Path]:
    """What the jobs of the gate packed, which their outputs name; of at most so many bytes each."""
    ours = {digest for digests in _said(environ).values() for digest in digests}
    found = []
    for file in sorted(folder.rglob(PACKED)):
        name = in_line(str(file.relative_to(folder)))
        if file.is_symlink() or file.stat().st_size > most:
            sys.stdout.write(f"left out: {name} is a link, or larger than {most >> 20} MB\n")
        elif f"{OF_MEMORY}{hash_file(file)}" not in ours:
            sys.stdout.write(f"left out: {name} is of no job of this call of the gate\n")
        else:
            found.append(file)
    return found


def _said(environ: Mapping[str, str]) -> dict[str, list[str]]:
    outputs = json.loads(environ.get("QNN_CI_DIGESTS") or "{}")
    return {name: str(text).split() for name, text in outputs.items() if name.startswith(NAME)}


def reports_of_the_gate(folder: Path, environ: Mapping[str, str]) -> list[Path]:
    """The reports below a folder whose digests QNN_CI_DIGESTS has, the outputs of the gate as JSON."""
    expected = {
        name: [digest for digest in digests if not digest.startswith(OF_MEMORY)]
        for name, digests in _said(environ).items()
    }
    found = {hash_file(file): file for file in sorted(folder.rglob(REPORT))}
    for name, digests in expected.items():
        if missing := [digest for digest in digests if digest not in found]:
            raise CheckFailed(
                f"{name}: no downloaded {REPORT} has the SHA-256 {in_line(missing[0])} that its job gave",
                fix="something replaced an artifact of the gate: see what else uploads in this workflow",
            )
    ours = {digest for digests in expected.values() for digest in digests}
    for digest in found.keys() - ours:
        name = in_line(str(found[digest].relative_to(folder)))
        sys.stdout.write(f"left out: {name} is not of this call of the gate\n")
    return sorted(found[digest] for digest in ours)
