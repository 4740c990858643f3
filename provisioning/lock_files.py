"""Lock files read, and what the package index has, by `uv pip compile`. `nox -s lock` writes them."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioning import pip_settings
from provisioning.base import toml
from provisioning.base.commands import Fix, captured, session
from provisioning.base.errors import EnvironmentLacking, UpstreamError, UsageError
from provisioning.python_environments import LOCKS, uv_program

OLDEST_PYTHON = "3.10"
HOST = (
    "platform_machine == 'x86_64'",
    "platform_python_implementation == 'CPython'",
    "sys_platform == 'linux'",
    "python_full_version < '3.14'",
)
SUPPORTED = " and ".join(HOST)
CUDA_ONLY = re.compile(r"nvidia-.+|cuda-.+|triton")
CPU = "cpu.txt"
PYTORCHS_INDEX = ("--torch-backend=cpu",)


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


def cpu_wheel(tag: str, recorded: Path) -> str:
    """The address, with its hash, of PyTorch's own CPU build for x86-64 Linux and a Python such as "cp311".

    Empty if that is not on record or cannot be had."""
    for entry in entries_of(recorded):
        for url, digest in wheels_of(entry.line, *PYTORCHS_INDEX):
            if f"-{tag}-{tag}-" in url and url.endswith("x86_64.whl") and digest in entry.hashes:
                return f"{url}#{digest.replace(':', '=')}"
    return ""


def wheels_of(line: str, *flags: str) -> list[tuple[str, str]]:
    """Addresses and hashes; none where no index has this version, or it cannot be reached."""
    try:
        answer = uv_pip_compile([line], "--no-deps", *flags, output="pylock.toml", portable=False)
    except (UsageError, UpstreamError):
        return []
    wheels = [wheel for package in toml.loads(answer)["packages"] for wheel in package["wheels"]]
    # Those of a local folder have no address. pip would install none without a hash.
    return [
        (wheel.get("url", ""), f"sha256:{wheel['hashes']['sha256']}") for wheel in wheels if "hashes" in wheel
    ]


def resolve(requirements: Sequence[str], *flags: str, old: str = "") -> list[Entry]:
    """The pins and hashes of requirements; those of `old` are kept where they fit."""
    return parse(uv_pip_compile(requirements, *flags, "--generate-hashes", old=old))


def uv_pip_compile(
    requirements: Sequence[str], *flags: str, output: str = "lock.txt", old: str = "", portable: bool = True
) -> str:
    """If not `portable`, folders of this machine count too, which have the wheels of one platform."""
    uv = uv_program()
    if uv is None:
        raise EnvironmentLacking("uv, which resolves the lock files, is not installed", fix=session("lock"))
    with tempfile.TemporaryDirectory(prefix="qnn-ci-lock-") as scratch:
        folder = Path(scratch)
        # uv reads supported environments only from a project.
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "locks"\nversion = "0"\nrequires-python = ">={OLDEST_PYTHON}"\n'
            f'[tool.uv]\nenvironments = ["{SUPPORTED}"]\n',
            encoding="utf-8",
        )
        (folder / "inputs.in").write_text("\n".join(requirements) + "\n", encoding="utf-8")
        if old:
            (folder / output).write_text(old, encoding="utf-8")
        command = [uv, "pip", "compile", "inputs.in", "--output-file", output, "--quiet", "--universal"]
        command += ["--python-version", OLDEST_PYTHON, "--python", sys.executable]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        environ = {**os.environ, **pip_settings.uv_variables(os.environ, portable=portable)}
        done = captured([*command, *pip_settings.uv_flags(os.environ), *flags], cwd=folder, env=environ)
        answer = done.stderr.strip()
        if "unsatisfiable" in answer or "No solution found" in answer:
            message = f"{', '.join(requirements)} cannot be resolved:\n{answer}"
            raise UsageError(message, fix="change the requirements in manifests/environments.toml")
        if done.returncode:
            raise UpstreamError(
                f"uv could not resolve {', '.join(requirements)}:\n{answer}",
                fix=Fix("check the package index that pip or uv is set to, then run `{}` again", ("lock",)),
            )
        return (folder / output).read_text(encoding="utf-8")


def parse(text: str) -> list[Entry]:
    """The requirements of a lock file."""
    entries = []
    for line in map(str.strip, text.replace("\\\n", " ").splitlines()):
        if line and not line.startswith("#"):
            pin, *hashes = re.split(r"\s+--hash=", line)
            entries.append(Entry(name_of(pin), _plain(pin), tuple(sorted(hashes))))
    return entries


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def _plain(line: str) -> str:
    """Drop the markers that every line has. With them, pip would install nothing on another host."""
    for marker in HOST:
        line = line.replace(f" and {marker}", "").replace(f"{marker} and ", "").removesuffix(f" ; {marker}")
    return line


def entries_of(path: Path) -> list[Entry]:
    return parse(path.read_text(encoding="utf-8")) if path.is_file() else []
