"""The serial number of a device, which a test signature is bound to."""

from __future__ import annotations

import re
import shutil
import subprocess

from provisioning.base.commands import captured
from provisioning.base.errors import EnvironmentLacking, UsageError

SERIAL_FILE = "/sys/devices/soc0/serial_number"
SECONDS = 30.0
WHERE = f"`adb shell cat {SERIAL_FILE}` prints it, in decimal"


def parse_serial(text: str) -> int:
    """`0x1a2b3c4d` as signing tools write it. UsageError for anything but 1 to 0xffffffff in hex."""
    serial = int(text, 16) if re.fullmatch("0[xX][0-9a-fA-F]+", text) else 0
    if not 0 < serial <= 0xFFFFFFFF:
        raise UsageError(f"--serial {text}: expected 32 bits in hex, not 0, as 0x1a2b3c4d", fix=WHERE)
    return serial


def read_serial() -> int:
    """Ask the one device that adb sees, or the one that ANDROID_SERIAL names."""
    adb = shutil.which("adb")
    if adb is None:
        raise EnvironmentLacking(
            "there is no adb on PATH", fix="install Android's platform-tools, or use --serial"
        )
    try:
        done = captured([adb, "shell", "cat", SERIAL_FILE], timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentLacking(
            f"the device did not answer within {SECONDS:g} s", fix="see `adb devices`"
        ) from error
    answer = done.stdout.strip()
    if done.returncode != 0 or not answer.isdecimal():
        message = (done.stderr.strip() or answer or "no answer").splitlines()[-1]
        raise EnvironmentLacking(
            f"the device's serial number could not be read: {message}",
            fix="see `adb devices`; name one of several in ANDROID_SERIAL, or give the number with --serial",
        )
    serial = int(answer)
    if not 0 < serial <= 0xFFFFFFFF:
        raise EnvironmentLacking(
            f"the device gives {answer} as its serial number, expected 32 bits and not 0",
            fix="give the number with --serial",
        )
    return serial
