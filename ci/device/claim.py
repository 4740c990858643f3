"""A claim on a folder of a device: for one run at a time, and never on a folder with other files."""

from __future__ import annotations

import getpass
import os
import platform
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ci.device.bundle.scripts import LOCK, OURS
from ci.device.transport import Device
from provisioning.base.commands import quoted
from provisioning.base.errors import EnvironmentLacking, ToolkitError, UpstreamError, UsageError
from provisioning.base.units import utc_now

SECONDS = 60.0
"""How long one of these scripts may take."""

_POLL_SECONDS = 0.5

_CLAIMED, _FOREIGN, _TAKEN = 0, 3, 4


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that has claimed a folder. Process numbers are comparable only on one `machine`."""

    machine: str
    process: int
    started: str
    """When the process began, by the kernel: its number may be another process's later."""
    description: str
    """The run in words, for people."""

    def encode(self) -> str:
        return f"{self.machine} {self.process} {self.started} {self.description}"

    @classmethod
    def decode(cls, text: str) -> Holder | None:
        match text.strip().split(" ", 3):
            case [machine, process, started, description] if process.isdecimal() and description:
                return cls(machine, int(process), started, description)
        return None

    def gone(self) -> bool:
        """Whether the process has ended. Only processes of this machine are known to have."""
        return self.machine == _machine() and _started(self.process) != self.started


def this_process() -> Holder:
    process = os.getpid()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    where = f"{user} on {platform.node() or 'a machine without a name'}"
    description = f"{where}, process {process}, since {utc_now()}"
    return Holder(_machine(), process, _started(process), description)


@contextmanager
def claimed(device: Device, folder: str, *, wait: float = 0.0, poll: float = _POLL_SECONDS) -> Iterator[None]:
    """Create the folder and keep other runs out of it.

    Raises UsageError if it holds other files, EnvironmentLacking if another run has it for longer than `wait`
    seconds, asked for every `poll` seconds. The claim of a run of this machine that has ended is taken over.
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
            raise EnvironmentLacking(
                f"{device.name}: {folder} is in use by {other.description if other else 'another run'}",
                fix=f"wait for it with --wait 600, or use another folder: {_other_folder(f'{folder}-2')}; "
                f"if that run has ended, type on the device: {quoted('rm', '-r', f'{folder}/{LOCK}')}",
            )
        else:
            time.sleep(poll)
    try:
        yield
    except BaseException:
        # The first error is the one to show; the next run of this machine takes the folder over.
        with suppress(ToolkitError):
            _release(device, folder, holder)
        raise
    _release(device, folder, holder)


def _claim(device: Device, folder: str, holder: str) -> str | None:
    """None if the folder is ours now, else the record of its holder."""
    script = (
        f"mkdir -p {shlex.quote(folder)} && cd {shlex.quote(folder)} || exit 1\n"
        f'[ -z "$(ls -A)" ] || [ -d {OURS} ] || exit {_FOREIGN}\n'
        f"mkdir -p {OURS} || exit 1\n"
        f"if error=$(mkdir {LOCK} 2>&1); then\n"
        f"  echo {shlex.quote(holder)} > {LOCK}/holder && exit\n"
        f"  rm -rf {LOCK}; exit 1\n"
        "fi\n"
        # Another run has it or has just released it, or we may not write here.
        f'[ -d {LOCK} ] || [ -w {OURS} ] || {{ echo "$error"; exit 1; }}\n'
        f"cat {LOCK}/holder 2>/dev/null; exit {_TAKEN}"
    )
    answer = device.shell(script, seconds=SECONDS)
    if answer.code == _CLAIMED:
        return None
    if answer.code == _TAKEN:
        return answer.out
    if answer.code == _FOREIGN:
        raise UsageError(
            f"{device.name}: {folder} holds files, and none that a bundle put there: some of them would be "
            "removed",
            fix=f"name a folder for it alone: {_other_folder(folder.rstrip('/') + '/qnn-ci')}",
        )
    reason = answer.out.strip().splitlines()[-1:] or ["no reason given"]
    raise UpstreamError(
        f"{device.name}: {folder} could not be created: {reason[0]}",
        fix="name a folder that you may write with --device-dir",
    )


def _take_over(device: Device, folder: str, dead: str, holder: str) -> bool:
    """Take over a dead holder's claim. Of several processes that try, the one that creates the folder `next`
    succeeds."""
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


def _other_folder(folder: str) -> str:
    return quoted("--device-dir", folder)


def _machine() -> str:
    """This boot of this machine, and its process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return platform.node() or "unknown"


def _started(process: int) -> str:
    """When the process began, by the kernel; empty if there is no such process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return fields.rpartition(")")[2].split()[19]
