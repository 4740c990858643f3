"""Findings that all lanes share, whatever compiled a program."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ci.engine.closed import not_passed as names_not_passed
from ci.engine.work import Result
from ci.pipeline.accuracy import Missed
from ci.pipeline.suite import NO_SUITE, AnyProgram
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.build_id import version_in
from provisioning.known_faults import Lane, faults_of_build

CLEARLY_DB = 6.0
"""Figures that differ by more than this differ for a reason."""


def errors_of(subject: str, again: str) -> Callable[..., Finding]:
    """Makes errors about a program: rule, message and fix, with the command that runs it again."""

    def error(rule: str, message: str, fix: str = "") -> Finding:
        return Finding(rule, Severity.ERROR, subject, message, f"{fix}; then {again}" if fix else again)

    return error


def placeholder(program: AnyProgram[Any, Any], again: str) -> Iterator[Finding]:
    """A warning about thresholds that cannot be missed; the command `again` writes real ones."""
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
    """Notes for the author of a factory (`ModelWithInputs.notes`)."""
    for rule, message in facts.get("notes", ()):
        yield Finding(f"factory-{rule}", Severity.WARNING, program.name, message, again)


def not_passed(programs: Iterable[AnyProgram[Any, Any]], results: Mapping[str, Result]) -> Iterator[Finding]:
    """Variables that models asked for and that are set here, but in no key: once for each suite."""
    asking: dict[tuple[str, str, str], str] = {}
    for program in programs:
        asked = results[program.name].asked if program.name in results else {}
        for name, field in names_not_passed(asked, os.environ):
            asking.setdefault((str(program.suite), name, field), program.name)
    for (suite, name, field), program_name in asking.items():
        alone = suite.endswith(f"/{NO_SUITE}")
        yield Finding(
            "variable-not-passed",
            Severity.WARNING,
            program_name if alone else suite,
            f"{program_name} asks for {name}, which is set here and is not passed to models",
            f"--variable {name}" if alone else f'{field} = ["{name}"] at the top of {suite}',
        )


def known_faults(findings: Sequence[Finding], build_id: str, lane: Lane) -> Iterator[Finding]:
    """What is known of a build of which a program missed a threshold."""
    if not any(finding.rule.endswith("-accuracy") for finding in findings):
        return
    for fault in faults_of_build(build_id, lane):
        if fault.where == "emulator":
            yield Finding(
                "known-fault",
                Severity.NOTE,
                f"QNN {version_in(build_id)}",
                f"{fault.title} ({fault.id})",
                f"{fault.fix}: docs/findings.md",
            )


def verdict(findings: Sequence[Finding]) -> str:
    return "fail" if any(finding.severity is Severity.ERROR for finding in findings) else "pass"


def shown_thresholds(program: AnyProgram[Any, Any]) -> dict[str, Metric]:
    """For the row of a report."""
    thresholds = program.run.effective_thresholds
    return thresholds.model_dump(exclude_none=True) if thresholds else {}


def not_in_fp16(soc: str) -> str:
    return f"expected floats of 16 bits, and QNN computes all of it in float32: {soc} has no fp16"


def accuracy_message(misses: Sequence[Missed], figures: Mapping[str, float], losses: str = "") -> str:
    """The missed thresholds, and whether quantization or the chip causes them.

    `losses` names the operators where quantization loses most."""
    message = "; ".join(map(str, misses))
    if chip_differs(misses, figures):
        losses = "the program computes something else than the quantized model that it was made from"
    return f"{message}; {losses}" if losses else message


HARDLY_ALIKE_DB = 10.0
"""Outputs below it have little in common with the model's."""


def hardly_alike(figures: Mapping[str, float]) -> str:
    """A warning where nothing sets a threshold; empty if none is due. NaN is unlike everything."""
    if figures["sqnr_db"] >= HARDLY_ALIKE_DB:
        return ""
    return (
        f"{figures['sqnr_db']:.1f} dB: the outputs have little in common with the model's; `divergence` with"
        " the same model and precision names the operator where they part"
    )


def chip_differs(misses: Sequence[Missed], figures: Mapping[str, float]) -> bool:
    """Whether the program on the chip, rather than quantization, causes a miss."""
    reference = figures.get("reference_sqnr_db", math.inf)
    missed = {miss.figure.startswith("reference") for miss in misses}
    # Nearer to the quantized model than to the float one: quantization is the cause.
    follows = reference > figures.get("sqnr_db", math.inf) + CLEARLY_DB
    if True in missed:
        return not (False in missed and follows)
    return not follows and any(miss.figure == "sqnr_db" and reference < miss.bound for miss in misses)
