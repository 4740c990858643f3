"""What of a text `llm check` reads to judge a checkpoint: known before any worker starts. `compile` measures
by the same tokens of our own text what rounding costs."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.genie import ForcedText
from ci.lanes.llm.measure import windows
from ci.lanes.llm.prompts import (
    CONTINUED,
    PREFIX,
    prefix_lengths,
    prefixes_of,
    read_corpus,
    share_of_runs,
    tokens_for,
    tokens_of,
    with_chats,
)
from provisioning.base.errors import UsageError

MAX_OVERLAP = 0.05
"""At most this share of the text may be known from quantizing."""
WINDOWS = 4
"""At least so many, because figures' errors come from windows."""
MIN_TOKENS = 256
"""Tokens to find the part by."""


@dataclass(frozen=True, slots=True)
class JudgedText:
    text: Path
    words: str
    """What the text says."""
    count: int
    """Of its tokens."""
    windows: int
    length: int
    """Of each window, in tokens."""
    few: int
    """The length of the one window that parts are judged by."""
    prefixes: Sequence[ForcedText]
    """With what follows each in the text."""
    to_the_end: ForcedText

    @property
    def texts(self) -> list[ForcedText]:
        """Those that Genie is made to say."""
        return [*self.prefixes, self.to_the_end]

    @property
    def read(self) -> int:
        """How many tokens it takes to read all of it once."""
        texts = sum(len(text.prompt) + len(text.tokens) for text in self.texts)
        return self.windows * self.length + self.few + texts

    def forced(self, through: str) -> list[dict[str, Any]]:
        return as_json(self.texts) if through == "genie" else []

    def short_of(self, context: int, beginning: int) -> str:
        """What reads the whole context in all windows, where they end before it; so many tokens begin one."""
        if self.length >= context:
            return ""
        needed = WINDOWS * (context - beginning)
        longer = f" --text FILE, of {needed} tokens or more," if self.count < needed else ""
        return (
            f"windows end at place {self.length} of {context}: --tokens {WINDOWS * (context - 1)}{longer}"
            " reads them to the end"
        )

    @property
    def order(self) -> dict[str, Any]:
        """For workers."""
        windows = {"text": str(self.text.absolute()), "windows": self.windows, "length": self.length}
        return {**windows, "few": {"windows": 1, "length": self.few}}


def judged(
    folder: Path,
    tokenizer: Any,
    shape: Architecture,
    text: Path,
    sizes: Mapping[str, Any],
    *,
    tokens: int,
    prefixes: int,
    whole: bool = True,
    calibrated_by: Collection[str] = (),
) -> JudgedText:
    """`sizes` are the context and how many tokens prefill reads. Unless `whole`, Genie's text ends where the
    windows do: where decode reads the prompt, too, all of the context would take too long."""
    context, words = sizes["context"], read_corpus(text)
    stream = tokens_of(tokenizer, words)
    length = min(context, max(2, tokens // WINDOWS + 1))
    count = -(-tokens // (length - 1))
    lengths = prefix_lengths(prefixes, sizes["prefill"], context)
    own = length - len(shape.beginning)
    wanted = max(tokens_for(lengths), count * own, PREFIX + CONTINUED)
    if len(stream) < wanted:
        raise UsageError(
            f"{text} has {len(stream)} tokens: {prefixes} prefixes and {count} windows of {own} need"
            f" {wanted}",
            fix=f"name a text of {wanted} tokens, --text FILE, or give fewer --tokens and --prefixes",
        )
    if (seen := share_of_runs(stream[:wanted], calibrated_by)) > MAX_OVERLAP:
        raise UsageError(
            f"{seen:.0%} of what would be read of {text} is in the text that it was quantized by, too",
            fix="give another text",
        )
    most = context - sizes["prefill"]
    chats = with_chats(prefixes_of(stream, lengths), folder, tokenizer, shape, most)
    said = max(own, PREFIX + CONTINUED)
    end = context - len(shape.beginning) if whole else said
    # A shorter text is read again: the places are what counts.
    long = list(itertools.islice(itertools.cycle(stream), end))
    prompt = max(PREFIX, min(end - said + PREFIX, most))
    few = min(context, max(MIN_TOKENS, sizes["prefill"] + 1))
    return JudgedText(
        text, words, len(stream), count, length, few, chats, ForcedText(long[:prompt], long[prompt:])
    )


def windows_of(folder: Path, shape: Architecture, order: Mapping[str, Any]) -> list[list[int]]:
    return windows(folder, shape, Path(order["text"]), order["length"], order["windows"], "fewer --tokens")


def as_json(texts: Sequence[ForcedText]) -> list[dict[str, Any]]:
    return [{"prompt": list(text.prompt), "tokens": list(text.tokens)} for text in texts]


def digest_of(rows: Sequence[Sequence[int]], texts: Sequence[Mapping[str, Any]]) -> str:
    """Of all the tokens that are judged."""
    return hashlib.sha256(json.dumps([rows, texts]).encode()).hexdigest()
