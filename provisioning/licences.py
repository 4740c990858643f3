"""Vendors' licences: nothing is fetched before the user accepts its licence, once for a store.

`acceptances` reads what the user accepts now, `require` refuses components whose licence is still open, and
the store's licences.json records what was accepted, when and how."""

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
    """Return the flags of `provision` with which these components can be fetched into the store."""
    to_fetch = list(components)
    flags: list[str] = []
    for licence_id in open_licences(store, to_fetch):
        flags += [FLAG, licence_id]
    if not all(component.pinned for component in to_fetch):
        flags.append(TRUST)
    return flags


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
    recorded = recorded_licences(store)
    licences = [component.licence for component in components if component.licence is not None]
    return {
        licence.id: licence
        for licence in licences
        if licence.id not in recorded and licence.id not in consents
    }


def require(store: Path, components: Mapping[str, Component], consents: Mapping[str, str]) -> None:
    """Record new acceptances, or refuse these components and name every licence that is missing."""
    missing = open_licences(store, components.values(), consents)
    if missing:
        messages = [
            f"{name} {component.version} comes under a licence that was not accepted yet: "
            f"{component.licence.title} ({component.licence.url})"
            for name, component in components.items()
            if component.licence is not None and component.licence.id in missing
        ]
        flags = " ".join(f"{FLAG} {licence}" for licence in missing)
        raise EnvironmentLacking(
            "; ".join(messages),
            fix=f"read {'it' if len(missing) == 1 else 'them'}, then add `{flags}` or set "
            f"{VARIABLE}={','.join(missing)}",
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
