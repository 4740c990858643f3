"""What is measured of a model that speaks: its texts beside float's, and its logits on held-out text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.arrays import Array
from ci.lanes.llm.beginning import load_tokenizer
from ci.lanes.llm.behaviour import AskedPrompt, Behaviour, BehaviourFile
from ci.lanes.llm.genie import KINDS, ForcedText, GeneratedText
from ci.lanes.llm.judge import (
    NEAR_TIE,
    Continue,
    TextComparison,
    Window,
    along,
    compare_text,
    figures_of,
    window_of,
)
from ci.lanes.llm.prompts import (
    CHAT_PLACE,
    CHAT_SHARE,
    CONTINUED,
    chat_row,
    read_corpus,
    tokens_of,
)
from ci.lanes.llm.reference import Text, ends_of, greedy_text, logits_of, text_of
from ci.lanes.llm.suite import LlmRun
from ci.lanes.llm.toy_calls import BEHAVIOUR
from provisioning.base.commands import quoted
from provisioning.base.documents import load
from provisioning.base.errors import CheckFailed
from provisioning.manifest import Soc, soc_named

PREFILL, DECODE = 32, 1
"""Tokens that a graph reads at once."""
PROMPTS = (1, 31, 32, 33, 65)
"""Lengths around one and two blocks of prefill."""
MOST = 60
"""Tokens of a text that ends by itself."""
CALIBRATION_WINDOWS, JUDGED_WINDOWS = 12, 8
CALIBRATION_TOKENS = 8192
"""Enough to quantize by: longer contexts have fewer windows, but two."""


def calibration_windows(context: int) -> int:
    return max(2, min(CALIBRATION_WINDOWS, CALIBRATION_TOKENS // context))


def windows(
    folder: Path,
    shape: Architecture,
    text: Path,
    context: int,
    most: int = 0,
    or_else: str = "a shorter --context",
) -> list[list[int]]:
    """Of a text; without `most` as many as it takes to quantize by. Each begins like a prompt, because
    otherwise the first tokens' values would be cut off; and a share are chats, for the same reason.
    `or_else` is what a shorter text needs."""
    most = most or calibration_windows(context)
    tokenizer = load_tokenizer(folder)
    tokens = tokens_of(tokenizer, read_corpus(text))
    length = context - len(shape.beginning)
    starts = range(0, len(tokens) - length + 1, length)[:most]
    rows = [[*shape.beginning, *tokens[at : at + length]] for at in starts]
    if len(rows) < most:
        needed = quoted("wc", "-w", str(text))
        raise CheckFailed(
            f"{text} has {len(tokens)} tokens: expected {most} windows of {length}",
            fix=f"give a longer text ({needed} counts its words), or {or_else}",
        )
    for row in rows[CHAT_PLACE::CHAT_SHARE]:
        row[:] = chat_row(folder, tokenizer, shape, row)
    return rows


@dataclass(frozen=True)
class ProgramFolders:
    """The folders of a model and of its program."""

    model: Path
    into: Path
    shape: Architecture
    run: LlmRun
    chip: str
    timeout: float

    @property
    def soc(self) -> Soc:
        return soc_named(self.chip)

    @property
    def context(self) -> int:
        return self.shape.context

    def rows(self, kind: str) -> list[list[int]]:
        """Windows of held-out text that fill the context; each begins like a text."""
        texts: list[list[int]] = json.loads((self.model / "texts.json").read_text(encoding="utf-8"))[kind]
        beginning = self.shape.beginning
        stream = [token for text in texts for token in (*beginning, *text, self.shape.eos[0])]
        length, first = self.context - len(beginning), len(beginning)
        starts = range(first, len(stream) - length, length)
        return [[*beginning, *stream[at : at + length]] for at in starts]

    def calibration(self) -> list[list[int]]:
        rows = self.rows("calibration")[:CALIBRATION_WINDOWS]
        if len(rows) < CALIBRATION_WINDOWS:
            raise CheckFailed(
                f"{len(rows)} windows of text to calibrate by, and {CALIBRATION_WINDOWS} are needed"
            )
        return rows

    def endless(self) -> Architecture:
        """One that speaks until the context is full."""
        return replace(self.shape, eos=(self.shape.vocab_size - 1,))


class TokenReader(Protocol):
    def restart(self) -> None: ...

    def read(self, tokens: Sequence[int]) -> Array: ...


class Speaker(Protocol):
    def __call__(
        self, prompts: Sequence[Sequence[int]], most: int, *, endless: bool
    ) -> Sequence[GeneratedText]:
        """Answers to prompts without the token that begins a text."""


def texts(
    place: ProgramFolders, reference: Any, generate: Speaker
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Texts after prompts of every length, and one that fills the context, each beside float's text; and
    the model's speed, which says nothing about a device."""
    stream = [token for row in place.rows("judged") for token in row[1:]]
    plans = [
        (False, MOST, ends_of(reference), stream[97 * (place.run.prompts * index + turn) :][:length])
        for index, length in enumerate(PROMPTS)
        for turn in range(place.run.prompts)
    ]
    prompts = [tuple(prompt) for _, _, _, prompt in plans]
    plans.append((True, 2 * place.context, place.endless().eos, stream[:1]))
    generated = dict(zip(prompts, generate(prompts, MOST, endless=False), strict=True))
    rows = []
    for endless, most, ends, prompt in plans:

        def again(
            tokens: Sequence[int],
            endless: bool = endless,
            most: int = most,
            prompt: Sequence[int] = prompt,
        ) -> tuple[Sequence[int], str]:
            whole = (*prompt, *tokens)
            text = None if endless else generated.get(whole)
            text = text or generate([whole], most, endless=endless)[0]
            return text.tokens, text.stopped

        rows.append(_as_row(place, beside_float(reference, place.shape, prompt, most, ends, again)))
    every = [text for text in generated.values() if len(text.tokens) > 1]
    later = sum(text.seconds - text.first_seconds for text in every)
    return rows, {
        "tokens_per_second": round(sum(len(text.tokens) - 1 for text in every) / later, 1) if later else 0.0,
        "first_token_seconds": round(sum(text.first_seconds for text in every) / max(1, len(every)), 2),
    }


def behaviour(
    place: ProgramFolders, reference: Any, generate: Speaker, on_cpu: TokenReader
) -> list[dict[str, Any]]:
    """What float, the quantized model on the CPU and what was compiled do after the model's own prompts."""
    file, tokenizer = load(place.model / BEHAVIOUR, BehaviourFile), load_tokenizer(place.model)
    tokens = [tokens_of(tokenizer, prompt.text) for prompt in file.prompts]
    pairs = zip(file.prompts, tokens, strict=True)
    asked = Behaviour(file.tokens, [AskedPrompt(pair, pair.text, ids) for pair, ids in pairs])
    ends = ends_of(reference)

    def by_float(prompt: Sequence[int]) -> Text:
        return text_of(reference, prompt, file.tokens, ends, place.context)

    def by_cpu(prompt: Sequence[int]) -> Text:
        on_cpu.restart()
        return greedy_text(lambda some: on_cpu.read(some)[-1], prompt, file.tokens, ends, place.context)

    answers: dict[str, Sequence[Text | GeneratedText]] = {
        who: [answer([*place.shape.beginning, *prompt]) for prompt in tokens]
        for who, answer in (("float", by_float), ("cpu", by_cpu))
    }
    answers["htp"] = generate(tokens, file.tokens, endless=False)
    return asked.judged(
        {
            who: [{"tokens": list(answer.tokens), "stopped": answer.stopped} for answer in every]
            for who, every in answers.items()
        },
        tokenizer,
    )


def beside_float(
    reference: Any,
    shape: Architecture,
    prompt: Sequence[int],
    most: int,
    ends: Sequence[int],
    generate: Continue,
) -> TextComparison:
    """A text after a prompt, which lacks the token that begins a text, compared with float's."""
    expected = text_of(reference, [*shape.beginning, *prompt], most, ends, shape.context)
    return compare_text(prompt, expected.tokens, expected.stopped, expected.logits, ends, most, generate)


def _as_row(place: ProgramFolders, comparison: TextComparison) -> dict[str, Any]:
    tokenizer = load_tokenizer(place.model)

    def words(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=False))

    return {
        **comparison.as_json(),
        "compared": comparison.tokens,
        "prompt_text": words(comparison.prompt),
        "expected_text": words(comparison.expected),
        "found_text": words(comparison.found),
    }


def figures(place: ProgramFolders, reference: Any, readers: Mapping[str, TokenReader]) -> dict[str, Any]:
    rows = place.rows("judged")[:JUDGED_WINDOWS]
    return figures_on(rows, (logits_of(reference, row) for row in rows), readers)


def figures_on(
    rows: Sequence[Sequence[int]],
    exact: Iterable[Array],
    readers: Mapping[str, TokenReader],
    tie: float = 0.0,
) -> dict[str, Any]:
    """Figures on held-out text: of each reader, and of those on HTP compared with the same on the CPU.
    `exact` are float's logits of each row."""
    windows: dict[str, list[Window]] = {}
    for row, expected in zip(rows, exact, strict=True):
        read = {name: _read(reader, row) for name, reader in readers.items()}
        for name, logits in read.items():
            windows.setdefault(name, []).append(window_of(logits, expected[: len(logits)], row[1:], tie))
            on_cpu = name.replace("_htp", "_cpu")
            if on_cpu != name and on_cpu in read:
                beside = window_of(logits, read[on_cpu], row[1:], tie)
                windows.setdefault(f"{name}_cpu", []).append(beside)
    return {
        "tokens": sum(len(row) - 1 for row in rows),
        "windows": len(rows),
        "positions": {name: along(window) for name, window in windows.items()},
        **{name: _as_json(window) for name, window in windows.items()},
    }


def genie_figures(
    shape: Architecture,
    reference: Any,
    texts: Sequence[ForcedText],
    logits: Sequence[Array],
    tie: float = 0.0,
) -> dict[str, Any]:
    """Figures of Genie's own logits: of prefill's at the end of each prompt, and of decode's after it."""
    expected = [
        choosing(text, logits_of(reference, whole_text(shape, text), chosen_of(text))) for text in texts
    ]
    return figures_beside(texts, expected, logits, tie)


def whole_text(shape: Architecture, text: ForcedText) -> list[int]:
    return [*shape.beginning, *text.prompt, *text.tokens]


def chosen_of(text: ForcedText) -> int:
    """How many of its last logits are needed: its tokens are chosen from all of them but the last."""
    return len(text.tokens) + 1


def choosing(text: ForcedText, rows: Array) -> Array:
    """Of the last rows of a whole text those from which its tokens are chosen."""
    chosen: Array = rows[-chosen_of(text) : -1]
    return chosen


def figures_beside(
    texts: Sequence[ForcedText], expected: Sequence[Array], logits: Sequence[Array], tie: float = 0.0
) -> dict[str, Any]:
    windows: dict[str, list[Window]] = {f"{kind}_genie": [] for kind in KINDS}
    for text, theirs, rows in zip(texts, expected, logits, strict=True):
        for name, part in zip(windows, (slice(0, 1), slice(1, None)), strict=True):
            if len(following := text.tokens[part]):
                windows[name].append(window_of(rows[part], theirs[part], following, tie))
    return {name: _as_json(window) for name, window in windows.items()}


def _read(reader: TokenReader, row: Sequence[int]) -> Array:
    reader.restart()
    return reader.read(row[:-1])


def _as_json(windows: Sequence[Window]) -> dict[str, Any]:
    return {name: asdict(figure) for name, figure in figures_of(windows).items()}


def choices(
    shape: Architecture,
    reference: Any,
    prefixes: Sequence[Sequence[int]],
    generated: Sequence[GeneratedText],
    tie: float = 0.0,
) -> dict[str, dict[str, float]]:
    """What float loses by Genie's tokens after each prefix: by the first, which is prefill's choice, and by
    the second, which is decode's after the first."""
    regrets: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for prefix, text in zip(prefixes, generated, strict=True):
        said = text.tokens[:CONTINUED]
        # Genie prints nothing if it chooses to end; of several ends, take float's nearest.
        chosen = [(token,) for token in said] + [ends_of(reference)] * (len(said) < CONTINUED)
        before = [*shape.beginning, *prefix]
        rows = logits_of(reference, [*before, *said])[len(before) - 1 :]
        for kind, row, tokens in zip(KINDS, rows, chosen, strict=False):
            regrets[kind].append(float(row.max() - max(row[token] for token in tokens)))
    return {kind: _loss(regret, tie) for kind, regret in regrets.items()}


def _loss(regrets: Sequence[float], tie: float) -> dict[str, float]:
    count = len(regrets)
    return {
        "tokens": count,
        "first_choice": sum(regret <= tie for regret in regrets) / max(1, count),
        "near_ties": sum(tie < regret < NEAR_TIE for regret in regrets),
        "regret": sum(regrets) / max(1, count),
        "worst_regret": max(regrets, default=0.0),
    }
