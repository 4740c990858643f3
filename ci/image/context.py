"""What images are built from: Debian packages, wheels and vendors' trees, each verified.

One folder below build/ has the packages and wheels of all images. The trees are the store's own.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ci.image.engine import ContainerCommand, Engine
from ci.image.image_plan import DOCKER, DebianPackage, ImagePlan, PackageLock, System, has_torch
from provisioning import licences
from provisioning.base.commands import Fix, captured, session
from provisioning.base.errors import (
    CheckFailed,
    EnvironmentLacking,
    IntegrityError,
    LicenceNotAccepted,
    UpstreamError,
)
from provisioning.base.files import hash_file
from provisioning.base.progress import for_stream
from provisioning.base.settings import ROOT
from provisioning.lock_files import CPU, cpu_wheel, lock_path
from provisioning.python_environments import TORCH

if TYPE_CHECKING:
    from provisioning.store import Store, Tree

CONTEXT = ROOT / "build" / "image"
PACKAGES, ENVIRONMENTS = "packages", "environments"
OLDEST_GLIBC = 5
"""The first minor version of glibc that manylinux supports."""
LEGACY_PLATFORMS = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64")


@dataclass(frozen=True, slots=True)
class Apt:
    """The user's own apt sources and settings. They are used for downloads and never put into an image."""

    sources: Path | None = None
    conf: Path | None = None

    @property
    def inputs(self) -> dict[str, Path]:
        files = {"sources": self.sources, "conf": self.conf}
        return {f"/run/apt/{name}": path.resolve() for name, path in files.items() if path}


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def trees_of(plan: ImagePlan, store: Store) -> Mapping[str, Tree]:
    """The store's trees of the plan's components; missing ones are provisioned if licences are accepted."""
    if plan.profile is None:
        return {}
    if lacking := licences.missing(store.path, plan.components, {}):
        listed = "; ".join(f"{licence.title} ({licence.url})" for licence in lacking.values())
        accept = [word for name in lacking for word in (licences.FLAG, name)]
        raise LicenceNotAccepted(
            f"the image {plan.name} needs components whose licence was not accepted yet: {listed}",
            fix=session("provision", "--profile", plan.profile.name, *accept),
        )
    return {
        name: store.provision(name, component, progress=for_stream())
        for name, component in plan.components.items()
    }


def keep_packages(plan: ImagePlan, engine: Engine, base: str, apt: Apt, folder: Path) -> None:
    """Have what the base lacks of the plan's packages and their dependencies, as locked."""

    def fetch() -> None:
        say(f"fetching Debian packages with the apt of {base}")
        fetch_packages(plan.system.packages, engine, base, apt, folder, plan.debian)
        check_packages(plan.debian.packages, packages_in(folder))

    keep(folder, "\n".join([base, *plan.system.packages, *map(str, plan.debian.packages)]), fetch)


def check_packages(locked: Iterable[DebianPackage], fetched: Iterable[DebianPackage]) -> None:
    wanted = {package.name: package for package in locked}
    for package in fetched:
        pin = wanted.get(package.name)
        if pin is None:
            raise CheckFailed(
                f"this base needs {package.name} {package.version}, "
                "which manifests/image-packages.txt does not pin",
                fix=session("image", "--lock"),
            )
        if pin.version != package.version:
            raise UpstreamError(
                f"apt offers {package.name} {package.version}, and no longer the pinned {pin.version}",
                fix=Fix(
                    "name sources that have it with --apt-sources; or pin newer ones: {}", ("image", "--lock")
                ),
            )
        if pin.sha256 != package.sha256:
            raise IntegrityError(
                f"{package.name} {package.version}: expected sha256 {pin.sha256}, found {package.sha256}",
                fix="use apt sources that you trust: --apt-sources",
            )


def fetch_packages(
    names: Sequence[str], engine: Engine, base: str, apt: Apt, folder: Path, lock: PackageLock | None = None
) -> str:
    """Download packages with the apt of the base, and with the user's sources if there are any; returns the
    moment of the archive. With a lock, what the base lacks; without one, what any base may lack."""
    environment = {"OWNER": engine.owner, "DEBIAN_FRONTEND": "noninteractive"}
    environment |= {"SNAPSHOT": lock.snapshot} if lock else {"FROM_NOTHING": "yes"}
    inputs = {"/run/fetch-packages": DOCKER / "fetch-packages", **apt.inputs}
    with tempfile.TemporaryDirectory(prefix="qnn-ci-image-") as scratch:
        if lock:
            inputs["/run/apt/pins"] = pins = Path(scratch) / "pins"
            pins.write_text("\n".join(map(_preference, lock.packages)), encoding="utf-8")
        job = ContainerCommand(
            base,
            ["sh", "/run/fetch-packages", "/packages", *names],
            user="0:0",
            inputs=inputs,
            outputs={"/packages": folder},
            environment=environment,
            network="host",
        )
        done = engine.run(job)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("E: ")]
        message = "; ".join(dict.fromkeys(lines[:3])) or f"exit code {done.returncode}"
        raise UpstreamError(
            f"apt in {base} could not fetch the packages: {message}",
            fix="name sources that are in reach with --apt-sources",
        )
    sys.stderr.writelines(f"{line}\n" for line in done.stdout.splitlines() if "Debian's archive" in line)
    return "".join(re.findall(r"^archive of (\d{8}T\d{6}Z)$", done.stdout, re.M)[-1:])


def _preference(package: DebianPackage) -> str:
    """A pin for apt: this version, unless the base has a newer one."""
    return f"Package: {package.name}\nPin: version {package.version}\nPin-Priority: 999\n"


def packages_in(folder: Path) -> list[DebianPackage]:
    """Every package file of a folder, by its name as apt writes it: NAME_VERSION_ARCH.deb."""
    packages = []
    for path in sorted(folder.glob("*.deb")):
        name, version, _ = unquote(path.name).split("_")
        packages.append(DebianPackage(name, version, hash_file(path)))
    return packages


def keep_wheels(plan: ImagePlan, environment: str, folder: Path) -> None:
    """Have every distribution of a locked environment, with what docker/make-environments reads of it."""
    fetch_wheels(lock_path(environment), folder, plan.system)
    (folder / "imports.txt").write_text("\n".join([*plan.imports[environment], ""]), encoding="utf-8")


def fetch_wheels(lock: Path, folder: Path, system: System, torch: Path = TORCH) -> None:
    """Have the distributions of a lock file for an image's Python.

    The user's own pip fetches them: index, credentials, proxies and certificates mean what they mean
    everywhere else. `torch` is the folder with the builds of torch that are on record."""
    text, builds = lock.read_text(encoding="utf-8"), torch / CPU
    recorded = builds.read_text(encoding="utf-8") if has_torch(text) else ""

    def fetch() -> None:
        say(f"fetching the wheels of {lock.stem}")
        _download(["--require-hashes", "-r", str(lock)], folder, system)
        (folder / "lock.txt").write_text(text, encoding="utf-8")
        if recorded:
            _download_torch(builds, folder, system)
            (folder / "torch.txt").write_text(recorded, encoding="utf-8")

    keep(folder, f"{system.python} {system.glibc}\n{text}{recorded}", fetch)


def _download_torch(builds: Path, folder: Path, system: System) -> None:
    try:
        _download(["--require-hashes", "-r", str(builds)], folder, system)
    except UpstreamError as error:
        # pip does not know PyTorch's own index, and uv does.
        if wheel := cpu_wheel(f"cp{system.python.replace('.', '')}", builds):
            _download([wheel], folder, system)
            return
        raise EnvironmentLacking(
            f"the package index has no CPU build of torch that is on record: {error.message}",
            fix="name an index that has it (PIP_EXTRA_INDEX_URL=URL), or record your index's build: "
            + session("lock", "--torch"),
        ) from error


def _download(what: Sequence[str], folder: Path, system: System) -> None:
    tag, minor = f"cp{system.python.replace('.', '')}", int(system.glibc.split(".")[1])
    platforms = [f"manylinux_2_{version}_x86_64" for version in range(minor, OLDEST_GLIBC - 1, -1)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    command += ["--python-version", system.python, "--implementation", "cp"]
    command += [word for abi in (tag, "abi3", "none") for word in ("--abi", abi)]
    command += [word for platform in (*platforms, *LEGACY_PLATFORMS) for word in ("--platform", platform)]
    done = captured([*command, *what], env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
        raise UpstreamError(
            f"pip could not fetch {what[-1]}: {errors[-1].strip()}",
            fix="check the package index that pip is set to: python -m pip config list",
        )


def keep(folder: Path, request: str, fetch: Callable[[], None]) -> None:
    """Fill a folder, unless this request filled it and it still has those files, each with a hash that the
    request names."""
    stamp = folder / "request.txt"

    def filled() -> str:
        return "\n".join([request, *(path.name for path in distributions_in(folder)), ""])

    is_filled = stamp.is_file() and stamp.read_text(encoding="utf-8") == filled()
    if is_filled and all(hash_file(path) in request for path in distributions_in(folder)):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fetch()
    # Written last, so that an interrupted download is not taken for a whole one.
    stamp.write_text(filled(), encoding="utf-8")


def distributions_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix != ".txt")
