"""What the lanes find alike, whatever compiled a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def verdict(findings: Sequence[Finding]) -> str:
    return "fail" if any(finding.severity is Severity.ERROR for finding in findings) else "pass"


def shown_thresholds(program: AnyProgram[Any, Any]) -> dict[str, Metric]:
    """For the row of a report."""
    thresholds = program.run.effective_thresholds
    return thresholds.model_dump(exclude_none=True) if thresholds else {}
