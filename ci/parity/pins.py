"""Versions that several places repeat."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ci.parity.compare import Findings
from ci.parity.mapping import Pin, PinPlace
from ci.parity.model import Place
from ci.parity.tree import Tree


@dataclass(frozen=True, slots=True)
class Stated:
    value: str
    place: Place
    parts: int | None


def check(found: Findings, tree: Tree) -> None:
    for position, pin in enumerate(found.mapping.pins):
        by_place = [list(_stated_versions(tree, place)) for place in pin.places]
        for place, stated in zip(pin.places, by_place, strict=True):
            if not stated:
                where = Place(found.source.name, found.source.line("pins", position))
                found.report(
                    "parity-pin-missing",
                    where,
                    place.file,
                    pin.name,
                    f"{place.file} does not say the {pin.name}, where {place.pattern!r} looks for it",
                    f"correct the place in {found.source.name}, or say the version there",
                )
        flat = [one for stated in by_place for one in stated]
        first = flat[0] if flat else None
        for one in flat[1:]:
            if first is not None and not _agree(pin, first, one):
                found.report(
                    "parity-pin-drift",
                    one.place,
                    one.value,
                    pin.name,
                    f"the {pin.name} is {one.value} here, and {first.value} in {first.place}",
                    f"write {first.value} here, or change both",
                )


def _stated_versions(tree: Tree, where: PinPlace) -> list[Stated]:
    pattern = re.compile(where.pattern, re.MULTILINE)
    found = []
    for path in sorted(tree.match(where.file)):
        text = tree.read(path)
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start("value")) + 1
            found.append(Stated(match["value"], Place(path, line), where.parts))
    return found


def _agree(pin: Pin, first: Stated, other: Stated) -> bool:
    count = min((stated.parts for stated in (first, other) if stated.parts is not None), default=None)
    return _parts(pin, first, count) == _parts(pin, other, count)


def _parts(pin: Pin, stated: Stated, count: int | None) -> list[str]:
    return pin.same.get(stated.value, stated.value).split(".")[:count]
