"""What the lanes find alike, whatever compiled a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ci.suites.model import AnyProgram
from provisioning.base.findings import Finding, Metric, Severity


def placeholder(program: AnyProgram[Any, Any], again: str) -> Iterator[Finding]:
    """The command `again` writes thresholds that can be missed."""
    thresholds = program.run.effective_thresholds
    if thresholds is not None and thresholds.placeholder:
        yield Finding(
            "threshold-placeholder",
            Severity.WARNING,
            program.name,
            "its thresholds are a placeholder: outputs that are all zero would pass",
            f"once the model is as it should be, {again}",
        )


def notes(program: AnyProgram[Any, Any], facts: Mapping[str, Any], again: str) -> Iterator[Finding]:
    """What the author of a factory should know (`ModelWithInputs.notes`)."""
    for rule, message in facts.get("notes", ()):
        yield Finding(f"factory-{rule}", Severity.WARNING, program.name, message, again)


def verdict(findings: Sequence[Finding]) -> str:
    return "fail" if any(finding.severity is Severity.ERROR for finding in findings) else "pass"


def shown_thresholds(program: AnyProgram[Any, Any]) -> dict[str, Metric]:
    """For the row of a report."""
    thresholds = program.run.effective_thresholds
    return thresholds.model_dump(exclude_none=True) if thresholds else {}
