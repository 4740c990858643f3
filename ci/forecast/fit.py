"""`forecast fit`: compile the models that phones measured, fit constants, judge each model left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.jobs import Job
from ci.forecast import hub
from ci.forecast.compiled import LANES, Estimates, FittedProgram, Name, programs_of
from ci.forecast.fitting import Row, errors_of, fitted, left_out, quantile, rank_correlation
from ci.forecast.hub import Measured
from ci.pipeline.forecast import (
    ACCEPTED,
    BETWEEN,
    BY,
    ESTIMATES,
    PRECISIONS,
    PROGRAMS,
    SCALE,
    LaneFit,
    PhoneFit,
    estimates_in,
    load_fit,
    reason_to_withhold,
)
from ci.pipeline.options import WorkOptions
from ci.pipeline.phones import MANIFEST, Forecasts, load_forecasts
from ci.pipeline.shards import shard_named
from provisioning.base.accepted import Accepted, Values, accept, load_accepted
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Metric, Severity
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import StageRun
from provisioning.build_id import version_in
from provisioning.store import Store

Facts = Mapping[str, Any]
"""What a lane's compiles of one program gave (`ci.pipeline.forecast.forecast`)."""

Pair = tuple[float, float]
"""What QNN estimates for the older chip and the newer one, in microseconds."""

WITHHELD = "withheld"
AGAIN = "nox -s forecast -- fit --accept"
BARS = {"float": (0.08, 0.15), "all": (0.12, 0.25)}
"""Median and 80th percentile that a phone's forecasts should keep."""
LOOSER = {("float", phone): (0.10, 0.20) for phone in ("Galaxy S26", "X Elite")}
MOST_WITHHELD = 0.1
LEAST_MODELS = 12
"""Of a precision with fewer models nothing is fitted."""
MARGIN = 1.5
"""By how much a new model's estimate may exceed what was fitted, and its ratio of two chips be stranger."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    selection: Selection
    work: WorkOptions
    lane: str
    kept: bool
    """Compile only what has no accepted estimate, or what `words` name; the others' accepted ones count."""
    words: tuple[str, ...]
    shard: str
    without: tuple[str, ...]
    accept: bool
    list_only: bool


@dataclass(frozen=True, slots=True)
class OfPrograms:
    """Programs by what forecasts of them rest on, and why others have none."""

    estimates: Mapping[Name, Pair]
    withheld: Mapping[Name, str]

    @property
    def names(self) -> set[Name]:
        return {*self.estimates, *self.withheld}


@dataclass(frozen=True, slots=True)
class Fitting:
    """What a lane's constants are fitted to."""

    lane: str
    table: Forecasts
    measured: Mapping[Name, Mapping[str, Measured]]


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
    table, selection, lane = load_forecasts(), options.selection, options.lane
    stage = StageRun.as_typed("forecast", selection.profile, DEFAULT_TARGET)
    with stage.reported(selection.reports, "forecast-not-fitted"):
        measured = _measured(table, lane, selection.store)
        kept = _kept(lane, table) if options.kept else OfPrograms({}, {})
        programs = _chosen(table, measured, kept.names, options)
        if options.list_only:
            print("\n".join(map(str, programs)))
            return 0
        found = LANES[lane](programs, table, selection, options.work) if programs else Estimates({}, {})
        for (model, precision), failure in found.failures.items():
            name = f"{model}/{precision}"
            stage.add("forecast-not-compiled", Severity.WARNING, name, failure.message, failure.fix)
        if options.shard:
            stage.metrics |= {"estimated": len(found.facts), "selected": len(programs)}
        else:
            fitting = Fitting(lane, table, measured)
            _fit(stage, fitting, together(kept, found, fitting), options)
    return stage.close(selection.reports)


def _measured(table: Forecasts, lane: str, store: Path) -> dict[Name, dict[str, Measured]]:
    """By program, then by phone, what was measured with the lane's runtime."""
    root, runtime = hub.tables(table, Store(store)), table.lanes[lane].runtime
    phones = {phone.device: name for name, phone in table.phones.items()}
    found: dict[Name, dict[str, Measured]] = defaultdict(dict)
    for model in dict.fromkeys(name.partition(" ")[0] for name in table.models):
        for row in hub.measurements(root, model):
            if row.runtime == runtime and row.device in phones and not row.off_npu:
                found[row.name, row.precision][phones[row.device]] = row
    return found


def _kept(lane: str, table: Forecasts) -> OfPrograms:
    """What was accepted of programs, of the QNN build that the constants are of."""
    accepted, begin = load_accepted(ACCEPTED, AGAIN), f"{lane}{ESTIMATES}/"
    estimates, withheld = dict[Name, Pair](), dict[Name, str]()
    for subject in accepted.subjects:
        model, _, precision = subject.removeprefix(begin).partition("/")
        if not subject.startswith(begin) or model not in table.models:
            continue
        values = accepted.of(subject)
        if reason := values.get(WITHHELD):
            withheld[model, precision] = str(reason)
        else:
            first, second = (float(str(values[chip])) for chip in table.chips)
            estimates[model, precision] = first, second
    return OfPrograms(estimates, withheld)


def _chosen(
    table: Forecasts,
    measured: Mapping[Name, Any],
    kept: Collection[Name],
    options: FitOptions,
) -> list[FittedProgram]:
    from ci.pipeline.expression import matcher

    if unknown := [name for name in options.without if name not in table.models]:
        raise UsageError(
            f"--without {unknown[0]}: {MANIFEST.name} has no such model", fix="nox -s forecast -- fit --list"
        )
    chosen = [
        program
        for program in programs_of(table, options.lane, measured)
        if program.name[0] not in options.without
        and (matcher(options.words)(str(program)) if options.words else program.name not in kept)
    ]
    if options.shard:
        mine = {job.name for job in shard_named([Job(str(program)) for program in chosen], options.shard)}
        chosen = [program for program in chosen if str(program) in mine]
    if not chosen and not kept:
        raise UsageError("no model is left", fix=session("forecast", "fit", "--list"))
    return chosen


def together(kept: OfPrograms, found: Estimates, fitting: Fitting) -> tuple[LaneFit, OfPrograms]:
    """The limits, and all programs, sorted by these. Limits are of all programs, so with some of them it is
    the accepted ones that count."""
    limits = load_fit(fitting.lane) if kept.names else limits_of(found.facts, fitting.table)
    assert limits is not None
    for facts in found.facts.values():
        if (build := str(facts["build_id"])) != limits.build_id:
            raise UsageError(
                f"--kept: what was accepted is of QNN {version_in(limits.build_id)}, and this is"
                f" {version_in(build)}",
                fix="leave --kept out, so that all is compiled by one build",
            )
    withheld = {
        name: reason
        for name, facts in found.facts.items()
        if (reason := reason_to_withhold(facts, limits, fitting.table))
    }
    estimates = {
        name: estimates_in(facts, fitting.table)
        for name, facts in found.facts.items()
        if name not in withheld
    }
    known = {name: pair for name, pair in kept.estimates.items() if name not in withheld}
    why = {name: reason for name, reason in kept.withheld.items() if name not in estimates}
    return limits, OfPrograms({**known, **estimates}, {**why, **withheld})


def _fit(stage: StageRun, fitting: Fitting, found: tuple[LaneFit, OfPrograms], options: FitOptions) -> None:
    limits, programs = found
    without = {name: pair for name, pair in programs.estimates.items() if name[0] in options.without}
    judged = judge({name: pair for name, pair in programs.estimates.items() if name not in without}, fitting)
    rows: dict[str, Metric] = {}
    for of_phone in judged:
        row = _row_of(stage, of_phone)
        if errors := errors_without(without, of_phone, fitting):
            row["without"] = _figures(errors)
        rows[of_phone.phone] = row
    for (model, precision), reason in programs.withheld.items():
        stage.add("forecast-withheld", Severity.NOTE, f"{model}/{precision}", reason, "")
    share = len(programs.withheld) / len(programs.names)
    if share > MOST_WITHHELD:
        message = f"expected at most {MOST_WITHHELD:.0%} of programs without a forecast, found {share:.0%}"
        fix = "look at the reasons in the report"
        stage.add("forecast-bar", Severity.WARNING, "withheld", message, fix)
    stage.metrics |= {
        "lane": fitting.lane,
        "programs": len(programs.names),
        "withheld": len(programs.withheld),
        "phones": rows,
    }
    if options.accept and not judged:
        raise UsageError(
            f"no precision has the {LEAST_MODELS} models that a fit needs",
            fix=session("forecast", "fit", "--list"),
        )
    if options.accept:
        _accept(limits, judged, programs, fitting)


def errors_without(estimates: Mapping[Name, Pair], judged: JudgedPhone, fitting: Fitting) -> list[float]:
    """Of models that --without names, by the constants of the others."""
    fit = judged.fit
    return [
        abs(fit.scales[name[1]] * fit.between.of(*pair) / (1000 * row.milliseconds) - 1)
        for name, pair in estimates.items()
        if (row := fitting.measured[name].get(judged.phone)) and name[1] in fit.scales
    ]


def limits_of(facts: Mapping[Name, Facts], table: Forecasts) -> LaneFit:
    """Within which a new model is like those that were fitted."""
    first, second = table.chips
    whole = [found for found in facts.values() if _whole(found, table)]
    if not whole:
        raise CheckFailed(
            f"no program has an estimate for {first} and for {second}",
            fix="look at what did not compile in the report, or choose others: -k EXPR",
        )
    times = [found["estimates"][first]["us"] for found in whole]
    least, most = ratios_of([estimates_in(found, table) for found in whole])
    return LaneFit(
        build_id=str(next(iter(whole))["build_id"]),
        phones={},
        least_us=min(times) / MARGIN,
        most_us=max(times) * MARGIN,
        least_ratio=least,
        most_ratio=most,
        operators=frozenset(name for found in whole for name in found["operators"]),
    )


def ratios_of(pairs: Sequence[Pair]) -> tuple[float, float]:
    """The least and the most that the newer chip may take of the older one's time."""
    ratios = sorted(newer / older for older, newer in pairs)
    # The outermost of a hundred are strange themselves.
    edge = len(ratios) // 50
    return round(ratios[edge] / MARGIN, 3), round(ratios[-1 - edge] * MARGIN, 3)


def _whole(facts: Facts, table: Forecasts) -> bool:
    return all(chip in facts["estimates"] for chip in table.chips)


def judge(estimates: Mapping[Name, Pair], fitting: Fitting) -> list[JudgedPhone]:
    """Of each phone the precisions of which enough was measured; phones without any are left out."""
    table, hexagons = fitting.table, defaultdict[str, dict[str, list[Row]]](dict)
    for phone, about in table.phones.items():
        found = [
            Row(*name, *pair, row.milliseconds * 1000)
            for name, pair in estimates.items()
            if (row := fitting.measured[name].get(phone))
        ]
        models = Counter(precision for precision, _ in {(row.precision, row.model) for row in found})
        if rows := [row for row in found if models[row.precision] >= LEAST_MODELS]:
            hexagons[about.hexagon][phone] = rows
    judged = {}
    for phones in hexagons.values():
        constants, guesses = fitted(phones), left_out(phones)
        for phone, rows in phones.items():
            by_precision = defaultdict[str, list[float]](list)
            for program, error in zip(rows, errors_of(rows, guesses[phone]), strict=True):
                by_precision[program.precision].append(error)
            p80 = {name: round(quantile(errors, 0.8), 3) for name, errors in by_precision.items()}
            fit = PhoneFit(constants.between, constants.scales[phone], p80)
            judged[phone] = JudgedPhone(phone, rows, fit, guesses[phone])
    return [judged[phone] for phone in table.phones if phone in judged]


def _row_of(stage: StageRun, judged: JudgedPhone) -> dict[str, Metric]:
    """The report's row of a phone, with a warning for each bar that it misses."""
    row: dict[str, Metric] = {}
    for precision in (*PRECISIONS.values(), "all"):
        if not (errors := judged.of(precision)):
            continue
        row[precision] = _figures(errors)
        median, p80 = quantile(errors, 0.5), quantile(errors, 0.8)
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
    return row


def _figures(errors: Sequence[float]) -> Metric:
    median, p80 = (round(quantile(errors, part), 3) for part in (0.5, 0.8))
    return {"programs": len(errors), "median": median, "p80": p80}


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


def _accept(limits: LaneFit, judged: Sequence[JudgedPhone], programs: OfPrograms, fitting: Fitting) -> None:
    lane, wheel = fitting.lane, fitting.table.wheel
    values: dict[str, Values] = {
        lane: {
            "qnn": limits.build_id,
            "wheel": f"{wheel.version} {wheel.sha256}",
            "least_us": round(limits.least_us, 1),
            "most_us": round(limits.most_us, 1),
            "least_ratio": limits.least_ratio,
            "most_ratio": limits.most_ratio,
            "operators": " ".join(sorted(limits.operators)),
        }
    }
    for row in judged:
        fit = row.fit
        values[f"{lane}/{row.phone}"] = {
            **{name: getattr(fit.between, name) for name in BETWEEN},
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
        f"{lane}{PROGRAMS}/{of_phone.phone}/{row.model.replace('/', ' ')}/{row.precision}": {
            "measured_us": round(row.measured),
            "forecast_us": round(guess),
        }
        for of_phone in judged
        for row, guess in zip(of_phone.rows, of_phone.guesses, strict=True)
    }
    values |= {
        f"{lane}{ESTIMATES}/{model}/{precision}": {
            chip: round(us) for chip, us in zip(fitting.table.chips, pair, strict=True)
        }
        for (model, precision), pair in programs.estimates.items()
    }
    values |= {
        f"{lane}{ESTIMATES}/{model}/{precision}": {WITHHELD: reason}
        for (model, precision), reason in programs.withheld.items()
    }

    def change(before: Accepted) -> Accepted:
        mine = before.only(
            lambda subject: subject.partition("/")[0] not in (lane, lane + PROGRAMS, lane + ESTIMATES)
        )
        return mine.updated(values)

    accept(ACCEPTED, change)
