"""What the user selected: by flag, then environment, then default."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"

TARGETS = ("x86_64-linux", "aarch64-android", "aarch64-linux")
DEFAULT_PROFILE = "wheels"
OFFICIAL_PROFILE = "qnn-2.37"
"""Where what the package index cannot give comes from: Android's libraries, say."""
DEFAULT_TARGET = "x86_64-linux"
DEFAULT_SOC = "SM8650"


@dataclass(frozen=True, slots=True)
class Selection:
    profile: str
    target: str
    soc: str
    store: Path
    reports: Path
    socs: tuple[str, ...] = ()
    """Every SoC asked for; empty when none was named, and then `soc` is the default one."""
    targets: tuple[str, ...] = ()
    """Every target asked for; empty when none was named, and then `target` is the default one."""


def add_selection(parser: argparse.ArgumentParser) -> None:
    """The flags every verb shares (design.md, contract 3)."""
    group = parser.add_argument_group("selection")
    group.add_argument("--profile", help=f"set of pins to use [QNN_CI_PROFILE, {DEFAULT_PROFILE}]")
    group.add_argument(
        "--target",
        action="append",
        choices=TARGETS,
        help=f"what code is for; may be repeated where a verb takes several [{DEFAULT_TARGET}]",
    )
    group.add_argument(
        "--soc",
        action="append",
        help=f"chip by name, as in manifests/socs.toml; may be repeated [QNN_CI_SOC, {DEFAULT_SOC}]",
    )
    group.add_argument("--store", type=Path, help="where provisioned trees live [QNN_CI_STORE, user cache]")
    group.add_argument("--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]")


def selection_of(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Selection:
    named_socs = args.soc or ([environ["QNN_CI_SOC"]] if environ.get("QNN_CI_SOC") else [])
    socs = tuple(dict.fromkeys(part for soc in named_socs for part in soc.split(",") if part))
    targets = tuple(dict.fromkeys(args.target or ()))
    return Selection(
        profile=args.profile or environ.get("QNN_CI_PROFILE") or DEFAULT_PROFILE,
        target=targets[0] if targets else DEFAULT_TARGET,
        soc=socs[0] if socs else DEFAULT_SOC,
        store=store_path(args.store, environ),
        reports=reports_path(args.reports, environ),
        socs=socs,
        targets=targets,
    )


def store_path(flag: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    if flag is not None:
        return flag.expanduser().absolute()
    if named := environ.get("QNN_CI_STORE"):
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("qnn-ci") / "store"


def reports_path(flag: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    return Path(flag or environ.get("QNN_CI_REPORTS") or "reports")
