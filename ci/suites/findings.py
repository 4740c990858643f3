"""What the lanes find alike, whatever compiled a program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ci.suites.accuracy import Missed
from ci.suites.model import AnyProgram
from provisioning.base.findings import Finding, Metric, Severity

CLEARLY_DB = 6.0
"""Figures further apart than this differ for a reason."""


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


def not_in_fp16(soc: str) -> str:
    return f"expected floats of 16 bits, and QNN computes all of it in float32: {soc} has no fp16"


def accuracy_message(misses: Sequence[Missed], figures: Mapping[str, float], losses: str = "") -> str:
    """The misses, and whether quantizing or computing is to blame. `losses` names the operators at which
    quantizing loses most."""
    message = "; ".join(map(str, misses))
    missed = {miss.figure.startswith("reference") for miss in misses}
    # Nearer to the quantized model than to the float one: it is the quantized model that is off.
    follows = figures.get("reference_sqnr_db", math.inf) > figures.get("sqnr_db", math.inf) + CLEARLY_DB
    if True in missed and not (False in missed and follows):
        losses = "the program computes something else than the quantized model that it was made from"
    return f"{message}; {losses}" if losses else message
