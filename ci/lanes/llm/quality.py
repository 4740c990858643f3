"""A model by itself, on text: how many bits it takes for a byte, beside a unigram model of the same tokens
and `xz`. A damaged checkpoint or tokenizer is the same on both sides of a comparison with float."""

from __future__ import annotations

import collections
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provisioning.base.rendering.text import plural

BASELINES = {"unigram": "a unigram model of the same tokens", "xz": "xz"}
LINES, SHOWN = 500, 3
"""Of the text that are encoded and decoded, and of those that come back changed."""
FIX = "look at the checkpoint's tokenizer and weights: is the text in a language that it knows?"


def absolute(tokenizer: Any, rows: Sequence[Sequence[int]], nats: float, text: str) -> dict[str, Any]:
    """`rows` are the tokens that were judged, which cost float so many `nats`; they are from `text`."""
    words = "".join(tokenizer.decode(list(row), skip_special_tokens=False) for row in rows).encode()
    counts = collections.Counter(token for row in rows for token in row)
    total = max(1, sum(counts.values()))
    unigram = -sum(count * math.log2(count / total) for count in counts.values())
    packed = lzma.compress(words, preset=9 | lzma.PRESET_EXTREME)
    size = max(1, len(words))
    lines = [line for line in dict.fromkeys(text.splitlines()) if line.strip()][:LINES]
    changed = [line for line in lines if _again(tokenizer, line).strip() != line.strip()]
    return {
        "tokens": total,
        "bytes": size,
        "perplexity": math.exp(nats / total),
        "bits_per_byte": nats / math.log(2) / size,
        "unigram": unigram / size,
        "xz": 8 * len(packed) / size,
        "unknown": sum(counts[token] for token in _unknown(tokenizer)),
        "changed": len(changed),
        "for_example": [line[:60] for line in changed[:SHOWN]],
    }


def _again(tokenizer: Any, text: str) -> str:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def _unknown(tokenizer: Any) -> set[int]:
    """By the names that tokenizers give it."""
    name = getattr(tokenizer.model, "unk_token", None)
    numbers = (tokenizer.token_to_id(text) for text in (name, "<unk>", "[UNK]") if text)
    return {number for number in numbers if number is not None}


def in_words(found: Mapping[str, Any]) -> str:
    return (
        f"float by itself: perplexity {found['perplexity']:.4g}, {found['bits_per_byte']:.3f} bits a byte"
        f" ({', '.join(f'{words} {found[name]:.3f}' for name, words in BASELINES.items())})"
    )


def warnings(found: Mapping[str, Any]) -> Iterator[str]:
    worse = [words for name, words in BASELINES.items() if not found["bits_per_byte"] < found[name]]
    if not worse:
        return
    message = f"float takes {found['bits_per_byte']:.3f} bits a byte, no less than {' and '.join(worse)}"
    if found["unknown"]:
        message += f"; {plural(found['unknown'], 'token')} of {found['tokens']} are unknown to the tokenizer"
    if found["changed"]:
        shown = ", ".join(map(repr, found["for_example"]))
        message += (
            f"; {plural(found['changed'], 'line')} of the text come back changed from the tokenizer: {shown}"
        )
    yield message
