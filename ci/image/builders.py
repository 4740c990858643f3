"""Two programs that build an image from the Dockerfile: docker with BuildKit, and buildah.

Docker's SDK does not speak BuildKit, so its command line builds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ci.image.engine import NO_SPACE, Engine, out_of_disk
from provisioning.base.commands import captured, logged, quoted
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError

BUILDKIT_INSIDE = (18, 9), (23, 0)
"""docker itself speaks BuildKit from the first version until before the second; later ones need buildx."""


@dataclass(frozen=True, slots=True)
class Order:
    """One image to build."""

    context: Path
    stage: str
    """The last stage of the Dockerfile to build."""
    base: str
    base_id: str
    """The id of the base in the container engine."""
    tag: str
    epoch: int
    arguments: Mapping[str, str]
    labels: Mapping[str, str]
    log: Path

    @property
    def flags(self) -> list[str]:
        """Flags that both programs take."""
        flags = ["--file", str(self.context / "docker" / "Dockerfile"), "--target", self.stage]
        values = {"BASE": self.base, "SOURCE_DATE_EPOCH": str(self.epoch), **self.arguments}
        for name, value in values.items():
            flags += ["--build-arg", f"{name}={value}"]
        for name, value in sorted(self.labels.items()):
            flags += ["--label", f"{name}={value}"]
        return [*flags, "--tag", self.tag]


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """The parts of an image that are compared."""

    digest: str
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Docker:
    program: str
    buildx: bool

    digest = "digest of layers and settings"
    """What is compared. Not the manifest's digest: docker before 23 writes the time of the build into it."""

    @property
    def name(self) -> str:
        return f"{self.program} with BuildKit"

    def build(self, order: Order, engine: Engine, *flags: str) -> None:
        """Build and leave the image under its tag in the container engine."""
        # Only the engine's own builder can use the engine's images.
        verb = ["buildx", "build", "--builder", "default", "--load"] if self.buildx else ["build"]
        command = [self.program, *verb, "--network", "none", "--progress", "plain", *flags, *order.flags]
        environ = {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        _run([*command, str(order.context)], order.log, environ)

    def apart(self, folder: Path) -> Docker:
        """A builder whose images share nothing with those of earlier builds."""
        return self

    def build_apart(self, order: Order, engine: Engine) -> BuiltImage:
        self.build(order, engine, "--no-cache")
        attributes = engine.attributes(order.tag)
        compared = {name: attributes[name] for name in ("Architecture", "Os", "Config", "RootFS")}
        digest = hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()
        return BuiltImage(f"sha256:{digest}", tuple(attributes["RootFS"]["Layers"]))

    def save(self, order: Order, engine: Engine, archive: Path) -> None:
        """Write an image that was built apart as `docker save` does."""
        engine.save(order.tag, archive)

    def discard(self, order: Order, engine: Engine) -> None:
        engine.remove(order.tag)


@dataclass(frozen=True, slots=True)
class Buildah:
    """`root`: where its images are; None for the user's own place."""

    program: str
    root: Path | None = None

    digest = "manifest digest"

    @property
    def name(self) -> str:
        return self.program

    def build(self, order: Order, engine: Engine) -> None:
        # Images are passed as files, because buildah finds an engine only at the default address. The build
        # is kept apart from the user's images, so that it reuses none of them.
        with _scratch(order) as scratch:
            own = self.apart(scratch)
            try:
                own.build_apart(order, engine)
                own.save(order, engine, scratch / "image.tar")
            finally:
                # An error here must not hide why the build failed.
                with suppress(ToolkitError):
                    own.discard(order, engine)
            engine.load(scratch / "image.tar")

    def apart(self, folder: Path) -> Buildah:
        return replace(self, root=folder / "storage")

    def build_apart(self, order: Order, engine: Engine) -> BuiltImage:
        """Every file gets the order's time."""
        with _scratch(order) as scratch:
            engine.save(order.base_id, scratch / "base.tar")
            base = self._output("pull", "--quiet", f"docker-archive:{scratch / 'base.tar'}").split()[-1]
            flags = replace(order, base=base).flags
            # chroot works where containers are not allowed, but has no network isolation.
            how = ["--isolation", "chroot", "--network", "host", "--pull-never", "--layers", "--no-cache"]
            command = [*self._command, "build", *how, "--timestamp", str(order.epoch), *flags]
            _run([*command, str(order.context)], order.log, os.environ)
        image: dict[str, Any] = json.loads(self._output("inspect", "--type", "image", order.tag))
        return BuiltImage(image["FromImageDigest"], tuple(image["OCIv1"]["rootfs"]["diff_ids"]))

    def save(self, order: Order, engine: Engine, archive: Path) -> None:
        self._output("push", order.tag, f"docker-archive:{archive}:{order.tag}")

    def discard(self, order: Order, engine: Engine) -> None:
        """Remove everything below `root`."""
        assert self.root is not None, "the user's own images stay"
        for container in self._output("containers", "--quiet").split():
            self._output("rm", container)
        self._output("rmi", "--all", "--force")

    @property
    def _command(self) -> list[str]:
        if self.root is None:
            return [self.program]
        return [self.program, "--root", str(self.root), "--runroot", f"{self.root}.run"]

    def _output(self, *arguments: str) -> str:
        done = captured([*self._command, *arguments])
        if done.returncode:
            raise failure(f"buildah {arguments[0]}", done.stderr, "buildah info")
        return done.stdout


Builder: TypeAlias = Docker | Buildah


@contextmanager
def _scratch(order: Order) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="qnn-ci-image-", dir=order.context.parent) as scratch:
        yield Path(scratch)


def choose(wanted: str, environ: Mapping[str, str] = os.environ) -> Builder:
    """`wanted`: docker, buildah, or auto for the first that is installed."""
    if wanted in ("auto", "docker"):
        for program in _every("docker", environ):
            if (buildx := _speaks_buildkit(program)) is not None:
                return Docker(program, buildx)
    if wanted == "docker":
        raise EnvironmentLacking(
            "no docker on PATH can build with BuildKit",
            fix="apt-get install docker.io or docker-buildx, or use --builder buildah",
        )
    if buildah := shutil.which("buildah", path=environ.get("PATH")):
        return Buildah(buildah)
    raise EnvironmentLacking("buildah is not on PATH", fix="apt-get install buildah")


def _every(name: str, environ: Mapping[str, str]) -> list[str]:
    programs = [
        shutil.which(name, path=entry) for entry in environ.get("PATH", os.defpath).split(":") if entry
    ]
    return list(dict.fromkeys(program for program in programs if program))


def _speaks_buildkit(program: str) -> bool | None:
    """True with the buildx plugin, False without; None: BuildKit is not supported."""
    plugin = captured([program, "buildx", "version"])
    if plugin.returncode == 0 and "buildx" in plugin.stdout:
        return True
    text = captured([program, "--version"]).stdout
    version = re.search(r"version (\d+)\.(\d+)", text)
    first, end = BUILDKIT_INSIDE
    return False if version and first <= (int(version[1]), int(version[2])) < end else None


def _run(command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
    if logged(command, log, environ):
        raise failure(
            "building the image", log.read_text(encoding="utf-8", errors="replace"), quoted("less", log)
        )


def failure(what: str, output: str, fix: str) -> CheckFailed | EnvironmentLacking:
    if full := [line for line in output.splitlines() if NO_SPACE in line.lower()]:
        return out_of_disk(full[0])
    if "permission denied while trying to connect" in output:
        return EnvironmentLacking(
            "the container engine runs, but you may not use it",
            fix="sudo usermod -aG docker $USER, and log in again",
        )
    lines = [line for line in output.splitlines() if line.strip()]
    return CheckFailed(f"{what} failed:\n" + "\n".join(lines[-12:]), fix=fix)
