"""Judge a program's outputs from a device, for the samples that the emulator ran, by the emulator's judge.

Three figures result: the device against the float model, the emulator against the float model, and the device
against the emulator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ci.suite.accepted import NEAREST_DB, load_tolerances
from ci.suite.accuracy import Pair, compare, compare_with_slices, each_sample_db
from ci.suite.contexts import ContextProfile
from ci.suite.figures import describe_figures, round_to_worse
from ci.suite.findings import accuracy_message
from ci.suite.judged_samples import JudgedSamples
from ci.suite.limits import bounds_of, missed_thresholds
from ci.suite.suite_file import Thresholds
from ci.work import to_json
from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.units import format_decibels

if TYPE_CHECKING:
    from ci.models.inputs import Array, Sample

OF_DIFFERENCE = ("sqnr_db", "agreement")
"""The figures of a difference that a person accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorDifference:
    """How far a device's outputs are from the emulator's."""

    values: int
    differing: int
    """This many of the values are not equal to the bit."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """The SQNR of floats, the agreement of integers, and the largest absolute difference."""
    place: str = ""
    """The output that differs most, with its sample."""

    @property
    def share(self) -> float:
        return self.differing / self.values if self.values else 0.0

    def __str__(self) -> str:
        if not self.differing:
            return "equal to the emulator to the bit"
        words = describe_figures(self.figures)
        return f"{words} against the emulator, {_percentage(self.share)} of the values differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceJudgement:
    figures: Mapping[str, float]
    """The device against the float model, and against the quantized one."""
    slices: tuple[str, ...]
    each_db: tuple[float, ...]
    emulated: Mapping[str, float]
    """The emulator against the float model, by the same judge."""
    difference: EmulatorDifference


@dataclass(frozen=True, slots=True, kw_only=True)
class RanOn:
    """The device that ran a program."""

    way: str
    """How its outputs came here: `folder`, `adb`, `ssh` or `aihub`."""
    device: str
    """Its name, or the folder of its outputs."""
    build_id: str = ""
    """The QNN runtime that ran the program; empty if nobody knows it."""
    profile: ContextProfile | None = None


def judge_outputs(samples: JudgedSamples, outputs: Sequence[Sample]) -> DeviceJudgement:
    """Compare the outputs of each sample. Raises Unusable if they cannot be compared."""
    non_finite = samples.facts.non_finite
    figures, slices = compare_with_slices(
        samples.exact.pairs(outputs), samples.reference.pairs(outputs), non_finite=non_finite
    )
    emulated = compare(
        samples.exact.pairs(samples.emulated),
        samples.reference.pairs(samples.emulated),
        non_finite=non_finite,
    )
    each_db = each_sample_db(samples.exact.plain_pairs(outputs), len(outputs))
    difference = difference_of(samples.emulated, outputs)
    return DeviceJudgement(
        figures=figures,
        slices=tuple(slices),
        each_db=tuple(each_db),
        emulated=emulated,
        difference=difference,
    )


def difference_of(emulated: Sequence[Sample], outputs: Sequence[Sample]) -> EmulatorDifference:
    pairs, counts, values = list[Pair](), dict[str, int](), 0
    for number, (sample, other) in enumerate(zip(emulated, outputs, strict=True)):
        for name, array in sample.items():
            title = f"output {name} of sample {number}"
            pairs.append(Pair(title, array, other[name], name))
            counts[title] = _differing(array, other[name])
            values += array.size
    differing = sum(counts.values())
    figures = compare(pairs, non_finite=True)
    worst = max(counts, key=lambda title: counts[title], default="")
    return EmulatorDifference(
        values=values,
        differing=differing,
        figures={name: figures[name] for name in (*OF_DIFFERENCE, "max_abs") if name in figures},
        place=worst if differing else "",
    )


def _differing(one: Array, other: Array) -> int:
    """Count the values whose bits differ."""
    import numpy

    def bits(array: Array) -> Array:
        return numpy.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")

    return int((bits(one) != bits(other)).sum())


def findings_about_device(
    subject: str,
    judgement: DeviceJudgement,
    thresholds: Thresholds | None,
    kind: str,
    agreed: Mapping[str, float],
    again: Fix,
    accepting: Fix | None = None,
) -> Iterator[Finding]:
    """Yield an error if the device misses the thresholds, and a finding of its own if it differs from the
    emulator by more than `agreed`, which may be empty. The command `accepting` agrees to the difference."""
    figures, difference = judgement.figures, judgement.difference
    if misses := missed_thresholds(thresholds, figures, kind):
        words = accuracy_message(misses, figures, each_db=judgement.each_db)
        message = (
            f"on the device {words}; the emulator has {describe_figures(judgement.emulated)}; {difference}"
        )
        yield Finding("device-accuracy", Severity.ERROR, subject, message, _fix(judgement, again))
    limits = difference_limits(agreed)
    farther = [name for name, least in limits.items() if not difference.figures.get(name, math.nan) >= least]
    if not difference.differing or (limits and not farther):
        return
    message = f"{difference}, most in {difference.place}"
    if farther:
        least = ", ".join(_amount(name, limits[name]) for name in farther)
        message = f"{message}; expected at least {least}, as accepted"
    fix = Fix("see whether the device has this chip and QNN; then {}", again)
    if accepting:
        fix = Fix("see whether the device has this chip and QNN; if the difference is right, {}", accepting)
    severity = Severity.ERROR if farther else Severity.WARNING
    yield Finding("device-differs", severity, subject, message, fix)


def difference_limits(agreed: Mapping[str, float]) -> dict[str, float]:
    """Return the least figures against the emulator that pass, for those that a person agreed to."""
    margin_db = load_tolerances().sqnr_margin_db
    limits = {}
    for name, value in agreed.items():
        limits[name] = min(value, NEAREST_DB) - margin_db if name.endswith("_db") else value
    return limits


def accepted_difference(difference: EmulatorDifference) -> dict[str, float]:
    """Return the figures that `--accept` writes."""
    figures = difference.figures
    names = [name for name in OF_DIFFERENCE if name in figures]
    return {name: round_to_worse(name, min(figures[name], NEAREST_DB)) for name in names}


def row_of_device(
    judgement: DeviceJudgement, thresholds: Thresholds | None, kind: str, ran_on: RanOn
) -> dict[str, Metric]:
    """Return the columns of a report's row that all devices have."""
    difference = judgement.difference
    return {
        "figures": dict(judgement.figures),
        "thresholds": dict(bounds_of(thresholds, judgement.figures, kind)),
        "slices": list(judgement.slices),
        "emulated": dict(judgement.emulated),
        "against_emulator": {
            **difference.figures,
            "differing": difference.share,
            "equal": float(not difference.differing),
        },
        "ran_on": {name: value for name, value in to_json(ran_on).items() if value},
    }


def _fix(judgement: DeviceJudgement, again: Fix) -> Fix:
    if judgement.difference.differing:
        return Fix("see whether the device has this chip and QNN, and ran these samples; then {}", again)
    return Fix("the emulator gives the same: make the program better; then {}", again)


def _amount(name: str, value: float) -> str:
    if name.endswith("_db"):
        return f"{format_decibels(value)} SQNR"
    return f"{_percentage(value)} of integers equal"


def _percentage(share: float) -> str:
    return f"{share * 100:.4g} %"
