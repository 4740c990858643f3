"""Is it the same model? Logits, layers and texts compared with float's, their limits, and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ci.lanes.llm.suite import SUITES, LlmProgram
from ci.models.arrays import Array
from ci.outcome import Result
from ci.suite.findings import errors_of
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.units import in_decibels

STANDARD_ERRORS = 3
BOOTSTRAPS = 200
POINTS = 64
"""Of a line over the context, for the page."""
DIGITS = 5
"""Of each number of a token that is kept."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is measured of each token of one window of text, in which tokens depend on each other."""

    ours: Array
    """How much less likely than certain the right token was, in nats."""
    theirs: Array
    divergence: Array
    """Kullback-Leibler, from float's probabilities."""
    lost: Array
    """How much less float gives our first choice than its own, in logits."""

    def first(self, count: int) -> Window:
        """The same of its first tokens alone."""
        return Window(self.ours[:count], self.theirs[:count], self.divergence[:count], self.lost[:count])

    def as_json(self) -> dict[str, list[float]]:
        return {
            name: [float(f"{value:.{DIGITS}g}") for value in values]
            for name, values in (
                ("ours", self.ours),
                ("theirs", self.theirs),
                ("divergence", self.divergence),
                ("lost", self.lost),
            )
        }


def window_of(logits: Array, reference: Array, following: Sequence[int]) -> Window:
    ours, theirs = (_log_softmax(rows.astype(np.float64)) for rows in (logits, reference))
    places = np.arange(len(following))
    lost = reference.max(-1) - reference[places, logits.argmax(-1)]
    # NaN is no first choice.
    lost = np.where(np.isfinite(logits).all(-1), lost, np.inf)
    return Window(
        ours=-ours[places, following],
        theirs=-theirs[places, following],
        divergence=(np.exp(theirs) * (theirs - ours)).sum(-1),
        lost=lost.astype(np.float64),
    )


def windows_from(rows: Sequence[Mapping[str, Sequence[float]]]) -> list[Window]:
    return [Window(**{name: np.array(values) for name, values in row.items()}) for row in rows]


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


FIGURES: Mapping[str, Callable[[Window, float], float]] = {
    "first_choice": lambda read, tie: float((read.lost <= 0).mean()),
    "tied_choice": lambda read, tie: float((read.lost <= tie).mean()),
    "perplexity_ratio": lambda read, tie: float(np.exp((read.ours - read.theirs).mean())),
    "divergence": lambda read, tie: float(read.divergence.mean()),
    "divergence_50": lambda read, tie: float(np.quantile(read.divergence, 0.5)),
    "divergence_99": lambda read, tie: float(np.quantile(read.divergence, 0.99)),
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
    generator = np.random.default_rng(1)
    draws = generator.integers(0, len(windows), (BOOTSTRAPS, len(windows)))
    drawn = [_joined([windows[index] for index in draw]) for draw in draws]
    whole = _joined(windows)
    return {
        name: Figure(figure(whole, tie), float(np.std([figure(sample, tie) for sample in drawn], ddof=1)))
        for name, figure in FIGURES.items()
    }


def _joined(windows: Sequence[Window]) -> Window:
    return Window(
        np.concatenate([window.ours for window in windows]),
        np.concatenate([window.theirs for window in windows]),
        np.concatenate([window.divergence for window in windows]),
        np.concatenate([window.lost for window in windows]),
    )


def along(windows: Sequence[Window]) -> list[float]:
    """The mean divergence by place in the context, in at most so many runs of places."""
    rows = np.mean([window.divergence for window in windows], axis=0)
    return [float(run.mean()) for run in np.array_split(rows, min(POINTS, len(rows)))]


def figures_as_json(figures: Figures) -> dict[str, dict[str, float]]:
    return {name: asdict(figure) for name, figure in figures.items()}


def in_words(figures: Figures, limits: Mapping[str, float] | None = None) -> str:
    known = limits or {}
    return ", ".join(
        f"{WORDS[name]} {figure.value:.4g} ± {figure.error:.2g}"
        + (f" ({_side(name)} {known[name]:.3g})" if name in known else "")
        for name, figure in figures.items()
    )


def _side(name: str) -> str:
    return "at least" if name in HIGHER_IS_BETTER else "at most"


def misses(
    figures: Figures, limits: Mapping[str, float], *, chance: bool = False, single: bool = False
) -> list[str]:
    """Each figure beyond its limit, as text; with `chance` by more than three standard errors, and of a
    divergence never by more than the limit itself: a fault that few windows have makes the error large. Where
    each window is a `single` place, so does one place whose values are cut off, and the median decides."""
    problems = []
    for name, limit in limits.items():
        figure = figures[name]
        allowed = STANDARD_ERRORS * figure.error if chance else 0.0
        if name in DIVERGENCES and not single:
            allowed = min(allowed, limit)
        higher = name in HIGHER_IS_BETTER
        # NaN passes no limit.
        if not (figure.value + allowed >= limit if higher else figure.value - allowed <= limit):
            found = f"{figure.value:.3g} ± {figure.error:.1g}"
            problems.append(f"{WORDS[name]} is {found}, expected {_side(name)} {limit:.4g}")
    return problems


def close(figures: Figures, limits: Mapping[str, float]) -> list[str]:
    """Each limit that is so near to the measurement that chance may exceed it, as text."""
    return [
        f"{WORDS[name]}: {limit:g} is {abs(figures[name].value - limit) / figures[name].error:.1f}"
        f" standard errors from {figures[name].value:.4g}"
        for name, limit in limits.items()
        if abs(figures[name].value - limit) < STANDARD_ERRORS * figures[name].error
    ]


# Of `check`: what a checkpoint may lose.

LIMITS: dict[str, dict[str, float]] = {
    name: dict(zip(FIGURES, limits, strict=True))
    for names, limits in {
        ("fp16",): (0.98, 0.99, 1.005, 0.0001, 0.0001, 0.001),
        ("u16u8", "16a8w"): (0.9, 0.97, 1.05, 0.05, 0.05, 0.5),
        ("8a8w", "16a4w"): (0.75, 0.95, 1.2, 0.15, 0.15, 1.5),
    }.items()
    for name in names
}
"""By precision, where the command line names no other. Right models had at least .996 within a tie."""
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
    parts: Sequence[Mapping[str, Any]]
    """What rounding alone leaves of each part's outputs, by kind of graph, in dB: `typical` at most places,
    and `db` of the worst block."""
    own: Mapping[str, float]
    """The user's own limits."""

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
        return misses(figures, self.of_reader(reader), chance=True, single=reader == SINGLE)

    def explain(self, reader: str, figures: Figures) -> bool:
        """Whether rounding alone costs as much, be it more than the limits allow."""
        explained = self._explained(reader)
        divergences = {name: explained[name] for name in DIVERGENCES}
        return not misses(figures, divergences, chance=True, single=reader == SINGLE)

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


def width_of_tie(tie: float, precision: str) -> float:
    """Of `tie_of`, for a model that is rounded by the chip besides."""
    return tie * math.sqrt(HALVES if precision == "fp16" else 2)


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


def rounding_warning(bounds: Bounds) -> str:
    """What rounding alone costs of the first choices, where that is more than the precision should; or
    nothing."""
    least = LIMITS[bounds.precision]["first_choice"]
    share, error = (getattr(bounds.rounding["prefill"]["first_choice"], name) for name in ("value", "error"))
    if share >= least:
        return ""
    return (
        f"rounding alone changes {1 - share:.0%} ± {error:.1%} of the first choices: more than the"
        f" {1 - least:.0%} that this precision usually does"
    )


# Where it goes wrong.


def part_rows(parts: Sequence[Mapping[str, Any]], bounds: Bounds) -> list[dict[str, Any]]:
    """For the report, with the limits, and what is `wrong` with each."""
    return [_part_row(part, bounds) for part in parts]


def _part_row(part: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    htp, cpu, rounding = part["htp"], part.get("cpu"), bounds.parts[part["part"]][part["kind"]]
    first, last = part["layers"]
    loss, enough = (HALVES_DB, HALVES_ENOUGH_DB) if bounds.halves else (LOSS_DB, math.inf)
    at_least = {name: min(db - loss, enough) for name, db in rounding["typical"].items()}
    least, beside, cause = FP16_LEAST_DB, "", "halves"
    if cpu:
        worst = min(QUANTIZED_LEAST_DB, rounding["db"] - loss)
        least, beside = max(worst, cpu["db"] - CHIP_DB), f", {in_decibels(cpu['db'])} on the CPU"
        right = cpu["db"] >= worst and all(db >= at_least[name] for name, db in cpu["typical"].items())
        cause = "lowering" if right else "graph"
    # The one of which rounding explains the least. NaN comes first.
    spare = {name: db - at_least[name] for name, db in htp["typical"].items()}
    output = min(spare, key=lambda name: -math.inf if math.isnan(spare[name]) else spare[name])
    typical, typical_least = htp["typical"][output], at_least[output]
    wrong = ""
    if not htp["db"] >= least:
        wrong = f"{htp['output']} has an SQNR of {in_decibels(htp['db'])}, expected {least:.1f}{beside}"
    elif not typical >= typical_least:
        wrong = f"{output} has an SQNR of {in_decibels(typical)} at most places, expected {typical_least:.1f}"
    return {
        "name": f"{part['kind']}_{part['part']}, layers {first} to {last}",
        "output": htp["output"],
        "db": htp["db"],
        "typical_db": typical,
        "least_db": least,
        "typical_least_db": typical_least,
        "wrong": wrong,
        "cause": cause if wrong else "",
        **({"cpu_db": cpu["db"]} if cpu else {}),
    }


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


def cause_of(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, Figures], bounds: Bounds) -> str:
    """Of what is wrong. Without rows the CPU alone was asked, which computes the graph as it is."""
    if wrong := next((row for row in rows if row["wrong"]), None):
        return str(wrong["cause"])
    readers = unexplained(figures, bounds)
    if rows and readers and all(map(is_genies, readers)):
        return "genie"
    if bounds.halves:
        return "halves"
    if not readers:
        return "rounding"
    return "hidden" if rows else "graph"


def culprit(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, Figures], bounds: Bounds) -> str:
    """The first part that is worse than its precision explains; where only the whole is, the one that comes
    nearest to its limit, unless another one comes about as near."""
    if wrong := next((row for row in rows if row["wrong"]), None):
        return f"it goes wrong in {wrong['name']}: {wrong['wrong']}"
    if not rows or all(map(is_genies, unexplained(figures, bounds))):
        return ""
    spare = {row["name"]: row["typical_db"] - row["typical_least_db"] for row in rows}
    part = min(rows, key=lambda row: spare[row["name"]])
    layers = part["name"].partition(",")[2]
    where = "none stands out: rounding hides the fault, or the checkpoint has changed"
    others = [db for name, db in spare.items() if not name.endswith(layers)]
    if min(others, default=math.inf) - spare[part["name"]] >= APART_DB:
        found, least = (in_decibels(part[name]) for name in ("typical_db", "typical_least_db"))
        where = f"nearest comes {part['name']}: SQNR of {found}, at least {least}"
    return f"no layer misses its limit; {where}"


# Texts.

NEAR_TIE = 0.05
"""In logits: if float's two best tokens are closer than this, fp16 may choose the other one."""
EXCUSED = 0.01
"""The share of tokens that may differ for that reason."""


def lost_by(
    tokens: Sequence[int], stopped: str, rows: Array, ends: Collection[int], room: int
) -> list[float]:
    """What float loses in logits by each token of a text that has room for so many, and by its end. `rows`
    are float's logits after the prompt and after each token. Infinite is what no choice explains: a token
    that ends texts, said as a word, or an end for no reason."""
    lost = [
        math.inf if token in ends else float(row.max() - row[token])
        for token, row in zip(tokens, rows, strict=False)
    ]
    if len(tokens) == room:
        return lost
    if stopped != "eos" or len(tokens) > room:
        return [*lost, math.inf]
    last = rows[len(tokens)]
    return [*lost, float(last.max() - last[list(ends)].max())]


def first_difference(lost: Sequence[float]) -> dict[str, float | None] | None:
    """For the page: where a text leaves float's, and what float loses by that; None is no number."""
    place = next((place for place, logits in enumerate(lost) if logits > 0), None)
    if place is None:
        return None
    return {"place": place, "lost": lost[place] if math.isfinite(lost[place]) else None}


def text_problems(texts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each text that float would not say, and too many near ties."""
    for text in texts:
        wrong = [place for place, lost in enumerate(text["lost"]) if not lost < NEAR_TIE]
        if wrong:
            yield (
                f"after {text['prompt'][-40:]!r} float would not choose token {wrong[0] + 1}, and loses"
                f" {text['lost'][wrong[0]]:.3g} logits by it: {text['said']['htp']['text'][:80]!r} for"
                f" {text['said']['float']['text'][:80]!r}"
            )
    every = [lost for text in texts for lost in text["lost"]]
    near = sum(0 < lost < NEAR_TIE for lost in every)
    if near > EXCUSED * len(every):
        yield f"{near} of {len(every)} tokens are near ties, and at most {EXCUSED:.0%} may be"


# Findings of `test_llm`.

SHOWN = ("bytes", "figures", "peak", "speed", "texts")


def model_findings(case: str, most: float, result: Result) -> Iterator[Finding]:
    """About the float model."""
    if failure := result.failure:
        rule = "llm-machine" if failure.blame == "machine" else "llm-training"
        yield Finding(rule, Severity.ERROR, case, failure.message, failure.fix)
    elif not result.facts["perplexity"] <= most:
        message = (
            f"perplexity on held-out text: expected at most {most:g}, found {result.facts['perplexity']:.2f};"
            " a model that has learned less hides mistakes"
        )
        fix = "train longer, or raise perplexity in the suite"
        yield Finding("llm-training", Severity.ERROR, case, message, fix)


def findings_of(program: LlmProgram, result: Result) -> Iterator[Finding]:
    """By the limits of its suite."""
    error = errors_of(program.name, SUITES.repeat(program))
    if failure := result.failure:
        yield error(f"llm-{failure.rule}", failure.message, failure.fix)
        return
    limits, against_cpu = program.run.limits, program.run.htp_against_cpu
    if limits is None:
        yield from (error("llm-text", message) for message in text_problems(result.facts["texts"]))
        return
    for name, words in READER_NAMES.items():
        chosen = against_cpu if name.endswith("_htp_cpu") else limits
        if chosen is None or (is_genies(name) and program.run.through != "genie"):
            continue
        bounds = chosen.model_dump()
        figures = {key: Figure(**facts) for key, facts in result.facts["figures"][name].items()}
        for miss in misses(figures, bounds, chance=is_genies(name)):
            yield error(
                "llm-accuracy", f"{words}: {miss}", "raise the precision, or calibrate with other text"
            )
        for near in [] if is_genies(name) else close(figures, bounds):
            message, fix = f"{words}: {near}", "move the limit, or judge more text"
            yield Finding("llm-limit-close", Severity.WARNING, program.name, message, fix)


def report_row(program: LlmProgram, result: Result) -> dict[str, Metric]:
    """Figures, and every text beside float's."""
    return {
        "cached": result.cached,
        "seconds": round(result.seconds, 1),
        "precision": program.run.precision,
        "through": program.run.through,
        **{name: result.facts[name] for name in SHOWN if name in (result.facts or {})},
    }
