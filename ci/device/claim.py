"""A folder on a device for one run at a time, and only one that is ours: files in it are removed."""

from __future__ import annotations

import getpass
import os
import platform
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ci.device.bundle.scripts import LOCK, OURS
from ci.device.transport import Device
from provisioning.base.errors import EnvironmentLacking, ToolkitError, UpstreamError, UsageError

SECONDS = 60.0
_POLL_SECONDS = 0.5

_CLAIMED, _FOREIGN, _TAKEN = 0, 3, 4


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a folder. `machine` tells process numbers of different machines and containers apart."""

    machine: str
    process: int
    started: str
    """When the process was, in the kernel's count: numbers are given out again."""
    words: str

    def encode(self) -> str:
        return f"{self.machine} {self.process} {self.started} {self.words}"

    @classmethod
    def decode(cls, text: str) -> Holder | None:
        machine, _, rest = text.strip().partition(" ")
        process, _, rest = rest.partition(" ")
        started, _, words = rest.partition(" ")
        return cls(machine, int(process), started, words) if process.isdecimal() and words else None

    def gone(self) -> bool:
        """Known only of processes of this machine."""
        return self.machine == _machine() and _started(self.process) != self.started


def this_process() -> Holder:
    process = os.getpid()
    since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    words = f"{_user()} on {platform.node() or 'a machine without a name'}, process {process}, since {since}"
    return Holder(_machine(), process, _started(process), words)


@contextmanager
def claimed(device: Device, folder: str, *, wait: float = 0.0) -> Iterator[None]:
    """Make the folder and keep other runs out of it meanwhile.

    Raises UsageError where something else lives, EnvironmentLacking while another run has it, for longer than
    `wait` seconds. What a run of this machine left behind when it was killed is taken over.
    """
    holder = this_process().encode()
    until = time.monotonic() + wait
    tried = ""
    while (taken := _claim(device, folder, holder)) is not None:
        other = Holder.decode(taken)
        if other is not None and other.gone() and taken != tried:
            tried = taken
            if _take_over(device, folder, taken, holder):
                break
        elif time.monotonic() >= until:
            _refuse(device, folder, other)
        else:
            time.sleep(_POLL_SECONDS)
    try:
        yield
    except BaseException:
        # What went wrong first is what to tell; the next run of this machine takes the folder over.
        with suppress(ToolkitError):
            _release(device, folder, holder)
        raise
    _release(device, folder, holder)


def _claim(device: Device, folder: str, holder: str) -> str | None:
    """None when it is ours now, else what the one who has it wrote."""
    script = (
        f"mkdir -p {shlex.quote(folder)} && cd {shlex.quote(folder)} || exit 1\n"
        f'[ -z "$(ls -A)" ] || [ -d {OURS} ] || exit {_FOREIGN}\n'
        f"mkdir -p {OURS} || exit 1\n"
        f"if said=$(mkdir {LOCK} 2>&1); then\n"
        f"  echo {shlex.quote(holder)} > {LOCK}/holder && exit\n"
        f"  rm -rf {LOCK}; exit 1\n"
        "fi\n"
        # Somebody has it or just let go, or nobody may write here.
        f'[ -d {LOCK} ] || [ -w {OURS} ] || {{ echo "$said"; exit 1; }}\n'
        f"cat {LOCK}/holder 2>/dev/null; exit {_TAKEN}"
    )
    answer = device.shell(script, seconds=SECONDS)
    if answer.code == _CLAIMED:
        return None
    if answer.code == _TAKEN:
        return answer.out
    if answer.code == _FOREIGN:
        raise UsageError(
            f"{device.name}: {folder} holds files, and none that a bundle put there: what is in its bin/ and "
            "lib/ would be removed",
            remedy=f"name a folder of its own: --device-dir {folder.rstrip('/')}/qnn-ci",
        )
    said = answer.out.strip().splitlines()[-1:] or ["no reason given"]
    raise UpstreamError(
        f"{device.name}: {folder} could not be made: {said[0]}",
        remedy="name a folder that you may write with --device-dir",
    )


def _take_over(device: Device, folder: str, dead: str, holder: str) -> bool:
    """Make a dead holder's claim ours. Of several that try, the one that makes the folder `next` succeeds."""
    script = (
        f"cd {shlex.quote(folder)} && mkdir {LOCK}/next 2>/dev/null || exit {_TAKEN}\n"
        f'[ "$(cat {LOCK}/holder)" = {shlex.quote(dead.strip())} ] &&\n'
        f"echo {shlex.quote(holder)} > {LOCK}/next/holder &&\n"
        f"mv -f {LOCK}/next/holder {LOCK}/holder && rm -rf {LOCK}/next && exit\n"
        f"rm -rf {LOCK}/next; exit {_TAKEN}"
    )
    return device.shell(script, seconds=SECONDS).code == _CLAIMED


def _release(device: Device, folder: str, holder: str) -> None:
    """Remove the claim if it is still that holder's."""
    script = (
        f"cd {shlex.quote(folder)} || exit 0\n"
        f'[ "$(cat {LOCK}/holder 2>/dev/null)" = {shlex.quote(holder.strip())} ] || exit 0\n'
        f"rm -rf {LOCK}"
    )
    device.shell(script, seconds=SECONDS)


def _refuse(device: Device, folder: str, other: Holder | None) -> None:
    who = other.words if other else "another run"
    raise EnvironmentLacking(
        f"{device.name}: {folder} is in use by {who}",
        remedy=f"wait for it with --wait 600, or run in another folder: --device-dir {folder}-2; "
        f"if that run is no more, remove {folder}/{LOCK} on the device",
    )


def _machine() -> str:
    """This boot of this machine, and the processes that share their numbers with ours."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return platform.node() or "unknown"


def _started(process: int) -> str:
    """Empty for one that is not there."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return fields.rpartition(")")[2].split()[19]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
