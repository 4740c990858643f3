"""Is it the same model? Compares texts with float's, and logits with float's, as figures with their
errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ci.lanes.llm.arrays import Array

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
    """One prompt's text beside float's."""

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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


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
    end = max(ends, key=lambda token: float(logits[min(same, len(logits) - 1)][token]))
    row = logits[min(same, len(logits) - 1)]
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
HIGHER_IS_BETTER = frozenset(("first_choice",))
OF_WINDOWS = "windows"
"""Of what rounding alone costs, the figures of the windows that our readers read."""
DIVERGENCES = frozenset(("divergence", "divergence_50", "divergence_99"))


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    error: float
    """Its standard error, bootstrapped by window."""


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


def along(windows: Sequence[Window]) -> list[float]:
    """The mean divergence by place in the context, in at most so many runs of places."""
    rows = np.mean([window.divergence for window in windows], axis=0)
    return [float(run.mean()) for run in np.array_split(rows, min(POINTS, len(rows)))]


def misses(figures: Mapping[str, Figure], limits: Mapping[str, float], *, chance: bool = False) -> list[str]:
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
                f"{name.replace('_', ' ')}: expected {'at least' if higher else 'at most'} {limit:g},"
                f" found {figure.value:.4g} ± {figure.error:.2g}"
            )
    return problems


def close(figures: Mapping[str, Figure], limits: Mapping[str, float]) -> list[str]:
    """Each limit that is so near to the measurement that chance may exceed it, as text."""
    return [
        f"{name.replace('_', ' ')}: {limit:g} is {abs(figures[name].value - limit) / figures[name].error:.1f}"
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
                f"Genie's {kind}: expected about {least:.0%} of float's first choices,"
                f" found {share:.1%} of {count}"
            )
    # Decode says nothing where prefill always ends.
    return problems or silent
