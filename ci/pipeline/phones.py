"""Which phones forecasts are for, and by which models they are fitted (manifests/forecast.toml).

It is apart from the forecasts themselves so that a change of those compiles no model again."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from provisioning.base.documents import Model, load
from provisioning.base.errors import UnknownName
from provisioning.base.settings import MANIFESTS
from provisioning.sources import Sha256, Version

MANIFEST = MANIFESTS / "forecast.toml"


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
    hexagon: str


class FittedLane(Model):
    """A lane of which constants are fitted."""

    runtime: str
    """Of the rows that it is fitted to."""
    note: str = ""
    """What a user must know of them."""
    models: tuple[str, ...] = ()
    """Those that it is fitted by; all if none is named."""


class FittedModel(Model):
    """How a model of the wheel is made here."""

    make: str
    """LIBRARY:NAME."""
    size: int = 224
    frames: int = 0
    tokens: int = 0
    backbone: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    vision: dict[str, Any] = Field(default_factory=dict)
    dino: dict[str, Any] = Field(default_factory=dict)
    in_float: tuple[str, ...] = ()
    """Of an ONNX model, the nodes that AI Hub's quantizing leaves in float: patterns of their names."""


class Forecasts(Model):
    schema_: Literal[1] = Field(alias="schema")
    chips: tuple[str, str]
    wheel: HubWheel
    lanes: dict[str, FittedLane]
    phones: dict[str, Phone]
    models: dict[str, FittedModel]

    def named(self, name: str) -> str:
        """The phone that a user means."""
        plain = {_plain(phone): phone for phone in self.phones}
        device = {_plain(phone.device): called for called, phone in self.phones.items()}
        if found := plain.get(_plain(name)) or device.get(_plain(name)):
            return found
        raise UnknownName(f"no forecast was fitted for a phone called {name!r}", name, self.phones)

    def of_chip(self, soc: str) -> list[str]:
        """The phones with a chip."""
        return [name for name, phone in self.phones.items() if phone.soc == soc]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("samsung").removeprefix("snapdragon")


def load_forecasts() -> Forecasts:
    return load(MANIFEST, Forecasts)
