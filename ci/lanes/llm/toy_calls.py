"""A toy grammar of tool calls, which the tiny model learns beside its sentences: questions that one tool
answers, and others that none does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

QUESTIONS = {
    "weather": ("What is the weather in {}?", "Is it warm in {}?"),
    "clock": ("What time is it in {}?", "How late is it in {}?"),
    "train": ("When does a train leave for {}?", "Which train goes to {}?"),
    "": ("Who lives in {}?", "Why do people like {}?"),
}
"""By tool; the last ones are for none."""
CITIES = (
    "Paris", "Rome", "Berlin", "Madrid", "Vienna", "Prague", "Lisbon", "Dublin",
    "Athens", "Oslo", "Warsaw", "Zurich",
)  # fmt: skip
ABSTAINED = "No tool knows that."
HELD_OUT = 6
"""Of so many questions one is never trained on: it asks for a city by words that it knows from others."""

BEHAVIOUR = "behaviour.toml"
"""What the trained model is to do, beside its texts."""
ASKED = 2
"""Held-out questions, of each form so many, that it is judged by."""


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    tool: str
    """Empty where none is to be called."""
    city: str

    @property
    def answer(self) -> str:
        if not self.tool:
            return f" {ABSTAINED}"
        return " " + json.dumps({"name": self.tool, "parameters": {"city": self.city}})


def questions(*, held_out: bool) -> Iterator[Question]:
    every = [(tool, words) for tool, forms in QUESTIONS.items() for words in forms]
    for number, (tool, words) in enumerate(every):
        for place, city in enumerate(CITIES):
            if ((number + place) % HELD_OUT == 0) == held_out:
                yield Question(words.format(city), tool, city)


def write_behaviour(path: Path) -> None:
    """As `llm check --behaviour` reads it."""
    lines = []
    for _, some in itertools.groupby(questions(held_out=True), lambda row: row.tool):
        for row in itertools.islice(some, ASKED):
            calls = f'{{ name = "{row.tool}", arguments = {{ city = "{row.city}" }} }}' if row.tool else ""
            others = json.dumps([tool for tool in QUESTIONS if tool not in ("", row.tool)])
            lines += [
                "[[prompt]]",
                f'text = "{row.text}"',
                f"calls = [{calls}]",
                f"forbidden = {others}",
                "",
            ]
    path.write_text("\n".join(lines), encoding="utf-8")
