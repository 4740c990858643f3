"""Vendors' licences: each is accepted once; the store records what was accepted, when and how."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.errors import EnvironmentLacking, UnknownName
from provisioning.base.files import mutex, replace_text
from provisioning.base.flags import repeatable
from provisioning.base.units import utc_now

if TYPE_CHECKING:
    from provisioning.manifest import Component, Licence

VARIABLE = "QNN_CI_ACCEPT_LICENCES"
FLAG = "--accept-licence"
TRUST = "--trust-first-download"
"""This flag takes components whose hash the manifest does not name."""


def add_flag(parser: argparse.ArgumentParser) -> None:
    repeatable(parser, FLAG, "ID", f"accept a vendor's licence [{VARIABLE}=ID,ID]", dest="accept")


def flags(store: Path, components: Iterable[Component]) -> list[str]:
    """The flags with which these components, which are not in the store, can be fetched into it."""
    absent = list(components)
    ids = open_licences(store, absent)
    accepting = [word for licence in ids for word in (FLAG, licence)]
    return accepting + ([] if all(component.pinned for component in absent) else [TRUST])


def recorded_licences(store: Path) -> dict[str, dict[str, str]]:
    """Return what was accepted, by the licence's id."""
    path = store / "licences.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {entry["id"]: entry for entry in data["accepted"]}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EnvironmentLacking(
            f"{path}: expected the record of accepted licences, found {error}",
            fix=f"remove {path} and accept again with {FLAG}",
        ) from error


def acceptances(flags: Iterable[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Licence ids that the user accepts now, each with the means: a variable or a flag."""
    by_variable = {part.strip(): VARIABLE for part in environ.get(VARIABLE, "").split(",") if part.strip()}
    by_flag = dict.fromkeys(flags, FLAG)
    if by_flag:
        from provisioning.manifest import every_component

        ids = {component.licence.id for _, component in every_component() if component.licence is not None}
        if unknown := sorted(by_flag.keys() - ids):
            raise UnknownName(f"no profile has a licence {unknown[0]!r} to accept", unknown[0], ids)
    return by_variable | by_flag


def open_licences(
    store: Path, components: Iterable[Component], consents: Collection[str] = ()
) -> dict[str, Licence]:
    """Licences of these components that are neither on record nor accepted now, by id."""
    have = recorded_licences(store)
    return {
        pin.licence.id: pin.licence
        for pin in components
        if pin.licence is not None and pin.licence.id not in have and pin.licence.id not in consents
    }


def require(store: Path, components: Mapping[str, Component], consents: Mapping[str, str]) -> None:
    """Record new acceptances, or refuse these components and name every licence that is missing."""
    ids = open_licences(store, components.values(), consents)
    if ids:
        under = [
            f"{name} {component.version} comes under a licence that was not accepted yet: "
            f"{component.licence.title} ({component.licence.url})"
            for name, component in components.items()
            if component.licence is not None and component.licence.id in ids
        ]
        flags = " ".join(f"{FLAG} {licence}" for licence in ids)
        raise EnvironmentLacking(
            "; ".join(under),
            fix=f"read {'it' if len(ids) == 1 else 'them'}, then add `{flags}` or set "
            f"{VARIABLE}={','.join(ids)}",
        )
    for name, component in components.items():
        if component.licence is not None and component.licence.id not in recorded_licences(store):
            _record(store, name, component.version, component.licence, consents[component.licence.id])


def _record(store: Path, component: str, version: str, licence: Licence, means: str) -> None:
    locks = store / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    acceptance = {
        **licence.model_dump(),
        "component": component,
        "version": version,
        "when": utc_now(),
        "means": means,
    }
    with mutex(locks / "licences.lock"):
        rows = {**recorded_licences(store), licence.id: acceptance}
        data = {"schema": 1, "accepted": [rows[key] for key in sorted(rows)]}
        replace_text(store / "licences.json", json.dumps(data, indent=2) + "\n")
