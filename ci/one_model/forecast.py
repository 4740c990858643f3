"""The time that a program will take on a phone: QNN's own estimate for another chip, by constants that were
fitted to what real phones measured (manifests/forecast.toml names the phones). A forecast is no
measurement, and says so."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import Field

from ci.artifacts.compiler_log import QnnEstimate
from provisioning.accepted_file import SHIPPED, load_accepted
from provisioning.base.commands import Fix
from provisioning.base.documents import Model, load
from provisioning.base.errors import UnknownName
from provisioning.base.findings import Metric
from provisioning.base.settings import MANIFESTS
from provisioning.components import version_in
from provisioning.sources import Sha256, Version

MANIFEST = MANIFESTS / "forecast.toml"
PRECISIONS = {"fp16": "float", "8a8w": "w8a8", "16a8w": "w8a16"}
"""By our names, AI Hub's."""


class HubWheel(Model):
    """The wheel with what phones measured."""

    version: Version
    filename: str
    sha256: Sha256
    size: int


class Phone(Model):
    soc: str
    device: str
    """Its name in the wheel."""
    newer: tuple[str, ...] = ()
    """Our precisions in which the newer chip's estimate counts as well."""


class Forecasts(Model):
    schema_: Literal[2] = Field(alias="schema")
    chip: str
    newer: str
    runtime: str
    """Of the wheel's rows that are fitted to."""
    wheel: HubWheel
    phones: dict[str, Phone]

    def phone_of(self, name: str) -> str:
        """The phone that a user means."""
        plain = {
            _plain(title): phone for phone, about in self.phones.items() for title in (about.device, phone)
        }
        if phone_name := plain.get(_plain(name)):
            return phone_name
        raise UnknownName(f"no forecast was fitted for a phone called {name!r}", name, self.phones)

    def chips(self, precision: str, phones: Collection[str]) -> tuple[str, ...]:
        """Of which forecasts for these phones need an estimate, each a compile."""
        both = any(precision in self.phones[phone].newer for phone in phones)
        return (self.chip, self.newer) if both else (self.chip,)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("samsung").removeprefix("snapdragon")


def load_forecasts() -> Forecasts:
    return load(MANIFEST, Forecasts)


ACCEPTED = MANIFESTS / "accepted" / "forecast.json"
ON_A_PHONE = Fix("measure it on a phone: {}", ("run_device", "--inputs", "FILES"))
UNFAMILIAR = 0.1
"""Above this share of operators that no fitted model has, a model is of another kind than they."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Multiplications of its layers, and how many numbers its weights and the values between nodes have."""

    macs: int
    weights: int
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QnnEstimates:
    """What QNN says that a model will take."""

    build_id: str
    estimates: Mapping[str, QnnEstimate]
    """By chip."""
    refused: Mapping[str, str]
    """Why a chip has none."""
    operators: Mapping[str, int]
    size: ModelSize
    cpu_seconds: float = 0.0
    """What asking took."""

    @property
    def lower(self) -> dict[str, float]:
        """By chip, in microseconds: of the three estimates, phones follow the lower one best."""
        return {chip: float(estimate.least_us) for chip, estimate in self.estimates.items()}

    def unsound(self, chips: Collection[str]) -> str:
        """What the estimates themselves lack; empty if nothing."""
        for chip in chips:
            if not (estimate := self.estimates.get(chip)):
                return f"QNN has no estimate for {chip}: {self.refused.get(chip, 'it says nothing')}"
            if estimate.graphs != 1:
                return f"{chip} cuts it into {estimate.graphs} graphs"
            if estimate.uncosted:
                return f"{estimate.uncosted} of its operators have no cost in QNN's estimate"
        return ""


@dataclass(frozen=True, slots=True)
class PhoneFit:
    scale: float
    """Microseconds on the phone for one of the estimate."""
    around_us: float
    """What surrounds a network on the phone."""
    within: float
    """80 of 100 models that were left out took at most this part longer or shorter: 0.5 is 1.5 times."""


@dataclass(frozen=True, slots=True)
class FittedRange:
    """Within which a model is like those that were fitted."""

    least_us: float
    most_us: float
    operators: frozenset[str]

    def why_not(self, us: float, operators: Mapping[str, int]) -> str:
        """Why the older chip's estimate cannot be trusted; empty if it can."""
        if not self.least_us <= us <= self.most_us:
            within = f"the {self.least_us:,.0f} to {self.most_us:,.0f} us that were fitted"
            return f"its estimate of {us:,.0f} us is outside {within}"
        unfamiliar = {name: count for name, count in operators.items() if name not in self.operators}
        if sum(unfamiliar.values()) > UNFAMILIAR * sum(operators.values()):
            return f"{', '.join(sorted(unfamiliar))}: no fitted model has these operators"
        return ""


@dataclass(frozen=True, slots=True)
class Fit:
    build_id: str
    limits: FittedRange
    phones: Mapping[tuple[str, str], PhoneFit]
    """By phone and AI Hub's precision."""


def load_fit() -> Fit:
    subjects = load_accepted(ACCEPTED, SHIPPED).subjects
    common: Any = subjects["fit"]
    phones = {}
    for subject, values in subjects.items():
        kind, _, name = subject.partition("/")
        if kind == "phones":
            phone, precision = name.split("/")
            row: Any = values
            phones[phone, precision] = PhoneFit(row["scale"], row["around_us"], row["p80"])
    limits = FittedRange(common["least_us"], common["most_us"], frozenset(common["operators"].split()))
    return Fit(common["qnn"], limits, phones)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one program on one phone, in milliseconds."""

    phone: str
    soc: str
    ms: float
    within: float

    @property
    def least_ms(self) -> float:
        return self.ms / (1 + self.within)

    @property
    def most_ms(self) -> float:
        return self.ms * (1 + self.within)

    def __str__(self) -> str:
        return (
            f"{self.phone}  about {self.ms:.3g} ms ({self.least_ms:.3g} to {self.most_ms:.3g}, as for 80 of"
            " 100 models that the fit had not seen)"
        )

    def as_dict(self) -> dict[str, Metric]:
        figures = {**asdict(self), "least_ms": self.least_ms, "most_ms": self.most_ms}
        return {
            name: round(value, 5) if isinstance(value, float) else value for name, value in figures.items()
        }


@dataclass(frozen=True, slots=True)
class Forecasted:
    """Of one program: by phone its forecast, or why there is none."""

    forecasts: tuple[Forecast, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    basis: str = ""
    withheld: str = ""
    """Why no phone has a forecast."""
    fix: str = ""

    def in_words(self) -> list[str]:
        if self.withheld:
            return [f"no forecast: {self.withheld}", *([f"  try: {self.fix}"] if self.fix else [])]
        return [
            *map(str, self.forecasts),
            *(f"{phone}  no forecast: {reason}" for phone, reason in self.reasons.items()),
            f"forecast, not measured: {self.basis}",
        ]


def forecast(
    precision: str, qnn: QnnEstimates, fit: Fit, table: Forecasts, phones: Collection[str]
) -> Forecasted:
    """For these phones, of what QNN was asked, by its own compile; `precision` is ours."""
    if (build := qnn.build_id) != fit.build_id:
        mismatch = f"the fit is for QNN {version_in(fit.build_id)}, not for {version_in(build)}"
        return Forecasted(withheld=mismatch, fix=ON_A_PHONE)
    hub, forecasts, reasons = PRECISIONS.get(precision, ""), list[Forecast](), dict[str, str]()
    for phone in phones:
        if not (fitted_phone := fit.phones.get((phone, hub))):
            continue
        chips = table.chips(precision, [phone])
        estimates = qnn.lower
        if reason := qnn.unsound(chips) or fit.limits.why_not(estimates[table.chip], qnn.operators):
            reasons[phone] = reason
        else:
            us = fitted_phone.scale * basis_of(estimates, chips) + fitted_phone.around_us
            forecasts.append(Forecast(phone, table.phones[phone].soc, us / 1000, fitted_phone.within))
    if not forecasts and not reasons:
        fitted_names = {name for phone, name in fit.phones if phone in phones}
        precisions = ", ".join(ours for ours, name in PRECISIONS.items() if name in fitted_names)
        message = f"{precision} was not fitted for {', '.join(phones)}"
        return Forecasted(withheld=message, fix=f"--precision {precisions}" if precisions else ON_A_PHONE)
    rests_on = " and ".join(f"{chip} ({us:,.0f} us)" for chip, us in qnn.lower.items())
    basis = f"QNN {version_in(build)}'s lower estimates for {rests_on}, by what AI Hub measured"
    basis += f" ({table.wheel.version})"
    basis += f"; asking QNN took {qnn.cpu_seconds:.1f} s of a processor"
    withheld = "" if forecasts else next(iter(reasons.values()))
    return Forecasted(tuple(forecasts), reasons, basis, withheld)


def basis_of(estimates: Mapping[str, float], chips: Collection[str]) -> float:
    """Half way between two chips."""
    older, newer = (estimates[chip] for chip in (*chips, *chips)[:2])
    return float((older * newer) ** 0.5)
