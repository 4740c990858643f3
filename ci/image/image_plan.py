"""The content of an image by its manifests: images.toml, image-packages.txt, locks and profiles."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from provisioning.base.documents import Model, Name, load
from provisioning.base.errors import ManifestError, UnknownName
from provisioning.base.files import replace_text
from provisioning.base.settings import MANIFESTS, ROOT
from provisioning.components import ANDROID_NDK, HEXAGON_SDK, QNN_SDK
from provisioning.lock_files import CPU, lock_path
from provisioning.manifest import Component, Licence, Profile, load_profile
from provisioning.python_environments import TORCH
from provisioning.sources import Sha256

MANIFEST = MANIFESTS / "images.toml"
PACKAGES = MANIFESTS / "image-packages.txt"
DOCKER = ROOT / "docker"

COMPONENTS = (QNN_SDK, ANDROID_NDK, HEXAGON_SDK)
"""The components that images may hold, a layer for each, in this order."""

IN_EVERY_IMAGE = ("nox", "tools")
"""Environments of a layer of their own, which all images share."""

Pinned = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9./_-]*:[A-Za-z0-9._-]+$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class System(Model):
    """The system under all images, and what is installed into it."""

    image: Pinned
    digest: Digest
    python: str
    glibc: str
    epoch: Annotated[int, Field(gt=0)]
    packages: tuple[str, ...]

    @property
    def reference(self) -> str:
        return f"{self.image.partition(':')[0]}@{self.digest}"


class ImageEntry(Model):
    summary: str
    environments: tuple[Name, ...]
    profile: Name | None = None


class Images(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    system: System
    imports: dict[Name, tuple[str, ...]]
    images: dict[Name, ImageEntry]
    published: dict[
        Name, Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+/[a-z0-9./_-]+@sha256:[0-9a-f]{64}$")]
    ] = Field(default_factory=dict)
    """The images of the last release, by digest."""


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """A pinned Debian package."""

    name: str
    version: str
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class PackageLock:
    """The packages that any base may need, and the moment of Debian's archive that has them."""

    packages: tuple[DebianPackage, ...]
    snapshot: str = ""


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """A script of docker/ with its arguments, the input that it reads, and what decides that."""

    command: tuple[str, ...]
    input: str
    """`packages` or `environments`, or a component; mounted at /mnt under this name."""
    decided_by: str


@dataclass(frozen=True, slots=True)
class ImagePlan:
    name: str
    summary: str
    environments: tuple[str, ...]
    imports: Mapping[str, tuple[str, ...]]
    """The modules of each environment that are compiled in the image."""
    profile: Profile | None
    system: System
    debian: PackageLock
    locks: Mapping[str, str]
    """Of each environment the text of its lock file, with the builds of torch on record if it has torch."""
    scripts: str
    """The text of all scripts that make layers."""

    @property
    def tag(self) -> str:
        return f"qnn-ci/{self.name}:latest"

    @property
    def components(self) -> dict[str, Component]:
        """The profile's components that images hold, in the order of the layers."""
        pins = self.profile.pins if self.profile else {}
        return {name: pins[name] for name in COMPONENTS if name in pins}

    @property
    def build_ids(self) -> dict[str, str]:
        pins = self.profile.pins if self.profile else {}
        return {name: pin.build_id for name, pin in pins.items() if pin.build_id}

    @property
    def licences(self) -> tuple[Licence, ...]:
        """Licences of its components. The builder of an image may use them; nobody may publish them."""
        return tuple(dict.fromkeys(row.licence for row in self.components.values() if row.licence))

    @property
    def layers(self) -> tuple[ImageLayer, ...]:
        """In order; images share those that begin alike."""
        layers = [ImageLayer(("install-packages", "/mnt/packages"), "packages", render_packages(self.debian))]
        others = tuple(name for name in self.environments if name not in IN_EVERY_IMAGE)
        for names in filter(None, (IN_EVERY_IMAGE, others)):
            texts = [text for name in names for text in (self.locks[name], *self.imports[name])]
            layers.append(ImageLayer(("make-environments", *names), "environments", "\n".join(texts)))
        for name, component in self.components.items():
            layers.append(ImageLayer(("install-component", name), name, component.model_dump_json()))
        return tuple(layers)

    def keys(self, base: str) -> list[str]:
        """A hash for each layer, of everything that decides its bytes and those below it.

        `base` is the reference or id of the image that is built upon."""
        keys = [base]
        for layer in self.layers:
            parts = [keys[-1], self.system.model_dump_json(), *layer.command, layer.decided_by, self.scripts]
            keys.append(hashlib.sha256("\n".join(parts).encode()).hexdigest())
        return keys[1:]


@cache
def load_images(path: Path = MANIFEST) -> Images:
    return load(path, Images)


@contextmanager
def edited(path: Path = MANIFEST) -> Iterator[Any]:
    """The document images.toml, to be changed in place; comments stay."""
    import tomlkit

    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    yield document
    replace_text(path, tomlkit.dumps(document))
    load_images.cache_clear()


def pin_base(system: System, path: Path = MANIFEST) -> None:
    with edited(path) as document:
        document["system"].update(system.model_dump(include={"image", "digest", "epoch"}))


def plan_of(name: str) -> ImagePlan:
    """The plan of an image that the manifest names."""
    images = load_images()
    if name not in images.images:
        raise UnknownName(f"there is no image {name!r}", name, images.images)
    entry = images.images[name]
    if missing := [environment for environment in entry.environments if environment not in images.imports]:
        raise ManifestError(MANIFEST, "imports", expected=f"an entry for {missing[0]}", found="none")
    locks = {name: lock_path(name).read_text(encoding="utf-8") for name in entry.environments}
    torch = (TORCH / CPU).read_text(encoding="utf-8")
    scripts = sorted(path for path in DOCKER.iterdir() if path.is_file())
    plan = ImagePlan(
        name=name,
        summary=entry.summary,
        environments=entry.environments,
        imports={environment: images.imports[environment] for environment in entry.environments},
        profile=load_profile(entry.profile) if entry.profile else None,
        system=images.system,
        debian=load_packages(),
        locks={name: text + (torch if has_torch(text) else "") for name, text in locks.items()},
        scripts="".join(path.read_text(encoding="utf-8") for path in scripts),
    )
    if tuple(plan.components) != COMPONENTS[: len(plan.components)]:
        raise ManifestError(
            MANIFEST,
            f"images.{name}.profile",
            expected=f"a profile with the first of {', '.join(COMPONENTS)}",
            found=f"{entry.profile}, which has {', '.join(plan.components)}",
        )
    return plan


def has_torch(lock: str) -> bool:
    """Whether a lock file is for an environment with torch, which it does not pin itself."""
    return re.search(r"^# torch: ", lock, re.MULTILINE) is not None


def load_packages() -> PackageLock:
    """The lines `NAME VERSION SHA256` of the lock of Debian packages. What is no such line pins nothing."""
    text = PACKAGES.read_text(encoding="utf-8")
    snapshot = re.search(r"^# snapshot: (\d{8}T\d{6}Z)$", text, re.MULTILINE)
    rows = re.findall(r"^(\S+) (\S+) ([0-9a-f]{64})$", text, re.MULTILINE)
    return PackageLock(tuple(DebianPackage(*row) for row in rows), snapshot[1] if snapshot else "")


def render_packages(lock: PackageLock) -> str:
    head = ["# Written by `nox -s image -- --lock` from images.toml; not to be edited."]
    if lock.snapshot:
        head.append(f"# snapshot: {lock.snapshot}")
    packages = sorted(lock.packages, key=lambda row: row.name)
    return "\n".join([*head, *(f"{row.name} {row.version} {row.sha256}" for row in packages), ""])
