"""Turns a text into tokens to quantize and to judge by: windows, of which some are chats, and prefixes that
Genie continues. It also finds what two texts have in common."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.genie import NONE
from ci.lanes.llm.orders import GENIE, CompileOrder, ForcedText, JudgedText
from ci.lanes.llm.tokenizer import (
    drop_beginning,
    has_template,
    load_tokenizer,
    read_text,
    render_template,
    tokens_of,
)
from provisioning.base.commands import quote_command
from provisioning.base.errors import CheckFailed, UsageError

PREFIX = 20
TURN = 25
"""A turn has this many tokens in the chats that a model is quantized and judged by."""
CHAT_SHARE, CHAT_PLACE = 4, 1
"""The second of every four windows becomes a chat, because there may be only two windows."""
CONTINUED = 2
"""Genie says this many tokens after a prefix: the first comes from prefill, the second from decode."""
CALIBRATION_WINDOWS, CALIBRATION_TOKENS = 12, 8192
"""This is enough to quantize by: longer contexts have fewer windows, but at least two."""
WINDOWS = 4
"""At least this many windows are judged, because the figures' errors are computed from windows."""
MIN_TOKENS = 256
"""Parts are judged by at least this many tokens, unless the context is shorter."""
SAMPLE_CHARS = 4000
MAX_OVERLAP = 0.05
"""At most this share of the judged text may also be in the calibration text."""
RUN = 16
"""Two texts hardly ever share this many tokens in a row, about a dozen words, by chance."""


def chat_row(folder: Path, tokenizer: Any, shape: Architecture, tokens: Sequence[int]) -> list[int]:
    """Turn a row, which begins as a text does, into a chat of short turns with the same number of tokens. It
    uses the checkpoint's template; without one, each turn is a text with its begin and end."""
    plain = tokens[len(shape.beginning) :]
    turns = [list(plain[at : at + TURN]) for at in range(0, len(plain), TURN)]
    if has_template(folder):
        roles = itertools.cycle(("user", "assistant"))
        messages = [
            {"role": role, "content": tokenizer.decode(turn)}
            for role, turn in zip(roles, turns, strict=False)
        ]
        chat = tokens_of(tokenizer, render_template(folder, messages, answered=True))
        row = [*shape.beginning, *drop_beginning(chat, NONE if shape.bos is None else shape.bos)]
    else:
        row = [token for turn in turns for token in (*shape.beginning, *turn, shape.eos[0])]
    return [*row, *plain][: len(tokens)]


def windows(folder: Path, shape: Architecture, text: Path, context: int, most: int = 0) -> list[list[int]]:
    """Cut a text into windows; if `most` is 0, as many as quantizing needs. Each begins like a prompt,
    because otherwise the first tokens' values would be cut off; some become chats, for the same reason."""
    most = most or max(2, min(CALIBRATION_WINDOWS, CALIBRATION_TOKENS // context))
    tokenizer = load_tokenizer(folder)
    tokens = tokens_of(tokenizer, read_text(text))
    length = context - len(shape.beginning)
    starts = range(0, len(tokens) - length + 1, length)[:most]
    rows = [[*shape.beginning, *tokens[at : at + length]] for at in starts]
    if len(rows) < most:
        command = quote_command("wc", "-w", str(text))
        raise CheckFailed(
            f"{text} has {len(tokens)} tokens: expected {most} windows of {length}",
            fix=f"give a longer text ({command} counts its words), or a shorter --context",
        )
    for row in rows[CHAT_PLACE::CHAT_SHARE]:
        row[:] = chat_row(folder, tokenizer, shape, row)
    return rows


def prefix_lengths(count: int, prefill: int, context: int) -> list[int]:
    """Return the lengths of prefixes. Every third takes more than one block of prefill, if the context has
    room for it."""
    longer = prefill + 8
    lengths = (longer, PREFIX, PREFIX) if 1 + longer + CONTINUED < context else (PREFIX,)
    return [lengths[index % len(lengths)] for index in range(count)]


def prefixes_of(tokens: Sequence[int], lengths: Sequence[int]) -> list[ForcedText]:
    """Return prefixes with the tokens that follow them in the text. Their ends are equally far apart, so that
    each is judged at its own place."""
    first = max(lengths)
    ends = [first + index * PREFIX for index in range(len(lengths))]
    return [
        ForcedText(list(tokens[end - length : end]), list(tokens[end : end + CONTINUED]))
        for end, length in zip(ends, lengths, strict=True)
    ]


def judged_text(
    order: CompileOrder,
    shape: Architecture,
    path: Path,
    tokens: int,
    prefixes: int,
    *,
    fills_context: bool = True,
) -> JudgedText:
    """Return the tokens that are read of a text, before any worker starts. Unless `fills_context`, Genie's
    text ends where the windows do: if decode reads the prompt, too, the whole context would take too long."""
    folder, context = Path(order.model), order.context
    words = read_text(path)
    stream = tokens_of(load_tokenizer(folder), words)
    length = min(context, max(2, tokens // WINDOWS + 1))
    count = -(-tokens // (length - 1))
    lengths = prefix_lengths(prefixes, order.prefill, context)
    own = length - len(shape.beginning)
    for_prefixes = max(lengths) + (len(lengths) - 1) * PREFIX + CONTINUED
    few = min(context, max(MIN_TOKENS, order.prefill + 1))
    least = max(for_prefixes, count * own, few - len(shape.beginning))
    if len(stream) < least:
        raise UsageError(
            f"{path} has {len(stream)} tokens: {prefixes} prefixes and {count} windows of {own} need {least}",
            fix=f"name a text of {least} tokens, --text FILE, or give fewer --tokens",
        )
    if (overlap := share_of_runs(stream[:least], order.calibration)) > MAX_OVERLAP:
        raise UsageError(
            f"{overlap:.0%} of what would be read of {path} is in the text that it was quantized by, too",
            fix="give another text",
        )
    texts: list[ForcedText] = []
    if order.through == GENIE:
        most = context - order.prefill
        texts = prefixes_of(stream, lengths)
        span = max(own, PREFIX + CONTINUED)
        end = context - len(shape.beginning) if fills_context else span
        # A shorter text is read again: the places are what counts.
        long = list(itertools.islice(itertools.cycle(stream), end))
        prompt = max(PREFIX, min(end - span + PREFIX, most))
        texts.append(ForcedText(long[:prompt], long[prompt:]))
    rows, [row] = (windows(folder, shape, path, *size) for size in ((length, count), (few, 1)))
    return JudgedText(rows, row, texts, words[:SAMPLE_CHARS])


def share_of_runs(tokens: Sequence[int], rows: Iterable[Sequence[int]]) -> float:
    """Return the share of tokens that are in runs of these rows, wherever the runs begin."""
    runs = {tuple(row[at : at + RUN]) for row in rows for at in range(0, len(row) - RUN + 1, RUN)}
    inside = set[int]()
    for at in range(len(tokens) - RUN + 1):
        if tuple(tokens[at : at + RUN]) in runs:
            inside.update(range(at, at + RUN))
    return len(inside) / len(tokens)
