"""The commands that repair, tune, explain or silence a finding: manifests/offers.toml."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal, TextIO

from pydantic import Field

from ci.suite.precision import written_name
from provisioning.base.commands import Fix, session
from provisioning.base.documents import Model, load
from provisioning.base.rendering import readable
from provisioning.base.settings import MANIFESTS

Words = Mapping[str, Sequence[str]]
"""By name in braces: what it stands for."""


MORE_EXACT = {"8a8w": "16a8w", "8a4w": "16a4w", "16a8w": "fp16"}
"""By precision: the one that `tune` gives what loses too much."""


class Offer(Model):
    does: Literal["repairs", "tunes", "explains", "silences"]
    rules: tuple[str, ...]
    command: tuple[str, ...]


class Offers(Model):
    schema_: Literal[1] = Field(alias="schema")
    offer: tuple[Offer, ...]


@cache
def load_offers() -> tuple[Offer, ...]:
    return load(MANIFESTS / "offers.toml", Offers).offer


def offers_of(rules: Iterable[str], words: Words, besides: str = "") -> dict[str, Fix]:
    """By what it does, one command; none of the verb `besides`, which was just done."""
    rules, found = list(rules), dict[str, Fix]()
    for offer in load_offers():
        meant = any(fnmatchcase(rule, pattern) for rule in rules for pattern in offer.rules)
        filled = [words.get(word[1:-1], ()) if word.startswith("{") else [word] for word in offer.command]
        if meant and all(filled) and offer.does not in found and offer.command[0] != besides:
            verb, *rest = (word for of_word in filled for word in of_word)
            found[offer.does] = session(verb, *rest)
    return found


def words_of(model: Sequence[str]) -> Words:
    """What offers say of MODEL and its flags; `tuned_model` has the two precisions that `tune` is to mix, and
    is empty where none is more exact. With a precision file there is only `mixed_model`: few commands take
    one."""
    words = list(model)
    if "--precision-file" in words:
        return {"mixed_model": words}
    if "--precision" not in words:
        return {"model": model, "mixed_model": words, "tuned_model": words}
    place = words.index("--precision")
    precision = written_name(words[place + 1])
    both = [precision, MORE_EXACT[precision]] if precision in MORE_EXACT else []
    pair = [word for name in both for word in ("--precision", name)]
    tuned = [*words[:place], *pair, *words[place + 2 :]] if pair else []
    return {"model": model, "mixed_model": words, "tuned_model": tuned}


def show(offers: Mapping[str, str], stream: TextIO | None = None) -> None:
    """As a numbered list, to a person: not in CI, and not where it is read by a program."""
    stream = stream or sys.stderr
    if offers and stream.isatty() and not os.environ.get("CI"):
        rows = (
            f"  {number}. {does:<9} {command}\n" for number, (does, command) in enumerate(offers.items(), 1)
        )
        stream.write(readable("".join(["what to type next\n", *rows]), stream))
