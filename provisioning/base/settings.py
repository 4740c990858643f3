"""The user's selection: by flag, then environment, then default."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
CLONE = (ROOT / "noxfile.py").is_file()
"""False in an installed copy: build/, dist/ and Python environments are then in the user's cache."""

TARGETS = ("x86_64-linux", "aarch64-android", "aarch64-linux", "aarch64-windows")
WINDOWS = "aarch64-windows"
DEFAULT_PROFILE = "wheels"
OFFICIAL_PROFILE = "qnn-2.37"
"""Has what the package index cannot give: Android's libraries, for example."""
DEFAULT_TARGET = "x86_64-linux"
DEFAULT_SOC = "SM8650"


ALL = "all"
"""`--target all` names every target."""


@dataclass(frozen=True, slots=True)
class Selection:
    profile: str
    target: str
    soc: str
    store: Path
    reports: Path
    named_socs: tuple[str, ...] = ()
    """The chips that the user named; empty when none was, and a stage then takes its own default."""
    named_targets: tuple[str, ...] = ()
    """The targets that the user named; empty when none was, and a stage then takes its own default."""

    @property
    def socs(self) -> tuple[str, ...]:
        """At least one: those named, else the default."""
        return self.named_socs or (self.soc,)

    @property
    def targets(self) -> tuple[str, ...]:
        """At least one: those named, else the default."""
        return self.named_targets or (self.target,)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """The flags that every verb shares."""
    group = parser.add_argument_group("selection")
    group.add_argument("--profile", help=f"set of pins to use [QNN_CI_PROFILE, {DEFAULT_PROFILE}]")
    group.add_argument(
        "--target",
        action="append",
        choices=(*TARGETS, ALL),
        help=f"what code is for; may be repeated where a verb takes several [{DEFAULT_TARGET}]",
    )
    group.add_argument(
        "--soc",
        action="append",
        help=f"SM8750, 8-elite … (`chips` lists them); may be repeated [QNN_CI_SOC, {DEFAULT_SOC}]",
    )
    group.add_argument("--store", type=Path, help="where provisioned trees live [QNN_CI_STORE, user cache]")
    group.add_argument("--reports", type=Path, help="where reports are written [QNN_CI_REPORTS, reports/]")


def profile_flags(profile: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The flags that name this profile, where a command without them would take another."""
    named = {profile, environ.get("QNN_CI_PROFILE") or profile}
    return [] if named == {DEFAULT_PROFILE} else ["--profile", profile]


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
        raise UsageError(f"{source} {shown}: expected a name, found nothing", fix=f"leave {source} out")
    return tuple(dict.fromkeys(names))


def _chips(source: str, values: Sequence[str] | None) -> tuple[str, ...]:
    """QNN's names of the chips, each once; says which it is where the user named one otherwise."""
    from provisioning.base.chips import chip_named

    typed = _names(source, values)
    chips = {name: chip_named(name) for name in typed}
    sys.stderr.writelines(f"{source} {name}: {chip}\n" for name, chip in chips.items() if name != chip)
    return tuple(dict.fromkeys(chips.values()))


def user_path(text: str | Path, name: str, base: str = "") -> Path:
    """A path as the user wrote it, `~` expanded; a relative one begins in `base`. `name` is for errors."""
    if not str(text):
        raise UsageError(f"{name}: expected a path, found nothing", fix=f"leave {name} out, or set it")
    try:
        return Path(base, Path(text).expanduser())
    except RuntimeError:
        raise UsageError(
            f"{name} {text}: there is no home directory of that user", fix="write the path in full"
        ) from None


def outputs_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of build/ and dist/."""
    if CLONE:
        return ROOT
    import hashlib

    # As platformdirs has it, which is slow to import and not installed where nox is.
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    # Two versions that are installed side by side have their own.
    digest = hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
    return user_path(cache, "XDG_CACHE_HOME") / "qnn-ci" / "installed" / digest


def store_path(flag: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    if flag is not None or environ.get("QNN_CI_STORE"):
        name = "QNN_CI_STORE" if flag is None else "--store"
        return user_path(environ["QNN_CI_STORE"] if flag is None else flag, name).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("qnn-ci") / "store"


def reports_path(flag: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    return user_path(flag or environ.get("QNN_CI_REPORTS") or "reports", "QNN_CI_REPORTS")
