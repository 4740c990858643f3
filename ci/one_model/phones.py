"""The phones that have forecasts, by what people call them. Needs no package."""

from __future__ import annotations

import re
from collections.abc import Mapping

from provisioning.base import toml
from provisioning.base.errors import UsageError
from provisioning.base.settings import MANIFESTS

MANIFEST = MANIFESTS / "forecast.toml"


def require_phone(name: str) -> None:
    """Refuse a phone for which nothing was fitted."""
    rows = toml.loads(MANIFEST.read_text(encoding="utf-8"))["phones"]
    phone_named(name, {phone: row["device"] for phone, row in rows.items()})


def phone_named(name: str, devices: Mapping[str, str]) -> str:
    """Return the phone that a user means, of those that map to their full names."""
    phones = {_plain(title): phone for phone, device in devices.items() for title in (device, phone)}
    if phone := phones.get(_plain(name)):
        return phone
    # A phone whose name differs in its number alone is another one.
    fix = f"use one of: {', '.join(sorted(devices))}"
    raise UsageError(f"no forecast was fitted for a phone called {name!r}", fix=fix)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("samsung").removeprefix("snapdragon")
