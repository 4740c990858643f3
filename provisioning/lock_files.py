"""manifests/environments.toml → manifests/locks/ENVIRONMENT.txt, by `uv pip compile`: hashes, no addresses.

Torch and what only its CUDA build needs are not in them, because its builds differ by index. Two files have
their hashes: manifests/torch/cpu.txt the CPU build, and index.txt the package index's own with its CUDA.
"""

from __future__ import annotations

import hashlib
import json
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
from provisioning.base.errors import EnvironmentLacking, ManifestError, UpstreamError, UsageError
from provisioning.base.files import replace_text
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import load_environments, load_profile
from provisioning.python_environments import TORCH, uv_program

SCHEMA = 1
LOCKS = MANIFESTS / "locks"
OLDEST_PYTHON = "3.10"
HOST = (
    "platform_machine == 'x86_64'",
    "platform_python_implementation == 'CPython'",
    "sys_platform == 'linux'",
    "python_full_version < '3.14'",
)
SUPPORTED = " and ".join(HOST)
CUDA_ONLY = re.compile(r"nvidia-.+|cuda-.+|triton")
CPU, INDEX = "cpu.txt", "index.txt"
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


def lockable() -> list[str]:
    return sorted(name for name, environment in load_environments().items() if not environment.abstract)


def inputs_of(environment: str) -> tuple[str, ...]:
    """Every requirement of an environment, with those that it includes and the profile's packages."""
    known, requirements, waiting = load_environments(), set[str](), [environment]
    for name in waiting:
        if name not in known:
            names = ", ".join(sorted(known))
            raise ManifestError(MANIFESTS / "environments.toml", "include", expected=names, found=name)
        own = known[name]
        requirements.update(own.requires)
        waiting += [included for included in own.include if included not in waiting]
        if own.profile:
            profile = load_profile(own.profile)
            marker = f"; python_version >= '{own.python}'" if own.python else ""
            for package, version in (profile.onnx if own.lane == "onnx" else profile.packages).items():
                # Sessions install torch separately, by exactly this text.
                requirements.add(f"{package}=={version}{'' if package == 'torch' else marker}")
    return tuple(sorted(requirements))


def torch_pin() -> str:
    """`torch==VERSION`, as the environments pin it; empty if none does."""
    pins = {line for name in lockable() for line in inputs_of(name) if name_of(line) == "torch"}
    if len(pins) > 1:
        found = " and ".join(sorted(pins))
        raise ManifestError(
            MANIFESTS / "environments.toml", "(environments)", expected="one version of torch", found=found
        )
    return "".join(pins)


def header(inputs: Sequence[str], megabytes: int | None = None) -> list[str]:
    """The comments of a lock file: all that its content follows from."""
    canonical = json.dumps([SCHEMA, OLDEST_PYTHON, SUPPORTED, *inputs])
    return [
        "# Written by `nox -s lock` from manifests/environments.toml; not to be edited.",
        f"# inputs-sha256: {hashlib.sha256(canonical.encode()).hexdigest()}",
        *(f"# input: {requirement}" for requirement in inputs),
        *(f"# torch: {requirement}" for requirement in inputs if name_of(requirement) == "torch"),
        *([f"# room: {megabytes} MB"] if megabytes else []),
    ]


def problems(path: Path, inputs: Sequence[str], megabytes: int | None = None) -> list[str]:
    """What is stale or wrong in the lock file of an environment with these inputs. Needs no network."""
    if not path.is_file():
        return [f"{path.name}: there is no lock file for the environment {path.stem!r}"]
    text, comments = path.read_text(encoding="utf-8"), header(inputs, megabytes)
    entries, lines = parse(text), text.splitlines()
    written = {*comments, *_text([], entries).splitlines()}
    messages = [f"lacks the line `{comment}`" for comment in comments if comment not in lines]
    messages += [f"holds the line `{line}`" for line in lines if line not in written or "://" in line]
    messages += [f"{entry.line} has no hash" for entry in entries if not entry.hashes]
    return [f"{path.name}: {message}" for message in messages or _unmet(inputs, entries)]


def _unmet(inputs: Sequence[str], entries: Sequence[Entry]) -> list[str]:
    """What the pins do not fit."""
    from packaging.requirements import Requirement

    unmet = []
    for wanted in map(Requirement, inputs):
        versions = [entry.version for entry in entries if entry.name == name_of(wanted.name)]
        fits = [wanted.specifier.contains(version, prereleases=True) for version in versions]
        if wanted.name != "torch" and not (fits and all(fits)):
            unmet.append(f"{wanted} is required but not pinned")
    return unmet


def regenerate(environment: str, upgrade: Sequence[str] = ()) -> bool:
    """Regenerate one lock file, keeping the pins that still fit; returns whether it changed."""
    path, inputs = lock_path(environment), inputs_of(environment)
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    entries = [entry for entry in resolve(inputs, *upgrade, old=old) if not _of_torch(entry)]
    return _write(path, header(inputs, load_environments()[environment].megabytes), entries)


def torch_problems(pin: str, folder: Path = TORCH) -> list[str]:
    """What the recorded builds of `torch_pin()` lack. Needs no network."""
    builds = ((folder / CPU, f"{pin}+cpu"), (folder / INDEX, pin))
    return [
        f"torch/{path.name}: has no {line} with a hash"
        for path, line in builds
        if pin and not any(entry.line == line and entry.hashes for entry in _recorded(path))
    ]


def record_torch(pin: str, folder: Path = TORCH) -> list[Path]:
    """Record the builds that the user's index has, beside those on record; returns the files that changed."""
    line = f"{pin}+cpu"
    hashes = {value for entry in _recorded(folder / CPU) if entry.line == line for value in entry.hashes}
    for index in ((), PYTORCHS_INDEX):
        hashes |= {digest for _, digest in _wheels(line, *index)}
    own = [entry for entry in resolve([pin]) if _of_torch(entry)]
    # An index with both builds offers the CPU build for the plain pin too.
    own = own if pin in [entry.line for entry in own] else _recorded(folder / INDEX)
    files = {
        CPU: (
            "The CPU build of torch, of every index that was asked.",
            [Entry("torch", line, tuple(sorted(hashes)))],
        ),
        INDEX: ("The package index's own build of torch, and what only it needs.", own),
    }
    return [
        folder / name
        for name, (comment, entries) in files.items()
        if _write(folder / name, [f"# {comment}", "# Written by `nox -s lock -- --torch`."], entries)
    ]


def cpu_wheel(tag: str, recorded: Path) -> str:
    """The address, with its hash, of PyTorch's own CPU build for x86-64 Linux and a Python such as "cp311".

    Empty if that is not on record or cannot be had."""
    for entry in _recorded(recorded):
        for url, digest in _wheels(entry.line, *PYTORCHS_INDEX):
            if f"-{tag}-{tag}-" in url and url.endswith("x86_64.whl") and digest in entry.hashes:
                return f"{url}#{digest.replace(':', '=')}"
    return ""


def _wheels(line: str, *flags: str) -> list[tuple[str, str]]:
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


def _of_torch(entry: Entry) -> bool:
    return entry.name == "torch" or CUDA_ONLY.fullmatch(entry.name) is not None


def _recorded(path: Path) -> list[Entry]:
    return parse(path.read_text(encoding="utf-8")) if path.is_file() else []


def _text(comments: Sequence[str], entries: Sequence[Entry]) -> str:
    return "\n".join([*comments, *(entry.text for entry in entries), ""])


def _write(path: Path, comments: Sequence[str], entries: Sequence[Entry]) -> bool:
    text = _text(comments, entries)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    replace_text(path, text)
    return True
