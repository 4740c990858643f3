"""Choose a device and a QNN runtime among those of the service, before anything is uploaded."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ci.suite.contexts import ContextJob
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.manifest import load_socs

FRAMEWORK = "framework:qnn"
RUNTIMES = ("qairt", "qnn")
"""The names of QNN among the service's frameworks."""
NEAR = 0.4


@dataclass(frozen=True, slots=True)
class HubDevice:
    name: str
    os: str
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HubRuntime:
    name: str
    api_version: str
    """The name that `--qairt_version` takes."""
    full_version: str


@dataclass(frozen=True, slots=True)
class Listing:
    service: str
    """The address of the service that has these."""
    devices: tuple[HubDevice, ...]
    runtimes: tuple[HubRuntime, ...]


def choose_device(job: ContextJob, devices: Sequence[HubDevice]) -> HubDevice:
    """Return the device, with the newest system if the service has several. Raises UsageError for a name that
    no device has, and CheckFailed for a device that cannot run the context."""
    wanted = _words(job.device)
    named = [row for row in devices if _words(row.name) == wanted]
    named = named or [row for row in devices if _words(row.name)[-len(wanted) :] == wanted]
    if not named:
        raise UsageError(
            f"--device {job.device}: AI Hub has no device of that name", fix=_nearest(job.device, devices)
        )
    device = max(named, key=lambda row: _version(row.os))
    if FRAMEWORK not in device.attributes:
        raise CheckFailed(f"{device.name} runs no QNN context", fix="name another --device")
    _require_chip(job, device)
    return device


def _require_chip(job: ContextJob, device: HubDevice) -> None:
    socs = load_socs()
    soc = socs[job.soc]
    values: dict[str, list[str]] = {}
    for attribute in device.attributes:
        kind, _, value = attribute.partition(":")
        values.setdefault(kind, []).append(value)
    hexagons, chips = values.get("hexagon", []), values.get("chipset", [])
    called = set(map(_chip, chips))
    device_socs = {name for name, row in socs.items() if called.intersection(map(_plain, row.called))}
    found = ", ".join(f"hexagon:{value}" for value in hexagons) or "no Hexagon"
    if f"v{soc.arch}" not in hexagons or (device_socs and job.soc not in device_socs):
        names = f" ({', '.join(sorted(device_socs))})" if device_socs else ""
        raise CheckFailed(
            f"{job.program} is for {job.soc} (Hexagon v{soc.arch}), and {device.name} has {found}{names}",
            fix="name a --device with the program's chip, or compile it for the device's with --soc",
        )


def choose_runtime(job: ContextJob, runtimes: Sequence[HubRuntime]) -> HubRuntime:
    """Return the oldest runtime that is not older than the context."""
    known = [row for row in runtimes if row.name.lower() in RUNTIMES]
    needed = _version(job.build_id)
    fitting = [row for row in known if _version(row.full_version or row.api_version) >= needed]
    if not fitting:
        versions = ", ".join(row.full_version or row.api_version for row in known) or "none"
        raise EnvironmentLacking(
            f"{job.program} was compiled by QNN {'.'.join(map(str, needed))}, and AI Hub runs {versions}:"
            " a context runs on the same or a newer QNN",
            fix="compile it with a --profile of one of these versions",
        )
    return min(fitting, key=lambda row: _version(row.full_version or row.api_version))


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def _words(name: str) -> list[str]:
    return name.lower().replace("(family)", "").split()


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", text.lower())


def _chip(chipset: str) -> str:
    """`qualcomm-snapdragon-8-elite-for-galaxy` is called `8elite`."""
    name = chipset.lower().removeprefix("qualcomm-").removeprefix("snapdragon-").removesuffix("-for-galaxy")
    return _plain(name)


def _nearest(name: str, devices: Sequence[HubDevice]) -> str:
    names = sorted({row.name for row in devices})
    near = difflib.get_close_matches(name, names, cutoff=NEAR)
    return f"did you mean {' or '.join(near)}?" if near else f"use one of: {', '.join(names)}"
