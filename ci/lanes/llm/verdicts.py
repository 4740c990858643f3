"""Judge whether a compiled language model is still the same model.

Figures compare its logits with the float model's on a text (`figures_of`). What it may lose is the limit of
its precision, or what rounding alone costs this checkpoint (`Bounds`). A `Judgement` joins both: what is
wrong, which part comes first, and what to do. `check` and the stage `test_llm` report it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ci.lanes.llm.orders import Decibels, MeasuredProgram, PartDistances, Trained, Window
from ci.lanes.llm.suite import SUITES, LlmProgram
from ci.models.inputs import Array
from ci.suite.findings import errors_of
from ci.work import Result, read, to_json
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.units import format_decibels

STANDARD_ERRORS = 3
BOOTSTRAPS = 200


def window_of(logits: Array, reference: Array, following: Sequence[int]) -> Window:
    ours, theirs = (_log_softmax(rows.astype(np.float64)) for rows in (logits, reference))
    places = np.arange(len(following))
    same = reference[places, logits.argmax(-1)] >= reference.max(-1)
    return Window(
        ours=(-ours[places, following]).tolist(),
        theirs=(-theirs[places, following]).tolist(),
        divergence=(np.exp(theirs) * (theirs - ours)).sum(-1).tolist(),
        # NaN is no top-1.
        same=(same & np.isfinite(logits).all(-1)).tolist(),
    )


def _log_softmax(rows: Array) -> Array:
    shifted = rows - rows.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


Places = Mapping[str, Array]
"""Holds the fields of all windows, joined end to end."""
FIGURES: Mapping[str, Callable[[Places], float]] = {
    "top1": lambda read: float(read["same"].mean()),
    "perplexity_ratio": lambda read: float(np.exp((read["ours"] - read["theirs"]).mean())),
    "divergence": lambda read: float(read["divergence"].mean()),
    "divergence_99": lambda read: float(np.quantile(read["divergence"], 0.99)),
}
WORDS = {
    "top1": "top-1 agreement",
    "perplexity_ratio": "perplexity ratio",
    "divergence": "mean KL divergence",
    "divergence_99": "99 % quantile of KL divergence",
}
HIGHER_IS_BETTER = frozenset(("top1",))
DIVERGENCES = ("divergence", "divergence_99")
READER_NAMES = {
    "prefill_htp": "prefill on HTP",
    "decode_htp": "decode on HTP",
    "prefill_genie": "Genie's prefill",
    "decode_genie": "Genie's decode",
}
"""The logits of these readers are compared with float's."""
WINDOWS = "windows"
"""The costs of rounding alone have this name, for the places that prefill and decode read."""
SINGLE = "prefill_genie"
"""This reader has one place in each text: the end of the prompt."""


def is_genies(reader: str) -> bool:
    return reader.endswith("_genie")


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    error: float
    """This is the standard error, bootstrapped by window."""


Figures = Mapping[str, Figure]


def figures_of(windows: Sequence[Window]) -> dict[str, Figure]:
    """Compute each figure of all windows together, with its standard error by drawing windows anew."""
    places = [_places_of(window) for window in windows]
    drawn = []
    for draw in np.random.default_rng(1).integers(0, len(places), (BOOTSTRAPS, len(places))):
        drawn.append(_values_of([places[index] for index in draw]))
    figures = {}
    for name, value in _values_of(places).items():
        error = np.std([values[name] for values in drawn], ddof=1)
        figures[name] = Figure(value, float(error))
    return figures


def _places_of(window: Window) -> Places:
    return {name: np.array(values) for name, values in to_json(window).items()}


def _values_of(windows: Sequence[Places]) -> dict[str, float]:
    columns = {}
    for name in windows[0]:
        columns[name] = np.concatenate([window[name] for window in windows])
    return {name: figure(columns) for name, figure in FIGURES.items()}


def describe_figures(figures: Figures, limits: Mapping[str, float] | None = None) -> str:
    bounds = limits or {}
    return ", ".join(
        f"{WORDS[name]} {figure.value:.4g} ± {figure.error:.2g}"
        + (f" ({_side(name)} {bounds[name]:.4g})" if name in bounds else "")
        for name, figure in figures.items()
    )


def _side(name: str) -> str:
    return "at least" if name in HIGHER_IS_BETTER else "at most"


def misses(figures: Figures, limits: Mapping[str, float], *, single: bool = False) -> list[str]:
    """Return, as text, each figure that is beyond its limit by more than three standard errors. A divergence
    may never exceed twice its limit: a fault in few windows makes the error large. If each window is a
    `single` place, one place whose values are cut off also makes it large."""
    problems = []
    for name, limit in limits.items():
        figure = figures[name]
        margin = STANDARD_ERRORS * figure.error
        if name in DIVERGENCES and not single:
            margin = min(margin, limit)
        higher = name in HIGHER_IS_BETTER
        # NaN passes no limit.
        if not (figure.value + margin >= limit if higher else figure.value - margin <= limit):
            reading = f"{figure.value:.3g} ± {figure.error:.1g}"
            problems.append(f"{WORDS[name]} is {reading}, expected {_side(name)} {limit:.4g}")
    return problems


# What a checkpoint may lose.

LIMITS: dict[str, dict[str, float]] = {
    name: dict(zip(FIGURES, limits, strict=True))
    for names, limits in {
        ("fp16",): (0.98, 1.005, 0.0001, 0.001),
        ("16a8w",): (0.9, 1.05, 0.05, 0.5),
        ("8a8w", "16a4w"): (0.75, 1.2, 0.15, 1.5),
    }.items()
    for name in names
}
"""Each precision has these limits, unless the user names others."""
FLOORS = {"divergence": 0.001, "divergence_99": 0.005}
"""A right quantized model may lose this much, whatever rounding costs: twice what any model that was used to
choose the limits needed. In each graph, the few tokens whose values quantizing never saw are cut off in
another way."""
CHIP = 1.25
"""A right quantized model may lose this many times what rounding alone costs: medians were .94 to 1.11
times."""
HALVES, HALVES_DB = 16, 12.0
"""In fp16 HTP also adds in fp16. So a right model may lose this many times what rounding every operator's
output alone costs, and this many dB more: right models had 5 to 8 times the divergence, and 8 to 13 dB
less."""
HALVES_ENOUGH_DB = 45.0
"""A part in fp16 is right with this SQNR, whatever rounding costs: half of what the worst right model had.
Faults left 23 dB at most."""
LOSS_DB, CHIP_DB = 4.0, 6.0
"""A quantized part may have this much less than rounding alone, and than the CPU: right ones had at most 2.2
dB less."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Says what a checkpoint may lose: the limits of its precision, or what rounding alone costs it."""

    precision: str
    rounding: Mapping[str, Figures]
    """Holds what rounding alone costs on the windows that prefill and decode read, and on Genie's texts."""
    parts: Sequence[Decibels]
    """Holds what rounding alone leaves of each part's outputs."""
    own: Mapping[str, float]
    """The user has set these limits."""

    @classmethod
    def of(cls, precision: str, program: MeasuredProgram, own: Mapping[str, float]) -> Bounds:
        costs = {name: figures_of(windows) for name, windows in program.rounded.read.items()}
        return cls(precision, costs, program.rounded.parts, own)

    @property
    def halves(self) -> bool:
        return self.precision == "fp16"

    def reader_limits(self, reader: str) -> dict[str, float]:
        narrow = dict(LIMITS[self.precision])
        for name, explained in self._explained(reader).items():
            # Of words that float finds nearly equal rounding alone swaps many.
            narrow[name] = min(narrow[name], explained)
        return narrow | dict(self.own)

    def missed(self, reader: str, figures: Figures) -> list[str]:
        """Return the reader's figures that are beyond their limits, as text."""
        return misses(figures, self.reader_limits(reader), single=reader == SINGLE)

    def _explained(self, reader: str) -> dict[str, float]:
        """Return the limits that rounding alone explains."""
        costs = self.rounding[reader if is_genies(reader) else WINDOWS]
        swapped = costs["top1"]
        times = math.sqrt(HALVES) if self.halves else CHIP
        explained = {"top1": 1 - times * (1 - swapped.value) - STANDARD_ERRORS * swapped.error}
        for name in DIVERGENCES:
            cost = costs[name]
            explained[name] = (
                HALVES * cost.value
                if self.halves
                else max(FLOORS[name], CHIP * cost.value + STANDARD_ERRORS * cost.error)
            )
        return explained

    def least_of_part(self, number: int) -> Decibels:
        """Return the least SQNR that the part's outputs must have."""
        loss, enough = (HALVES_DB, HALVES_ENOUGH_DB) if self.halves else (LOSS_DB, math.inf)
        return {output: min(db - loss, enough) for output, db in self.parts[number].items()}

    @property
    def warning(self) -> str:
        """Say how much rounding alone costs of the top-1 agreement, if that is more than the precision
        usually does; else empty."""
        least, swapped = LIMITS[self.precision]["top1"], self.rounding[WINDOWS]["top1"]
        if swapped.value >= least:
            return ""
        return (
            f"rounding alone changes the top token at {1 - swapped.value:.0%} ± {swapped.error:.1%} of the"
            f" positions: more than the {1 - least:.0%} that this precision usually does"
        )


def figure_problems(figures: Mapping[str, Figures], bounds: Bounds) -> Iterator[str]:
    """Report figures that are beyond their limits by more than three standard errors."""
    for name, words in READER_NAMES.items():
        if name in figures and (missed := bounds.missed(name, figures[name])):
            more = f"; {len(missed) - 1} more" if len(missed) > 1 else ""
            yield f"logits of {words}: {missed[0]}{more}"


# Where it goes wrong.


@dataclass(frozen=True, slots=True)
class PartRow:
    """Describes the output of a part that is nearest to its limit."""

    name: str
    output: str
    db: float
    least_db: float
    cpu_db: float | None
    cause: str
    """Names what makes the part wrong; empty if it is right."""

    def describe(self) -> str:
        on_cpu = "" if self.cpu_db is None else f", {format_decibels(self.cpu_db)} on the CPU"
        return (
            f"{self.name}: SQNR of {self.output} against float: {format_decibels(self.db)}"
            f" (at least {format_decibels(self.least_db)}){on_cpu}"
        )

    def metric_values(self) -> dict[str, Metric]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def part_row(part: PartDistances, bounds: Bounds) -> PartRow:
    of_rounding, cpu = bounds.least_of_part(part.number), part.cpu
    least = {name: max(db, cpu[name] - CHIP_DB) if cpu else db for name, db in of_rounding.items()}
    spare = {name: db - least[name] for name, db in part.htp.items()}
    output = min(spare, key=lambda name: spare[name])
    cause = ""
    if spare[output] < 0:
        cause = "halves"
        if cpu:
            right_on_cpu = all(db >= of_rounding[name] for name, db in cpu.items())
            cause = "lowering" if right_on_cpu else "graph"
    first, last = part.layers
    return PartRow(
        f"{part.kind}_{part.number}, layers {first} to {last}",
        output,
        part.htp[output],
        least[output],
        cpu[output] if cpu else None,
        cause,
    )


FIXES = {
    "halves": "compile it with --precision 16a8w and check that: then the CPU tells whether a layer's graph"
    " (its mask, rope or weights) or QNN is wrong. If 16a8w is right, fp16 cannot hold the model's values",
    "graph": "no other calibration helps, as the graph is wrong on the CPU, too. Compile it again; if that"
    " stays, report it with the checkpoint's config.json",
    "lowering": "no other calibration helps, as the same graph is right on the CPU: QNN computes these layers"
    " otherwise. Compile it with --precision fp16 or by another QNN, and report it",
    "genie": "no other calibration helps, as these binaries give the right logits without Genie. Compile it"
    " again for their configuration; if that stays, report it",
    "rounding": "compile it with --precision fp16 and check that. If it is right, rounding costs this much:"
    " calibrate by more or other text, or take a higher precision",
}
"""Maps each cause of an inaccurate model to what to do."""


def wrong_part(rows: Sequence[PartRow]) -> PartRow | None:
    """Return the first wrong part: all after it may be wrong because of it."""
    return next((row for row in rows if row.cause), None)


def cause_of(rows: Sequence[PartRow], figures: Mapping[str, Figures], bounds: Bounds) -> str:
    """Return the cause of a wrong model."""
    if wrong := wrong_part(rows):
        return wrong.cause
    if all(is_genies(name) for name, values in figures.items() if bounds.missed(name, values)):
        return "genie"
    return "halves" if bounds.halves else "rounding"


def culprit(rows: Sequence[PartRow]) -> str:
    """Describe the first part that is worse than its precision explains."""
    if not (wrong := wrong_part(rows)):
        return ""
    return (
        f"it goes wrong in {wrong.name}: {wrong.output} has an SQNR of {format_decibels(wrong.db)}, expected"
        f" {wrong.least_db:.1f}"
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    """Holds what was measured of a compiled model, and its limits."""

    program: MeasuredProgram
    bounds: Bounds
    figures: Mapping[str, Figures]
    rows: Sequence[PartRow]

    @classmethod
    def of(cls, precision: str, program: MeasuredProgram, own: Mapping[str, float]) -> Judgement:
        bounds = Bounds.of(precision, program, own)
        figures = {name: figures_of(windows) for name, windows in program.read.items()}
        return cls(program, bounds, figures, [part_row(part, bounds) for part in program.parts])

    @property
    def problems(self) -> list[str]:
        """Say what to look at first, and then what follows from it."""
        cause = culprit(self.rows)
        return [*([cause] if cause else []), *figure_problems(self.figures, self.bounds)]

    @property
    def fix(self) -> str:
        return FIXES[cause_of(self.rows, self.figures, self.bounds)]

    def lines(self, *, parts: bool) -> Iterator[str]:
        """Return the figures beside their limits. Parts are shown if they say what is wrong, or were asked
        for."""
        for name, figures in self.bounds.rounding.items():
            if name == WINDOWS:
                yield f"rounding alone: {describe_figures(figures)}"
            elif name in self.figures:
                yield f"rounding alone, {READER_NAMES[name]}: {describe_figures(figures)}"
        for name, figures in self.figures.items():
            yield f"{READER_NAMES[name]}: {describe_figures(figures, self.bounds.reader_limits(name))}"
        if parts or culprit(self.rows):
            yield from (row.describe() for row in self.rows)

    @property
    def row(self) -> dict[str, Metric]:
        """Return the program's row in the report."""
        return {
            "bytes": self.program.size,
            "figures": _figures_row(self.figures),
            "rounding": _figures_row(self.bounds.rounding),
            "parts": [row.metric_values() for row in self.rows],
        }


def _figures_row(figures: Mapping[str, Figures]) -> dict[str, Metric]:
    rows: dict[str, Metric] = {}
    for name, row in figures.items():
        rows[name] = {key: asdict(figure) for key, figure in row.items()}
    return rows


# Of `test_llm`.


def model_findings(case: str, most: float, result: Result) -> Iterator[Finding]:
    """Report on the float model."""
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
    return Judgement.of(program.run.precision, read(MeasuredProgram, result.facts), {})


def findings_of(program: LlmProgram, result: Result) -> Iterator[Finding]:
    error = errors_of(program.name, SUITES.repeat(program))
    if failure := result.failure:
        yield error(f"llm-{failure.rule}", failure.message, failure.fix)
        return
    judgement = judgement_of(program, result)
    yield from (error("llm-accuracy", message, judgement.fix) for message in judgement.problems)


def report_row(program: LlmProgram, result: Result) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {
        "cached": result.cached,
        "precision": program.run.precision,
        "through": program.run.through,
    }
    if result.failure:
        return metrics
    costs = {"seconds": round(result.facts["seconds"], 1), "peak": result.facts["peak"]}
    return {**metrics, **costs, **judgement_of(program, result).row}
