"""The manifests of profiles, chips and Python environments, as types."""

from __future__ import annotations

import re
from collections.abc import Container
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from provisioning.base.commands import add_flags
from provisioning.base.documents import Model, Name, load
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.selection import chip_named
from provisioning.base.settings import MANIFESTS, profile_names, unknown_profile
from provisioning.components import ComponentName
from provisioning.sources import Archive, Git, Https, Version, Wheel

Target = Literal["x86_64-linux", "aarch64-android", "aarch64-linux", "aarch64-windows"]

Source = Annotated[Archive | Wheel | Git, Field(discriminator="type")]


class Placement(Model):
    """Which files of a part go where. The first rule of a part whose `match` fits decides."""

    match: str
    """The whole (stripped) member path must match it."""
    to: str = ""
    """Template of the destination, with the groups of `match`; empty keeps the path."""
    targets: tuple[Target, ...] = ()
    """The rule applies only if one of these targets is selected; if empty, always."""

    @model_validator(mode="after")
    def _template_fits(self) -> Placement:
        pattern = re.compile(self.match)
        try:
            self.to.format(**dict.fromkeys(pattern.groupindex, "1"))
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ValueError(f"`to` with the groups of `match` ({error!r})") from None
        if self.to and {"", ".", ".."} & set(self.to.split("/")):
            raise ValueError("`to` plain and relative to the tree")
        return self


class Part(Model):
    name: Name
    source: Source
    place: tuple[Placement, ...] = ()
    """Which files go where; empty: everything, where it is."""


class Licence(Model):
    id: Name
    title: str
    url: Https


class Component(Model):
    version: Version
    """The version that its own metadata must show (sdk.yaml, source.properties)."""
    build_id: str | None = None
    """QNN's id inside every library, `v2.49.40.260810104044`."""
    licence: Licence | None = None
    parts: tuple[Part, ...] = Field(min_length=1)

    @property
    def pinned(self) -> bool:
        """Whether the manifest says exactly which bytes this component is."""
        return all(part.source.pin is not None for part in self.parts)


class Profile(Model):
    schema_: Literal[1] = Field(alias="schema")
    name: Name
    summary: str
    packages: dict[str, Version]
    """Python packages, exact: executorch, torch, torchao."""
    onnx: dict[str, Version] = Field(default={})
    """Packages of ONNX Runtime's lane, which has its own environment and may use another QNN."""
    host: dict[str, Version]
    """cmake and glibc: below it nothing works."""
    components: dict[ComponentName, Component]
    optional: tuple[ComponentName, ...] = ()
    """Components provisioned only when asked for by --component."""
    lacks: dict[Target, str] = Field(default={})
    """Targets whose QNN libraries this profile does not have: why, and what is nearest."""

    @property
    def pins(self) -> dict[str, Component]:
        """The components, to be looked up by any text."""
        return {str(name): component for name, component in self.components.items()}

    def why_lacking(self, target: str) -> str:
        return next((why for name, why in self.lacks.items() if name == target), "")


SocName = Annotated[str, StringConstraints(pattern=r"^[A-Z0-9]+$")]


class Soc(Model):
    id: Annotated[int, Field(gt=0)]
    arch: Annotated[int, Field(ge=65, le=99)]
    vtcm_mb: Annotated[int, Field(gt=0)]
    lpai: Annotated[int, Field(ge=1)] | None = None
    kernel_ids: tuple[Annotated[int, Field(gt=0)], ...] = ()
    """Numbers that `/sys/devices/soc0/soc_id` of a device states, which are not QNN's."""
    sold_as: tuple[SocName, ...] = ()
    """Other names of the chip."""
    called: tuple[str, ...] = ()
    """What people call it, without `Snapdragon`."""
    least_qnn: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+$")] | None = None
    """The first QNN build that knows it; None if every build that was measured does."""
    executorch: bool = True
    """Whether the default profile's executorch knows it; ONNX Runtime compiles for all."""
    windows: bool = False
    """Whether Windows on Snapdragon runs on it."""
    fp16: bool = True
    """Whether it computes floats of 16 bits."""


class OtherSoc(Model):
    arch: Annotated[int, Field(ge=65, le=99)]
    vtcm_mb: Annotated[int, Field(gt=0)] | None = None
    called: tuple[str, ...] = ()


class SocTable(Model):
    schema_: Literal[1] = Field(alias="schema")
    socs: dict[SocName, Soc]
    others: dict[SocName, OtherSoc] = Field(default_factory=dict)
    """Chips that QNN has and that `--soc` does not take."""
    devices: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The chips of well-known devices, which may be another maker's where a model has several."""


@cache
def load_profile(name: str) -> Profile:
    path = MANIFESTS / "profiles" / f"{name}.toml"
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) or not path.is_file():
        raise unknown_profile(name)
    profile = load(path, Profile)
    if profile.name != name:
        raise ManifestError(path, "name", expected=repr(name), found=repr(profile.name))
    return profile


def every_component() -> list[tuple[str, Component]]:
    """List the components of all profiles, each with its name."""
    return [pair for profile in profile_names() for pair in load_profile(profile).pins.items()]


@cache
def _soc_table() -> SocTable:
    return load(MANIFESTS / "socs.toml", SocTable)


def load_socs() -> dict[str, Soc]:
    return _soc_table().socs


def nearest_socs(name: str, choices: Container[str]) -> list[str]:
    """List those of the choices that have the chip's Hexagon, the one of the nearest VTCM first: they take
    the same operators."""
    socs = load_socs()
    chip = socs[name]
    alike = [other for other, soc in socs.items() if other in choices and soc.arch == chip.arch]
    return sorted(alike, key=lambda other: abs(socs[other].vtcm_mb - chip.vtcm_mb))


def soc_named(name: str) -> Soc:
    socs = load_socs()
    if name not in socs:
        chip = chip_named(name)
        raise UsageError(f"{name} is QNN's {chip}", fix=add_flags("--soc", chip))
    return socs[name]
