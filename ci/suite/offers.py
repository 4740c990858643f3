"""What is offered for a program that is wrong: commands that repair, tune, explain or silence a finding
(manifests/offers.toml), and the cause and fix that were proved of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal, TextIO

from pydantic import Field

from ci.suite.precision import written_name
from provisioning.base.commands import Fix, joined, session
from provisioning.base.documents import Model, load
from provisioning.base.files import replace_text
from provisioning.base.findings import Finding, Place
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


@dataclass(frozen=True, slots=True)
class Proved:
    """Its cause, and a fix with its figure."""

    cause: str
    source: str
    """The line of the model, if it is known."""
    fix: str
    """Empty where none helped."""


def _kept(store: Path, program: str) -> Path:
    return store / "cache" / "results" / "proofs" / f"{program}.json"


def remember(store: Path, program: str, proved: Proved) -> None:
    """`program` is the digest of its bytes; one without is not remembered."""
    if program:
        kept = _kept(store, program)
        kept.parent.mkdir(parents=True, exist_ok=True)
        document = {**asdict(proved), "fix": joined([proved.fix]).parts}
        replace_text(kept, json.dumps(document) + "\n")


def explained(findings: Iterable[Finding], store: Path, program: str) -> Iterator[Finding]:
    """The findings; those of this program's accuracy say what was proved of it."""
    for finding in findings:
        if finding.rule.endswith("-accuracy") and (proved := _proved_of(store, program)):
            yield replace(
                finding,
                message=f"{finding.message}; {proved.cause}",
                fix=proved.fix or finding.fix,
                place=Place.read(proved.source) or finding.place,
            )
        else:
            yield finding


def _proved_of(store: Path, program: str) -> Proved | None:
    try:
        kept = json.loads(_kept(store, program).read_text(encoding="utf-8"))
        return Proved(**{**kept, "fix": Fix.read(kept["fix"])})
    except (OSError, ValueError, TypeError, KeyError):
        # What was never kept, or is damaged, is only not said.
        return None
