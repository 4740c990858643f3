"""Build an image layer by layer, and build it twice and compare.

A layer is what a script of docker/ writes in a container without network, whose inputs are mounted: no
download and no mount point stays in it. docker/make-layer gives every file one time, SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ci.image.context import ENVIRONMENTS, PACKAGES
from ci.image.engine import NO_SPACE, ContainerCommand, Engine, Mount, out_of_disk
from ci.image.image_plan import DOCKER, ImagePlan
from ci.image.shell import CACHE
from provisioning.base.commands import quoted
from provisioning.base.errors import CheckFailed
from provisioning.components import ANDROID_NDK, COMPONENT_VARIABLES, QNN_SDK

if TYPE_CHECKING:
    from provisioning.store import Tree

HOME = "/opt/qnn-ci"
IN_EVERY_IMAGE = ("nox", "tools")
"""Environments of a layer of their own, which all images share."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VARIABLES = {
    "LANG": "C.UTF-8",
    "HOME": f"{CACHE}/home",
    "USER": "dev",
    "XDG_CACHE_HOME": CACHE,
    "QNN_CI_STORE": f"{CACHE}/store",
    "QNN_CI_ENVIRONMENTS": f"{HOME}/environments",
}
COMPARED = ("Cmd", "Entrypoint", "Env", "Labels", "User", "Volumes", "WorkingDir")
"""The settings of an image that a container starts with. An engine adds others, such as a container's id."""


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """A script of docker/ with its arguments, the folder that it reads, and what decides its output."""

    command: tuple[str, ...]
    input: Mount
    decided_by: str


def layers_of(plan: ImagePlan, context: Path, trees: Mapping[str, Tree]) -> list[ImageLayer]:
    packages = Mount(str(context / PACKAGES), "/mnt/packages", True)
    environments = Mount(str(context / ENVIRONMENTS), "/mnt/environments", True)
    layers = [ImageLayer(("install-packages", "/mnt/packages"), packages, str(plan.debian))]
    others = tuple(name for name in plan.environments if name not in IN_EVERY_IMAGE)
    for names in filter(None, (IN_EVERY_IMAGE, others)):
        files = [
            context / ENVIRONMENTS / name / file for name in names for file in ("request.txt", "imports.txt")
        ]
        content = "\n".join(file.read_text(encoding="utf-8") for file in files)
        layers.append(ImageLayer(("make-environments", *names), environments, content))
    for name, tree in trees.items():
        mount = Mount(str(tree.root), f"/mnt/{name}", True)
        layers.append(ImageLayer(("install-component", name), mount, tree.key))
    return layers


def variables_of(plan: ImagePlan) -> dict[str, str]:
    """The variables of an image."""
    variables = {**VARIABLES, "PATH": SYSTEM_PATH}
    if "executorch" in plan.environments:
        variables["PATH"] = f"{HOME}/environments/executorch/bin:{SYSTEM_PATH}"
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
    layers: Sequence[ImageLayer]
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


def build(order: Order, engine: Engine, tag: str, *, reuse: bool = True) -> None:
    """Build and leave the image under its tag. All layers but the last are kept for the next image."""
    scripts = "".join(path.read_text(encoding="utf-8") for path in sorted(DOCKER.iterdir()))
    parent = order.base_id
    order.log.parent.mkdir(parents=True, exist_ok=True)
    order.log.write_text("", encoding="utf-8")
    for number, layer in enumerate(order.layers, 1):
        last = number == len(order.layers)
        decides = "\n".join([parent, str(order.plan.system.epoch), *layer.command, layer.decided_by, scripts])
        name = f"qnn-ci/layer:{hashlib.sha256(decides.encode()).hexdigest()[:32]}"
        kept = engine.image_id(name) if reuse and not last else None
        if kept is None:
            target = tag if last else name if reuse else f"{tag}-{number}"
            settings = order.settings if last else {"Volumes": {CACHE: {}}}
            _run(order, layer, parent, engine, target, settings)
            kept = engine.image_id(target)
        assert kept is not None, f"{name} was committed"
        parent = kept


def _run(
    order: Order, layer: ImageLayer, parent: str, engine: Engine, target: str, settings: Mapping[str, object]
) -> None:
    # In the command, because variables of a container would stay in the image.
    variables = {**variables_of(order.plan), "SOURCE_DATE_EPOCH": str(order.plan.system.epoch)}
    assignments = [f"{name}={value}" for name, value in variables.items()]
    command = ["env", *assignments, "sh", "/mnt/docker/make-layer", *layer.command]
    mounts = [Mount(str(DOCKER), "/mnt/docker", True), layer.input]
    job = ContainerCommand(parent, command, user="0:0", mounts=mounts, tmpfs=["/mnt"])
    done = engine.run(job, target, settings)
    output = f"$ {quoted(*layer.command)}\n{done.stdout}{done.stderr}"
    with order.log.open("a", encoding="utf-8") as log:
        log.write(output)
    if done.returncode:
        if full := [line for line in output.splitlines() if NO_SPACE in line.lower()]:
            raise out_of_disk(full[0])
        lines = [line for line in output.splitlines() if line.strip()]
        message = f"{layer.command[0]} failed in {order.plan.name}:\n" + "\n".join(lines[-12:])
        raise CheckFailed(message, fix=quoted("less", order.log))


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """The parts of an image that are compared."""

    layers: tuple[str, ...]
    settings: str


def build_twice(order: Order, engine: Engine, scratch: Path) -> tuple[BuiltImage, BuiltImage, list[str]]:
    """Two builds that share nothing but the base, and what differs. Neither is kept."""
    tags = [f"qnn-ci/{order.plan.name}:compared-{name}" for name in ("first", "second")]
    try:
        for tag in tags:
            build(order, engine, tag, reuse=False)
        first, second = (_built(engine, tag) for tag in tags)
        if first == second:
            return first, second, []
        files = []
        for tag in tags:
            archive = scratch / f"{tag.rpartition('-')[2]}.tar"
            engine.save(tag, archive)
            files.append(files_of(archive))
            archive.unlink()
        return first, second, [*differences(*files)] or ["the settings of the image, and no file"]
    finally:
        for tag in tags:
            for name in (tag, *(f"{tag}-{number}" for number in range(1, len(order.layers)))):
                engine.remove(name)


def _built(engine: Engine, tag: str) -> BuiltImage:
    attributes = engine.attributes(tag)
    settings = {name: attributes["Config"].get(name) for name in COMPARED}
    return BuiltImage(tuple(attributes["RootFS"]["Layers"]), json.dumps(settings, sort_keys=True))


def differences(
    first: Mapping[str, Mapping[str, object]], second: Mapping[str, Mapping[str, object]]
) -> Iterator[str]:
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            yield f"{name}: only in the {'first' if name in first else 'second'}"
        elif what := [key for key, value in first[name].items() if second[name][key] != value]:
            yield f"{name}: {', '.join(what)}"


def files_of(archive: Path) -> dict[str, dict[str, object]]:
    """What each layer of a saved image says of each file."""
    files = {}
    with tarfile.open(archive) as image:
        (manifest,) = json.load(_member(image, "manifest.json"))
        for number, layer in enumerate(manifest["Layers"], 1):
            with tarfile.open(fileobj=_member(image, layer)) as members:
                for member in members:
                    files[f"layer {number}: /{member.name.removeprefix('./')}"] = {
                        "kind": member.type,
                        "mode": member.mode,
                        "owner": member.uid,
                        "group": member.gid,
                        "time": member.mtime,
                        "link": member.linkname,
                        "content": _digest(members, member),
                    }
    return files


def _digest(files: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    digest = hashlib.sha256()
    if member.isreg() and (stream := files.extractfile(member)):
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = archive.extractfile(name)
    assert stream is not None, f"{name} of {archive.name!r} is not a file"
    return stream
