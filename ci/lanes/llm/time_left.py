"""How long `llm check` will still take: what it reads, at the pace that was measured at its beginning."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci.lanes.llm.genie import KINDS, ForcedText
from ci.lanes.llm.prompts import CONTINUED
from ci.pipeline.steps import Asker


@dataclass(frozen=True, slots=True)
class Pace:
    """In seconds."""

    ready: Mapping[str, float]
    """By kind of graph, until all that reads with it is loaded."""
    token: Mapping[str, float]
    """By reader, for each token."""
    floats: Mapping[str, float]
    """Float's, until transformers is imported (`start`) and the model loaded (`ready`), for each row, however
    short it is (`row`), and for each token of it (`token`); and to judge a token (`judge`)."""
    order: float
    """Of a worker, for each order: it forks, imports and answers."""

    def by_float(self, lengths: Sequence[int], *, start: bool = True) -> float:
        rows = len(lengths) * self.floats["row"] + sum(lengths) * self.floats["token"]
        return self.order + self.floats["ready"] + rows + start * self.floats["start"]

    def by_readers(self, kind: str, tokens: int) -> float:
        """By all that read with one kind of graph."""
        paces = [pace for name, pace in self.token.items() if name.startswith(kind)]
        # HTP is judged beside the CPU, too.
        judged = 2 * len(paces) - 1
        return self.ready[kind] + tokens * (sum(paces) + judged * self.floats["judge"])

    def figures(self, kind: str, rows: int, length: int) -> float:
        return self.by_float([length] * rows) + self.by_readers(kind, rows * (length - 1))

    def parts(self, kind: str, length: int, parts: int = 1) -> float:
        """Of a row, where float is our own decoder; `ready` is of one of so many parts."""
        read = self.by_readers(kind, length - 1) + (parts - 1) * self.ready[kind]
        return self.by_float([length], start=False) + read

    def answers(self, who: str, prompts: Sequence[int], most: int) -> float:
        """Of so many tokens after each prompt. Float reads each of them as a row."""
        if who == "float":
            return self.by_float([*prompts, *[1] * (most * len(prompts))])
        tokens = sum(prompts) + most * len(prompts)
        return self.order + self.ready["decode"] + tokens * self.token[f"decode_{who}"]

    def genie(self, texts: Sequence[tuple[int, int]], block: int) -> float:
        """Of each text it reads so many tokens, in blocks, and says so many. Without a block it reads by
        decode, too."""
        read = sum(-(-prompt // max(1, block)) * max(1, block) for prompt, _ in texts)
        reader, kinds = ("prefill_htp", KINDS) if block else ("decode_htp", ("decode",))
        spoken = sum(said for _, said in texts) * self.token["decode_htp"]
        return self.order + sum(self.ready[kind] for kind in kinds) + read * self.token[reader] + spoken


def measured_pace(ask: Asker, order: Mapping[str, Any], do: str) -> Pace:
    """`do` is the order that measures the readers of one kind of graph."""
    replies = {kind: ask(**{**for_kind(order, kind), "do": do}) for kind in KINDS}
    began = time.monotonic()
    floats = ask(**order, do="float pace")
    without = max(0.0, time.monotonic() - began - floats["spent"])
    ready = {kind: reply["ready"] for kind, reply in replies.items()}
    paces = {name: cost for reply in replies.values() for name, cost in reply["pace"].items()}
    return Pace(ready, paces, floats, without)


@dataclass(frozen=True, slots=True)
class Work:
    """What is left when paces are known."""

    order: Mapping[str, Any]
    who: Sequence[str]
    """Beside float, those that answer: `cpu`, `htp`."""
    prompts: Sequence[tuple[Sequence[Sequence[int]], int]]
    """That are answered, and by how many tokens."""
    forced: Sequence[ForcedText] = ()
    """What Genie is made to say. Without Genie there are none."""
    block: int = 0
    """That Genie reads prompts by; 0 where it loads decode alone."""

    def seconds(self, pace: Pace) -> float:
        order, few = self.order, {**self.order, **self.order["few"]}
        total = 0.0
        for kind in KINDS:
            total += pace.figures(kind, order["windows"], for_kind(order, kind)["length"])
            if not order["cpu"]:
                # Each part.
                total += pace.parts(kind, for_kind(few, kind)["length"])
        for prompts, most in self.prompts:
            lengths = [len(prompt) for prompt in prompts]
            total += sum(pace.answers(name, lengths, most) for name in ("float", *self.who))
            if self.forced:
                total += pace.genie([(length, most) for length in lengths], self.block)
        if self.forced:
            whole = [(len(text.prompt), len(text.tokens)) for text in self.forced]
            # Its choices after all but the last, and then its logits.
            for texts in ([(length, CONTINUED) for length, _ in whole[:-1]], whole):
                total += pace.genie(texts, self.block) + pace.by_float([sum(text) for text in texts])
        return total


def for_kind(order: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Decode of a large model takes seconds for each token."""
    length = order["length"]
    if kind == "decode":
        length = min(length, max(1, order["decode_tokens"] // order["windows"]) + 1)
    return {**order, "kind": kind, "length": length}
