"""Read the lock files of Python environments, which `nox -s lock` writes: each requirement with its version
and the hashes of its files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from provisioning import pip_settings
from provisioning.base.commands import capture, session
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import MANIFESTS
from provisioning.installer import installer_variables, uv_program

LOCKS = MANIFESTS / "locks"
TORCH = MANIFESTS / "torch"

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
            capture(
                [*command, "--output-file", str(lock)],
                input=entry.line,
                cwd=folder,
                env=installer_variables(),
            )
            packages = toml.loads(lock.read_text(encoding="utf-8") if lock.is_file() else "").get(
                "packages", ()
            )
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
