"""What programs cost and how accurate they were when somebody last accepted the figures."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ci.suite.accuracy import FIGURES, at_worst
from ci.suite.costs import TITLES, cost_rule
from ci.suite.suite_file import accepted_path
from provisioning.base.accepted import Accepted, Values, accept, load_accepted
from provisioning.base.commands import Fix
from provisioning.base.documents import Model, load, parse
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Finding, Severity
from provisioning.base.rendering.text import plural
from provisioning.base.settings import MANIFESTS


class Costs(Model):
    """One program's costs; None if not measured. Titles are for tables, descriptions for messages."""

    ddr_read: int | None = Field(None, title=TITLES["ddr_read"], description="bytes read from DDR")
    ddr_written: int | None = Field(None, title=TITLES["ddr_written"], description="bytes written to DDR")
    ddr_spilled: int | None = Field(None, title=TITLES["ddr_spilled"], description="bytes spilled to DDR")
    ddr_filled: int | None = Field(None, title=TITLES["ddr_filled"], description="bytes filled from DDR")
    pte_bytes: int | None = Field(None, title=TITLES["pte_bytes"], description="bytes of the .pte")
    context_bytes: int | None = Field(
        None, title=TITLES["context_bytes"], description="bytes of the context and its .onnx"
    )
    cpu_seconds: float | None = Field(None, title=TITLES["cpu_seconds"], description="seconds of compiling")
    estimate_us: int | None = Field(
        None, title=TITLES["estimate_us"], description="microseconds by QNN's estimate for a chip"
    )


COSTS = Costs.model_fields
"""The only list of costs: tolerances, baselines, findings and the page use these names."""


def _is_cost(name: str) -> str:
    if name not in COSTS:
        raise ValueError(f"one of {', '.join(COSTS)}")
    return name


CostName = Annotated[str, AfterValidator(_is_cost), Field(json_schema_extra={"enum": list(COSTS)})]


class Tolerance(Model):
    """A cost may grow by the part `relative` and by `absolute` on top."""

    relative: Annotated[float, Field(ge=0)]
    absolute: Annotated[float, Field(ge=0)] = 0
    severity: Literal["error", "warning", "note"] = "error"
    same_build: bool = False
    """Whether figures of two QNN builds are not compared."""

    def most(self, agreed: float) -> float:
        return agreed * (1 + self.relative) + self.absolute


class Tolerances(Model):
    schema_: Literal[1] = Field(alias="schema")
    costs: dict[CostName, Tolerance]
    sqnr_margin_db: Annotated[float, Field(gt=0)]
    """Thresholds are the measured figures less this margin."""
    cross_check_db: Annotated[float, Field(gt=0)]
    """How much the SQNR of the same model may differ between the lanes."""


Failed = Literal["", "bad_test", "wrong", "dies", "crash"]


class Recorded(Costs):
    """The accepted figures of one program."""

    build_id: str = ""
    """The QNN that compiled it."""
    accuracy: dict[str, float] = Field(default_factory=dict)
    """In a file, each figure is a value of its own."""
    reason: str = ""
    """Why a lower top-1 agreement was accepted, or a threshold below what is required."""
    peak_mb: int | None = None
    run_seconds: float | None = None
    refused: tuple[str, ...] = ()
    """Operators that QNN does not take, as the suite says of this program."""
    taken: tuple[str, ...] = ()
    """The program's others."""
    failed: Failed = ""
    """How a program went wrong whose failures are results."""
    message: str = ""
    """The first line of that failure, without what differs from run to run."""
    estimated: tuple[str, ...] = ()
    """Counts of operators in a shape, of a program whose time QNN estimated."""
    in_float: bool = False
    """Whether nothing of a program with floats was quantized, although its precision says so."""
    draws: tuple[dict[str, float], ...] = ()
    """The figures of each sample by itself, of a program whose every result is recorded."""

    def cost(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value

    def updated(self, fields: Mapping[str, object]) -> Recorded:
        """With these fields, among them `build_id`. Fields measured with another build are dropped."""
        same = self.build_id == fields["build_id"]
        kept = self if same else Recorded(**{name: getattr(self, name) for name in KEPT})
        return kept.model_copy(update=dict(fields))

    @property
    def values(self) -> Values:
        """As a file has them; None is not there."""
        absent = dict.fromkeys([*FIGURES, *Recorded.model_fields])
        values = self.model_dump(mode="json", exclude_defaults=True, exclude={"accuracy"})
        return {**absent, **values, **self.accuracy}


KEPT = ("peak_mb", "run_seconds", "reason")
"""What is kept when another build compiles the program: time estimates, and the reason."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was accepted of the programs of one lane."""

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
        """With these fields of programs and thresholds of runs, and without runs that the suite does not have
        any more; also on disk.

        Chips do not matter, because --soc may name others than the suite."""

        def change(accepted: Accepted) -> Accepted:
            before = baseline_in(accepted, self.lane)
            changes = {
                name: (before.of(name) or Recorded()).updated(fields).values
                for name, fields in values.items()
            }
            kept = accepted.only(lambda subject: _run_of(subject, self.lane) in {None, *runs})
            rows = {**changes, **thresholds}
            return kept.updated({f"{self.lane}/{name}": row for name, row in rows.items()})

        updated = baseline_in(accept(self.path, change), self.lane)
        held = f" and thresholds of {plural(len(thresholds), 'run')}" if thresholds else ""
        sys.stderr.write(f"wrote {plural(len(values), 'program')}{held} to {self.path}\n")
        return updated

    def reasons(
        self,
        figures: Mapping[str, Mapping[str, float]],
        reason: str,
        again: str,
        low: Mapping[str, Collection[str]] = {},
    ) -> dict[str, str]:
        """The reason to keep of each program of which another one is to be kept than is. A lower top-1
        agreement needs one, and so does a figure that is in `low`, because its threshold is less than what is
        required of every program.

        Raises CheckFailed if there is none; `again` is the command that updates."""
        lost = {
            name: lost
            for name, values in figures.items()
            if (lost := self._lost(name, values, low.get(name, ())))
        }
        if lost and not reason:
            named = "; ".join(
                f"{name} ({', '.join(f'{figure} {value:g}' for figure, value in values.items())})"
                for name, values in lost.items()
            )
            raise CheckFailed(
                f"{plural(len(lost), 'program')} with less than is required, or than was agreed to: {named}",
                fix=Fix("find out why; if you intend it, {} --reason TEXT", again),
            )
        better = (
            name for name, values in figures.items() if not low.get(name) and self._better_top1(name, values)
        )
        return dict.fromkeys(better, "") | dict.fromkeys(lost, reason)

    def _lost(self, name: str, figures: Mapping[str, float], low: Collection[str]) -> dict[str, float]:
        recorded = self.programs.get(name, Recorded())
        lost = {}
        for figure, value in figures.items():
            if figure != "top1" and figure not in low:
                continue
            margin = load_tolerances().sqnr_margin_db if figure.endswith("_db") else 0
            unexplained = not recorded.reason and (value == 0 or figure in low)
            if unexplained or round(value + margin, 6) < recorded.accuracy.get(figure, value):
                lost[figure] = value
        return lost

    def _better_top1(self, name: str, figures: Mapping[str, float]) -> bool:
        recorded = self.programs.get(name, Recorded())
        return at_worst("top1", figures.get("top1", 0.0)) > recorded.accuracy.get("top1", 0.0)


def load_baseline(suite: Path, profile: str, lane: str) -> Baseline:
    return baseline_in(load_accepted(accepted_path(suite, profile)), lane)


def baseline_in(accepted: Accepted, lane: str) -> Baseline:
    programs = {
        subject.removeprefix(f"{lane}/"): recorded_of(accepted, subject)
        for subject in accepted.subjects
        if subject.count("/") == 3 and _run_of(subject, lane)
    }
    return Baseline(accepted.path, programs, lane)


def recorded_of(accepted: Accepted, subject: str) -> Recorded:
    values = accepted.of(subject)
    figures = {name: value for name, value in values.items() if name in FIGURES}
    others = {name: value for name, value in values.items() if name not in FIGURES}
    return parse({**others, "accuracy": figures}, Recorded, accepted.path, lambda place: (subject, place[-1]))


def _run_of(subject: str, lane: str) -> str | None:
    """None if it is one of another lane."""
    own, *words = subject.split("/")
    return "/".join(words[:2]) if own == lane else None


@cache
def load_tolerances() -> Tolerances:
    return load(MANIFESTS / "accepted" / "tolerances.toml", Tolerances)


def beside(costs: Mapping[str, float], build_id: str, agreed: Recorded | None) -> dict[str, Any]:
    """The accepted costs, for the row of a report, with their build if it is another."""
    if agreed is None:
        return {"baseline": {}}
    other = {} if agreed.build_id == build_id else {"baseline_build_id": agreed.build_id or "unknown"}
    return {"baseline": {name: agreed.cost(name) for name in costs}, **other}


def growth(
    program: str,
    costs: Mapping[str, float],
    build_id: str,
    baseline: Baseline,
    tolerances: Tolerances,
    again: Fix,
) -> Iterator[Finding]:
    """Costs above the baseline and its tolerances; the command `again` accepts them."""
    agreed = baseline.of(program)
    if agreed is None or all(agreed.cost(name) is None for name in COSTS):
        message = f"{baseline.path.name} has nothing to compare with"
        yield Finding("cost-no-baseline", Severity.WARNING, program, message, again)
        return
    other = "" if build_id == agreed.build_id else f", of QNN {agreed.build_id or 'unknown'}"
    for name, value in costs.items():
        tolerance, before = tolerances.costs.get(name), agreed.cost(name)
        if tolerance is None or before is None or value <= tolerance.most(before):
            continue
        if tolerance.same_build and build_id != agreed.build_id:
            continue
        now = f" with QNN {build_id}" if other else ""
        message = (
            f"expected at most {tolerance.most(before):,.0f} {COSTS[name].description} "
            f"({before:,.0f} in the baseline{other}), found {value:,.0f}{now}"
        )
        fix = Fix("see what changed in the graph; if you intend it, {}", again)
        yield Finding(cost_rule(name), Severity(tolerance.severity), program, message, fix)
