"""The locked Python environments in which verbs run: made once for each lock file, by uv or by pip; and their
lock files read, which `nox -s lock` writes.

noxfile.py and `qnn-ci` import it before any environment exists, where filelock is the only package.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning import pip_settings
from provisioning.base.commands import Fix, capture, session
from provisioning.base.errors import EnvironmentLacking, UpstreamError
from provisioning.base.progress import show_working
from provisioning.base.proxies import dead_proxy
from provisioning.base.settings import CLONE, MANIFESTS, ROOT, cache_folder

LOCKS = MANIFESTS / "locks"
TORCH = MANIFESTS / "torch"

IN_IMAGE = "QNN_CI_ENVIRONMENTS"
"""The folder with environments that our images have already, each beside its lock."""

ACCEPT = (
    Fix("if you trust your index, record its builds and start again: {}", ("lock", "--torch"))
    if CLONE
    else "name an index that has a build on record: PIP_EXTRA_INDEX_URL=URL before the same command"
)
"""What to do where the index has another build of torch: only a clone has records of its own."""

STAMP = "qnn-ci.stamp"
"""The file in an environment that says what it was made of, once it is complete."""

TORCH_OF_INDEX_MB = 6000
"""PyTorch and its CUDA packages take so many MB if the index has no CPU build."""

UV_ENVIRONMENT = "nox"
"""The environment whose lock has uv."""


DAY = 86400.0
UNUSED_DAYS = 30
"""A shared environment that nobody started for so long is removed when another one of its name is made."""


def environments_folder() -> Path:
    """Return the folder in which environments are made: in a clone nox's own, else one for all installed
    copies."""
    return ROOT / ".nox" if CLONE else cache_folder().absolute() / "environments"


def base_python() -> str:
    """The Python that environments are made of, also where this process runs in one of them: a verb that asks
    for another environment gets the same as nox."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@dataclass(frozen=True)
class PythonEnvironments:
    """The environments below one folder. `log` shows a line of progress."""

    folder: Path
    log: Callable[[str], None]
    torch: Path = TORCH
    locks: Path = LOCKS
    shared: bool = not CLONE
    """Whether the folder has one for each lock file of a name: other versions of us use it too."""

    def home(self, name: str) -> Path:
        return self.folder / (f"{name}-{_stamp(self._lock(name))[:12]}" if self.shared else name)

    def current_python(self, name: str) -> str:
        """The Python of an environment that is exactly its lock; empty where it is yet to be made."""
        text = self._lock(name)
        in_image = Path(os.environ.get(IN_IMAGE) or os.devnull, name)
        if _text(in_image / "lock.txt") == text:
            return str(in_image / "bin" / "python")
        home = self.home(name)
        if _text(home / STAMP) != _stamp(text):
            return ""
        if self.shared and time.time() - (home / STAMP).stat().st_mtime > DAY:
            (home / STAMP).touch()
        return str(home / "bin" / "python")

    def _lock(self, name: str) -> str:
        return (self.locks / f"{name}.txt").read_text(encoding="utf-8")

    def interpreter(self, name: str) -> str:
        """The Python of an environment, made or rebuilt first if it is not exactly its lock."""
        if python_path := self.current_python(name):
            return python_path
        from filelock import FileLock

        text, home = self._lock(name), self.home(name)
        python, stamp, new_stamp = home / "bin" / "python", home / STAMP, _stamp(text)

        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{home}.lock"):
            if _text(stamp) != new_stamp:
                begun = time.monotonic()
                self.log(f"Making the {name} environment, once")
                self._require_room(text)
                # After a kill, the remains must not be taken for the environment of an earlier lock file.
                stamp.unlink(missing_ok=True)
                shutil.rmtree(home, ignore_errors=True)
                uv = self._uv_for(name)
                # Lines on a terminal too: what draws bars is not installed yet.
                with show_working(f"Making the {name} environment", self.log):
                    self._fill(name, home, uv)
                stamp.write_text(new_stamp, encoding="utf-8")
                self.log(f"The {name} environment took {time.monotonic() - begun:.0f} s")
                self._remove_unused(name)
        return str(python)

    def extended(self, name: str, home: Path, packages: Sequence[str]) -> str:
        """The Python of a new environment in `home`: that of a lock file, and then these packages in place of
        its own. IN_IMAGE may name the folder that it is in."""
        uv = self._uv_for(name)
        shutil.rmtree(home, ignore_errors=True)
        home.parent.mkdir(parents=True, exist_ok=True)
        self.log(f"Making an environment in {home}")
        self._fill(name, home, uv)
        python = home / "bin" / "python"
        # A wheel brings no other torch than that of the lock file.
        wheels = ["--no-deps", "--force-reinstall"] if packages[0].endswith(".whl") else []
        _run([*_installer(python, uv), *wheels, *packages], home)
        (home / "lock.txt").write_text(self._lock(name), encoding="utf-8")
        return str(python)

    def _fill(self, name: str, home: Path, uv: str | None) -> None:
        maker = [uv, "venv", "--python", base_python()] if uv else [sys.executable, "-m", "virtualenv"]
        _run([*maker, "--quiet", str(home)], self.folder)
        for line in self._lock(name).splitlines():
            if line.startswith("# torch: "):
                self.install_torch(home, line.removeprefix("# torch: "), uv)
        python = home / "bin" / "python"
        lock_file = self.locks / f"{name}.txt"
        _run([*_installer(python, uv), "--require-hashes", "--no-deps", "-r", str(lock_file)], home)

    def _remove_unused(self, name: str) -> None:
        """Remove environments of other versions of us that nobody has started for long."""
        for stamp in self.folder.glob(f"{name}-*/{STAMP}") if self.shared else ():
            if time.time() - stamp.stat().st_mtime > UNUSED_DAYS * DAY:
                shutil.rmtree(stamp.parent, ignore_errors=True)

    def _require_room(self, lock: str) -> None:
        """Require the room on disk that the lock file says its packages take."""
        if room := re.search(r"^# room: (\d+) MB$", lock, re.MULTILINE):
            _require_room(self.folder, int(room[1]))

    def _uv_for(self, name: str) -> str | None:
        """The user's own uv, else the locked one, which takes a third of pip's time; None: pip must do."""
        if (own := uv_program()) or name == UV_ENVIRONMENT:
            return own
        try:
            return str(Path(self.interpreter(UV_ENVIRONMENT)).with_name("uv"))
        except EnvironmentLacking as error:
            self.log(f"uv cannot be had ({error.message}); pip takes longer")
            return None

    def install_torch(self, home: Path, requirement: str, uv: str | None) -> None:
        """The CPU build of the user's index, else of PyTorch's, else its own: only those on record."""
        cpu, index = self.torch / "cpu.txt", self.torch / "index.txt"
        for lock in (cpu, index):
            if not re.search(rf"^{re.escape(requirement)}(\+cpu)? ", _text(lock), re.MULTILINE):
                message = f"{lock} has no {requirement}"
                raise EnvironmentLacking(message, fix=ACCEPT)
        python = home / "bin" / "python"
        output = ""
        for lock, pytorchs in ((cpu, False), (cpu, True), (index, False)):
            if lock == index:
                why = "not on record" if _differs(output) else "not to be had"
                self.log(f"a CPU build of torch is {why}; trying the index's own, of several GB")
                _require_room(home, TORCH_OF_INDEX_MB)
            command = _installer(python, uv)
            if pytorchs:
                if uv is None or pip_settings.no_index(os.environ):
                    continue
                command.append("--torch-backend=cpu")
            _, attempt = _attempt([*command, "--no-deps", "--require-hashes", "-r", str(lock)])
            if _has_torch(home):
                return
            _raise_known(attempt, home)
            output += attempt
        if _differs(output):
            raise EnvironmentLacking(
                f"your index has {requirement} in a build that is not on record in {self.torch}, so it was "
                "not installed",
                fix=ACCEPT,
            )
        raise EnvironmentLacking(f"{requirement} could not be installed:\n{output}")


def _stamp(lock: str) -> str:
    return hashlib.sha256(f"{base_python()}\n{sys.version}\n{lock}".encode()).hexdigest()


def uv_program() -> str | None:
    """The user's own uv, else the one that was installed together with us."""
    own = Path(sys.executable).with_name("uv")
    return shutil.which("uv") or (str(own) if own.is_file() else None)


def _has_torch(home: Path) -> bool:
    return any(home.glob("lib/python*/site-packages/torch-*.dist-info"))


def _installer(python: Path, uv: str | None) -> list[str]:
    if uv is None:
        return [str(python), "-m", "pip", "install", "--quiet"]
    # pip always does. A Python that writes none as it imports would compile torch at each start.
    bytecode = ["--compile-bytecode"] if sys.dont_write_bytecode else []
    flags = [*pip_settings.uv_flags(os.environ), *bytecode]
    return [uv, "pip", "install", "--quiet", *flags, "--python", str(python)]


def _run(command: list[str], folder: Path) -> None:
    code, output = _attempt(command)
    if not code:
        return
    _raise_known(output, folder)
    raise EnvironmentLacking(
        f"{Path(command[0]).name} ended with exit code {code}, so the environment is not complete:"
        f"\n{output.strip()}",
        fix="correct that, then type the command again",
    )


def _attempt(command: list[str]) -> tuple[int, str]:
    """Run an installer; returns the exit code and all that it printed."""
    process = capture(command, env=_variables())
    return process.returncode, process.stdout + process.stderr


def _require_room(folder: Path, megabytes: int) -> None:
    free = shutil.disk_usage(folder).free >> 20
    if free < megabytes:
        raise EnvironmentLacking(
            f"{folder}: {megabytes:,} MB are needed for the packages, and {free:,} MB are free",
            fix=ANOTHER_DISK,
        )


NO_ROOM = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
NO_NETWORK = re.compile(
    r"error sending request|dns error|failed to lookup address|name resolution|connection refused"
    r"|network is unreachable|connect error|timed out|max retries exceeded|the network was disabled",
    re.IGNORECASE,
)
ANOTHER_DISK = "free some space, or choose another disk: XDG_CACHE_HOME, and UV_CACHE_DIR for uv's own cache"


def _raise_known(output: str, folder: Path) -> None:
    """Raise the error where an installer failed of the disk or of the network: no other build would help."""
    if NO_ROOM.search(output):
        # The one of least room is full: uv's cache may lie on another disk.
        rooms = {
            place: shutil.disk_usage(place).free >> 20 for place in (folder, _uv_cache()) if place.is_dir()
        }
        full = min(rooms, key=rooms.__getitem__)
        message = f"{full}: no space left on device ({rooms[full]:,} MB free)"
        raise EnvironmentLacking(message, fix=ANOTHER_DISK)
    if name := dead_proxy(output):
        raise UpstreamError(
            f"the proxy that {name} names does not answer", fix=f"correct {name}, or unset it: unset {name}"
        )
    if NO_NETWORK.search(output):
        *_, line = (line.strip() for line in output.splitlines() if NO_NETWORK.search(line))
        cause = re.sub(r"^(caused by|cause|hint): ", "", line, flags=re.IGNORECASE)
        raise UpstreamError(
            f"the package index cannot be reached: {cause}",
            fix="check the network, or name an index that can be reached (PIP_INDEX_URL or UV_DEFAULT_INDEX),"
            " then type the command again",
        )


def _uv_cache() -> Path:
    """Return the folder in which uv keeps what it downloads."""
    if folder := os.environ.get("UV_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "uv")


def _variables() -> dict[str, str]:
    own = pip_settings.uv_config_variables(os.environ)
    return {**os.environ, **pip_settings.uv_variables(os.environ), **own}


def _differs(output: str) -> bool:
    return re.search("hash mismatch|do not match the hashes", output, re.IGNORECASE) is not None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


CUDA_ONLY = re.compile(r"nvidia-.+|cuda-.+|triton")
CPU = "cpu.txt"
PYTORCHS_INDEX = "--torch-backend=cpu"
"""The flag of uv for PyTorch's index; pip does not know that index."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One pinned requirement: its line without hashes, and its hashes."""

    name: str
    line: str
    hashes: tuple[str, ...]

    @property
    def version(self) -> str:
        return self.line.partition("==")[2].partition(";")[0].strip()

    @property
    def text(self) -> str:
        return " \\\n".join([self.line, *(f"    --hash={value}" for value in self.hashes)])


def lock_path(environment: str) -> Path:
    return LOCKS / f"{environment}.txt"


def cpu_wheel(python: str, record: Path) -> str:
    """The address, with its hash, of PyTorch's own CPU build for x86-64 Linux and a Python such as "3.11".

    Empty if that is not on record or cannot be had."""
    import tempfile

    from provisioning.base import toml

    command = [require_uv(), "pip", "compile", "-", "--quiet", "--no-deps", PYTORCHS_INDEX]
    command += pip_settings.uv_flags(os.environ)
    command += ["--python-version", python, "--python-platform", "x86_64-unknown-linux-gnu"]
    for entry in entries_of(record):
        with tempfile.TemporaryDirectory() as folder:
            lock = Path(folder, "pylock.toml")
            capture([*command, "--output-file", str(lock)], input=entry.line, cwd=folder, env=_variables())
            packages = toml.loads(_text(lock)).get("packages", ())
        for wheel in (wheel for package in packages for wheel in package["wheels"]):
            digest = wheel.get("hashes", {}).get("sha256")
            # One of a local folder has no address.
            if "url" in wheel and f"sha256:{digest}" in entry.hashes:
                return f"{wheel['url']}#sha256={digest}"
    return ""


def require_uv() -> str:
    if uv := uv_program():
        return uv
    raise EnvironmentLacking("uv, which resolves the lock files, is not installed", fix=session("lock"))


def entries_in(text: str) -> list[Entry]:
    """The requirements of a lock file."""
    entries = []
    for line in map(str.strip, text.replace("\\\n", " ").splitlines()):
        if line and not line.startswith("#"):
            pin, *hashes = re.split(r"\s+--hash=", line)
            entries.append(Entry(name_of(pin), pin, tuple(sorted(hashes))))
    return entries


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def entries_of(path: Path) -> list[Entry]:
    return entries_in(path.read_text(encoding="utf-8")) if path.is_file() else []
