"""Starts the stand-in of AI Hub, and makes jobs for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy

from ci.artifacts.context_graph import ContextTensor
from ci.suite.contexts import ContextJob
from provisioning.python_environments import PythonEnvironments, environments_folder

SERVER = Path(__file__).with_name("hub_server.py")
TOKEN = "secret-of-the-user"
PHONE = {
    "name": "Samsung Galaxy S25 (Family)",
    "os": "15",
    "attributes": ["hexagon:v79", "chipset:qualcomm-snapdragon-8-elite-for-galaxy", "framework:qnn"],
}
OTHER_PHONE = {
    "name": "Samsung Galaxy S24",
    "os": "14",
    "attributes": ["hexagon:v75", "chipset:qualcomm-snapdragon-8gen3", "framework:qnn"],
}
VALUES = numpy.arange(8, dtype=numpy.float32).reshape(2, 1, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What the stand-in answers."""

    answers: str = ""
    """The .npz with what the device gives: for each output all samples, stacked."""
    libraries: str = ""
    """The folder of QNN's libraries for this machine: their emulator then stands for the device."""
    layer_differs: bool = False
    """Whether the device computes one of the context's layers with another weight."""
    token: str = TOKEN
    devices: Sequence[Mapping[str, object]] = (PHONE, OTHER_PHONE)
    withdrawn: Sequence[str] = ()
    """Devices that are in the list and cannot be had."""
    runtimes: Sequence[str] = ("2.48.0", "2.50.0", "2.51.0")
    refused: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Maps a request, such as `POST jobs`, to status and words of its answer."""
    cut_uploads: int = 0
    """So many uploads break off."""
    state: str = "DONE"
    reason: str = ""
    log: str = ""
    """The device's log of a failed job."""


@dataclass(frozen=True, slots=True)
class StandIn:
    folder: Path
    python: str
    environ: Mapping[str, str]
    """The client's own file, which has the address and another token than the right one."""

    def plays(self, play: Play) -> None:
        part = self.folder / "part"
        part.write_text(json.dumps(asdict(play)), encoding="utf-8")
        part.replace(self.folder / "play.json")

    def requests(self, step: str) -> int:
        path = self.folder / "requests"
        return path.read_text(encoding="utf-8").splitlines().count(step) if path.is_file() else 0


@contextmanager
def stand_in(folder: Path, play: Play) -> Iterator[StandIn]:
    python = PythonEnvironments(environments_folder(), print).interpreter("hub")
    client = folder / "client.ini"
    hub = StandIn(folder, python, {"QAIHUB_CLIENT_INI": str(client), "QAIHUB_API_TOKEN": TOKEN})
    hub.plays(play)
    command = [python, str(SERVER), str(folder / "play.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address = process.stdout.readline().strip()
            text = f"[api]\napi_token = of-the-file\napi_url = {address}\nweb_url = {address}\n"
            client.write_text(text, encoding="utf-8")
            yield hub
        finally:
            process.kill()


def job_in(
    folder: Path, *, soc: str = "SM8750", device: str = "Galaxy S25", profile: bool = False
) -> ContextJob:
    """Write a context with two samples."""
    context = folder / "net.bin"
    context.write_bytes(b"context")
    samples = []
    for number, values in enumerate(VALUES):
        path = folder / f"input_{number}_0.raw"
        values.tofile(path)
        samples.append((path,))
    return ContextJob(
        program="net",
        context=context,
        soc=soc,
        build_id="v2.49.40.260810104044",
        inputs=(ContextTensor("x", "float32", (1, 4)),),
        samples=tuple(samples),
        outputs=(ContextTensor("y", "float32", (1, 4)),),
        device=device,
        profile=profile,
    )
