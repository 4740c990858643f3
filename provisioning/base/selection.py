"""The user's selection, by flag, then environment, then default; and the names of chips in it.

A chip has QNN's own name, those that it is sold and spoken of by, and those of the devices that have it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from provisioning.base import toml
from provisioning.base.commands import Fix, add_flags, leave_out, session
from provisioning.base.errors import UnknownName, UsageError
from provisioning.base.settings import (
    ALL,
    DEFAULT_PROFILE,
    DEFAULT_SOC,
    DEFAULT_TARGET,
    MANIFESTS,
    TARGETS,
    WHEEL,
    Selection,
    reports_path,
    store_path,
)


@dataclass(frozen=True, slots=True)
class Named:
    """A name that people use, and the chips that it may mean."""

    text: str
    chips: tuple[str, ...]
    """QNN's names of the chips; a device may also have chips of other makers."""
    official: bool = False
    """Whether the chip's maker uses this name, which is then not shortened."""

    def __str__(self) -> str:
        return f"{self.text} ({' or '.join(self.chips)})"

    def among(self, chip: str) -> str:
        """The name beside that chip; a device that is sold with another one too says so."""
        rest = [name for name in self.chips if name != chip]
        return f"{self.text} (or {', '.join(rest)})" if rest else self.text


@cache
def _table() -> dict[str, Any]:
    return dict(toml.loads((MANIFESTS / "socs.toml").read_text(encoding="utf-8")))


def known_chips() -> list[str]:
    """List QNN's names of the chips."""
    return [*_table()["socs"]]


def names_of(chip: str) -> list[Named]:
    """List what else a chip is called, then the devices that are sold with it."""
    return [name for name in _known_names() if chip in name.chips and name.text != chip]


def chip_named(name: str) -> str:
    """Return QNN's name of the chip that the user means. A name that may mean several is refused with its
    choices."""
    socs = _table()["socs"]
    if name in socs:
        return name
    for soc_name, soc in socs.items():
        if name in map(str, soc.get("kernel_ids", ())):
            raise UsageError(
                f"{name} is what the kernel calls {soc_name} (/sys/devices/soc0/soc_id)",
                fix=add_flags("--soc", soc_name),
            )
        if name == str(soc["id"]):
            raise UsageError(f"{name} is QNN's number of {soc_name}", fix=add_flags("--soc", soc_name))
    word = simple(name)
    device = next((name for name in _known_names() if word == simple(name.text)), None)
    if device and len(device.chips) == 1:
        return device.chips[0]
    if device:
        ours = next(chip for chip in device.chips if chip in socs)
        raise UsageError(
            f"the {device.text} is sold with {' and with '.join(device.chips)}",
            fix=Fix("{} where `adb shell getprop ro.soc.model` says so", ("--soc", ours)),
        )
    choices = [name for name in _known_names() if word and word in simple(name.text) and not name.official]
    chips = list(dict.fromkeys(chip for choice in choices for chip in choice.chips))
    if len(chips) > 1:
        raise UsageError(
            f"{name} may be {', '.join(map(str, choices))}",
            fix=Fix("{}, or another of these", ("--soc", next(chip for chip in chips if chip in socs))),
        )
    if chips:
        return chips[0]
    _refuse_hexagon(name, word)
    _refuse_other(word)
    _refuse_other_maker(name, word)
    raise UnknownName(f"there is no chip {name!r}: {session('chips')} lists them", name.strip().upper(), socs)


OTHER_MAKERS = {
    "Google's Tensor": r"(?:google)?tensor.*|(?:google)?pixel(?:[6-9]|1\d).*",
    "Samsung's Exynos": r"exynos.*",
    "MediaTek's Dimensity": r"(?:mediatek)?dimensity.*|mediatek.*|helio.*",
    "Apple's": r"(?:apple|iphone|ipad|macbook).*|a\d\d(?:bionic|pro)",
    "HiSilicon's Kirin": r"(?:hisilicon)?kirin.*",
}
"""Chips without QNN, and how their names and those of their devices begin."""


def _refuse_other_maker(name: str, word: str) -> None:
    for chips, pattern in OTHER_MAKERS.items():
        if re.fullmatch(pattern, word):
            raise UsageError(
                f"{name}: {chips} chips have no Hexagon NPU, and QNN compiles for no other",
                fix=Fix("take a chip or a phone of those that have one: {}", ("chips",)),
            )


def _refuse_hexagon(name: str, word: str) -> None:
    """Refuse the version of a Hexagon, which several chips have."""
    version = re.fullmatch(r"(?:hexagon)?v(\d\d)", word)
    having = [soc for soc, row in _table()["socs"].items() if version and version[1] == str(row["arch"])]
    if having:
        raise UsageError(f"{name} is the Hexagon of {', '.join(having)}", fix=add_flags("--soc", having[-1]))


def _refuse_other(word: str) -> None:
    """Refuse a chip that QNN has and no lane was tried with: names that look alike are of other Hexagons."""
    others, socs = _table()["others"], _table()["socs"]
    for name, chip in others.items():
        if word not in map(simple, (name, f"{name}P", *chip.get("called", ()))):
            continue
        arch, memory = chip["arch"], chip.get("vtcm_mb")
        if not memory:
            raise UsageError(
                f"{name} has Hexagon V{arch}: QNN's NPU backend begins with V68",
                fix=Fix("take another chip: {}", ("chips",)),
            )
        message = (
            f"QNN knows {name} (Hexagon V{arch}, {memory} MB VTCM), and no lane of qnn-ci was tried with it"
        )
        alike = [known for known, soc in socs.items() if soc["arch"] == arch]
        if not alike:
            raise UsageError(
                message, fix=Fix("no other chip has this Hexagon; those that are: {}", ("chips",))
            )
        # Of the same family, else a phone's.
        families = {name[:2]: 0, "SM": 1}
        nearest = min(alike, key=lambda soc: (families.get(soc[:2], 2), abs(socs[soc]["vtcm_mb"] - memory)))
        fix = f"see what this Hexagon takes, with {socs[nearest]['vtcm_mb']} MB VTCM: {{}}"
        raise UsageError(message, fix=Fix(fix, ("--soc", nearest)))


def simple(name: str) -> str:
    """Reduce a name to what all its spellings share: `Snapdragon 8 Gen 3`, `8gen3`, `8-gen-3`."""
    words = re.sub("[^a-z0-9+]", "", name.lower())
    return re.sub("^(qualcomm|snapdragon|samsung|galaxy)+", "", words)


def _known_names() -> Iterator[Named]:
    for chip, soc in _table()["socs"].items():
        yield from (Named(text, (chip,)) for text in soc.get("called", ()))
        yield from (Named(text, (chip,), official=True) for text in (chip, *soc.get("sold_as", ())))
    for device, chips in _table()["devices"].items():
        yield Named(device, tuple(chips))


def add_selection(parser: argparse.ArgumentParser, *, executorch: bool = True) -> None:
    """Add the flags that every verb shares. `executorch` is false for a verb that has a flag of that name
    itself."""
    parser.set_defaults(executorch_by_word="")
    group = parser.add_argument_group("selection")
    group.add_argument("--profile", help=f"set of pins to use [QNN_CI_PROFILE, {DEFAULT_PROFILE}]")
    group.add_argument(
        "--target",
        action="append",
        choices=(*TARGETS, ALL),
        help=f"the platform to build for; some verbs take several [{DEFAULT_TARGET}]",
    )
    group.add_argument(
        "--soc",
        action="append",
        help=f"SM8750, 8-elite … (`chips` lists them); may be repeated [QNN_CI_SOC, {DEFAULT_SOC}]",
    )
    if executorch:
        add_executorch(group)
    group.add_argument("--store", type=Path, help="where provisioned trees live [QNN_CI_STORE, user cache]")
    group.add_argument("--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]")


def add_executorch(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--executorch",
        dest="executorch_by_word",
        choices=(WHEEL,),
        help="run the profile's wheel, whichever tree EXECUTORCH_ROOT names",
    )


def selection_of(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Selection:
    """Flags come first, then variables, then defaults. An empty variable counts as not set."""
    profiles = _names("--profile", None if args.profile is None else [args.profile])
    profiles = profiles or _names("QNN_CI_PROFILE", _set(environ, "QNN_CI_PROFILE"))
    socs = _chips("--soc", args.soc) or _chips("QNN_CI_SOC", _set(environ, "QNN_CI_SOC"))
    names = args.target or ()
    targets = TARGETS if ALL in names else tuple(dict.fromkeys(names))
    return Selection(
        profile=(*profiles, DEFAULT_PROFILE)[0],
        target=(*targets, DEFAULT_TARGET)[0],
        soc=(*socs, DEFAULT_SOC)[0],
        store=store_path(args.store, environ),
        reports=reports_path(args.reports, environ),
        named_socs=socs,
        named_targets=targets,
        executorch=args.executorch_by_word or "",
    )


def host_selection(args: argparse.Namespace) -> Selection:
    """The selection of a command that works for this machine."""
    for target in args.target or ():
        if target != DEFAULT_TARGET:
            raise UsageError(
                f"--target {target}: the emulator runs on {DEFAULT_TARGET}", fix=leave_out("--target")
            )
    return selection_of(args)


def _set(environ: Mapping[str, str], variable: str) -> list[str]:
    return [environ[variable]] if environ.get(variable) else []


def _names(source: str, values: Sequence[str] | None) -> tuple[str, ...]:
    """The names in a flag or variable, which may be separated by commas; each once."""
    names = [name.strip() for value in values or () for name in value.split(",")]
    if "" in names:
        text = ", ".join(repr(value) for value in values or ())
        raise UsageError(f"{source} {text}: expected a name, found nothing", fix=leave_out(source))
    return tuple(dict.fromkeys(names))


def _chips(source: str, values: Sequence[str] | None) -> tuple[str, ...]:
    """Return QNN's names of the chips, each once; says which it is if the user named one otherwise."""
    typed = _names(source, values)
    try:
        chips = {name: chip_named(name) for name in typed}
    except UsageError as error:
        if source.startswith("-"):
            raise
        # Whoever typed no flag looks for the name in vain.
        raise UsageError(f"{source}: {error.message}", fix=error.fix) from None
    sys.stderr.writelines(f"{source} {name}: {chip}\n" for name, chip in chips.items() if name != chip)
    return tuple(dict.fromkeys(chips.values()))
