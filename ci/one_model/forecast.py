"""Forecast the time that a program takes on a phone: QNN's own estimate for another chip, scaled by constants
that were fitted to measurements of real phones (manifests/forecast.toml names the phones). A forecast is not
a measurement, and says so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import Field

from ci.artifacts.compiler_log import QnnEstimate
from ci.one_model.phones import MANIFEST, phone_named
from provisioning.accepted_file import SHIPPED, load_accepted
from provisioning.base.commands import Fix
from provisioning.base.documents import Model, load
from provisioning.base.errors import UsageError
from provisioning.base.findings import Metric
from provisioning.base.settings import MANIFESTS
from provisioning.build_ids import version_in
from provisioning.sources import Sha256, Version

PRECISIONS = {"fp16": "float", "8a8w": "w8a8", "16a8w": "w8a16"}
"""Maps our names of precisions to AI Hub's."""


class HubWheel(Model):
    """The wheel with the times that phones measured."""

    version: Version
    filename: str
    sha256: Sha256
    size: int


class Phone(Model):
    soc: str
    device: str
    """The name of the phone in the wheel."""
    newer: tuple[str, ...] = ()
    """Our precisions for which the estimate of the newer chip counts as well."""


class Forecasts(Model):
    schema_: Literal[2] = Field(alias="schema")
    chip: str
    newer: str
    runtime: str
    """The fit uses the wheel's rows with this runtime."""
    wheel: HubWheel
    phones: dict[str, Phone]

    def phone_of(self, name: str) -> str:
        """The phone that a user means."""
        return phone_named(name, {phone: about.device for phone, about in self.phones.items()})

    def phones_of(self, names: Collection[str], chips: Collection[str]) -> list[str]:
        """The phones that the user names, or those with a chip that the user names; all without either."""
        phones = [self.phone_of(name) for name in names]
        phones = phones or [phone for phone, about in self.phones.items() if not chips or about.soc in chips]
        if not phones:
            message = f"no forecast was fitted for a phone with {', '.join(chips)}"
            raise UsageError(message, fix=Fix("for example {}", ("--phone", next(iter(self.phones)))))
        return phones

    def chips(self, precision: str, phones: Collection[str]) -> tuple[str, ...]:
        """The chips whose estimates forecasts for these phones need; each estimate takes a compile."""
        both = any(precision in self.phones[phone].newer for phone in phones)
        return (self.chip, self.newer) if both else (self.chip,)


def load_forecasts() -> Forecasts:
    return load(MANIFEST, Forecasts)


ACCEPTED = MANIFESTS / "accepted" / "forecast.json"
ON_A_PHONE = Fix("measure it on a phone: {}", ("run_device", "--inputs", "FILES"))
UNFAMILIAR = 0.1
"""If more than this share of its operators is in no fitted model, a model is too different for a forecast."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The number of multiplications in a model's layers, of its weights, and of the values between its
    nodes."""

    macs: int
    weights: int
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QnnEstimates:
    """QNN's estimates of the time that a model takes."""

    build_id: str
    estimates: Mapping[str, QnnEstimate]
    """Maps a chip to its estimate."""
    refused: Mapping[str, str]
    """Maps a chip without an estimate to the reason."""
    operators: Mapping[str, int]
    size: ModelSize
    on_cpu: str = ""
    """Which nodes do not run on the NPU, and why; empty if the model compiles whole."""
    cpu_seconds: float = 0.0
    """The processor seconds that it took to get the estimates."""

    @property
    def lower(self) -> dict[str, float]:
        """Maps a chip to the lowest of its three estimates in microseconds, which phones follow best."""
        return {chip: float(estimate.least_us) for chip, estimate in self.estimates.items()}

    def unsound(self, chips: Collection[str]) -> str:
        """What is missing in the estimates of these chips; empty if nothing is."""
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
    """The microseconds on the phone for one microsecond of the estimate."""
    around_us: float
    """The microseconds that a phone spends around a network."""
    within: float
    """For 80 of 100 models that were left out of the fit, the time differed by at most this share: 0.5 means
    1.5 times as long or as short."""


@dataclass(frozen=True, slots=True)
class FittedRange:
    """The range in which a model is like the fitted ones."""

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
    """Maps a phone and AI Hub's precision to their fit."""


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
    """The forecast of one program on one phone, in milliseconds."""

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

    def rounded_values(self) -> dict[str, Metric]:
        figures = {**asdict(self), "least_ms": self.least_ms, "most_ms": self.most_ms}
        return {
            name: round(value, 5) if isinstance(value, float) else value for name, value in figures.items()
        }


@dataclass(frozen=True, slots=True)
class Forecasted:
    """The forecasts of one program for several phones; `reasons` says why a phone has none."""

    forecasts: tuple[Forecast, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    basis: str = ""
    withheld: str = ""
    """The reason why no phone has a forecast."""
    fix: str = ""
    on_cpu: bool = False
    """Whether that reason is a node that does not run on the NPU."""

    def summary_lines(self) -> list[str]:
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
    """Forecast the time on these phones from QNN's estimates, which its own compiler gave; `precision` is our
    name."""
    if (build := qnn.build_id) != fit.build_id:
        mismatch = f"the fit is for QNN {version_in(fit.build_id)}, not for {version_in(build)}"
        return Forecasted(withheld=mismatch, fix=ON_A_PHONE)
    if qnn.on_cpu:
        return Forecasted(withheld=qnn.on_cpu, on_cpu=True)
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
    """The estimate to scale: with two chips, their geometric mean."""
    older, newer = (estimates[chip] for chip in (*chips, *chips)[:2])
    return float((older * newer) ** 0.5)
