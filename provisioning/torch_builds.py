"""manifests/torch/*.txt: which builds of torch sessions and images install, by hash.

The lock files name only torch's version, because its CPU build is not on every index:
cpu.txt    the CPU build, `torch==VERSION+cpu`
index.txt  the package index's own build, with what only its CUDA build needs
"""

from __future__ import annotations

import os
from pathlib import Path

from provisioning import lock_files, pip_settings
from provisioning.base import toml
from provisioning.base.commands import captured
from provisioning.base.errors import ManifestError, UpstreamError
from provisioning.base.files import replace_text
from provisioning.base.settings import MANIFESTS
from provisioning.python_environments import TORCH

CPU, INDEX = "cpu.txt", "index.txt"


def requirement() -> str:
    """`torch==VERSION`, as the environments pin it; empty where none does."""
    pins = sorted(
        {
            line
            for name in lock_files.lockable()
            for line in lock_files.inputs_of(name)
            if lock_files.name_of(line) == lock_files.EXEMPT
        }
    )
    if len(pins) > 1:
        raise ManifestError(
            MANIFESTS / "environments.toml",
            "(environments)",
            expected="one version of torch",
            found=" and ".join(pins),
        )
    return "".join(pins)


def problems(pin: str, folder: Path = TORCH) -> list[str]:
    """What is stale or wrong in the recorded builds of `requirement()`; needs no network."""
    messages = []
    for name, wanted in ((CPU, f"{pin}+cpu"), (INDEX, pin)) if pin else ():
        entries = _entries(folder / name)
        if wanted not in [entry.line for entry in entries]:
            messages.append(f"torch/{name}: has no build of {wanted}")
        messages += [f"torch/{name}: {entry.line} has no hash" for entry in entries if not entry.hashes]
    return messages


def record(pin: str, folder: Path = TORCH) -> list[Path]:
    """Record the builds that the user's index has, beside those on record; returns the files that changed."""
    cpu = _cpu_entry(f"{pin}+cpu", folder / CPU)
    resolved = lock_files.parse(lock_files.resolve("torch", [pin], "", []))
    without = {entry.name for entry in lock_files.without_cuda(resolved)}
    own = [entry for entry in resolved if entry.name not in without]
    texts = {}
    # An index with both builds offers the CPU build for this pin too.
    if pin in [entry.line for entry in own]:
        texts[folder / INDEX] = _text("The package index's own build of torch, and what only it needs.", own)
    if cpu.hashes:
        texts[folder / CPU] = _text("The CPU build of torch in every configured index.", [cpu])
    changed = [
        path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path in changed:
        replace_text(path, texts[path])
    return changed


def _entries(recorded: Path) -> list[lock_files.Entry]:
    return lock_files.parse(recorded.read_text(encoding="utf-8")) if recorded.is_file() else []


def _cpu_entry(line: str, recorded: Path) -> lock_files.Entry:
    hashes = {value for entry in _entries(recorded) if entry.line == line for value in entry.hashes}
    # The user's own index, then PyTorch's.
    for backend in ([], ["--torch-backend=cpu"]):
        hashes |= _hashes(line, backend)
    return lock_files.Entry(lock_files.EXEMPT, line, tuple(sorted(hashes)), frozenset())


def cpu_wheel(tag: str, recorded: Path) -> str:
    """The address, with its hash, of PyTorch's own CPU build for x86-64 Linux and a Python such as "cp311".

    Empty if that is not on record or cannot be had."""
    for entry in _entries(recorded):
        for url, digest in _wheels(entry.line, ["--torch-backend=cpu"]):
            if f"-{tag}-{tag}-" in url and url.endswith("x86_64.whl") and f"sha256:{digest}" in entry.hashes:
                return f"{url}#sha256={digest}"
    return ""


def _hashes(line: str, options: list[str]) -> set[str]:
    wheels = _wheels(line, options)
    if not all(digest for _, digest in wheels):
        raise UpstreamError(
            f"the package index has {line} and does not say its sha256",
            fix=f"add it by hand to {TORCH / CPU}: pip download --no-deps {line}, then sha256sum",
        )
    return {f"sha256:{digest}" for _, digest in wheels}


def _wheels(line: str, options: list[str]) -> list[tuple[str, str]]:
    """Addresses and hashes."""
    command = [lock_files.uv(), "pip", "compile", "-", "--no-deps", "--quiet", "--format", "pylock.toml"]
    done = captured(
        [*command, *pip_settings.uv_flags(os.environ), *options],
        input=line,
        env={
            **os.environ,
            **pip_settings.uv_variables(os.environ),
            **pip_settings.without_project(os.environ),
        },
    )
    if done.returncode:
        return []
    wheels = [wheel for package in toml.loads(done.stdout)["packages"] for wheel in package["wheels"]]
    return [(wheel.get("url", ""), wheel.get("hashes", {}).get("sha256", "")) for wheel in wheels]


def _text(comment: str, entries: list[lock_files.Entry]) -> str:
    return "\n".join(
        [f"# {comment}", "# Written by `nox -s lock -- --torch`.", *map(lock_files.text_of, entries), ""]
    )
