"""The locked Python environments in which verbs run: made once for each lock file, by uv or by pip.

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
from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.progress import show_working
from provisioning.base.settings import CLONE, ROOT, cache_folder
from provisioning.installer import (
    installer_command,
    is_other_build,
    raise_known_cause,
    require_room,
    run_installer,
    try_installer,
    uv_program,
)
from provisioning.lock_files import LOCKS, TORCH

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
        run_installer([*installer_command(python, uv), *wheels, *packages], home)
        (home / "lock.txt").write_text(self._lock(name), encoding="utf-8")
        return str(python)

    def _fill(self, name: str, home: Path, uv: str | None) -> None:
        maker = [uv, "venv", "--python", base_python()] if uv else [sys.executable, "-m", "virtualenv"]
        run_installer([*maker, "--quiet", str(home)], self.folder)
        for line in self._lock(name).splitlines():
            if line.startswith("# torch: "):
                self.install_torch(home, line.removeprefix("# torch: "), uv)
        python = home / "bin" / "python"
        lock_file = self.locks / f"{name}.txt"
        run_installer(
            [*installer_command(python, uv), "--require-hashes", "--no-deps", "-r", str(lock_file)], home
        )

    def _remove_unused(self, name: str) -> None:
        """Remove environments of other versions of us that nobody has started for long."""
        for stamp in self.folder.glob(f"{name}-*/{STAMP}") if self.shared else ():
            if time.time() - stamp.stat().st_mtime > UNUSED_DAYS * DAY:
                shutil.rmtree(stamp.parent, ignore_errors=True)

    def _require_room(self, lock: str) -> None:
        """Require the room on disk that the lock file says its packages take."""
        if room := re.search(r"^# room: (\d+) MB$", lock, re.MULTILINE):
            require_room(self.folder, int(room[1]))

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
                why = "not on record" if is_other_build(output) else "not to be had"
                self.log(f"a CPU build of torch is {why}; trying the index's own, of several GB")
                require_room(home, TORCH_OF_INDEX_MB)
            command = installer_command(python, uv)
            if pytorchs:
                if uv is None or pip_settings.no_index(os.environ):
                    continue
                command.append("--torch-backend=cpu")
            _, attempt = try_installer([*command, "--no-deps", "--require-hashes", "-r", str(lock)])
            if _has_torch(home):
                return
            raise_known_cause(attempt, home)
            output += attempt
        if is_other_build(output):
            raise EnvironmentLacking(
                f"your index has {requirement} in a build that is not on record in {self.torch}, so it was "
                "not installed",
                fix=ACCEPT,
            )
        raise EnvironmentLacking(f"{requirement} could not be installed:\n{output}")


def _stamp(lock: str) -> str:
    return hashlib.sha256(f"{base_python()}\n{sys.version}\n{lock}".encode()).hexdigest()


def _has_torch(home: Path) -> bool:
    return any(home.glob("lib/python*/site-packages/torch-*.dist-info"))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""
