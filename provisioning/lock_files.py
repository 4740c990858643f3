"""manifests/environments.toml → manifests/locks/<environment>.txt, by uv: hashes and no addresses.

Torch is named in a comment, `# torch: torch==…`, and what only its CUDA build needs is left out: its builds
differ by index and have their hashes in manifests/torch/ (torch_builds.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning import pip_settings
from provisioning.base.commands import Fix, captured, session
from provisioning.base.errors import EnvironmentLacking, ManifestError, UpstreamError, UsageError
from provisioning.base.files import replace_text
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import load_environments, load_profile

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
EXEMPT = "torch"
CUDA_ONLY = re.compile(r"nvidia-.+|cuda-.+|triton")
FIRST_LINE = "# Written by `nox -s lock` from manifests/environments.toml; not to be edited."


@dataclass(frozen=True, slots=True)
class Entry:
    """One pinned requirement: its line without hashes, its hashes, and the packages that require it."""

    name: str
    line: str
    hashes: tuple[str, ...]
    via: frozenset[str]


def lock_path(environment: str) -> Path:
    return LOCKS / f"{environment}.txt"


def lockable() -> list[str]:
    return sorted(name for name, environment in load_environments().items() if not environment.abstract)


def inputs_of(environment: str) -> tuple[str, ...]:
    """Every requirement of an environment, includes and the profile's packages among them, sorted."""
    known = load_environments()
    requirements: set[str] = set()

    def take(name: str, above: tuple[str, ...]) -> None:
        if name in above or name not in known:
            raise ManifestError(
                MANIFESTS / "environments.toml",
                f"{above[-1]}.include" if above else "(top)",
                expected="no circle" if name in above else f"one of {', '.join(sorted(known))}",
                found=" → ".join([*above, name]) if name in above else name,
            )
        own = known[name]
        requirements.update(own.requires)
        if own.profile:
            profile = load_profile(own.profile)
            packages = profile.onnx if own.lane == "onnx" else profile.packages
            marker = f"; python_version >= '{own.python}'" if own.python else ""
            # Sessions install torch separately, by exactly this text.
            requirements.update(
                f"{package}=={version}{'' if package == EXEMPT else marker}"
                for package, version in packages.items()
            )
        for included in own.include:
            take(included, (*above, name))

    take(environment, ())
    return tuple(sorted(requirements))


def digest_of(inputs: Sequence[str]) -> str:
    canonical = json.dumps([SCHEMA, OLDEST_PYTHON, SUPPORTED, *inputs])
    return hashlib.sha256(canonical.encode()).hexdigest()


def problems(path: Path, wanted: Sequence[str]) -> list[str]:
    """What is stale or wrong in the lock file of an environment that wants these inputs. Needs no network."""
    if not path.is_file():
        return [f"{path.name}: there is no lock file for the environment {path.stem!r}"]
    text = path.read_text(encoding="utf-8")
    recorded = tuple(_comments(text, "input"))
    messages = [
        f"{path.name}: {line} was added to the environment" for line in wanted if line not in recorded
    ]
    messages += [f"{path.name}: {line} is no longer required" for line in recorded if line not in wanted]
    if not messages and _comments(text, "inputs-sha256") != [digest_of(wanted)]:
        messages.append(f"{path.name}: inputs-sha256 is not that of its inputs")
    entries = parse(text)
    messages += [
        f"{path.name}: {entry.line!r} is no requirement"
        for entry in entries
        if not _is_requirement(entry.line)
    ]
    messages += [f"{path.name}: {entry.line} has no hash" for entry in entries if not entry.hashes]
    messages += [f"{path.name}: holds an address: {line}" for line in text.splitlines() if "://" in line]
    if not messages:
        messages += [
            f"{path.name}: {line} is required but not pinned" for line in _unmet(wanted, entries, text)
        ]
    return messages


def _is_requirement(line: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(line)
    except InvalidRequirement:
        return False
    return True


def regenerate(environment: str, *, upgrade: bool = False, upgrade_packages: Sequence[str] = ()) -> bool:
    """Regenerate one lock file, keeping pins that still fit; returns whether it changed."""
    path = lock_path(environment)
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    inputs = inputs_of(environment)
    arguments = ["--upgrade"] if upgrade else [f"--upgrade-package={name}" for name in upgrade_packages]
    entries = without_cuda(parse(resolve(environment, inputs, old, arguments)))
    new = render(inputs, entries, load_environments()[environment].megabytes)
    if new == old:
        return False
    replace_text(path, new)
    return True


def parse(text: str) -> list[Entry]:
    """The requirements of a lock file, with uv's `# via` annotations where it has them."""
    entries: list[Entry] = []
    for line in map(str.strip, text.replace("\\\n", " ").splitlines()):
        if line.startswith("# via ") and entries:
            via = frozenset(part.strip() for part in line.removeprefix("# via ").split(","))
            entries[-1] = replace(entries[-1], via=via)
        elif line and not line.startswith("#"):
            pin, *hashes = re.split(r"\s+--hash=", line)
            entries.append(Entry(name_of(pin), _plain(pin), tuple(sorted(hashes)), frozenset()))
    return entries


def without_cuda(entries: Iterable[Entry]) -> list[Entry]:
    """Drop torch, what only its CUDA build requires, and whatever nothing else requires."""
    kept = list(entries)
    while True:
        names = {entry.name for entry in kept}
        wanted = [
            entry
            for entry in kept
            if any(
                requiring.startswith("-r ")
                or (requiring in names and not (requiring == EXEMPT and CUDA_ONLY.fullmatch(entry.name)))
                for requiring in entry.via
            )
        ]
        if len(wanted) == len(kept):
            return [entry for entry in kept if entry.name != EXEMPT]
        kept = wanted


def render(inputs: Sequence[str], entries: Iterable[Entry], megabytes: int | None = None) -> str:
    lines = [FIRST_LINE, f"# inputs-sha256: {digest_of(inputs)}"]
    lines += [f"# input: {requirement}" for requirement in inputs]
    lines += [f"# torch: {requirement}" for requirement in inputs if name_of(requirement) == EXEMPT]
    lines += [f"# room: {megabytes} MB"] if megabytes else []
    return "\n".join([*lines, *map(text_of, entries), ""])


def text_of(entry: Entry) -> str:
    return " \\\n".join([entry.line, *(f"    --hash={value}" for value in entry.hashes)])


def _plain(line: str) -> str:
    """Drop the markers that every line has. With them, pip would install nothing on another host."""
    for marker in HOST:
        line = line.replace(f" and {marker}", "").replace(f"{marker} and ", "").removesuffix(f" ; {marker}")
    return line


def resolve(environment: str, inputs: Sequence[str], old: str, arguments: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory(prefix="qnn-ci-lock-") as scratch:
        folder = Path(scratch)
        # uv reads supported environments only from a project.
        folder.joinpath("pyproject.toml").write_text(
            f'[project]\nname = "locks"\nversion = "0"\nrequires-python = ">={OLDEST_PYTHON}"\n'
            f'[tool.uv]\nenvironments = ["{SUPPORTED}"]\n',
            encoding="utf-8",
        )
        folder.joinpath("inputs.in").write_text("\n".join(inputs) + "\n", encoding="utf-8")
        output = folder / "lock.txt"
        if old:
            output.write_text(old, encoding="utf-8")
        command = [
            *(uv(), "pip", "compile", "inputs.in", "--output-file", "lock.txt", "--quiet"),
            *("--universal", "--python-version", OLDEST_PYTHON, "--python", sys.executable),
            *("--generate-hashes", "--no-header", "--annotation-style", "line"),
            *("--no-emit-index-url", "--no-emit-find-links"),
            *pip_settings.uv_flags(os.environ),
            *arguments,
        ]
        environ = {**os.environ, **pip_settings.uv_variables(os.environ, portable=True)}
        done = captured(command, cwd=folder, env=environ)
        if done.returncode:
            answer = done.stderr.strip()
            if "unsatisfiable" in answer or "No solution found" in answer:
                raise UsageError(
                    f"the environment {environment!r} cannot be resolved:\n{answer}",
                    fix="change its requirements in manifests/environments.toml",
                )
            raise UpstreamError(
                f"uv could not resolve the environment {environment!r}:\n{answer}",
                fix=Fix("check the package index that pip or uv is set to, then run `{}` again", ("lock",)),
            )
        return output.read_text(encoding="utf-8")


def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    if beside.is_file():
        return str(beside)
    if on_path := shutil.which("uv"):
        return on_path
    raise EnvironmentLacking("uv, which resolves the lock files, is not installed", fix=session("lock"))


def _unmet(inputs: Sequence[str], entries: Sequence[Entry], text: str) -> list[str]:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = [Requirement(entry.line) for entry in entries]
    pins += [Requirement(line) for line in _comments(text, "torch")]
    unmet = []
    for requirement in inputs:
        wanted = Requirement(requirement)
        versions = [
            next(iter(pin.specifier)).version
            for pin in pins
            if canonicalize_name(pin.name) == canonicalize_name(wanted.name)
        ]
        if not versions or not all(wanted.specifier.contains(v, prereleases=True) for v in versions):
            unmet.append(requirement)
    return unmet


def _comments(text: str, key: str) -> list[str]:
    return [line.removeprefix(f"# {key}: ") for line in text.splitlines() if line.startswith(f"# {key}: ")]


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""
