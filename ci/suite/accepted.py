"""Accepted results: what programs cost and how accurate they were when somebody last agreed to it, and the
thresholds that this gives."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from operator import add
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ci.suite.figures import FIGURES, LESS_IS_BETTER, cost_rule, round_figures, round_to_worse
from ci.suite.limits import below_floor, required_of
from ci.suite.suite_file import THRESHOLD_NAMES, Thresholds
from provisioning.accepted_file import Accepted, Values, accept, load_accepted
from provisioning.base.commands import Fix
from provisioning.base.documents import Model, load, parse
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.rendering import plural
from provisioning.base.settings import DEFAULT_PROFILE, MANIFESTS


class Costs(Model):
    """The costs of one program; a cost that was not measured is None. Titles are for tables, descriptions for
    messages."""

    ddr_read: int | None = Field(None, title="DDR read", description="bytes read from DDR")
    ddr_written: int | None = Field(None, title="DDR written", description="bytes written to DDR")
    ddr_spilled: int | None = Field(None, title="spilled", description="bytes spilled to DDR")
    ddr_filled: int | None = Field(None, title="filled", description="bytes filled from DDR")
    pte_bytes: int | None = Field(None, title=".pte", description="bytes of the .pte")
    context_bytes: int | None = Field(None, title="context", description="bytes of the context and its .onnx")
    cpu_seconds: float | None = Field(None, title="CPU time of compiling", description="seconds of compiling")


COSTS = Costs.model_fields
"""This is the only list of costs: tolerances, baselines, findings and the page use these names."""


def _is_cost(name: str) -> str:
    if name not in COSTS:
        raise ValueError(f"one of {', '.join(COSTS)}")
    return name


CostName = Annotated[str, AfterValidator(_is_cost), Field(json_schema_extra={"enum": list(COSTS)})]


class Tolerance(Model):
    """A cost may grow by its share `relative` plus the amount `absolute`."""

    relative: Annotated[float, Field(ge=0)]
    absolute: Annotated[float, Field(ge=0)] = 0
    severity: Literal["error", "warning", "note"] = "error"

    def most(self, agreed: float) -> float:
        return agreed * (1 + self.relative) + self.absolute


class Tolerances(Model):
    schema_: Literal[1] = Field(alias="schema")
    costs: dict[CostName, Tolerance]
    sqnr_margin_db: Annotated[float, Field(gt=0)]
    """A threshold is the measured figure minus this margin."""


Failed = Literal["", "bad_test", "wrong", "dies", "crash"]


class Recorded(Costs):
    """The accepted figures of one program."""

    build_id: str = ""
    """The QNN build that compiled it."""
    accuracy: dict[str, float] = Field(default_factory=dict)
    """A file stores each figure as a value of its own."""
    peak_mb: int | None = None
    run_seconds: float | None = None
    refused: tuple[str, ...] = ()
    """The operators of this program that QNN refuses, according to its suite."""
    taken: tuple[str, ...] = ()
    """The operators of this program that QNN takes."""
    failed: Failed = ""
    """How the program failed; set if failures of its kind are recorded as results."""
    message: str = ""
    """The first line of that failure, without what differs from run to run."""
    in_float: bool = False
    """Whether nothing was quantized in a program with floats, although its precision says so."""
    device_sqnr_db: float | None = None
    """The SQNR of a device's outputs against the emulator's that a person agreed to."""
    device_agreement: float | None = None
    """The share of integers equal to the emulator's."""
    draws: tuple[dict[str, float], ...] = ()
    """The figures of each sample; set for a program whose every result is recorded."""

    def cost(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value

    def updated(self, fields: Mapping[str, object]) -> Recorded:
        """Return these figures with `fields` replaced; `fields` includes `build_id`. Figures that another
        build measured are dropped."""
        same = self.build_id == fields["build_id"]
        base = self if same else Recorded(**{name: getattr(self, name) for name in KEPT})
        return base.model_copy(update=dict(fields))

    @property
    def values(self) -> Values:
        """The values that a file stores; a field that is None is left out."""
        absent = dict.fromkeys([*FIGURES, *Recorded.model_fields])
        values = self.model_dump(mode="json", exclude_defaults=True, exclude={"accuracy"})
        return {**absent, **values, **self.accuracy}


KEPT = ("peak_mb", "run_seconds")
"""The fields that stay when another build compiles the program."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The accepted results of the programs of one lane."""

    path: Path
    programs: Mapping[str, Recorded] = field(default_factory=dict)
    lane: str = ""

    def of(self, program: str) -> Recorded | None:
        return self.programs.get(program)

    def rewritten(
        self,
        values: Mapping[str, Mapping[str, object]],
        thresholds: Mapping[str, Values],
        runs: Collection[str],
    ) -> Baseline:
        """Replace these fields of programs and these thresholds of runs, and drop runs that the suite no
        longer has. Writes the file too.

        Chips do not matter, because --soc may name others than the suite."""

        def change(accepted: Accepted) -> Accepted:
            before = baseline_in(accepted, self.lane)
            changes = {
                name: (before.of(name) or Recorded()).updated(fields).values
                for name, fields in values.items()
            }
            base = accepted.only(lambda subject: _run_of(subject, self.lane) in {None, *runs})
            rows = {**changes, **thresholds}
            return base.updated({f"{self.lane}/{name}": row for name, row in rows.items()})

        baseline = baseline_in(accept(self.path, change), self.lane)
        words = f" and thresholds of {plural(len(thresholds), 'run')}" if thresholds else ""
        sys.stderr.write(f"wrote {plural(len(values), 'program')}{words} to {self.path}\n")
        return baseline


def accepted_path(suite: Path, profile: str) -> Path:
    """The file of a suite's accepted results: in manifests/accepted/ for a shipped suite, else beside the
    suite."""
    if suite.parent == MANIFESTS / "suites":
        return MANIFESTS / "accepted" / f"{suite.stem}-{profile}.json"
    return suite.with_name(f"{suite.stem}.accepted-{profile}.json")


def load_baseline(suite: Path, profile: str, lane: str) -> Baseline:
    return baseline_in(load_accepted(accepted_path(suite, profile)), lane)


def baseline_in(accepted: Accepted, lane: str) -> Baseline:
    programs = {
        subject.removeprefix(f"{lane}/"): recorded_of(accepted, subject)
        for subject in accepted.subjects
        if subject.count("/") == 3 and _run_of(subject, lane)
    }
    return Baseline(accepted.path, programs, lane)


def accepted_thresholds(suite: Path, profile: str, lane: str) -> defaultdict[str, Thresholds]:
    """The accepted thresholds of each run. A run without any in this profile gets those of the default
    profile."""
    thresholds: defaultdict[str, Thresholds] = defaultdict(Thresholds)
    figures = {row: name for name, row in THRESHOLD_NAMES.items()}
    for path in dict.fromkeys(accepted_path(suite, name) for name in (DEFAULT_PROFILE, profile)):
        for subject, values in load_accepted(path).subjects.items():
            own, _, run = subject.partition("/")
            if own == lane and run.count("/") == 1:
                fields = {figures.get(name, f"{name} of a run"): value for name, value in values.items()}
                thresholds[run] = parse(fields, Thresholds, path, partial(add, (subject,)))
    return thresholds


def recorded_of(accepted: Accepted, subject: str) -> Recorded:
    values = accepted.of(subject)
    figures = {name: value for name, value in values.items() if name in FIGURES}
    fields = {name: value for name, value in values.items() if name not in FIGURES}
    return parse({**fields, "accuracy": figures}, Recorded, accepted.path, lambda place: (subject, place[-1]))


def _run_of(subject: str, lane: str) -> str | None:
    """The run of a subject, or None if the subject belongs to another lane."""
    own, *words = subject.split("/")
    return "/".join(words[:2]) if own == lane else None


@cache
def load_tolerances() -> Tolerances:
    return load(MANIFESTS / "accepted" / "tolerances.toml", Tolerances)


def accepted_costs(costs: Mapping[str, float], build_id: str, agreed: Recorded | None) -> dict[str, Metric]:
    """The accepted costs for the row of a report. If another build was accepted, they name it."""
    if agreed is None:
        return {"baseline": {}}
    build = {} if agreed.build_id == build_id else {"baseline_build_id": agreed.build_id or "unknown"}
    return {"baseline": {name: agreed.cost(name) for name in costs}, **build}


def growth(
    program: str,
    costs: Mapping[str, float],
    build_id: str,
    agreed: Recorded | None,
    tolerances: Tolerances,
    again: Fix,
) -> Iterator[Finding]:
    """Yield a finding for each cost that exceeds the accepted one by more than its tolerance. The command
    `again` accepts them."""
    if agreed is None or all(agreed.cost(name) is None for name in COSTS):
        message = "no accepted result of it to compare with"
        yield Finding("cost-no-baseline", Severity.WARNING, program, message, again)
        return
    origin = "" if build_id == agreed.build_id else f", of QNN {agreed.build_id or 'unknown'}"
    for name, value in costs.items():
        tolerance, before = tolerances.costs.get(name), agreed.cost(name)
        if tolerance is None or before is None or value <= tolerance.most(before):
            continue
        now = f" with QNN {build_id}" if origin else ""
        message = (
            f"expected at most {tolerance.most(before):,.0f} {COSTS[name].description} "
            f"({before:,.0f} in the baseline{origin}), found {value:,.0f}{now}"
        )
        fix = Fix("see what changed in the graph; if you intend it, {}", again)
        yield Finding(cost_rule(name), Severity(tolerance.severity), program, message, fix)


NEAREST_DB = 100.0
"""The strictest threshold in dB: above it, one more bit of rounding would fail."""


def threshold_values(thresholds: Mapping[str, float]) -> Values:
    """The values that a file stores; a threshold that is None is left out."""
    return {row: thresholds.get(name) for name, row in THRESHOLD_NAMES.items()}


def derive_thresholds(
    names: Collection[str], rows: Sequence[Mapping[str, float]], margin_db: float
) -> dict[str, float]:
    """Each figure's threshold: the worst figure of all chips minus the margin, or NaN if a chip has no
    figure. Derived from the stored figures.

    A top-1 agreement of zero cannot be missed, so it gives no threshold."""
    rows = [round_figures(figures) for figures in rows]
    values = {}
    for name in names:
        measured = [figures.get(name, math.nan) for figures in rows]
        values[name] = _threshold(name, measured, margin_db)
    return {name: value for name, value in values.items() if name != "top1" or value}


def low_figures(
    figures: Mapping[str, float],
    margin_db: float,
    kind: str = "",
    *,
    demanded: Collection[str] = (),
    accepted: Mapping[str, float] = {},
) -> list[str]:
    """The figures whose threshold would be lower than what is required and than the accepted one. A figure
    that the suite demands is never among them."""
    bounds = required_of(kind)
    names = [name for name in bounds if name in figures and name not in demanded]
    if "slice_sqnr_db" in names and "slice_sqnr_db" not in below_floor(figures, kind):
        names.remove("slice_sqnr_db")
    thresholds = derive_thresholds(names, [figures], margin_db)
    return [
        name
        for name, value in thresholds.items()
        if not value >= min(bounds[name], accepted.get(name, math.inf))
    ]


def _threshold(name: str, values: Sequence[float], margin_db: float) -> float:
    if not all(map(math.isfinite, values)):
        return math.nan
    if name.endswith("sqnr_db"):
        return max(0.0, _down(min(*values, NEAREST_DB) - margin_db, 1))
    return round_to_worse(name, (max if name in LESS_IS_BETTER else min)(values))


def _down(value: float, digits: int) -> float:
    # Round first, because 0.3 - 0.1 is less than 0.2 in binary and would be cut to 0.1.
    return math.floor(round(value * 10.0**digits, 6)) / 10.0**digits
