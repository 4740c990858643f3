"""Claim a folder of a device for one run at a time, and never one with other files."""

from __future__ import annotations

import getpass
import os
import platform
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ci.device.transport import Device
from provisioning.base.commands import quote_command
from provisioning.base.errors import EnvironmentLacking, ToolkitError, UpstreamError, UsageError
from provisioning.base.units import utc_now

OURS = ".qnn-ci"
"""Marks a folder on the device that a bundle was pushed to: its files may be removed."""

LOCK = f"{OURS}/lock"
"""This folder exists while a run has claimed the device's folder."""

CLAIM_SECONDS = 60.0
"""How long one of these scripts may take."""

_CLAIMED, _FOREIGN, _TAKEN = 0, 3, 4


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that has claimed a folder. Process numbers are comparable only on one `machine`."""

    machine: str
    process: int
    description: str
    """The run in words, for people."""

    def encode(self) -> str:
        return f"{self.machine} {self.process} {self.description}"

    @classmethod
    def decode(cls, text: str) -> Holder | None:
        match text.strip().split(" ", 2):
            case [machine, process, description] if process.isdecimal() and description:
                return cls(machine, int(process), description)
        return None

    def gone(self) -> bool:
        """Whether the process has ended. Only processes of this machine are known to have."""
        return self.machine == _machine() and not Path(f"/proc/{self.process}").exists()


def this_process() -> Holder:
    process = os.getpid()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    description = f"{user} on {platform.node()}, process {process}, since {utc_now()}"
    return Holder(_machine(), process, description)


@contextmanager
def claim_folder(device: Device, folder: str) -> Iterator[None]:
    """Create the folder and keep other runs out of it.

    Raises UsageError if it holds other files, EnvironmentLacking if another run has it. The claim of a run of
    this machine that has ended is removed.
    """
    holder = this_process().encode()
    earlier = _claim(device, folder, holder)
    owner = Holder.decode(earlier or "")
    if earlier is not None and owner and owner.gone():
        _release(device, folder, earlier)
        earlier = _claim(device, folder, holder)
    if earlier is not None:
        raise EnvironmentLacking(
            f"{device.name}: {folder} is in use by {owner.description if owner else 'another run'}",
            fix=f"wait for its end, or use another folder: {_other_folder(f'{folder}-2')}; "
            f"if that run has ended, type on the device: {quote_command('rm', '-r', f'{folder}/{LOCK}')}",
        )
    try:
        yield
    except BaseException:
        # The first error is the one to show; the next run of this machine removes the claim.
        with suppress(ToolkitError):
            _release(device, folder, holder)
        raise
    _release(device, folder, holder)


def _claim(device: Device, folder: str, holder: str) -> str | None:
    """Try to claim the folder. Returns None if it is ours now, else the record of its holder."""
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
    answer = device.shell(script, seconds=CLAIM_SECONDS)
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


def _release(device: Device, folder: str, holder: str) -> None:
    """Remove the claim if it is still that holder's."""
    script = (
        f"cd {shlex.quote(folder)} || exit 0\n"
        f'[ "$(cat {LOCK}/holder 2>/dev/null)" = {shlex.quote(holder.strip())} ] || exit 0\n'
        # In one step, so that nobody finds a part of it.
        f"mv {LOCK} {LOCK}-$$ && rm -rf {LOCK}-$$"
    )
    device.shell(script, seconds=CLAIM_SECONDS)


def _other_folder(folder: str) -> str:
    return quote_command("--device-dir", folder)


def _machine() -> str:
    """This boot of this machine, and its process namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
