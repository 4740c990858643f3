"""Build an image layer by layer, and build it twice and compare.

A layer is what a script of docker/ writes in a container without network, whose inputs are mounted: no
download and no mount point stays in it. docker/make-layer gives every file one time, SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ci.image.engine import NO_SPACE, ContainerCommand, Engine, out_of_disk
from ci.image.image_plan import DOCKER, ImageLayer, ImagePlan
from ci.image.shell import CACHE
from provisioning.base.commands import quoted
from provisioning.base.errors import CheckFailed
from provisioning.components import ANDROID_NDK, COMPONENT_VARIABLES, QNN_SDK

HOME = "/opt/qnn-ci"
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
    inputs: Mapping[str, Path]
    """The folder for each input of its layers."""
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
    plan, parent = order.plan, order.base_id
    order.log.parent.mkdir(parents=True, exist_ok=True)
    order.log.write_text("", encoding="utf-8")
    *below, last = zip(plan.layers, plan.keys(parent), strict=True)
    for number, (layer, key) in enumerate(below, 1):
        name = f"qnn-ci/layer:{key[:32]}" if reuse else f"{tag}-{number}"
        if not reuse or engine.image_id(name) is None:
            _run(order, layer, parent, engine, name, {"Volumes": {CACHE: {}}})
        parent = name
    _run(order, last[0], parent, engine, tag, order.settings)


def _run(
    order: Order, layer: ImageLayer, parent: str, engine: Engine, target: str, settings: Mapping[str, object]
) -> None:
    # In the command, because variables of a container would stay in the image.
    variables = {**variables_of(order.plan), "SOURCE_DATE_EPOCH": str(order.plan.system.epoch)}
    assignments = [f"{name}={value}" for name, value in variables.items()]
    command = ["env", *assignments, "sh", "/mnt/docker/make-layer", *layer.command]
    inputs = {"/mnt/docker": DOCKER, f"/mnt/{layer.input}": order.inputs[layer.input]}
    job = ContainerCommand(parent, command, user="0:0", inputs=inputs, tmpfs=["/mnt"])
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


def build_twice(order: Order, engine: Engine, scratch: Path) -> tuple[list[list[str]], list[str]]:
    """The layers of two builds that share nothing but the base, and what differs. Neither is kept."""
    tags = [f"qnn-ci/{order.plan.name}:compared-{name}" for name in ("first", "second")]
    try:
        for tag in tags:
            build(order, engine, tag, reuse=False)
        images = [engine.attributes(tag) for tag in tags]
        layers = [list(image["RootFS"]["Layers"]) for image in images]
        first, second = ({name: image["Config"].get(name) for name in COMPARED} for image in images)
        differing = [f"the setting {name}" for name in COMPARED if first[name] != second[name]]
        if layers[0] != layers[1]:
            files = []
            for tag in tags:
                archive = scratch / "image.tar"
                engine.save(tag, archive)
                files.append(files_of(archive))
            differing += [*differences(*files)] or ["the layers, and no file"]
        return layers, differing
    finally:
        for tag in tags:
            for name in (tag, *(f"{tag}-{number}" for number in range(1, len(order.plan.layers)))):
                engine.remove(name)


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
