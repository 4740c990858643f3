"""Which phones forecasts are for, and by which models they are fitted (manifests/forecast.toml)."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field

from provisioning.base.documents import Model, load
from provisioning.base.errors import UnknownName
from provisioning.base.settings import MANIFESTS
from provisioning.sources import Sha256, Version

MANIFEST = MANIFESTS / "forecast.toml"
PRECISIONS = {"fp16": "float", "8a8w": "w8a8", "16a8w": "w8a16"}
"""By our names, AI Hub's."""


class HubWheel(Model):
    """The wheel with what phones measured."""

    version: Version
    filename: str
    sha256: Sha256
    size: int


class Phone(Model):
    soc: str
    device: str
    """Its name in the wheel."""
    newer: tuple[str, ...] = ()
    """Our precisions in which the newer chip's estimate counts as well."""


class FittedModel(Model):
    """How a model of the wheel is made here."""

    make: str
    """LIBRARY:NAME."""
    size: int = 224
    tokens: int = 0
    backbone: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    dino: dict[str, Any] = Field(default_factory=dict)
    in_float: tuple[str, ...] = ()
    """The nodes that AI Hub's quantizing leaves in float: patterns of their names."""


class Forecasts(Model):
    schema_: Literal[2] = Field(alias="schema")
    chip: str
    newer: str
    runtime: str
    """Of the wheel's rows that are fitted to."""
    wheel: HubWheel
    phones: dict[str, Phone]
    models: dict[str, FittedModel]

    def named(self, name: str) -> str:
        """The phone that a user means."""
        plain = {
            _plain(called): phone for phone, about in self.phones.items() for called in (about.device, phone)
        }
        if found := plain.get(_plain(name)):
            return found
        raise UnknownName(f"no forecast was fitted for a phone called {name!r}", name, self.phones)

    def of_chip(self, soc: str) -> list[str]:
        return [name for name, phone in self.phones.items() if phone.soc == soc]

    def chips(self, precision: str, phones: Collection[str]) -> tuple[str, ...]:
        """Of which forecasts for these phones need an estimate, each a compile."""
        both = any(precision in self.phones[phone].newer for phone in phones)
        return (self.chip, self.newer) if both else (self.chip,)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("samsung").removeprefix("snapdragon")


def load_forecasts() -> Forecasts:
    return load(MANIFEST, Forecasts)
