"""The folder that images are built from: docker/, Debian packages, wheels and vendors' trees, each verified.

One folder serves all images. Files that are right are not touched, so that a builder's cache stays valid.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ci.image.engine import ContainerCommand, Engine, Mount
from ci.image.image_plan import DOCKER, DebianPackage, ImagePlan, PackageLock
from ci.image.sealed import is_sealed, seal, unseal
from provisioning import licences
from provisioning.base.commands import Fix, session
from provisioning.base.errors import (
    CheckFailed,
    IntegrityError,
    LicenceNotAccepted,
    UpstreamError,
)
from provisioning.base.files import hash_file, replace_text
from provisioning.base.progress import for_stream
from provisioning.base.settings import ROOT
from provisioning.lock_files import lock_path

if TYPE_CHECKING:
    from provisioning.store import Store, Tree

CONTEXT = ROOT / "build" / "image"


@dataclass(frozen=True, slots=True)
class Apt:
    """The user's own apt sources and settings. They are used for downloads and never put into an image."""

    sources: Path | None = None
    conf: Path | None = None

    @property
    def mounts(self) -> list[Mount]:
        files = {"sources": self.sources, "conf": self.conf}
        return [Mount(str(path.resolve()), f"/run/apt/{name}", True) for name, path in files.items() if path]


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def assemble(
    plan: ImagePlan, engine: Engine, base: str, store: Store, apt: Apt, context: Path = CONTEXT
) -> None:
    """Add to the context what the plan needs."""
    from ci.image.wheelhouse import WheelTarget, fill

    trees = trees_of(plan, store)
    context.mkdir(parents=True, exist_ok=True)
    _mirror_scripts(context / "docker")
    keep_packages(plan.system.packages, plan.debian, engine, base, apt, context / "packages")
    wanted = WheelTarget(plan.system.python, plan.system.glibc)
    for environment in plan.environments:
        folder = context / "environments" / environment
        if fill(lock_path(environment), folder, wanted):
            say(f"fetched the wheels of {environment}")
        _write(folder / "imports.txt", "\n".join([*plan.imports[environment], ""]))
    for name, tree in trees.items():
        link_tree(tree.root, tree.key, context / "components" / name)


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


def keep_packages(
    names: Sequence[str], lock: PackageLock, engine: Engine, base: str, apt: Apt, folder: Path
) -> None:
    """Have what the base lacks of these packages and their dependencies, as locked."""
    request = "\n".join([base, *names, *map(str, lock.packages)])
    if is_sealed(folder, request):
        return
    unseal(folder)
    say(f"fetching Debian packages with the apt of {base}")
    fetch_packages(names, engine, base, apt, folder, lock)
    check_packages(lock.packages, packages_in(folder))
    seal(folder, request)


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
    names: Sequence[str],
    engine: Engine,
    base: str,
    apt: Apt,
    folder: Path,
    lock: PackageLock | None = None,
) -> str:
    """Download packages with the apt of the base, and with the user's sources if there are any; returns the
    moment of the archive. With a lock, what the base lacks; without one, what any base may lack."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {"OWNER": engine.owner, "DEBIAN_FRONTEND": "noninteractive"}
    environment |= {"SNAPSHOT": lock.snapshot} if lock else {"FROM_NOTHING": "yes"}
    script = Mount(str(DOCKER / "fetch-packages"), "/run/fetch-packages", True)
    mounts = [Mount(str(folder), "/packages"), script, *apt.mounts]
    with tempfile.TemporaryDirectory(prefix="qnn-ci-image-") as scratch:
        if lock:
            pins = Path(scratch) / "pins"
            pins.write_text("\n".join(map(_preference, lock.packages)), encoding="utf-8")
            mounts.append(Mount(str(pins), "/run/apt/pins", True))
        command = ["sh", "/run/fetch-packages", "/packages", *names]
        done = engine.run(
            ContainerCommand(
                base, command, user="0:0", mounts=mounts, environment=environment, network="host"
            )
        )
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


def link_tree(source: Path, key: str, into: Path) -> None:
    """Copy a tree of the store by hard links where possible: nothing writes to either."""
    stamp = into.with_name(f"{into.name}.stamp")
    if into.is_dir() and stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        return
    stamp.unlink(missing_ok=True)
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(source, into, symlinks=True, copy_function=_link_or_copy)
    for folder, _, _ in os.walk(into):
        Path(folder).chmod(0o755)
    stamp.write_text(key, encoding="utf-8")


def _link_or_copy(source: str, target: str) -> str:
    with suppress(OSError):
        os.link(source, target)
        return target
    return str(shutil.copy2(source, target))


def _mirror_scripts(into: Path) -> None:
    into.mkdir(exist_ok=True)
    for path in DOCKER.iterdir():
        if path.is_file():
            _write(into / path.name, path.read_text(encoding="utf-8"), path.stat().st_mode & 0o111)


def _write(path: Path, text: str, executable: int = 0) -> None:
    """Write only what differs, for builders' caches. Modes do not depend on the umask."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        replace_text(path, text)
    path.chmod(0o755 if executable else 0o644)
