"""What was proved of a program, for a gate that does not search."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from provisioning.base.commands import Fix, joined
from provisioning.base.files import replace_text
from provisioning.base.findings import Finding, Place


@dataclass(frozen=True, slots=True)
class Proved:
    """Its cause, and a fix with its figure."""

    cause: str
    source: str
    """The line of the model, if it is known."""
    fix: str
    """Empty where none helped."""


def _kept(store: Path, program: str) -> Path:
    return store / "cache" / "results" / "proofs" / f"{program}.json"


def remember(store: Path, program: str, proved: Proved) -> None:
    """`program` is the digest of its bytes; one without is not remembered."""
    if program:
        kept = _kept(store, program)
        kept.parent.mkdir(parents=True, exist_ok=True)
        document = {**asdict(proved), "fix": joined([proved.fix]).parts}
        replace_text(kept, json.dumps(document) + "\n")


def explained(findings: Iterable[Finding], store: Path, program: str) -> Iterator[Finding]:
    """The findings; those of this program's accuracy say what was proved of it."""
    for finding in findings:
        if finding.rule.endswith("-accuracy") and (proved := _proved_of(store, program)):
            yield replace(
                finding,
                message=f"{finding.message}; {proved.cause}",
                fix=proved.fix or finding.fix,
                place=Place.read(proved.source) or finding.place,
            )
        else:
            yield finding


def _proved_of(store: Path, program: str) -> Proved | None:
    try:
        kept = json.loads(_kept(store, program).read_text(encoding="utf-8"))
        return Proved(**{**kept, "fix": Fix.read(kept["fix"])})
    except (OSError, ValueError, TypeError, KeyError):
        # What was never kept, or is damaged, is only not said.
        return None
