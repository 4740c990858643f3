"""The names of chips: QNN's own, those they are sold and spoken of by, and the devices that have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from provisioning.base import toml
from provisioning.base.commands import Fix, add_flags, session
from provisioning.base.errors import UnknownName, UsageError
from provisioning.base.settings import MANIFESTS


@dataclass(frozen=True, slots=True)
class Named:
    """A name that people use, and the chips that it may mean."""

    text: str
    chips: tuple[str, ...]
    """QNN's names; of a device also other makers'."""
    official: bool = False
    """Of a chip by its maker, which is not shortened."""

    def __str__(self) -> str:
        return f"{self.text} ({' or '.join(self.chips)})"

    def among(self, chip: str) -> str:
        """The name beside that chip; a device that is sold with another one too says so."""
        others = [name for name in self.chips if name != chip]
        return f"{self.text} (or {', '.join(others)})" if others else self.text


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = toml.loads((MANIFESTS / "socs.toml").read_text(encoding="utf-8"))
    return table


def known_chips() -> list[str]:
    """QNN's names."""
    return [*_table()["socs"]]


def names_of(chip: str) -> list[Named]:
    """What else a chip is called, then the devices that are sold with it."""
    return [name for name in _names() if chip in name.chips and name.text != chip]


def chip_named(name: str) -> str:
    """QNN's name of the chip that the user means; what may mean several is refused with its choices."""
    socs = _table()["socs"]
    if name in socs:
        return name
    for known, soc in socs.items():
        if name in map(str, soc.get("kernel_ids", ())):
            raise UsageError(
                f"{name} is what the kernel calls {known} (/sys/devices/soc0/soc_id)",
                fix=add_flags("--soc", known),
            )
        if name == str(soc["id"]):
            raise UsageError(f"{name} is QNN's number of {known}", fix=add_flags("--soc", known))
    word = simple(name)
    meant = next((name for name in _names() if word == simple(name.text)), None)
    if meant and len(meant.chips) == 1:
        return meant.chips[0]
    if meant:
        ours = next(chip for chip in meant.chips if chip in socs)
        raise UsageError(
            f"the {meant.text} is sold with {' and with '.join(meant.chips)}",
            fix=Fix("{} where `adb shell getprop ro.soc.model` says so", ("--soc", ours)),
        )
    choices = [name for name in _names() if word and word in simple(name.text) and not name.official]
    chips = list(dict.fromkeys(chip for choice in choices for chip in choice.chips))
    if len(chips) > 1:
        raise UsageError(
            f"{name} may be {', '.join(map(str, choices))}",
            fix=Fix("{}, or another of these", ("--soc", next(chip for chip in chips if chip in socs))),
        )
    if chips:
        return chips[0]
    raise UnknownName(f"there is no chip {name!r}: {session('chips')} lists them", name.strip().upper(), socs)


def simple(name: str) -> str:
    """However it is written: `Snapdragon 8 Gen 3`, `8gen3`, `8-gen-3`."""
    words = re.sub("[^a-z0-9+]", "", name.lower())
    return re.sub("^(qualcomm|snapdragon|samsung|galaxy)+", "", words)


def _names() -> Iterator[Named]:
    for chip, soc in _table()["socs"].items():
        yield from (Named(text, (chip,)) for text in soc.get("called", ()))
        yield from (Named(text, (chip,), official=True) for text in (chip, *soc.get("sold_as", ())))
    for device, chips in _table()["devices"].items():
        yield Named(device, tuple(chips))
