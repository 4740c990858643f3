"""The user's selection: by flag, then environment, then default."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioning.base.chips import chip_named
from provisioning.base.commands import leave_out
from provisioning.base.errors import UsageError
from provisioning.base.settings import (
    ALL,
    DEFAULT_PROFILE,
    DEFAULT_SOC,
    DEFAULT_TARGET,
    TARGETS,
    Selection,
    reports_path,
    store_path,
)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """The flags that every verb shares."""
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
    group.add_argument("--store", type=Path, help="where provisioned trees live [QNN_CI_STORE, user cache]")
    group.add_argument("--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]")


def selection_of(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Selection:
    """Flags come first, then variables, then defaults. An empty variable counts as not set."""
    profiles = _names("--profile", None if args.profile is None else [args.profile])
    profiles = profiles or _names("QNN_CI_PROFILE", _set(environ, "QNN_CI_PROFILE"))
    socs = _chips("--soc", args.soc) or _chips("QNN_CI_SOC", _set(environ, "QNN_CI_SOC"))
    named = args.target or ()
    targets = TARGETS if ALL in named else tuple(dict.fromkeys(named))
    return Selection(
        profile=(*profiles, DEFAULT_PROFILE)[0],
        target=(*targets, DEFAULT_TARGET)[0],
        soc=(*socs, DEFAULT_SOC)[0],
        store=store_path(args.store, environ),
        reports=reports_path(args.reports, environ),
        named_socs=socs,
        named_targets=targets,
    )


def _set(environ: Mapping[str, str], variable: str) -> list[str]:
    return [environ[variable]] if environ.get(variable) else []


def _names(source: str, values: Sequence[str] | None) -> tuple[str, ...]:
    """The names in a flag or variable, which may be separated by commas; each once."""
    names = [name.strip() for value in values or () for name in value.split(",")]
    if "" in names:
        shown = ", ".join(repr(value) for value in values or ())
        raise UsageError(f"{source} {shown}: expected a name, found nothing", fix=leave_out(source))
    return tuple(dict.fromkeys(names))


def _chips(source: str, values: Sequence[str] | None) -> tuple[str, ...]:
    """QNN's names of the chips, each once; says which it is where the user named one otherwise."""
    typed = _names(source, values)
    chips = {name: chip_named(name) for name in typed}
    sys.stderr.writelines(f"{source} {name}: {chip}\n" for name, chip in chips.items() if name != chip)
    return tuple(dict.fromkeys(chips.values()))
