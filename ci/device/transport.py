"""Ways to a device: adb to a phone, ssh to embedded Linux. Each runs a script there and moves files.

A command that does not end in time, or loses its device, is an error of its own: it may still be at work
there."""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from provisioning.base.commands import quote_command
from provisioning.base.errors import EnvironmentLacking, UpstreamError

SECONDS = 600.0
"""How long moving files or a short command may take."""

_EXIT = "qnn-ci-exit:"
_SETTINGS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
_NO_DEVICE = (
    *("unauthorized", "more than one device", "no devices/emulators found", "not found", "offline"),
    "cannot connect to daemon",
)
"""Messages of adb that mean there is no device to speak to: its own words say why."""
_ADB_FIX = "see `adb devices`; --serial names one of several"
_SSH_LOST = ("Broken pipe", "closed by remote host", "Connection reset")
_FULL = "No space left on device"
_FREE_SPACE = "free some space on the device, or name a folder on another disk of it with --device-dir"


BATCH = 200
"""Names in one command: Linux takes an argument of 128 KB at most."""


class Lost(UpstreamError):
    """The device did not finish a script or a transfer; `out` is what it had printed."""

    def __init__(self, message: str, fix: str, out: str = "") -> None:
        super().__init__(message, fix=fix)
        self.out = out


class TimedOut(Lost):
    """A command did not finish in time, and may still be at work."""

    def __init__(self, program: str, seconds: float, out: str = "") -> None:
        super().__init__(
            f"the device did not answer {Path(program).name} within {seconds:g} s",
            "see that the device is awake and connected, then run it again",
            out,
        )


@dataclass(frozen=True, slots=True)
class CommandResult:
    code: int
    out: str
    """Standard output and standard error, in the order they came."""


class Device(Protocol):
    @property
    def name(self) -> str: ...

    def shell(self, script: str, *, seconds: float = SECONDS) -> CommandResult: ...

    def push(self, files: Mapping[str, Path], folder: str) -> None:
        """`files`: place below `folder` → local file of the same name. The folders exist."""

    def pull(self, folder: str, into: Path) -> None:
        """The files of a folder on the device, without folders in it."""

    def system_log(self) -> str:
        """The end of the device's own log; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Adb:
    program: str
    serial: str | None = None

    @property
    def name(self) -> str:
        return self.serial or "the device"

    def shell(self, script: str, *, seconds: float = SECONDS) -> CommandResult:
        # adb gives no exit code for devices before Android 7, so the script prints it.
        output = self._adb(["shell", _append_exit_code(script)], seconds).replace("\r\n", "\n")
        return _answer(output, self.name, "see `adb devices`")

    def push(self, files: Mapping[str, Path], folder: str) -> None:
        by_folder: dict[PurePosixPath, list[str]] = {}
        for place in sorted(files):
            by_folder.setdefault(PurePosixPath(place).parent, []).append(str(files[place]))
        for below, paths in by_folder.items():
            for batch in batches(paths):
                self._adb(["push", *batch, f"{folder}/{below}/"], _time_for(files))

    def pull(self, folder: str, into: Path) -> None:
        into.mkdir(parents=True, exist_ok=True)
        self._adb(["pull", f"{folder}/.", str(into)], SECONDS)

    def system_log(self) -> str:
        return self._adb(["logcat", "-d", "-t", "2000"], 60)

    def _adb(self, arguments: Sequence[str], seconds: float) -> str:
        command = [self.program, *(["-s", self.serial] if self.serial else []), *arguments]
        process = _run(command, None, seconds)
        errors = process.stderr.decode("utf-8", "replace").strip()
        out = process.stdout.decode("utf-8", "replace")
        if process.returncode != 0 and (errors.startswith(("error:", "adb:", "* ")) or not out):
            last = (errors or out.strip() or "no answer").splitlines()[-1]
            if any(words in errors for words in _NO_DEVICE):
                raise EnvironmentLacking(f"{self.name}: {last}", fix=_ADB_FIX)
            fix = _FREE_SPACE if _FULL in errors else _ADB_FIX
            raise Lost(f"{self.name}: adb {arguments[0]}: {last}", fix, out)
        return out


@dataclass(frozen=True, slots=True)
class Ssh:
    program: str
    destination: str

    @property
    def name(self) -> str:
        return self.destination

    def shell(self, script: str, *, seconds: float = SECONDS) -> CommandResult:
        output = self._ssh(_append_exit_code(script), None, seconds).decode("utf-8", "replace")
        return _answer(output, self.name, quote_command("ssh", self.destination))

    def push(self, files: Mapping[str, Path], folder: str) -> None:
        with tempfile.TemporaryFile() as archive:
            with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
                for place, path in files.items():
                    tar.add(path, place, filter=_plain)
            archive.seek(0)
            self._ssh(f"tar -C {shlex.quote(folder)} -xf -", archive, _time_for(files))

    def pull(self, folder: str, into: Path) -> None:
        into.mkdir(parents=True, exist_ok=True)
        data = self._ssh(f"tar -C {shlex.quote(folder)} -cf - .", None, SECONDS)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                if content is not None:
                    # Only the name: the device must not choose the folder on this machine.
                    (into / PurePosixPath(member.name).name).write_bytes(content.read())

    def system_log(self) -> str:
        return self.shell("dmesg 2>/dev/null | tail -n 200", seconds=60).out

    def _ssh(self, script: str, stdin: IO[bytes] | None, seconds: float) -> bytes:
        process = _run([self.program, *_SETTINGS, self.destination, script], stdin, seconds)
        if process.returncode != 0:
            raise self._error(process.returncode, process.stderr, process.stdout)
        return process.stdout

    def _error(self, code: int, stderr: bytes, out: bytes) -> EnvironmentLacking | UpstreamError:
        text = stderr.decode("utf-8", "replace").strip()
        message = f"{self.name}: {text.splitlines()[-1] if text else 'no answer'}"
        fix = f"make this work first: {quote_command('ssh', self.destination)}"
        if code != 255:
            return UpstreamError(message, fix=_FREE_SPACE if _FULL in text else fix)
        if out or any(words in text for words in _SSH_LOST):
            fix = f"{fix}; what was pushed is not pushed again"
            return Lost(message, fix, out.decode("utf-8", "replace"))
        return EnvironmentLacking(message, fix=fix)


def adb(serial: str | None) -> Adb:
    return Adb(_program("adb", "apt-get install adb, or install Android's platform-tools"), serial)


def ssh(destination: str) -> Ssh:
    return Ssh(_program("ssh", "apt-get install openssh-client"), destination)


def batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), BATCH):
        yield names[start : start + BATCH]


def _append_exit_code(script: str) -> str:
    return f"( {script}\n) 2>&1; echo {_EXIT}$?"


def _answer(output: str, name: str, look: str) -> CommandResult:
    out, mark, code = output.rpartition(_EXIT)
    if not mark or not code.strip().isdecimal():
        raise Lost(
            f"{name}: the connection broke: {output.strip()[-300:] or 'no answer'}",
            f"{look}, then run it again: what was pushed is not pushed again",
            output,
        )
    return CommandResult(int(code), out)


def _program(name: str, fix: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise EnvironmentLacking(f"there is no {name} on PATH", fix=fix)
    return path


def _run(
    command: Sequence[str], stdin: IO[bytes] | None, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, stdin=stdin or subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode("utf-8", "replace")
        raise TimedOut(command[0], seconds, output) from error


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _time_for(files: Mapping[str, Path]) -> float:
    """Allow enough time for the slowest cable, a megabyte a second."""
    return SECONDS + sum(path.stat().st_size for path in files.values()) / (1 << 20)
