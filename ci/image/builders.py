"""Two programs that turn the Dockerfile into an image: docker with BuildKit, and buildah.

docker's SDK speaks no BuildKit, so its command line builds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ci.image.engine import NO_SPACE, Engine, out_of_disk
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError

BUILDKIT_INSIDE = (18, 9), (23, 0)
"""Clients of these versions speak BuildKit by themselves; newer ones need the buildx plugin."""


@dataclass(frozen=True, slots=True)
class Order:
    """One image to build: from which folder, up to which stage, and with what in it."""

    context: Path
    stage: str
    base: str
    base_id: str
    """The same image, as the container engine knows it."""
    tag: str
    epoch: int
    arguments: Mapping[str, str]
    labels: Mapping[str, str]
    log: Path

    @property
    def flags(self) -> list[str]:
        """Those that both programs know."""
        flags = ["--file", str(self.context / "docker" / "Dockerfile"), "--target", self.stage]
        given = {"BASE": self.base, "SOURCE_DATE_EPOCH": str(self.epoch), **self.arguments}
        for name, value in given.items():
            flags += ["--build-arg", f"{name}={value}"]
        for name, value in sorted(self.labels.items()):
            flags += ["--label", f"{name}={value}"]
        return [*flags, "--tag", self.tag]


@dataclass(frozen=True, slots=True)
class Built:
    """An image as it can be compared."""

    digest: str
    layers: tuple[str, ...]


class Place(Protocol):
    """Somewhere to build an image that shares nothing with what was built before."""

    def build(self, order: Order) -> Built: ...

    def save(self, order: Order, archive: Path) -> None:
        """What was built, as `docker save` writes it."""
        ...

    def discard(self, order: Order) -> None: ...


class Builder(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str:
        """What is compared of two images."""
        ...

    def build(self, order: Order, engine: Engine) -> None:
        """Build and leave the image under its tag in the container engine."""
        ...

    def place(self, folder: Path, engine: Engine) -> Place: ...


@dataclass(frozen=True, slots=True)
class Docker:
    program: str
    buildx: bool

    @property
    def name(self) -> str:
        return f"{self.program} with BuildKit"

    @property
    def digest(self) -> str:
        # The manifest's too would differ with docker before 23, which writes the hour into it.
        return "digest of layers and settings"

    def build(self, order: Order, engine: Engine, *flags: str) -> None:
        # The builder in the engine, as any other knows neither the engine's images nor when to load.
        verb = ["buildx", "build", "--builder", "default", "--load"] if self.buildx else ["build"]
        command = [self.program, *verb, "--network", "none", "--progress", "plain", *flags, *order.flags]
        environ = {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        _run([*command, str(order.context)], order.log, environ)

    def place(self, folder: Path, engine: Engine) -> Place:
        return DockerPlace(self, engine)


@dataclass(frozen=True, slots=True)
class DockerPlace:
    docker: Docker
    engine: Engine

    def build(self, order: Order) -> Built:
        self.docker.build(order, self.engine, "--no-cache")
        said = self.engine.attributes(order.tag)
        compared = {name: said[name] for name in ("Architecture", "Os", "Config", "RootFS")}
        digest = hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()
        return Built(f"sha256:{digest}", tuple(said["RootFS"]["Layers"]))

    def save(self, order: Order, archive: Path) -> None:
        self.engine.save(order.tag, archive)

    def discard(self, order: Order) -> None:
        self.engine.remove(order.tag)


@dataclass(frozen=True, slots=True)
class Buildah:
    """With its images under `root`, apart from the user's own if one is given."""

    program: str
    root: Path | None = None

    @property
    def name(self) -> str:
        return self.program

    @property
    def digest(self) -> str:
        return "manifest digest"

    @property
    def _command(self) -> list[str]:
        if self.root is None:
            return [self.program]
        return [self.program, "--root", str(self.root), "--runroot", f"{self.root}.run"]

    def build(self, order: Order, engine: Engine) -> None:
        # By files, as buildah would look for the engine at its usual place alone; and apart from the images
        # that the user has there, as no build takes anything from the one before.
        with tempfile.TemporaryDirectory(prefix="qnn-ci-image-", dir=order.context.parent) as scratch:
            base, made = Path(scratch) / "base.tar", Path(scratch) / "made.tar"
            own = replace(self, root=Path(scratch) / "storage")
            engine.save(order.base_id, base)
            try:
                own.build_apart(order, base)
                own.save(order.tag, made)
            finally:
                # What cannot be discarded must not hide why a build failed.
                with suppress(ToolkitError):
                    own.discard()
            engine.load(made)

    def build_apart(self, order: Order, base_archive: Path) -> None:
        """Build without telling the engine, every file with the time that the order says."""
        base = self._say("pull", "--quiet", f"docker-archive:{base_archive}").split()[-1]
        flags = replace(order, base=base).flags
        # Works where containers cannot be made, and knows no other network.
        how = ["--isolation", "chroot", "--network", "host", "--pull-never", "--layers", "--no-cache"]
        command = [*self._command, "build", *how, "--timestamp", str(order.epoch), *flags]
        _run([*command, str(order.context)], order.log, os.environ)

    def place(self, folder: Path, engine: Engine) -> Place:
        return BuildahPlace(replace(self, root=folder / "storage"), engine)

    def built(self, tag: str) -> Built:
        said: dict[str, Any] = json.loads(self._say("inspect", "--type", "image", tag))
        return Built(said["FromImageDigest"], tuple(said["OCIv1"]["rootfs"]["diff_ids"]))

    def save(self, tag: str, archive: Path) -> None:
        self._say("push", tag, f"docker-archive:{archive}:{tag}")

    def discard(self) -> None:
        """Remove all that is under `root`."""
        assert self.root is not None, "the user's own images stay"
        for container in self._say("containers", "--quiet").split():
            self._say("rm", container)
        self._say("rmi", "--all", "--force")

    def _say(self, *arguments: str) -> str:
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise failure(f"buildah {arguments[0]}", done.stderr, "buildah info")
        return done.stdout


@dataclass(frozen=True, slots=True)
class BuildahPlace:
    buildah: Buildah
    engine: Engine

    def build(self, order: Order) -> Built:
        with tempfile.TemporaryDirectory(prefix="qnn-ci-image-", dir=order.context.parent) as scratch:
            base = Path(scratch) / "base.tar"
            self.engine.save(order.base_id, base)
            self.buildah.build_apart(order, base)
        return self.buildah.built(order.tag)

    def save(self, order: Order, archive: Path) -> None:
        self.buildah.save(order.tag, archive)

    def discard(self, order: Order) -> None:
        self.buildah.discard()


def choose(wanted: str, environ: Mapping[str, str] = os.environ) -> Builder:
    """`docker`, `buildah`, or for `auto` the first of them that is here."""
    if wanted in ("auto", "docker"):
        for program in _every("docker", environ):
            if (buildx := _speaks_buildkit(program)) is not None:
                return Docker(program, buildx)
    if wanted == "docker":
        raise EnvironmentLacking(
            "no docker on PATH can build with BuildKit",
            remedy="apt-get install docker.io or docker-buildx, or use --builder buildah",
        )
    return find_buildah(environ)


def find_buildah(environ: Mapping[str, str] = os.environ) -> Buildah:
    if program := shutil.which("buildah", path=environ.get("PATH")):
        return Buildah(program)
    raise EnvironmentLacking("buildah is not on PATH", remedy="apt-get install buildah")


def _every(name: str, environ: Mapping[str, str]) -> list[str]:
    found = [shutil.which(name, path=entry) for entry in environ.get("PATH", os.defpath).split(":") if entry]
    return list(dict.fromkeys(program for program in found if program))


def _speaks_buildkit(program: str) -> bool | None:
    """By the buildx plugin (True), by itself (False), or not at all (None)."""
    plugin = subprocess.run([program, "buildx", "version"], capture_output=True, text=True, check=False)
    if plugin.returncode == 0 and "buildx" in plugin.stdout:
        return True
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+)\.(\d+)", said)
    first, end = BUILDKIT_INSIDE
    return False if found and first <= (int(found[1]), int(found[2])) < end else None


def _run(command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=environ, check=False)
    if done.returncode:
        raise failure("building the image", log.read_text(encoding="utf-8", errors="replace"), f"less {log}")


def failure(what: str, said: str, remedy: str) -> CheckFailed | EnvironmentLacking:
    if full := [line for line in said.splitlines() if NO_SPACE in line.lower()]:
        return out_of_disk(full[0])
    if "permission denied while trying to connect" in said:
        return EnvironmentLacking(
            "the container engine is there, but you may not use it",
            remedy="sudo usermod -aG docker $USER, and log in again",
        )
    lines = [line for line in said.splitlines() if line.strip()]
    return CheckFailed(f"{what} failed:\n" + "\n".join(lines[-12:]), remedy=remedy)
