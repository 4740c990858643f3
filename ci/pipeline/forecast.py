"""The time that a program will take on a phone: QNN's own estimate for another chip, by constants that were
fitted to what real phones measured. A forecast is no measurement, and says so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ci.pipeline.phones import Forecasts
from provisioning.base.accepted import Values, load_accepted
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.settings import MANIFESTS
from provisioning.build_id import version_in

ACCEPTED = MANIFESTS / "accepted" / "forecast.json"

PROGRAMS = "-programs"
"""After a lane's name: of the programs that its constants were fitted by, what a phone measured, and the
forecast of constants without the program's model."""
ESTIMATES = "-estimates"
"""After a lane's name: of all programs that were compiled to fit it, what QNN said of them."""

BASIS = "least_us"
"""Of QNN's three estimates the one that phones follow best."""
BY = "by."
"""How names of errors begin that another phone's measurement leaves."""
SCALE = ".scale"
BETWEEN = ("newer", "around_us")
PRECISIONS = {"fp16": "float", "8a8w": "w8a8", "16a8w": "w8a16"}
"""By our names, AI Hub's."""

UNFAMILIAR = 0.1
"""Above this share of operators that no fitted model has, a model is of another kind than they."""


@dataclass(frozen=True, slots=True)
class BetweenChips:
    """Where phones of a Hexagon lie between the two chips with an estimate."""

    newer: float
    """How much of their estimate is the newer chip's, from 0 to 1."""
    around_us: float
    """What surrounds a network, in microseconds of the estimate."""

    def of(self, first: float, second: float) -> float:
        return float(first ** (1 - self.newer) * second**self.newer) + self.around_us


@dataclass(frozen=True, slots=True)
class PhoneFit:
    """A phone's constants."""

    between: BetweenChips
    scales: Mapping[str, float]
    """By precision, microseconds on the phone for one of the estimate."""
    errors: Mapping[str, float]
    """By precision, the 80th percentile of the errors of models that were left out of the fit."""
    by_other: Mapping[str, float] = field(default_factory=dict)
    """The same of forecasts that another phone's measurement corrects, by that phone."""


@dataclass(frozen=True, slots=True)
class LaneFit:
    """What was fitted for a lane and a QNN build."""

    build_id: str
    phones: Mapping[str, PhoneFit]
    least_us: float
    most_us: float
    """The smallest and the largest estimate that it was fitted by."""
    least_ratio: float
    most_ratio: float
    """Of the second chip's estimate to the first one's."""
    operators: frozenset[str]
    """Of the models that it was fitted by."""


def load_fit(lane: str) -> LaneFit | None:
    """None if nothing was fitted for this lane."""
    accepted = load_accepted(ACCEPTED, "nox -s forecast -- fit --accept")
    common = accepted.of(lane)
    if not common:
        return None
    phones = {
        subject.removeprefix(f"{lane}/"): _phone_fit(accepted.of(subject))
        for subject in accepted.subjects
        if subject.startswith(f"{lane}/")
    }
    return LaneFit(
        build_id=str(common["qnn"]),
        phones=phones,
        least_us=_number(common["least_us"]),
        most_us=_number(common["most_us"]),
        least_ratio=_number(common["least_ratio"]),
        most_ratio=_number(common["most_ratio"]),
        operators=frozenset(str(common["operators"]).split()),
    )


def _phone_fit(values: Values) -> PhoneFit:
    p80 = {
        name.removesuffix(".p80"): _number(value) for name, value in values.items() if name.endswith(".p80")
    }
    by_other = {
        name.removeprefix(BY).replace("_", " "): error for name, error in p80.items() if name.startswith(BY)
    }
    errors = {name: error for name, error in p80.items() if not name.startswith(BY)}
    scales = {precision: _number(values[precision + SCALE]) for precision in errors}
    between = BetweenChips(*(_number(values[name]) for name in BETWEEN))
    return PhoneFit(between, scales, errors, by_other)


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one program on one phone, in milliseconds."""

    phone: str
    soc: str
    ms: float
    least_ms: float
    most_ms: float
    within: float
    """80 of 100 programs like it lie within this part."""

    def __str__(self) -> str:
        return (
            f"{self.phone}  about {self.ms:.3g} ms ({self.least_ms:.3g} to {self.most_ms:.3g}:"
            f" 80 of 100 programs like it lie within {self.within:.0%})"
        )

    def by(self, factor: float, within: float) -> Forecast:
        ms = self.ms * factor
        return Forecast(self.phone, self.soc, ms, ms * (1 - within), ms * (1 + within), within)

    def as_dict(self) -> dict[str, Any]:
        return {
            name: round(value, 5) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True)
class Forecasted:
    """Of one program on all phones, or why there is no forecast."""

    forecasts: tuple[Forecast, ...] = ()
    withheld: str = ""
    fix: str = ""
    basis: str = ""
    """What the forecasts rest on."""

    def in_words(self, shown: Sequence[Forecast] | None = None) -> list[str]:
        if self.withheld:
            return [f"no forecast: {self.withheld}", *([f"  try: {self.fix}"] if self.fix else [])]
        return [
            *map(str, self.forecasts if shown is None else shown),
            f"forecast, not measured: {self.basis}",
        ]


def of_language_model(typed: str) -> Forecasted:
    """Why a checkpoint, or what Genie is given of one, has no forecast."""
    return Forecasted(
        withheld=f"{typed} is a language model. AI Hub measured whole ones of 0.6 billion weights and more,"
        " in tokens a second, and no part of one; so nothing is fitted to what QNN estimates of a part",
        fix=f"{session('forecast', 'text generation', '--measured')}, and there the model most like it",
    )


def not_fitted(lane: str, build: str, precision: str, fit: LaneFit | None) -> Forecasted | None:
    """Why this lane has no forecast of any model with this QNN build and precision; None if it has."""
    if fit is None or build != fit.build_id:
        fitted_for = f", but for {version_in(fit.build_id)}" if fit else ""
        return Forecasted(
            withheld=f"the {lane} lane is not fitted for QNN {version_in(build)}{fitted_for}",
            fix=session("forecast", "fit", "--lane", lane, "--accept"),
        )
    hubs = {hub for phone in fit.phones.values() for hub in phone.errors}
    if PRECISIONS.get(precision) not in hubs:
        known = ", ".join(ours for ours, hub in PRECISIONS.items() if hub in hubs)
        return Forecasted(
            withheld=f"no phone's {precision} was fitted in the {lane} lane", fix=f"--precision {known}"
        )
    return None


def forecast(
    lane: str, precision: str, facts: Mapping[str, Any], fit: LaneFit | None, table: Forecasts
) -> Forecasted:
    """`facts` are of the step that asked QNN: estimates, refusals, operators; `precision` is ours."""
    build = str(facts["build_id"])
    if unfitted := not_fitted(lane, build, precision, fit):
        return unfitted
    assert fit is not None
    if reason := reason_to_withhold(facts, fit, table):
        return Forecasted(withheld=reason)
    hub = PRECISIONS[precision]
    forecasts = []
    for name, phone in table.phones.items():
        if (fitted := fit.phones.get(name)) and hub in fitted.errors:
            us = fitted.scales[hub] * fitted.between.of(*estimates_in(facts, table))
            ms, within = us / 1000, fitted.errors[hub]
            forecasts.append(Forecast(name, phone.soc, ms, ms * (1 - within), ms * (1 + within), within))
    estimates = " and ".join(f"{chip} ({facts['estimates'][chip][BASIS]:,} us)" for chip in table.chips)
    of_lane = table.lanes[lane]
    basis = f"QNN {version_in(build)}'s lower estimates for {estimates}, by what AI Hub measured"
    notes = [of_lane.note] if of_lane.note else []
    if (took := facts.get("cpu_seconds")) is not None:
        notes.append(f"asking QNN took {took:.1f} s of a processor")
    return Forecasted(tuple(forecasts), basis="; ".join([f"{basis} ({table.wheel.version})", *notes]))


def estimates_in(facts: Mapping[str, Any], table: Forecasts) -> tuple[float, float]:
    """What forecasts rest on, for the older chip and the newer one, in microseconds."""
    first, second = (float(facts["estimates"][chip][BASIS]) for chip in table.chips)
    return first, second


def reason_to_withhold(facts: Mapping[str, Any], fit: LaneFit, table: Forecasts) -> str:
    """Why the estimate cannot be trusted; empty if it can."""
    estimates, (first, second) = facts["estimates"], table.chips
    if missing := next((chip for chip in table.chips if chip not in estimates), ""):
        return f"QNN has no estimate for {missing}: {facts['refused'].get(missing, 'it says nothing')}"
    estimate = estimates[first]
    if estimate["graphs"] != 1:
        return f"{first} cuts it into {estimate['graphs']} graphs"
    if estimate["uncosted"]:
        return f"{estimate['uncosted']} of its operators have no cost in QNN's estimate"
    if not fit.least_us <= estimate["us"] <= fit.most_us:
        return (
            f"its estimate of {estimate['us']:,} us lies outside of the"
            f" {fit.least_us:,.0f} to {fit.most_us:,.0f} us that were fitted"
        )
    older, newer = estimates_in(facts, table)
    ratio = newer / older
    if not fit.least_ratio <= ratio <= fit.most_ratio:
        return (
            f"QNN's estimates for {first} and {second} disagree: 1 to {ratio:.2f}, and fitted models have"
            f" {fit.least_ratio:.2f} to {fit.most_ratio:.2f}"
        )
    operators: Mapping[str, int] = facts["operators"]
    unfamiliar = {name: count for name, count in operators.items() if name not in fit.operators}
    if sum(unfamiliar.values()) > UNFAMILIAR * sum(operators.values()):
        return f"{', '.join(sorted(unfamiliar))}: no fitted model has these operators"
    return ""


def milliseconds(found: Forecasted, soc: str, *, budgeted: bool) -> dict[str, float]:
    """As a cost of `tune`: on the phone with the program's chip. Raises why there is none if there is a
    budget for it."""
    own = [phone.ms for phone in found.forecasts if phone.soc == soc]
    if own or not budgeted:
        return {"ms": own[0]} if own else {}
    why = found.withheld or f"no phone with {soc} was fitted"
    raise CheckFailed(f"--budget ms=: no forecast, {why}", fix=found.fix or "--budget ddr=… or bytes=…")


def by_measurement(text: str, found: Forecasted, fit: LaneFit, table: Forecasts) -> Forecasted:
    """`PHONE=1.42 ms`: the same model on the other phones, by what was measured on one."""
    name, _, value = text.partition("=")
    number = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*ms\s*", value)
    if not number or not float(number[1]):
        raise UsageError(
            f"--measured {text}: expected a phone and milliseconds", fix="--measured 'Galaxy S24=1.42 ms'"
        )
    phone = table.named(name.strip())
    own = next((row for row in found.forecasts if row.phone == phone), None)
    if own is None:
        return found
    factor = float(number[1]) / own.ms
    others = (row for row in found.forecasts if row.phone != phone)
    return Forecasted(
        tuple(
            other.by(factor, fit.phones[other.phone].by_other.get(phone, other.within)) for other in others
        ),
        basis=f"measured on {phone}: {number[1]} ms, {factor:.2f} times its forecast",
    )
