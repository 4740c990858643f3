"""Says whether the float model has learned the language of a text: its perplexity beside that of a unigram,
which knows only how often each token is in the text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Metric

CLEARLY = 0.5
"""A healthy model has at most this share of a unigram's perplexity."""
LEAST = 10.0
"""A text on which a unigram's perplexity is less repeats a few tokens, and tells nothing of a model."""
CAUSES = (
    "take tokenizer.json, config.json and weights of one model, the weights in the type that they were saved"
    " in, and rope_theta and rope_scaling as its authors wrote them; for a model that was not trained, or for"
    " other text, this is right"
)


@dataclass(frozen=True, slots=True)
class FloatModel:
    perplexity: float
    unigram: float
    """The text's own frequencies of tokens give it this perplexity."""

    def describe(self) -> str:
        return (
            f"the float model's perplexity is {self.perplexity:.4g} on this text; a unigram's is"
            f" {self.unigram:.4g}"
        )

    @property
    def warning(self) -> str:
        """Say that the model has not learned this text's language; empty if it has, or if nobody can tell."""
        if self.unigram < LEAST or self.perplexity <= CLEARLY * self.unigram:
            return ""
        return (
            f"the float model's perplexity on this text is {self.perplexity:.4g}. A unigram, which knows only"
            f" how often each token is there, has {self.unigram:.4g}; a healthy model has at most half"
        )

    def metric_values(self) -> dict[str, Metric]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def float_model(rows: Sequence[Sequence[int]], losses: Sequence[float]) -> FloatModel:
    """Return what is known of a model by the rows that it read, and by what it lost on them, in nats for each
    token. Raises CheckFailed if it gives no numbers."""
    loss = math.fsum(losses) / len(losses)
    if not math.isfinite(loss):
        raise CheckFailed(
            "the float model's logits are NaN or infinite, although each of its weights is a number",
            fix="look for a weight that is far too large; if you converted the checkpoint, convert it again",
        )
    return FloatModel(_perplexity_of(loss), unigram_perplexity(rows))


def unigram_perplexity(rows: Sequence[Sequence[int]]) -> float:
    """Return the perplexity of the tokens after the first of each row by their own frequencies."""
    counts = Counter(token for row in rows for token in row[1:])
    total = counts.total()
    entropy = -math.fsum(count * math.log(count / total) for count in counts.values()) / total
    return _perplexity_of(entropy)


def _perplexity_of(nats: float) -> float:
    # A loss of 700 nats is beyond what a float holds.
    return math.exp(min(nats, 700.0))
