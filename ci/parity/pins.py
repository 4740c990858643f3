"""Versions that several places repeat."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ci.parity.differences import Findings
from ci.parity.mapping import Pin, PinPlace
from ci.parity.model import TreePlace
from ci.parity.tree import Tree


@dataclass(frozen=True, slots=True)
class Mention:
    """A version where a file mentions it."""

    value: str
    place: TreePlace
    parts: int | None


def check(findings: Findings, tree: Tree) -> None:
    for position, pin in enumerate(findings.mapping.pins):
        mentions: list[Mention] = []
        for place in pin.places:
            here = _mentions(tree, place)
            mentions += here
            if not here:
                line = TreePlace(findings.source.name, findings.source.line("pins", position))
                pattern = repr(place.pattern)
                findings.report("parity-pin-missing", line, place.file, pin.name, pattern=pattern)
        for mention in mentions[1:]:
            first = mentions[0]
            if not _agree(pin, first, mention):
                rule, elsewhere = "parity-pin-drift", first.place
                findings.report(
                    rule, mention.place, mention.value, pin.name, first=first.value, elsewhere=elsewhere
                )


def _mentions(tree: Tree, where: PinPlace) -> list[Mention]:
    pattern = re.compile(where.pattern, re.MULTILINE)
    mentions = []
    for path in sorted(tree.match(where.file)):
        text = tree.read(path)
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start("value")) + 1
            mentions.append(Mention(match["value"], TreePlace(path, line), where.parts))
    return mentions


def _agree(pin: Pin, first: Mention, other: Mention) -> bool:
    both = first, other
    count = min((mention.parts for mention in both if mention.parts is not None), default=None)
    one, two = (pin.same.get(mention.value, mention.value).split(".")[:count] for mention in both)
    return one == two
