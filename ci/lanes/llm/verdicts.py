"""Is it the same model? What is measured of logits and layers, what rounding alone explains, and what is
wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ci.lanes.llm.orders import Distance, MeasuredProgram, PartDistances, Trained, Window
from ci.lanes.llm.suite import SUITES, LlmProgram
from ci.models.arrays import Array
from ci.outcome import Result
from ci.plain import read
from ci.suite.findings import errors_of
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.units import in_decibels

STANDARD_ERRORS = 3
BOOTSTRAPS = 200
POINTS = 64
"""Of a line over the context, for the page."""
DIGITS = 5
"""Of each number of a token that is kept."""


def window_of(logits: Array, reference: Array, following: Sequence[int]) -> Window:
    ours, theirs = (_log_softmax(rows.astype(np.float64)) for rows in (logits, reference))
    places = np.arange(len(following))
    lost = reference.max(-1) - reference[places, logits.argmax(-1)]
    return Window(
        ours=_shortened(-ours[places, following]),
        theirs=_shortened(-theirs[places, following]),
        divergence=_shortened((np.exp(theirs) * (theirs - ours)).sum(-1)),
        # NaN is no first choice.
        lost=_shortened(np.where(np.isfinite(logits).all(-1), lost, np.inf)),
    )


def _shortened(values: Array) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def _log_softmax(rows: Array) -> Array:
    shifted = rows - rows.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def tie_of(exact: Sequence[Array], rounded: Sequence[Array]) -> float:
    """By how much rounding alone moves float's two best logits apart or together, at 99 of 100 places."""
    moved = []
    for rows, others in zip(exact, rounded, strict=True):
        places, two = np.arange(len(rows))[:, None], np.argpartition(rows, -2, -1)[:, -2:]
        change = (others - rows)[places, two]
        moved.append(np.abs(change[:, 0] - change[:, 1]))
    return float(np.quantile(np.concatenate(moved), 0.99))


Places = Mapping[str, Array]
"""The fields of windows, end to end."""
FIGURES: Mapping[str, Callable[[Places, float], float]] = {
    "first_choice": lambda read, tie: float((read["lost"] <= 0).mean()),
    "tied_choice": lambda read, tie: float((read["lost"] <= tie).mean()),
    "perplexity_ratio": lambda read, tie: float(np.exp((read["ours"] - read["theirs"]).mean())),
    "divergence": lambda read, tie: float(read["divergence"].mean()),
    "divergence_50": lambda read, tie: float(np.quantile(read["divergence"], 0.5)),
    "divergence_99": lambda read, tie: float(np.quantile(read["divergence"], 0.99)),
}
WORDS = {
    "first_choice": "top-1 agreement",
    "tied_choice": "top-1 agreement within a tie",
    "perplexity_ratio": "perplexity ratio",
    "divergence": "mean KL divergence",
    "divergence_50": "median KL divergence",
    "divergence_99": "99 % quantile of KL divergence",
}
HIGHER_IS_BETTER = frozenset(("first_choice", "tied_choice"))
DIVERGENCES = ("divergence", "divergence_50", "divergence_99")
READER_NAMES = {
    "prefill_htp": "prefill on HTP",
    "decode_htp": "decode on HTP",
    "prefill_cpu": "prefill on the CPU",
    "decode_cpu": "decode on the CPU",
    "prefill_htp_cpu": "prefill on HTP against the CPU",
    "decode_htp_cpu": "decode on HTP against the CPU",
    "prefill_genie": "Genie's prefill",
    "decode_genie": "Genie's decode",
}
"""Whose logits are compared with float's, or with those that `_cpu` names."""


SINGLE = "prefill_genie"
"""The reader of which each text has one place: the end of the prompt."""


def is_genies(reader: str) -> bool:
    return reader.endswith("_genie")


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    error: float
    """Its standard error, bootstrapped by window."""


Figures = Mapping[str, Figure]


def figures_of(windows: Sequence[Window], tie: float = 0.0) -> dict[str, Figure]:
    """First choices by which float loses at most `tie` logits agree within a tie."""
    every = [{name: np.array(values) for name, values in asdict(window).items()} for window in windows]

    def measured(some: Sequence[Places]) -> dict[str, float]:
        joined = {name: np.concatenate([window[name] for window in some]) for name in every[0]}
        return {name: figure(joined, tie) for name, figure in FIGURES.items()}

    draws = np.random.default_rng(1).integers(0, len(every), (BOOTSTRAPS, len(every)))
    drawn = [measured([every[index] for index in draw]) for draw in draws]
    return {
        name: Figure(value, float(np.std([sample[name] for sample in drawn], ddof=1)))
        for name, value in measured(every).items()
    }


def along(windows: Sequence[Window]) -> list[float]:
    """The mean divergence by place in the context, in at most so many runs of places."""
    rows = np.mean([window.divergence for window in windows], axis=0)
    return [float(run.mean()) for run in np.array_split(rows, min(POINTS, len(rows)))]


def in_words(figures: Figures, limits: Mapping[str, float] | None = None) -> str:
    known = limits or {}
    return ", ".join(
        f"{WORDS[name]} {figure.value:.4g} ± {figure.error:.2g}"
        + (f" ({_side(name)} {known[name]:.4g})" if name in known else "")
        for name, figure in figures.items()
    )


def _side(name: str) -> str:
    return "at least" if name in HIGHER_IS_BETTER else "at most"


def misses(figures: Figures, limits: Mapping[str, float], *, single: bool = False) -> list[str]:
    """Each figure that is beyond its limit by more than three standard errors, as text. A divergence is never
    allowed more than twice its limit: a fault that few windows have makes the error large. Where each window
    is a `single` place, so does one place whose values are cut off, and the median decides."""
    problems = []
    for name, limit in limits.items():
        figure = figures[name]
        allowed = STANDARD_ERRORS * figure.error
        if name in DIVERGENCES and not single:
            allowed = min(allowed, limit)
        higher = name in HIGHER_IS_BETTER
        # NaN passes no limit.
        if not (figure.value + allowed >= limit if higher else figure.value - allowed <= limit):
            found = f"{figure.value:.3g} ± {figure.error:.1g}"
            problems.append(f"{WORDS[name]} is {found}, expected {_side(name)} {limit:.4g}")
    return problems


# What a checkpoint may lose.

LIMITS: dict[str, dict[str, float]] = {
    name: dict(zip(FIGURES, limits, strict=True))
    for names, limits in {
        ("fp16",): (0.98, 0.99, 1.005, 0.0001, 0.0001, 0.001),
        ("16a8w",): (0.9, 0.97, 1.05, 0.05, 0.05, 0.5),
        ("8a8w", "16a4w"): (0.75, 0.95, 1.2, 0.15, 0.15, 1.5),
    }.items()
    for name in names
}
"""By precision, where nobody names another. Right models had at least .996 within a tie."""
FLOORS = {"divergence": 0.001, "divergence_99": 0.005}
"""What a right quantized model may lose whatever rounding costs, twice what any by which they were chosen
needed: the few tokens whose values quantizing never saw are cut off otherwise in each graph."""
CHIP = 1.25
"""How often a right quantized model may lose what rounding alone costs: medians were .94 to 1.11 times."""
HALVES, HALVES_DB = 16, 12.0
"""What HTP may lose in fp16, which also adds in halves, for each nat and below each dB that rounding every
operator's output alone costs: right models had 5 to 8 times the divergence, and 8 to 13 dB less."""
HALVES_ENOUGH_DB = 45.0
"""At most places of a part in fp16, whatever rounding costs: half of what the worst right model had. Faults
left 23 dB at most."""
FP16_LEAST_DB, QUANTIZED_LEAST_DB, CHIP_DB, LOSS_DB = 30.0, 10.0, 6.0, 4.0
"""A part is wrong below the least of its precision (where rounding alone leaves little more, LOSS_DB below
that), and a quantized one also if it is CHIP_DB worse than on the CPU, or at most places LOSS_DB worse than
rounding alone makes it: right ones: at most 2.2 dB worse."""
APART_DB = 1.5
"""By how much one part must come nearer to its limit than all others to be named: those of right models
differ by as much as 1.4."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a checkpoint may lose: the limits of its precision, or what rounding alone costs it."""

    precision: str
    rounding: Mapping[str, Figures]
    """What rounding alone costs on the places that prefill, decode and Genie's two read."""
    parts: Sequence[Mapping[str, Distance]]
    """What rounding alone leaves of each part's outputs, by kind of graph."""
    own: Mapping[str, float]
    """The user's own limits."""
    tie: float = 0.0
    """How much less float may give a choice that is as good as its own, in logits."""

    @classmethod
    def of(cls, precision: str, measured: MeasuredProgram, own: Mapping[str, float]) -> Bounds:
        """Each kind of graph reads a first part of the same windows."""
        rounded = measured.rounded
        # The chip rounds besides.
        tie = rounded.tie * math.sqrt(HALVES if precision == "fp16" else 2)
        windows, read = rounded.read["windows"], dict(rounded.read)
        del read["windows"]
        for kind, length in measured.lengths.items():
            read[kind] = [window.first(length - 1) for window in windows]
        costs = {name: figures_of(some, tie) for name, some in read.items()}
        return cls(precision, costs, rounded.parts, own, tie)

    @property
    def halves(self) -> bool:
        return self.precision == "fp16"

    def of_reader(self, reader: str) -> dict[str, float]:
        narrow = dict(LIMITS[self.precision])
        explained = self._explained(reader)
        for name in DIVERGENCES:
            narrow[name] = min(narrow[name], explained[name])
        # Of words that float finds nearly equal rounding alone swaps many.
        narrow["first_choice"] = min(narrow["first_choice"], explained["first_choice"])
        return narrow | dict(self.own)

    def missed(self, reader: str, figures: Figures) -> list[str]:
        """Its figures beyond their limits, as text."""
        return misses(figures, self.of_reader(reader), single=reader == SINGLE)

    def explain(self, reader: str, figures: Figures) -> bool:
        """Whether rounding alone costs as much, be it more than the limits allow."""
        explained = self._explained(reader)
        divergences = {name: explained[name] for name in DIVERGENCES}
        return not misses(figures, divergences, single=reader == SINGLE)

    def _explained(self, reader: str) -> dict[str, float]:
        costs = self.rounding[reader if is_genies(reader) else reader.partition("_")[0]]
        swapped = costs["first_choice"]
        times = math.sqrt(HALVES) if self.halves else CHIP
        explained = {"first_choice": 1 - times * (1 - swapped.value) - STANDARD_ERRORS * swapped.error}
        for name in DIVERGENCES:
            cost = costs[name]
            explained[name] = (
                HALVES * cost.value
                if self.halves
                else max(FLOORS.get(name, 0.0), CHIP * cost.value + STANDARD_ERRORS * cost.error)
            )
        return explained

    @property
    def warning(self) -> str:
        """What rounding alone costs of the first choices, where that is more than the precision should; or
        nothing."""
        least, swapped = LIMITS[self.precision]["first_choice"], self.rounding["prefill"]["first_choice"]
        if swapped.value >= least:
            return ""
        return (
            f"rounding alone changes the top token at {1 - swapped.value:.0%} ± {swapped.error:.1%} of the"
            f" positions: more than the {1 - least:.0%} that this precision usually does"
        )


def figure_problems(figures: Mapping[str, Figures], bounds: Bounds) -> Iterator[str]:
    """A figure may be beyond its limit by three standard errors of its own."""
    for name, words in READER_NAMES.items():
        if name in figures and (missed := bounds.missed(name, figures[name])):
            more = f"; {len(missed) - 1} more" if len(missed) > 1 else ""
            yield f"logits of {words}: {missed[0]}{more}"


def unexplained(figures: Mapping[str, Figures], bounds: Bounds) -> list[str]:
    """The readers that miss a limit by more than rounding alone costs."""
    return [
        name for name, read in figures.items() if bounds.missed(name, read) and not bounds.explain(name, read)
    ]


# Where it goes wrong.


@dataclass(frozen=True, slots=True)
class PartRow:
    """A part beside its limits, and what is `wrong` with it."""

    name: str
    output: str
    db: float
    least_db: float
    typical_db: float
    typical_least_db: float
    cpu_db: float | None
    wrong: str
    cause: str
    """Of what is wrong."""

    @property
    def spare(self) -> float:
        """How far it is from its limit, in dB."""
        return self.typical_db - self.typical_least_db

    def as_text(self) -> str:
        on_cpu = "" if self.cpu_db is None else f", {in_decibels(self.cpu_db)} on the CPU"
        return (
            f"{self.name}: SQNR of {self.output} against float: {in_decibels(self.db)} in the worst block,"
            f" {in_decibels(self.typical_db)} at the median position{on_cpu}"
        )

    def as_metric(self) -> dict[str, Metric]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def part_rows(parts: Sequence[PartDistances], bounds: Bounds) -> list[PartRow]:
    return [_part_row(part, bounds) for part in parts]


def _part_row(part: PartDistances, bounds: Bounds) -> PartRow:
    htp, cpu, rounding = part.htp, part.cpu, bounds.parts[part.number][part.kind]
    first, last = part.layers
    loss, enough = (HALVES_DB, HALVES_ENOUGH_DB) if bounds.halves else (LOSS_DB, math.inf)
    at_least = {name: min(db - loss, enough) for name, db in rounding.typical.items()}
    least, on_cpu, cause = FP16_LEAST_DB, "", "halves"
    if cpu:
        worst = min(QUANTIZED_LEAST_DB, rounding.db - loss)
        least, on_cpu = max(worst, cpu.db - CHIP_DB), f", {in_decibels(cpu.db)} on the CPU"
        right = cpu.db >= worst and all(db >= at_least[name] for name, db in cpu.typical.items())
        cause = "lowering" if right else "graph"
    # The one of which rounding explains the least. NaN comes first.
    spare = {name: db - at_least[name] for name, db in htp.typical.items()}
    output = min(spare, key=lambda name: -math.inf if math.isnan(spare[name]) else spare[name])
    typical, typical_least = htp.typical[output], at_least[output]
    wrong = ""
    if not htp.db >= least:
        wrong = f"{htp.output} has an SQNR of {in_decibels(htp.db)}, expected {least:.1f}{on_cpu}"
    elif not typical >= typical_least:
        found = f"{output} has an SQNR of {in_decibels(typical)} at the median position"
        wrong = f"{found}, expected {typical_least:.1f}"
    return PartRow(
        f"{part.kind}_{part.number}, layers {first} to {last}",
        htp.output,
        htp.db,
        least,
        typical,
        typical_least,
        cpu.db if cpu else None,
        wrong,
        cause if wrong else "",
    )


FIXES = {
    "halves": "compile it with --precision 16a8w: fp16 may not hold its values, and that check tells by"
    " the CPU whether a layer's graph or QNN is wrong",
    "graph": "no other calibration helps, as the graph is wrong on the CPU, too. Compile it again; if that"
    " stays, report it with the checkpoint's config.json",
    "lowering": "no other calibration helps, as the same graph is right on the CPU: QNN computes these layers"
    " otherwise. Compile it with --precision fp16 or by another QNN, and report it",
    "genie": "no other calibration helps, as these binaries give the right logits without Genie. Compile it"
    " again for their configuration; if that stays, report it",
    "hidden": "compile it with --precision fp16 and check that: rounding costs less than this, and hides the"
    " layer that is wrong",
    "rounding": "rounding alone costs as much: calibrate by more or other text, or take a higher precision",
}
"""What to do, by what makes a model inaccurate."""


def cause_of(rows: Sequence[PartRow], figures: Mapping[str, Figures], bounds: Bounds) -> str:
    """Of what is wrong. Without rows the CPU alone was asked, which computes the graph as it is."""
    if wrong := next((row for row in rows if row.wrong), None):
        return wrong.cause
    readers = unexplained(figures, bounds)
    if rows and readers and all(map(is_genies, readers)):
        return "genie"
    if bounds.halves:
        return "halves"
    if not readers:
        return "rounding"
    return "hidden" if rows else "graph"


def culprit(rows: Sequence[PartRow], figures: Mapping[str, Figures], bounds: Bounds) -> str:
    """The first part that is worse than its precision explains; where only the whole is, the one that comes
    nearest to its limit, unless another one comes about as near."""
    if wrong := next((row for row in rows if row.wrong), None):
        return f"it goes wrong in {wrong.name}: {wrong.wrong}"
    if not rows or all(map(is_genies, unexplained(figures, bounds))):
        return ""
    nearest = min(rows, key=lambda row: row.spare)
    layers = nearest.name.partition(",")[2]
    where = "none stands out: rounding hides the fault, or the checkpoint has changed"
    others = [row.spare for row in rows if not row.name.endswith(layers)]
    if min(others, default=math.inf) - nearest.spare >= APART_DB:
        found, least = in_decibels(nearest.typical_db), in_decibels(nearest.typical_least_db)
        where = f"nearest comes {nearest.name}: SQNR of {found}, at least {least}"
    return f"no layer misses its limit; {where}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was measured of a compiled model, beside its limits."""

    measured: MeasuredProgram
    bounds: Bounds
    figures: Mapping[str, Figures]
    rows: Sequence[PartRow]

    @classmethod
    def of(cls, precision: str, measured: MeasuredProgram, own: Mapping[str, float]) -> Judgement:
        bounds = Bounds.of(precision, measured, own)
        figures = {name: figures_of(some, bounds.tie) for name, some in measured.readings.read.items()}
        return cls(measured, bounds, figures, part_rows(measured.parts, bounds))

    @property
    def problems(self) -> list[str]:
        """What to look at first, and then what follows from it."""
        found = culprit(self.rows, self.figures, self.bounds)
        return [*([found] if found else []), *figure_problems(self.figures, self.bounds)]

    @property
    def fix(self) -> str:
        return FIXES[cause_of(self.rows, self.figures, self.bounds)]

    @property
    def comparisons(self) -> int:
        return 2 * len(self.rows) + sum(len(self.bounds.of_reader(name)) for name in self.figures)

    def lines(self, *, parts: bool) -> Iterator[str]:
        """Its figures beside their limits. Parts are shown if they say what is wrong, or were asked for."""
        bounds = self.bounds
        for name, figures in bounds.rounding.items():
            if not is_genies(name) or name in self.figures:
                yield f"rounding alone, {READER_NAMES.get(name, name)}: {in_words(figures)}"
        yield f"a tie: float's logit of the choice is within {bounds.tie:.2g} of its best"
        for name, figures in self.figures.items():
            yield f"{READER_NAMES[name]}: {in_words(figures, bounds.of_reader(name))}"
        if parts or culprit(self.rows, self.figures, bounds):
            yield from (row.as_text() for row in self.rows)
        yield f"{self.comparisons} comparisons with a limit"

    @property
    def row(self) -> dict[str, Metric]:
        """Of a report."""
        rates, read = self.measured.readings.rates, self.measured.readings.read
        speeds = {"tokens_per_second": "decode_htp", "read_per_second": "prefill_htp"}
        return {
            "bytes": self.measured.size,
            # For the page, which says that it is the emulator's.
            "speed": {name: rates[reader] for name, reader in speeds.items() if reader in rates},
            "figures": _figures_row(self.figures),
            # Of those whose windows begin at the context's start.
            "positions": {name: list(along(read[name])) for name in read if not is_genies(name)},
            "rounding": _figures_row(self.bounds.rounding),
            "parts": [row.as_metric() for row in self.rows],
            "tie": self.bounds.tie,
            "comparisons": self.comparisons,
        }


def _figures_row(figures: Mapping[str, Figures]) -> dict[str, Metric]:
    return {name: {key: asdict(figure) for key, figure in some.items()} for name, some in figures.items()}


# Of `test_llm`.


def model_findings(case: str, most: float, result: Result) -> Iterator[Finding]:
    """About the float model."""
    if failure := result.failure:
        rule = "llm-machine" if failure.blame == "machine" else "llm-training"
        yield Finding(rule, Severity.ERROR, case, failure.message, failure.fix)
    elif not (perplexity := read(Trained, result.facts).perplexity) <= most:
        message = (
            f"perplexity on held-out text: expected at most {most:g}, found {perplexity:.2f};"
            " a model that has learned less hides mistakes"
        )
        fix = "train longer, or raise perplexity in the suite"
        yield Finding("llm-training", Severity.ERROR, case, message, fix)


def judgement_of(program: LlmProgram, result: Result) -> Judgement:
    """By what rounding alone costs, and the limits of its suite."""
    measured = read(MeasuredProgram, result.facts)
    return Judgement.of(program.run.precision, measured, program.run.own_limits)


def findings_of(program: LlmProgram, result: Result) -> Iterator[Finding]:
    error = errors_of(program.name, SUITES.repeat(program))
    if failure := result.failure:
        yield error(f"llm-{failure.rule}", failure.message, failure.fix)
        return
    judgement = judgement_of(program, result)
    yield from (error("llm-accuracy", message, judgement.fix) for message in judgement.problems)


def report_row(program: LlmProgram, result: Result) -> dict[str, Metric]:
    shown: dict[str, Metric] = {
        "cached": result.cached,
        "precision": program.run.precision,
        "through": program.run.through,
    }
    if result.failure:
        return shown
    costs = {"seconds": round(result.facts["seconds"], 1), "peak": result.facts["peak"]}
    return {**shown, **costs, **judgement_of(program, result).row}
