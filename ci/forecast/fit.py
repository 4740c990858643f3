"""`forecast fit`: compile the models that phones measured, fit constants, judge each model left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.jobs import Job, shard_named
from ci.forecast import hub
from ci.forecast.fitting import Row, errors_of, fitted, left_out, quantile, rank_correlation
from ci.forecast.hub import Measured
from ci.lanes.onnx.compile import plan_of, require_installed
from ci.lanes.onnx.forecast import EstimateOnnx
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.pipeline.forecast import (
    ACCEPTED,
    BY,
    PRECISIONS,
    PROGRAMS,
    SCALE,
    LaneFit,
    PhoneFit,
    estimate_for,
    reason_to_withhold,
)
from ci.pipeline.options import WorkOptions
from ci.pipeline.phones import MANIFEST, FittedModel, Forecasts, load_forecasts
from ci.pipeline.steps import run_step
from provisioning.base.accepted import Accepted, Values, accept
from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.findings import Metric, Severity
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun
from provisioning.store import Store

LANE = "onnx"
BARS = {"float": (0.08, 0.15), "all": (0.12, 0.25)}
"""Median and 80th percentile that a phone's forecasts should keep."""
LOOSER = {("float", phone): (0.10, 0.20) for phone in ("Galaxy S26", "X Elite")}
LEAST_MODELS = 12
"""Of a precision with fewer models nothing is fitted."""
MARGIN = 1.5
"""By how much a new model's estimate may exceed what was fitted, and its ratio of two chips be stranger."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    selection: Selection
    work: WorkOptions
    words: tuple[str, ...]
    shard: str
    without: tuple[str, ...]
    accept: bool
    list_only: bool


@dataclass(frozen=True, slots=True)
class JudgedPhone:
    """A phone's rows, its constants, and the forecast of each row by constants fitted without its model."""

    phone: str
    rows: Sequence[Row]
    fit: PhoneFit
    guesses: Sequence[float]

    def of(self, precision: str) -> list[float]:
        """The errors of one precision; of all for `all`."""
        pairs = zip(self.rows, errors_of(self.rows, self.guesses), strict=True)
        return [error for row, error in pairs if precision in (row.precision, "all")]


def fit_forecasts(options: FitOptions) -> int:
    """Returns the exit code."""
    table, selection = load_forecasts(), options.selection
    stage = StageRun.as_typed("forecast", selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "forecast-not-fitted"):
        require_installed()
        measured = _measured(table, selection.store)
        programs = _chosen(_programs(table, measured, options.without), options)
        if options.list_only:
            print("\n".join(program.name for program in programs))
            return 0
        plan = plan_of(programs, selection, options.work)
        results = run_step(EstimateOnnx(plan, chips=table.chips), programs)
        for name, result in results.items():
            if failure := result.failure:
                stage.add("forecast-not-compiled", Severity.WARNING, name, failure.message, failure.fix)
        facts = {name: result.facts for name, result in results.items() if not result.failure}
        if options.shard:
            stage.metrics |= {"estimated": len(facts), "selected": len(programs)}
        else:
            _fit(stage, table, facts, measured, accepting=options.accept)
    return stage.close(selection.reports)


def _measured(table: Forecasts, store: Path) -> dict[tuple[str, str], dict[str, Measured]]:
    """By model and precision, then by phone, what was measured with the table's runtime."""
    root = hub.tables(table, Store(store))
    phones = {phone.device: name for name, phone in table.phones.items()}
    found: dict[tuple[str, str], dict[str, Measured]] = defaultdict(dict)
    for model in dict.fromkeys(name.partition(" ")[0] for name in table.models):
        for row in hub.measurements(root, model):
            if row.runtime == table.runtime and row.device in phones and not row.off_npu:
                found[row.name, row.precision][phones[row.device]] = row
    return found


def _programs(
    table: Forecasts, measured: Mapping[tuple[str, str], Any], without: Sequence[str]
) -> list[OnnxProgram]:
    if unknown := [name for name in without if name not in table.models]:
        raise UsageError(
            f"--without {unknown[0]}: {MANIFEST.name} has no such model", fix="nox -s forecast -- fit --list"
        )
    return [
        _program(name, model, ours)
        for name, model in table.models.items()
        for ours, theirs in PRECISIONS.items()
        if name not in without and (name, theirs) in measured
    ]


def _program(name: str, model: FittedModel, precision: str) -> OnnxProgram:
    run = OnnxRun(precision=precision, calibration=1, socs=("QCS9100",), label=PRECISIONS[precision])
    case = OnnxCase(
        factory="ci.forecast.models:as_onnx",
        arguments={"row": model.model_dump_json()},
        inferences=1,
        run=(run,),
    )
    return OnnxProgram(MANIFEST, name.replace(" ", "."), case, run, "QCS9100")


def _chosen(programs: Sequence[OnnxProgram], options: FitOptions) -> list[OnnxProgram]:
    from ci.pipeline.expression import matcher

    chosen = [program for program in programs if not options.words or matcher(options.words)(program.name)]
    if options.shard:
        mine = {job.name for job in shard_named([Job(program.name) for program in chosen], options.shard)}
        chosen = [program for program in chosen if program.name in mine]
    if not chosen:
        raise UsageError("no model is left", fix=session("forecast", "fit", "--list"))
    return chosen


def _fit(
    stage: StageRun,
    table: Forecasts,
    facts: Mapping[str, Mapping[str, Any]],
    measured: Mapping[tuple[str, str], Mapping[str, Measured]],
    *,
    accepting: bool,
) -> None:
    estimates = {
        (name, theirs): estimate
        for name in table.models
        for theirs in PRECISIONS.values()
        if (estimate := facts.get(f"{name.replace(' ', '.')}/{theirs}/QCS9100"))
    }
    limits = limits_of(estimates, table)
    withheld = {
        key: reason
        for key, estimate in estimates.items()
        if (reason := reason_to_withhold(estimate, limits, table))
    }
    kept = {key: estimate for key, estimate in estimates.items() if key not in withheld}
    judged = [found for phone in table.phones if (found := judge(phone, kept, measured, table))]
    rows: dict[str, Metric] = {}
    for of_phone in judged:
        rows |= _rows_of(stage, of_phone)
    for (name, precision), reason in withheld.items():
        stage.add("forecast-withheld", Severity.NOTE, f"{name}/{precision}", reason, "")
    stage.metrics |= {"programs": len(estimates), "withheld": len(withheld), "phones": rows}
    if accepting:
        _accept(limits, judged, table)


def limits_of(estimates: Mapping[tuple[str, str], Mapping[str, Any]], table: Forecasts) -> LaneFit:
    """Within which a new model is like those that were fitted."""
    first, second = table.chips
    whole = [estimate for estimate in estimates.values() if first in estimate["estimates"]]
    times = [row["estimates"][first]["us"] for row in whole]
    ratios = sorted(
        row["estimates"][second]["us"] / row["estimates"][first]["us"]
        for row in whole
        if second in row["estimates"]
    )
    # The outermost of a hundred are strange themselves.
    edge = len(ratios) // 50
    return LaneFit(
        build_id=str(next(iter(whole))["build_id"]),
        phones={},
        least_us=min(times) / MARGIN,
        most_us=max(times) * MARGIN,
        least_ratio=round(ratios[edge] / MARGIN, 3),
        most_ratio=round(ratios[-1 - edge] * MARGIN, 3),
        operators=frozenset(name for row in whole for name in row["operators"]),
    )


def judge(
    phone: str,
    estimates: Mapping[tuple[str, str], Mapping[str, Any]],
    measured: Mapping[tuple[str, str], Mapping[str, Measured]],
    table: Forecasts,
) -> JudgedPhone | None:
    """Of the precisions of which enough was measured; None where none is left."""
    found = [
        Row(name, precision, estimate_for(table.phones[phone], estimate, table), row.milliseconds * 1000)
        for (name, precision), estimate in estimates.items()
        if (row := measured[name, precision].get(phone))
    ]
    models = Counter(precision for precision, _ in {(row.precision, row.model) for row in found})
    rows = [row for row in found if models[row.precision] >= LEAST_MODELS]
    if not rows:
        return None
    guesses = left_out(rows)
    errors = errors_of(rows, guesses)
    p80 = {
        precision: round(quantile(mine, 0.8), 3)
        for precision in PRECISIONS.values()
        if (mine := [error for row, error in zip(rows, errors, strict=True) if row.precision == precision])
    }
    return JudgedPhone(phone, rows, PhoneFit(fitted(rows), p80), guesses)


def _rows_of(stage: StageRun, judged: JudgedPhone) -> dict[str, Metric]:
    """The report's row of a phone, with a warning for each bar that it misses."""
    row: dict[str, Metric] = {}
    for precision in (*PRECISIONS.values(), "all"):
        if not (errors := judged.of(precision)):
            continue
        median, p80 = quantile(errors, 0.5), quantile(errors, 0.8)
        row[precision] = {"programs": len(errors), "median": round(median, 3), "p80": round(p80, 3)}
        bar = LOOSER.get((precision, judged.phone)) or BARS.get(precision)
        if bar and (median > bar[0] or p80 > bar[1]):
            stage.add(
                "forecast-bar",
                Severity.WARNING,
                f"{judged.phone} {precision}",
                f"expected errors of at most {bar[0]:.0%} (median) and {bar[1]:.0%} (80th percentile), found"
                f" {median:.1%} and {p80:.1%}",
                "look at the models that are farthest off in the report",
            )
    measured = [row.measured for row in judged.rows]
    row["rank"] = round(rank_correlation(measured, judged.guesses), 3)
    return {judged.phone: row}


def by_other(judged: JudgedPhone, other: JudgedPhone) -> list[float]:
    """Errors of a phone's forecasts once another phone's measurement of the same program corrects them."""
    known = {
        (row.model, row.precision): row.measured / guess
        for row, guess in zip(other.rows, other.guesses, strict=True)
    }
    pairs = [
        (row, guess * known[row.model, row.precision])
        for row, guess in zip(judged.rows, judged.guesses, strict=True)
        if (row.model, row.precision) in known
    ]
    return errors_of([row for row, _ in pairs], [guess for _, guess in pairs])


def _accept(limits: LaneFit, judged: Sequence[JudgedPhone], table: Forecasts) -> None:
    values: dict[str, Values] = {
        LANE: {
            "qnn": limits.build_id,
            "wheel": f"{table.wheel.version} {table.wheel.sha256}",
            "least_us": round(limits.least_us, 1),
            "most_us": round(limits.most_us, 1),
            "least_ratio": limits.least_ratio,
            "most_ratio": limits.most_ratio,
            "operators": " ".join(sorted(limits.operators)),
        }
    }
    for row in judged:
        fit = row.fit
        values[f"{LANE}/{row.phone}"] = {
            **{precision + SCALE: float(f"{scale:.5g}") for precision, scale in fit.scales.items()},
            **{f"{precision}.p80": error for precision, error in fit.errors.items()},
            **{f"{precision}.programs": len(row.of(precision)) for precision in fit.errors},
            **{
                f"{BY}{other.phone.replace(' ', '_')}.p80": round(quantile(by_other(row, other), 0.8), 3)
                for other in judged
                if other is not row
            },
        }

    values |= {
        f"{PROGRAMS}/{of_phone.phone}/{row.model.replace('/', ' ')}/{row.precision}": {
            "measured_us": round(row.measured),
            "forecast_us": round(guess),
        }
        for of_phone in judged
        for row, guess in zip(of_phone.rows, of_phone.guesses, strict=True)
    }

    def change(before: Accepted) -> Accepted:
        mine = before.only(lambda subject: subject.partition("/")[0] not in (LANE, PROGRAMS))
        return mine.updated(values)

    accept(ACCEPTED, change)
