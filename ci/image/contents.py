"""What is in an image, by its manifests: images.toml, image-packages.txt, locks, profiles; its inputs, each
verified; and how it is built of them.

A layer is what a script of docker/ writes in a container without network, whose inputs are mounted: no
download and no mount point stays in it. docker/make-layer gives every file one time, SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import unquote

from pydantic import Field, StringConstraints

from ci.image import CACHE
from ci.image.engine import NO_SPACE, SCRATCH, Engine, out_of_disk
from provisioning.base.commands import capture, quote_command, session
from provisioning.base.documents import Model, Name, load
from provisioning.base.errors import (
    CheckFailed,
    EnvironmentLacking,
    IntegrityError,
    UnknownName,
    UpstreamError,
)
from provisioning.base.files import hash_file
from provisioning.base.progress import for_stream
from provisioning.base.settings import MANIFESTS, ROOT
from provisioning.components import ANDROID_NDK, COMPONENT_VARIABLES, HEXAGON_SDK, QNN_SDK
from provisioning.lock_files import CPU, TORCH, cpu_wheel, lock_path
from provisioning.manifest import Component, Licence, Profile, load_profile

if TYPE_CHECKING:
    from provisioning.store import Store, Tree

MANIFEST = MANIFESTS / "images.toml"
PACKAGES_FILE = MANIFESTS / "image-packages.txt"
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


@dataclass(frozen=True, slots=True)
class ImagePlan:
    name: str
    summary: str
    environments: tuple[str, ...]
    profile: Profile | None
    system: System
    debian: str
    """The lock of Debian packages that any base may need: lines of NAME VERSION SHA256."""
    files: tuple[Path, ...]
    """Manifests, locks and scripts that decide what is in it."""

    @property
    def tag(self) -> str:
        return f"qnn-ci/{self.name}:latest"

    @property
    def components(self) -> dict[str, Component]:
        """The profile's components that images hold, in the order of the layers."""
        pins = self.profile.pins if self.profile else {}
        return {name: pins[name] for name in COMPONENTS if name in pins}

    @property
    def licences(self) -> tuple[Licence, ...]:
        """Licences of its components. The builder of an image may use them; nobody may publish them."""
        return tuple(dict.fromkeys(row.licence for row in self.components.values() if row.licence))

    @property
    def layers(self) -> list[tuple[str, ...]]:
        """The layers in order, each a script of docker/ with its arguments. Images that begin alike share
        layers."""
        own = [name for name in self.environments if name not in IN_EVERY_IMAGE]
        return [
            ("install-packages", "/mnt/packages"),
            *(("make-environments", *names) for names in (IN_EVERY_IMAGE, own) if names),
            *(("install-component", name) for name in self.components),
        ]

    def key(self, base: str) -> str:
        """A hash of everything that decides the image's bytes; `base` is the id of the image below it."""
        components = [component.model_dump_json() for component in self.components.values()]
        parts = [base, *components, *map(hash_file, self.files)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def load_images(path: Path = MANIFEST) -> Images:
    return load(path, Images)


def plan_of(name: str) -> ImagePlan:
    """The plan of an image that the manifest names."""
    images = load_images()
    if name not in images.images:
        raise UnknownName(f"there is no image {name!r}", name, images.images)
    entry = images.images[name]
    scripts = sorted(path for path in DOCKER.iterdir() if path.is_file())
    locks = map(lock_path, entry.environments)
    return ImagePlan(
        name=name,
        summary=entry.summary,
        environments=entry.environments,
        profile=load_profile(entry.profile) if entry.profile else None,
        system=images.system,
        debian=PACKAGES_FILE.read_text(encoding="utf-8"),
        files=(MANIFEST, PACKAGES_FILE, TORCH / CPU, *locks, *scripts),
    )


# Inputs: one folder below build/ has the packages and wheels of all images. The trees are the store's own.

CONTEXT = ROOT / "build" / "image"
OLDEST_GLIBC = 5
"""The first minor version of glibc that manylinux supports."""
OTHER_PLATFORMS = ("manylinux2014_x86_64", "linux_x86_64")
"""The first means its forerunners, too."""


def trees_of(plan: ImagePlan, store: Store, accepted: Mapping[str, str]) -> Mapping[str, Tree]:
    """The store's trees of the plan's components; missing ones are provisioned if licences are accepted."""
    store.accept(plan.components, accepted)
    return {
        name: store.provision(name, component, progress=for_stream())
        for name, component in plan.components.items()
    }


def inputs_of(plan: ImagePlan, engine: Engine, base: str, trees: Mapping[str, Tree]) -> dict[str, Path]:
    """All that the image is built from, fetched and verified, by the names that scripts know it by."""
    packages, environments = CONTEXT / "packages", CONTEXT / "environments"
    keep_packages(plan, engine, base, packages)
    for environment in plan.environments:
        keep_wheels(plan, environment, environments / environment)
    of_trees = {name: tree.root for name, tree in trees.items()}
    return {"docker": DOCKER, "packages": packages, "environments": environments, **of_trees}


def keep_packages(plan: ImagePlan, engine: Engine, base: str, folder: Path) -> None:
    """Have what the base lacks of the plan's packages and their dependencies, or has in an older version, as
    locked."""

    def fetch() -> None:
        sys.stderr.write(f"fetching Debian packages with the apt of {base}\n")
        fetch_packages(plan.system.packages, engine, base, folder, plan.debian)
        for package in packages_in(folder):
            if package not in plan.debian.splitlines():
                raise IntegrityError(
                    f"apt's {package} is not in manifests/{PACKAGES_FILE.name}",
                    fix="build on the pinned base, whose archive has the pinned packages",
                )

    keep(folder, "\n".join([base, *plan.system.packages, plan.debian]), fetch)


def fetch_packages(names: Sequence[str], engine: Engine, base: str, folder: Path, lock: str = "") -> str:
    """Download packages with the apt of the base; returns the moment of the archive. With a lock, what the
    base lacks, and what it has in an older version; without one, these packages and the base's own."""
    environment = {"OWNER": engine.owner, "DEBIAN_FRONTEND": "noninteractive"}
    snapshot = re.search(r"^# snapshot: (\d{8}T\d{6}Z)$", lock, re.MULTILINE)
    locked = re.findall(r"^([a-z0-9]\S*) ", lock, re.MULTILINE)
    if lock:
        environment |= {"SNAPSHOT": snapshot[1] if snapshot else "", "LOCKED": " ".join(locked)}
    else:
        environment["FROM_NOTHING"] = "yes"
    process = engine.run(
        base,
        ["sh", "/run/fetch-packages", "/packages", *names],
        user="0:0",
        volumes=[f"{DOCKER}/fetch-packages:/run/fetch-packages:ro", f"{folder}:/packages"],
        environment=environment,
        network="host",
    )
    if process.returncode:
        lines = [line for line in (process.stderr + process.stdout).splitlines() if line.startswith("E: ")]
        message = "; ".join(dict.fromkeys(lines[:3])) or f"exit code {process.returncode}"
        raise UpstreamError(
            f"apt in {base} could not fetch the packages: {message}",
            fix="build on a base whose apt sources are in reach: --base IMAGE",
        )
    sys.stderr.writelines(f"{line}\n" for line in process.stdout.splitlines() if "Debian's archive" in line)
    return "".join(re.findall(r"^archive of (\d{8}T\d{6}Z)$", process.stdout, re.M)[-1:])


def packages_in(folder: Path) -> list[str]:
    """NAME VERSION SHA256 of every package file, by its name as apt writes it: NAME_VERSION_ARCH.deb."""
    packages = []
    for path in sorted(folder.glob("*.deb")):
        name, version, _ = unquote(path.name).split("_")
        packages.append(f"{name} {version} {hash_file(path)}")
    return packages


def keep_wheels(plan: ImagePlan, environment: str, folder: Path) -> None:
    """Have every distribution of a locked environment, with what docker/make-environments reads of it."""
    fetch_wheels(lock_path(environment), folder, plan.system)
    imports = load_images().imports[environment]
    (folder / "imports.txt").write_text("\n".join([*imports, ""]), encoding="utf-8")


def fetch_wheels(lock: Path, folder: Path, system: System, torch: Path = TORCH) -> None:
    """Have the distributions of a lock file for an image's Python.

    The user's own pip fetches them: index, credentials, proxies and certificates mean what they mean
    everywhere else. `torch` is the folder with the builds of torch that are on record."""
    text, builds = lock.read_text(encoding="utf-8"), torch / CPU
    # A lock file names torch, and does not pin it.
    line = re.search(r"^# torch: ", text, re.MULTILINE)
    pins = builds.read_text(encoding="utf-8") if line else ""

    def fetch() -> None:
        sys.stderr.write(f"fetching the wheels of {lock.stem}\n")
        _download(["--require-hashes", "-r", str(lock)], folder, system)
        (folder / "lock.txt").write_text(text, encoding="utf-8")
        if pins:
            _download_torch(builds, folder, system)
            (folder / "torch.txt").write_text(pins, encoding="utf-8")

    keep(folder, f"{system.python} {system.glibc}\n{text}{pins}", fetch)


def _download_torch(builds: Path, folder: Path, system: System) -> None:
    try:
        _download(["--require-hashes", "-r", str(builds)], folder, system)
    except UpstreamError as error:
        if wheel := cpu_wheel(system.python, builds):
            _download([wheel], folder, system)
            return
        raise EnvironmentLacking(
            f"the package index has no CPU build of torch that is on record: {error.message}",
            fix="name an index that has it (PIP_EXTRA_INDEX_URL=URL), or record your index's build: "
            + session("lock", "--torch"),
        ) from error


def _download(request: Sequence[str], folder: Path, system: System) -> None:
    tag, minor = f"cp{system.python.replace('.', '')}", int(system.glibc.split(".")[1])
    platforms = [f"manylinux_2_{version}_x86_64" for version in range(minor, OLDEST_GLIBC - 1, -1)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    command += ["--python-version", system.python, "--implementation", "cp"]
    command += [word for abi in (tag, "abi3", "none") for word in ("--abi", abi)]
    command += [word for platform in (*platforms, *OTHER_PLATFORMS) for word in ("--platform", platform)]
    pip = capture([*command, *request], env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    if pip.returncode:
        errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")] or [pip.stderr]
        raise UpstreamError(
            f"pip could not fetch {request[-1]}: {errors[-1].strip()}",
            fix="check the package index that pip is set to: python -m pip config list",
        )


def keep(folder: Path, request: str, fetch: Callable[[], None]) -> None:
    """Fill a folder, unless this request has filled it, and names the hash of each file in it."""
    stamp = folder / "request.txt"
    files = [path for path in folder.glob("*") if path.suffix != ".txt"]
    filled = stamp.is_file() and stamp.read_text(encoding="utf-8") == request
    if filled and all(hash_file(path) in request for path in files):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fetch()
    # Written last, so that an interrupted download is not taken for a whole one.
    stamp.write_text(request, encoding="utf-8")


# Layers

HOME = "/opt/qnn-ci"
ENVIRONMENTS_INSIDE = f"{HOME}/environments"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VARIABLES = {
    "LANG": "C.UTF-8",
    "HOME": f"{CACHE}/home",
    "USER": "dev",
    "XDG_CACHE_HOME": CACHE,
    "QNN_CI_STORE": f"{CACHE}/store",
    "QNN_CI_ENVIRONMENTS": ENVIRONMENTS_INSIDE,
}


def variables_of(plan: ImagePlan) -> dict[str, str]:
    """The variables of an image."""
    variables = {**VARIABLES, "PATH": SYSTEM_PATH}
    if "executorch" in plan.environments:
        variables["PATH"] = f"{ENVIRONMENTS_INSIDE}/executorch/bin:{SYSTEM_PATH}"
    if plan.profile:
        variables["QNN_CI_PROFILE"] = plan.profile.name
    for name in plan.components:
        variables[COMPONENT_VARIABLES[name]] = f"{HOME}/{name}"
    if QNN_SDK in plan.components:
        variables["LD_LIBRARY_PATH"] = f"{HOME}/{QNN_SDK}/lib/x86_64-linux-clang"
    if ANDROID_NDK in plan.components:
        variables["ANDROID_NDK_HOME"] = f"{HOME}/{ANDROID_NDK}"
    return variables


@dataclass(frozen=True, slots=True)
class Order:
    """One image to build."""

    plan: ImagePlan
    inputs: Mapping[str, Path]
    """The folders that scripts read, by their names below /mnt."""
    base_id: str
    labels: Mapping[str, str]
    log: Path

    @property
    def settings(self) -> dict[str, object]:
        return {
            "Env": [f"{name}={value}" for name, value in variables_of(self.plan).items()],
            "User": "dev",
            "Cmd": ["bash"],
            "Volumes": {CACHE: {}},
            "Labels": dict(self.labels),
        }


def build(order: Order, engine: Engine, tag: str) -> None:
    """Build and leave the image under its tag. An image that was built before is not read."""
    order.log.parent.mkdir(parents=True, exist_ok=True)
    order.log.write_text("", encoding="utf-8")
    *below, last = order.plan.layers
    parent, unfinished = order.base_id, f"{tag}-unfinished"
    try:
        for layer in below:
            _run(order, layer, parent, engine, unfinished)
            parent = unfinished
        _run(order, last, parent, engine, tag)
    finally:
        engine.remove(unfinished)


def _run(order: Order, layer: Sequence[str], parent: str, engine: Engine, target: str) -> None:
    # In the command, because variables of a container would stay in the image.
    variables = {**variables_of(order.plan), "SOURCE_DATE_EPOCH": str(order.plan.system.epoch)}
    assignments = [f"{name}={value}" for name, value in variables.items()]
    process = engine.run(
        parent,
        ["env", *assignments, "sh", "/mnt/docker/make-layer", *layer],
        commit=target,
        settings=order.settings,
        user="0:0",
        volumes=[f"{folder}:/mnt/{name}:ro" for name, folder in order.inputs.items()],
        tmpfs={"/mnt": SCRATCH},
    )
    output = f"$ {quote_command(*layer)}\n{process.stdout}{process.stderr}"
    with order.log.open("a", encoding="utf-8") as log:
        log.write(output)
    if process.returncode:
        if full := [line for line in output.splitlines() if NO_SPACE in line.lower()]:
            raise out_of_disk(full[0])
        lines = [line for line in output.splitlines() if line.strip()]
        message = f"{layer[0]} failed in {order.plan.name}:\n" + "\n".join(lines[-12:])
        raise CheckFailed(message, fix=quote_command("less", order.log))


def build_twice(order: Order, engine: Engine) -> tuple[list[list[str]], list[str]]:
    """The layers of two builds that share nothing but the base, and the commands of those that differ. Builds
    that differ are kept, to be compared file by file."""
    tags = compared_tags(order.plan)
    differences: list[str] = []
    try:
        for tag in tags:
            build(order, engine, tag)
        layers = [list(engine.attributes(tag)["RootFS"]["Layers"]) for tag in tags]
        # The base's own layers are below those of the plan.
        own = (digests[-len(order.plan.layers) :] for digests in layers)
        for layer, one, other in zip(order.plan.layers, *own, strict=True):
            if one != other:
                differences.append(quote_command(*layer))
        return layers, differences
    finally:
        for tag in () if differences else tags:
            engine.remove(tag)


def compared_tags(plan: ImagePlan) -> list[str]:
    return [f"qnn-ci/{plan.name}:compared-{name}" for name in ("first", "second")]
