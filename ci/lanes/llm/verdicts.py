"""Is it the same model? Texts and logits compared with float's, and what is wrong of them in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ci.engine.work import Result
from ci.lanes.llm.suite import SUITES, LlmProgram
from ci.pipeline.findings import errors_of
from ci.pipeline.models.arrays import Array
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.units import in_decibels

NEAR_TIE = 0.05
"""In logits: if float's two best tokens are closer than this, fp16 may choose the other one."""
EXCUSED = 0.01
"""The share of tokens that may differ for that reason."""
STANDARD_ERRORS = 3
BOOTSTRAPS = 200
POINTS = 64
"""Of a line over the context, for the page."""


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first token at which a text differs from float's; -1 stands for its end."""

    place: int
    expected: int
    found: int
    expected_logit: float
    found_logit: float

    @property
    def lost(self) -> float:
        return self.expected_logit - self.found_logit


@dataclass
class TextComparison:
    prompt: tuple[int, ...]
    expected: tuple[int, ...]
    expected_stop: str
    found: tuple[int, ...]
    """The generated tokens; after an excused one, those generated when float's token was forced."""
    found_stop: str
    excused: list[FirstDifference] = field(default_factory=list)
    difference: FirstDifference | None = None

    @property
    def tokens(self) -> int:
        """How many choices were compared; ending is one."""
        return (self.difference.place if self.difference else len(self.expected)) + 1


Continue = Callable[[Sequence[int]], tuple[Sequence[int], str]]
"""Speaks on after so many of float's tokens: the tokens, and why they ended."""


def compare_text(
    prompt: Sequence[int],
    expected: Sequence[int],
    stopped: str,
    logits: Array,
    ends: Collection[int],
    most: int,
    generate: Continue,
    excuses: Callable[[FirstDifference], bool] = lambda difference: difference.lost < NEAR_TIE,
) -> TextComparison:
    """Compare a text with float's. If it differs at a choice that `excuses`, float's token is forced and both
    continue."""
    place, tokens, reason = 0, list[int](), ""
    comparison = TextComparison(tuple(prompt), tuple(expected), stopped, (), "")
    while True:
        generated, reason = generate(tuple(expected[:place]))
        tokens = [*expected[:place], *generated][:most]
        if len(tokens) == most and reason == "eos":
            reason = "length"
        comparison.found, comparison.found_stop = tuple(tokens), reason
        difference = _first_difference(expected, stopped, tokens, reason, logits, ends)
        if difference is None:
            return comparison
        # A token that ends texts, said like a word: its logit is the end's own.
        if difference.found in ends or not excuses(difference):
            comparison.difference = difference
            return comparison
        comparison.excused.append(difference)
        place = difference.place + 1
        if difference.expected == -1 or place == most:
            # Float ended here, and so does the comparison.
            return comparison


def _first_difference(
    expected: Sequence[int],
    stopped: str,
    tokens: Sequence[int],
    reason: str,
    logits: Array,
    ends: Collection[int],
) -> FirstDifference | None:
    same = 0
    while same < min(len(expected), len(tokens)) and expected[same] == tokens[same]:
        same += 1
    if same == len(expected) == len(tokens) and stopped == reason:
        return None
    row = logits[min(same, len(logits) - 1)]
    end = max(ends, key=lambda token: float(row[token]))
    one = expected[same] if same < len(expected) else -1
    other = tokens[same] if same < len(tokens) else -1
    if one == other:
        # Both ended, for different reasons.
        return FirstDifference(same, -1, -1, float("inf"), 0.0)
    return FirstDifference(
        same, one, other, float(row[end if one == -1 else one]), float(row[end if other == -1 else other])
    )


@dataclass(frozen=True, slots=True)
class Window:
    """The figures of each token of one window, in which tokens depend on each other."""

    same: Array
    ours: Array
    """How much less likely than certain the right token was, in nats."""
    theirs: Array
    divergence: Array
    """Kullback-Leibler, from float's probabilities."""
    regret: Array
    """How much float loses by our first choice, in logits."""


def window_of(logits: Array, reference: Array, following: Sequence[int], tie: float = 0.0) -> Window:
    """Choices by which float loses at most `tie` are the same."""
    ours, theirs = (_log_softmax(rows.astype(np.float64)) for rows in (logits, reference))
    places, first = np.arange(len(following)), logits.argmax(-1)
    best = reference.argmax(-1)
    regret = (reference[places, best] - reference[places, first]).astype(np.float64)
    return Window(
        same=(regret <= tie).astype(np.float64),
        ours=-ours[places, following],
        theirs=-theirs[places, following],
        divergence=(np.exp(theirs) * (theirs - ours)).sum(-1),
        regret=regret,
    )


def tie_of(exact: Sequence[Array], rounded: Sequence[Array]) -> float:
    """By how much rounding alone moves float's two best logits apart or together, at 99 of 100 places."""
    moved = []
    for rows, others in zip(exact, rounded, strict=True):
        places, two = np.arange(len(rows))[:, None], np.argpartition(rows, -2, -1)[:, -2:]
        change = (others - rows)[places, two]
        moved.append(np.abs(change[:, 0] - change[:, 1]))
    return float(np.quantile(np.concatenate(moved), 0.99))


def _log_softmax(rows: Array) -> Array:
    shifted = rows - rows.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


FIGURES: Mapping[str, Callable[[Mapping[str, Array]], float]] = {
    "first_choice": lambda every: float(every["same"].mean()),
    "perplexity_ratio": lambda every: float(np.exp((every["ours"] - every["theirs"]).mean())),
    "divergence": lambda every: float(every["divergence"].mean()),
    "divergence_50": lambda every: float(np.quantile(every["divergence"], 0.5)),
    "divergence_99": lambda every: float(np.quantile(every["divergence"], 0.99)),
    "regret": lambda every: float(every["regret"].mean()),
}
WORDS = {
    "first_choice": "top-1 agreement",
    "perplexity_ratio": "perplexity ratio",
    "divergence": "mean KL divergence",
    "divergence_50": "median KL divergence",
    "divergence_99": "99 % quantile of KL divergence",
    "regret": "mean regret in logits",
}
HIGHER_IS_BETTER = frozenset(("first_choice",))
DIVERGENCES = frozenset(("divergence", "divergence_50", "divergence_99"))
OF_WINDOWS = "windows"
"""Of what rounding alone costs, the figures of the windows that our readers read."""
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


def is_genies(reader: str) -> bool:
    return reader.endswith("_genie")


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    error: float
    """Its standard error, bootstrapped by window."""


Figures = Mapping[str, Figure]


def figures_of(windows: Sequence[Window]) -> dict[str, Figure]:
    names = ("same", "ours", "theirs", "divergence", "regret")
    generator = np.random.default_rng(1)
    draws = generator.integers(0, len(windows), (BOOTSTRAPS, len(windows)))

    def joined(chosen: Sequence[int]) -> dict[str, Array]:
        return {name: np.concatenate([getattr(windows[index], name) for index in chosen]) for name in names}

    every = joined(range(len(windows)))
    drawn = [joined(draw.tolist()) for draw in draws]
    return {
        name: Figure(figure(every), float(np.std([figure(sample) for sample in drawn], ddof=1)))
        for name, figure in FIGURES.items()
    }


def figures_as_json(windows: Sequence[Window]) -> dict[str, Any]:
    return {name: asdict(figure) for name, figure in figures_of(windows).items()}


def figures_from(facts: Mapping[str, Mapping[str, float]]) -> dict[str, Figure]:
    return {name: Figure(**figure) for name, figure in facts.items()}


def in_words(figures: Figures) -> str:
    return ", ".join(
        f"{WORDS[name]} {figure.value:.4g} ± {figure.error:.2g}" for name, figure in figures.items()
    )


def along(windows: Sequence[Window]) -> list[float]:
    """The mean divergence by place in the context, in at most so many runs of places."""
    rows = np.mean([window.divergence for window in windows], axis=0)
    return [float(run.mean()) for run in np.array_split(rows, min(POINTS, len(rows)))]


def misses(figures: Figures, limits: Mapping[str, float], *, chance: bool = False) -> list[str]:
    """Each figure beyond its limit, as text; with `chance` by more than three standard errors, and of a
    divergence never by more than the limit itself: a fault that few windows have makes the error large."""
    problems = []
    for name, limit in limits.items():
        figure = figures[name]
        higher = name in HIGHER_IS_BETTER
        allowed = STANDARD_ERRORS * figure.error if chance else 0.0
        if name in DIVERGENCES:
            allowed = min(allowed, limit)
        # NaN passes no limit.
        if not (figure.value + allowed >= limit if higher else figure.value - allowed <= limit):
            problems.append(
                f"{WORDS[name]} is {figure.value:.3g} ± {figure.error:.1g},"
                f" expected {'at least' if higher else 'at most'} {limit:.4g}"
            )
    return problems


def close(figures: Figures, limits: Mapping[str, float]) -> list[str]:
    """Each limit that is so near to the measurement that chance may exceed it, as text."""
    return [
        f"{WORDS[name]}: {limit:g} is {abs(figures[name].value - limit) / figures[name].error:.1f}"
        f" standard errors from {figures[name].value:.4g}"
        for name, limit in limits.items()
        if abs(figures[name].value - limit) < STANDARD_ERRORS * figures[name].error
    ]


def choice_misses(choices: Mapping[str, Mapping[str, float]], least: float) -> list[str]:
    """Where Genie's choices after prefixes miss the limit, by the graph that made them. They are few, so
    three standard errors are allowed."""
    problems, silent = [], []
    for kind, facts in choices.items():
        share, count = facts["first_choice"], facts["tokens"]
        if not count:
            silent.append(f"Genie said no token of {kind}")
        elif share < least - STANDARD_ERRORS * math.sqrt(least * (1 - least) / count):
            problems.append(
                f"Genie's {kind}: top-1 agreement is {share:.1%} of {count}, expected about {least:.0%}"
            )
    # Decode says nothing where prefill always ends.
    return problems or silent


LIMITS: dict[str, dict[str, float]] = {
    name: dict(zip(FIGURES, limits, strict=True))
    for names, limits in {
        ("fp16",): (0.98, 1.005, 0.0001, 0.0001, 0.001, 0.005),
        ("u16u8", "16a8w"): (0.9, 1.05, 0.05, 0.05, 0.5, 0.1),
        ("8a8w", "16a4w"): (0.75, 1.2, 0.15, 0.15, 1.5, 0.2),
    }.items()
    for name in names
}
"""Of `check` by precision, where the command line names no other."""
FP16_LEAST_DB, QUANTIZED_LEAST_DB, CHIP_DB, LOSS_DB = 30.0, 10.0, 6.0, 4.0
"""A part is wrong below the least of its precision (where rounding alone leaves little more, LOSS_DB below
that), and a quantized one also if it is CHIP_DB worse than on the CPU, or at most places LOSS_DB worse than
rounding alone makes it: right ones: at most 2.2 dB worse."""
APART_DB = 1.5
"""By how much one part must come nearer to its limit than all others to be named: those of right models
differ by as much as 1.4."""
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


@dataclass(frozen=True, slots=True)
class Bounds:
    """What `check` holds a checkpoint to: limits, or what rounding alone costs it where that is less."""

    limits: Mapping[str, float]
    rounding: Mapping[str, Figures]
    """By reader, what rounding alone costs on the tokens that it reads."""
    narrow: Mapping[str, Mapping[str, float]]
    parts: Sequence[Mapping[str, Any]]
    """Of each, what rounding alone leaves of its outputs, in dB: `typical_db` at most places, and `db` of the
    worst block, by the kind of graph."""
    tie: float
    """Float's logits are as good as equal if they are no further apart."""
    halves: bool

    @classmethod
    def of(cls, rounding: Mapping[str, Any], precision: str, given: Mapping[str, float]) -> Bounds:
        """`given` are the user's own limits."""
        halves, limits = precision == "fp16", {**LIMITS[precision], **given}
        every = {reader: figures_from(facts) for reader, facts in rounding["noise"].items()}
        narrow = {
            reader: {name: _narrowed(name, limits[name], figures[name], halves=halves) for name in FIGURES}
            | dict(given)
            for reader, figures in every.items()
        }
        tie = rounding["tie"] * math.sqrt(HALVES if halves else 2)
        return cls(limits, every, narrow, rounding["parts"], tie, halves)

    def of_reader(self, reader: str) -> Mapping[str, float]:
        return self.narrow.get(reader) or self.narrow[OF_WINDOWS]

    def explain(self, reader: str, figures: Figures) -> bool:
        """Whether rounding alone costs as much, be it more than the limits allow."""
        noise = self.rounding.get(reader) or self.rounding[OF_WINDOWS]
        allowed = {name: _explained(name, noise[name], halves=self.halves) for name in DIVERGENCES}
        return not misses(figures, allowed, chance=True)


def _narrowed(name: str, limit: float, noise: Figure, *, halves: bool) -> float:
    """Only divergences: what else is measured follows from them, and each comparison more is a false alarm
    more."""
    return min(limit, _explained(name, noise, halves=halves)) if name in DIVERGENCES else limit


def _explained(name: str, noise: Figure, *, halves: bool) -> float:
    if halves:
        return HALVES * noise.value
    return max(FLOORS.get(name, 0.0), CHIP * noise.value + STANDARD_ERRORS * noise.error)


def figure_problems(facts: Mapping[str, Any], bounds: Bounds) -> Iterator[str]:
    """A figure may be beyond its limit by three standard errors of its own."""
    for name, words in READER_NAMES.items():
        if name in facts and (
            missed := misses(figures_from(facts[name]), bounds.of_reader(name), chance=True)
        ):
            more = f"; {len(missed) - 1} more" if len(missed) > 1 else ""
            yield f"logits of {words}: {missed[0]}{more}"


def choice_problems(facts: Mapping[str, Mapping[str, float]], bounds: Bounds) -> list[str]:
    """Of the shipped sampler's choices."""
    if not bounds.halves:
        return choice_misses(facts, bounds.limits["first_choice"])
    count, ties = (sum(row[name] for row in facts.values()) for name in ("tokens", "near_ties"))
    others = round(sum((1 - row["first_choice"]) * row["tokens"] for row in facts.values()))
    if others <= min(ties, max(1, EXCUSED * count)):
        return choice_misses(facts, 0.0)
    return [f"Genie chooses unlike float at {others} tokens, {ties} of them near ties"]


def part_rows(parts: Sequence[Mapping[str, Any]], bounds: Bounds) -> list[dict[str, Any]]:
    """For the report, with the limits, and what is `wrong` with each."""
    return [_part_row(part, bounds) for part in parts]


def _part_row(part: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    htp, cpu, rounding = part["htp"], part.get("cpu"), bounds.parts[part["part"]]
    first, last = part["layers"]
    loss, enough = (HALVES_DB, HALVES_ENOUGH_DB) if bounds.halves else (LOSS_DB, math.inf)
    at_least = {name: min(db - loss, enough) for name, db in rounding["typical"].items()}
    least, beside, cause = FP16_LEAST_DB, "", "halves"
    if cpu:
        worst = min(QUANTIZED_LEAST_DB, rounding["db"][part["kind"]] - loss)
        least, beside = max(worst, cpu["db"] - CHIP_DB), f", {in_decibels(cpu['db'])} on the CPU"
        right = cpu["db"] >= worst and all(db >= at_least[name] for name, db in cpu["typical"].items())
        cause = "lowering" if right else "graph"
    # The one of which rounding explains the least. NaN comes first.
    spare = {name: db - at_least[name] for name, db in htp["typical"].items()}
    output = min(spare, key=lambda name: spare[name] if spare[name] == spare[name] else -math.inf)
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


def cause_of(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], bounds: Bounds) -> str:
    """Of what is wrong. Without rows the CPU alone was asked, which computes the graph as it is."""
    if wrong := next((row for row in rows if row["wrong"]), None):
        return str(wrong["cause"])
    figures = {name: figures_from(facts[name]) for name in READER_NAMES if name in facts}
    missed = [name for name in figures if misses(figures[name], bounds.of_reader(name), chance=True)]
    unexplained = [name for name in missed if not bounds.explain(name, figures[name])]
    # If nothing is missed, Genie's choices are.
    if rows and (unexplained or not missed) and all(map(is_genies, unexplained)):
        return "genie"
    if bounds.halves:
        return "halves"
    if not unexplained:
        return "rounding"
    return "hidden" if rows else "graph"


def culprit(rows: Sequence[Mapping[str, Any]], *, inaccurate: bool) -> str:
    """The first part that is worse than its precision explains; where the whole is inaccurate and no part is,
    the one that comes nearest to its limit, unless another one comes about as near."""
    if wrong := next((row for row in rows if row["wrong"]), None):
        return f"it goes wrong in {wrong['name']}: {wrong['wrong']}"
    if not (rows and inaccurate):
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


SHOWN = ("bytes", "figures", "choices", "peak", "speed")


def model_findings(case: str, most: float, result: Result) -> Iterator[Finding]:
    """Findings of `test_llm` about the float model."""
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
    """Of `test_llm`, by the limits of its suite."""
    error = errors_of(program.name, SUITES.repeat(program))
    if failure := result.failure:
        yield error(f"llm-{failure.rule}", failure.message, failure.fix)
        return
    limits, against_cpu = program.run.limits, program.run.htp_against_cpu
    if limits is None:
        yield from (error("llm-text", message) for message in text_problems(result.facts["texts"]))
        return
    by_genie = program.run.through == "genie"
    for name, words in READER_NAMES.items():
        chosen = against_cpu if name.endswith("_htp_cpu") else limits
        if chosen is None or (is_genies(name) and not by_genie):
            continue
        bounds = chosen.model_dump()
        figures = figures_from(result.facts["figures"][name])
        for miss in misses(figures, bounds, chance=is_genies(name)):
            yield error(
                "llm-accuracy", f"{words}: {miss}", "raise the precision, or calibrate with other text"
            )
        for near in [] if is_genies(name) else close(figures, bounds):
            message, fix = f"{words}: {near}", "move the limit, or judge more text"
            yield Finding("llm-limit-close", Severity.WARNING, program.name, message, fix)
    for miss in choice_misses(result.facts["choices"], limits.first_choice) if by_genie else []:
        yield error("llm-accuracy", miss, "look for what Genie's configuration and the graphs do differently")


def text_problems(texts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each text that differs from float's, and too many excused differences."""
    for text in texts:
        if difference := text["difference"]:
            yield (
                f"after {text['prompt_text'][-40:]!r} token {difference['place']} is"
                f" {_token(difference['found'])} ({difference['found_logit']:.3f}), and float says"
                f" {_token(difference['expected'])} ({difference['expected_logit']:.3f}):"
                f" {text['found_text'][:80]!r} for {text['expected_text'][:80]!r}"
            )
        elif text["found_stop"] != text["expected_stop"] and not text["excused"]:
            yield (
                f"after {text['prompt_text'][-40:]!r} it ended by {text['found_stop']},"
                f" and float by {text['expected_stop']}"
            )
    compared, excused = (sum(text["compared"] for text in texts), sum(len(text["excused"]) for text in texts))
    if excused > EXCUSED * compared:
        yield f"{excused} of {compared} tokens are excused as near ties, and at most {EXCUSED:.0%} may be"


def _token(number: int) -> str:
    return "its end" if number == -1 else str(number)


def report_row(program: LlmProgram, result: Result) -> dict[str, Metric]:
    """Of `test_llm`: figures, and every text beside float's."""
    shown: dict[str, Metric] = {
        "cached": result.cached,
        "seconds": round(result.seconds, 1),
        "precision": program.run.precision,
        "through": program.run.through,
    }
    if result.failure:
        return shown
    texts: list[Metric] = [
        {
            "prompt": text["prompt_text"],
            "said": {
                "float": {"text": text["expected_text"], "stopped": text["expected_stop"]},
                "htp": {
                    "text": text["found_text"],
                    "stopped": text["found_stop"],
                    "difference": text["difference"],
                    "excused": len(text["excused"]),
                },
            },
        }
        for text in result.facts["texts"]
    ]
    return {**shown, **{name: result.facts[name] for name in SHOWN if name in result.facts}, "texts": texts}
