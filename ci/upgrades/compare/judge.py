"""Which of two measurements of a program is worse, by the tolerances of baselines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ci.pipeline.baseline import COSTS, Tolerances
from provisioning.base.findings import Metric, Severity

Verdict = Literal["better", "same", "worse"]
RANK: Mapping[Verdict, int] = {"worse": 0, "better": 1, "same": 2}

SHARES = ("agreement", "reference_agreement", "top1")
ACCURACY = ("sqnr_db", "reference_sqnr_db", *SHARES)
NODES = ("cpu_operators", "delegates", "graphs")
"""Each additional delegate is another transfer between CPU and NPU."""
TITLES = {
    "sqnr_db": "SQNR in dB",
    "reference_sqnr_db": "SQNR in dB to the quantized model",
    "agreement": "share of equal integers",
    "reference_agreement": "share of integers equal to the quantized model",
    "top1": "top-1 agreement",
    "cpu_operators": "operators on the CPU",
    **{name: field.description or name for name, field in COSTS.items()},
}

Row = Mapping[str, Metric]


@dataclass(frozen=True, slots=True)
class FigureChange:
    figure: str
    before: float | str
    after: float | str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{TITLES.get(self.figure, self.figure)}: {_number(self.before)} → {_number(self.after)}"


def differences(before: Row, after: Row, tolerances: Tolerances) -> list[FigureChange]:
    """Differences beyond the tolerances. If only one build takes the program, that is the only difference.

    The `error` of a row is what its lane found wrong with the program, costs aside."""
    taken = [bool(row.get("figures")) for row in (before, after)]
    if taken[0] != taken[1]:
        old, new = ("runs" if runs else "is refused" for runs in taken)
        return [FigureChange("the program", old, new, "better" if taken[1] else "worse")]
    if not all(taken):
        return []
    changes: list[FigureChange] = []
    for name, was, now in _pairs(before.get("figures"), after.get("figures"), ACCURACY):
        # Another answer is a difference, however small the error that gives it.
        if abs(now - was) > (1e-6 if name in SHARES else tolerances.sqnr_margin_db):
            changes.append(FigureChange(name, was, now, "worse" if now < was else "better"))
    for name, was, now in _pairs(before.get("costs"), after.get("costs"), COSTS):
        tolerance = tolerances.costs[name]
        if now > tolerance.most(was):
            changes.append(FigureChange(name, was, now, "worse"))
        elif was > tolerance.most(now):
            changes.append(FigureChange(name, was, now, "better"))
    for name, was, now in _pairs(dict(before), dict(after), NODES):
        # Older providers do not report how many graphs there are, so they are not compared.
        if was != now and (name != "graphs" or (was and now)):
            changes.append(FigureChange(name, was, now, "worse" if now > was else "better"))
    errors = [str(row.get("error", "")) for row in (before, after)]
    if bool(errors[0]) != bool(errors[1]):
        old, new = (f"fails ({error})" if error else "passes" for error in errors)
        change: Verdict = "worse" if errors[1] else "better"
        # A figure that says so already is not said twice.
        if change not in {change.verdict for change in changes}:
            changes.append(FigureChange("the program", old, new, change))
    return changes


def verdict_of(changes: Sequence[FigureChange]) -> Verdict:
    return min((change.verdict for change in changes), key=RANK.__getitem__, default="same")


def severity_of(changes: Sequence[FigureChange], tolerances: Tolerances) -> Severity:
    """The worst severity of what became worse; a cost has that of its tolerance."""
    worse = [change.figure for change in changes if change.verdict == "worse"]
    grave = {
        Severity(tolerances.costs[name].severity) if name in tolerances.costs else Severity.ERROR
        for name in worse
    }
    return next(severity for severity in Severity if severity in grave)


def _pairs(before: Metric, after: Metric, names: Iterable[str]) -> Iterator[tuple[str, float, float]]:
    for name in names:
        old, new = (part.get(name) if isinstance(part, dict) else None for part in (before, after))
        if isinstance(old, int | float) and isinstance(new, int | float):
            yield name, float(old), float(new)


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.3g}"
