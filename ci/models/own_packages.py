"""Install a suite's own packages beside the locked ones and never against them.

They are resolved with the locked packages as constraints, and installed into an environment in the store that
also finds the locked packages. A conflict with a pin is an error that names both."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

from ci.models.wheels import PinnedWheel
from ci.models.wheels import variables as located_wheels
from ci.work import LOCKED, Digests, declared_variables, key_of_declared
from provisioning import pip_settings
from provisioning.base.commands import capture
from provisioning.base.errors import (
    EnvironmentLacking,
    IntegrityError,
    ToolkitError,
    UpstreamError,
    UsageError,
)
from provisioning.base.files import hash_file, mutex, replace_text
from provisioning.base.findings import Metric
from provisioning.installer import NO_NETWORK, uv_program
from provisioning.lock_files import CUDA_ONLY, Entry, entries_in

VARIABLE = "QNN_CI_REQUIREMENTS"
"""The variable names the requirements for suites that name none."""
WITHOUT_INDEX = ("PIP_NO_INDEX", "UV_NO_INDEX", "UV_OFFLINE")
"""Each of these variables rules out the package index."""

# The variable makes this file equal on every machine.
BEHIND = f"import os, site; p = os.environ.get({LOCKED!r}); p and site.addsitedir(p)\n"

LOCAL = re.compile(r"^(?:-e\b|--editable\b|\.|/|file:|[^#]*@\s*(?:file:|\.|/))")
INCLUDE = re.compile(r"^(?:-r|--requirement|-c|--constraint)[\s=]+(\S+)")
PROJECT_FILES = ("pyproject.toml", "setup.cfg", "setup.py")

CPU_BUILDS = ("--torch-backend=cpu",)
STRATEGY, FIRST_MATCH = "UV_INDEX_STRATEGY", "unsafe-first-match"
"""uv resolves packages from the first index with a version that fits, because an index that mirrors some of
the locked packages need not have their pins. Packages that are not locked must come from the first index that
has them."""
UNUSED_SECONDS = 60 * 86400.0
WRITTEN = re.compile(r"\.egg-info/|/__pycache__/|/build/|/dist/|/reports/|/\.git/")
"""A build, a stage or git writes these into a project."""
OF_LOCK = ("torch", "executorch")
"""These packages stay as they are locked, whatever versions a discovered project pins."""
ABSENT = re.compile(r"\b(\S+) was not found in the (?:package registry|provided package locations)")
WITH_TORCH = re.compile(r"^(torchvision|torchaudio)==")
"""These packages must come from the same build as torch, which is for the CPU."""


@dataclass(frozen=True, slots=True)
class Needs:
    """A suite needs a file of requirements, a project to install editable, and variables of the user's."""

    requirements: Path | None = None
    project: Path | None = None
    """The project is installed editable, as `folders` are."""
    variables: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    wheels: Mapping[str, PinnedWheel] = field(default_factory=dict, hash=False)
    packages: tuple[str, ...] = ()
    """They are requirements from the command line, or paths of wheels and source archives."""
    folders: tuple[Path, ...] = ()
    is_lenient: bool = False
    """Whether the project's own pins of torch and executorch are ignored."""
    model: Path | None = None
    """It is the folder of the command line's model, whose project may have a package that is missing."""
    takes_nearest: bool = False
    """Whether the project around `model` is used if an import fails."""

    def __bool__(self) -> bool:
        """Whether anything has to be installed."""
        return bool(self.requirements or self.packages or self.editable)

    @property
    def editable(self) -> tuple[Path, ...]:
        return (*([self.project] if self.project else []), *self.folders)

    @property
    def origin(self) -> str:
        """It names the file, project or package that asks for the packages."""
        places = (self.requirements, *self.editable, *self.packages)
        return next(str(place) for place in places if place)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return declared_variables((*self.variables, *self.secrets), environ)


NONE = Needs()


@dataclass(frozen=True, slots=True)
class OwnPackages:
    """A suite's programs run in this environment, with these packages and variables."""

    folder: Path | None = None
    projects: tuple[Path, ...] = ()
    """These projects are installed editable."""
    variables: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """They are the versions of its own packages, without the locked ones."""
    declared: Mapping[str, str] = field(default_factory=dict)
    """They are the digests of the declared variables' values."""
    lock: str = ""
    """It is the digest of the resolved packages, and part of every key."""
    wheels: Mapping[str, str] = field(default_factory=dict)
    """They are the hashes of the wheels that the suite's models read."""

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python") if self.folder else sys.executable

    def key(self) -> dict[str, Metric]:
        parts: dict[str, Metric] = {"packages": {"lock": self.lock, **self.versions}} if self.lock else {}
        digests = {"variables": self.declared, "wheels": self.wheels}
        return parts | {name: dict(values) for name, values in digests.items() if values}


def needs_of(
    suite: Path,
    requirements: str,
    project: str,
    *,
    variables: Iterable[str] = (),
    secrets: Iterable[str] = (),
    wheels: Mapping[str, PinnedWheel] = MappingProxyType({}),
) -> Needs:
    """Return the suite's needs, with paths relative to the suite, or with the requirements that
    QNN_CI_REQUIREMENTS names if the suite names none."""
    file = suite.parent / requirements if requirements else None
    if file is None and os.environ.get(VARIABLE):
        file = Path(os.environ[VARIABLE]).absolute()
    folder = (suite.parent / project).resolve() if project else None
    if file is not None and not file.is_file():
        message = f"{suite}: there are no requirements {file}"
        raise UsageError(message, fix="name a file, relative to the suite")
    if folder is not None and not any((folder / name).is_file() for name in PROJECT_FILES):
        message = f"{suite}: {folder} is no project: it has none of {', '.join(PROJECT_FILES)}"
        raise UsageError(message, fix="name the folder of pyproject.toml, relative to the suite")
    return Needs(file, folder, tuple(variables), tuple(secrets), wheels)


def install_packages(needs: Needs, store: Path) -> OwnPackages:
    """Return the environment with these packages. The package index is asked only if it has to be created."""
    variables = {**needs.environment(os.environ), **located_wheels(needs.wheels, store)}
    values = key_of_declared(needs.variables, os.environ)
    hashes = {name: wheel.sha256 for name, wheel in needs.wheels.items()}
    if not needs:
        return OwnPackages(variables=variables, declared=values, wheels=hashes)
    texts = list(_texts(needs))
    pins = locked_versions()
    # The project's path too: what is installed editable points at one clone.
    platform, projects = sysconfig.get_platform(), [*map(str, needs.editable)]
    question = [2, sys.version, platform, texts, sorted(pins.items()), projects, needs.is_lenient]
    name = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:32]
    packages = store / "cache" / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    with mutex(packages / f"{name}.lock"):
        state = " ".join(_state_of(project, store) for project in needs.editable)
        build = _last_build(packages / f"{name}.json", state) if needs.editable else name
        home = packages / (build or f"{name}-{time.time_ns()}")
        stamp = home / "resolved.txt"
        if not stamp.is_file():
            shutil.rmtree(home, ignore_errors=True)
            sys.stderr.write(f"installing the packages of {needs.origin}\n")
            try:
                rows = _resolve(needs, pins, home)
                _install(rows, needs, home)
            except ToolkitError:
                shutil.rmtree(home, ignore_errors=True)
                raise
            replace_text(stamp, "".join(f"{entry.text}\n" for entry in rows))
            if needs.editable:
                replace_text(packages / f"{name}.json", json.dumps({"home": home.name, "state": state}))
            _remove_unused(packages)
    os.utime(stamp)
    text = stamp.read_text(encoding="utf-8")
    entries = entries_in(text)
    return OwnPackages(
        folder=home / "environment",
        projects=needs.editable,
        variables={**variables, LOCKED: sysconfig.get_paths()["purelib"]},
        declared=values,
        versions={entry.name: entry.version for entry in entries},
        lock=hashlib.sha256(text.encode()).hexdigest(),
        wheels=hashes,
    )


def _last_build(record: Path, state: str) -> str:
    """Return the folder of the project's last build if the project has not changed since; else empty."""
    try:
        build = json.loads(record.read_text(encoding="utf-8"))
        home, before = str(build["home"]), str(build["state"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    os.utime(record)
    return home if state == before else ""


def _state_of(project: Path, store: Path) -> str:
    """Return the digest of the project's files, without what a build or a run of a suite writes."""
    digests, rows = Digests(store), []
    for path in sorted(_files_of(project)):
        name = path.relative_to(project).as_posix()
        if path.is_file() and not WRITTEN.search(f"/{name}"):
            rows.append(f"{name} {digests.of(path)}")
    digests.save()
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()


def _files_of(project: Path) -> list[Path]:
    """Return the files that git tracks or would add; all files if there is no git."""
    command = ["git", "-C", str(project), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        process = capture(command)
    except FileNotFoundError:
        return [*project.rglob("*")]
    names = process.stdout.split("\0") if not process.returncode else []
    return [project / name for name in names if name] or [*project.rglob("*")]


def locked_versions() -> dict[str, str]:
    """Return the versions of the packages in this environment, by name."""
    import importlib.metadata

    return {
        re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower(): distribution.version
        for distribution in importlib.metadata.distributions()
    }


def _texts(needs: Needs) -> Iterator[tuple[str, str]]:
    """Yield every file that decides what is installed, including files that it includes."""
    queue = [needs.requirements] if needs.requirements else []
    for file in _project_files(needs):
        yield file.name, file.read_text(encoding="utf-8")
    for package in needs.packages:
        named = file_of(package)
        yield package, hash_file(named) if named else ""
    files: set[Path] = set()
    while queue:
        file = queue.pop()
        if file in files:
            continue
        files.add(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file}: {error}", fix="name a text file of requirements") from error
        for line in map(str.strip, text.splitlines()):
            if LOCAL.match(line):
                message = f"{file}: {line}: a package of this machine, whose changes nobody would see"
                fix = 'say project = "FOLDER" in the suite, which installs it editable'
                raise UsageError(message, fix=fix)
            if include := INCLUDE.match(line):
                queue.append(file.parent / include[1])
        yield str(file.name), text


def file_of(package: str) -> Path | None:
    """Return the file of this machine that a requirement names; None if it names none."""
    if Path(package).is_absolute():
        return Path(package)
    address = urlsplit(Requirement(package).url or "")
    return Path(unquote(address.path)) if address.scheme == "file" else None


def _project_files(needs: Needs) -> list[Path]:
    files = [project / name for project in needs.editable for name in PROJECT_FILES]
    return [file for file in files if file.is_file()]


def _entries_with_hashes(text: str) -> list[Entry]:
    return [entry for entry in entries_in(text) if entry.hashes]


def _resolve(needs: Needs, pins: Mapping[str, str], home: Path) -> list[Entry]:
    home.mkdir(parents=True)
    # Few indexes have builds with a local version, such as torch's for the CPU.
    constraints = "".join(f"{name}=={version.partition('+')[0]}\n" for name, version in sorted(pins.items()))
    (home / "locked.txt").write_text(constraints, encoding="utf-8")
    requirements = [f"-r {needs.requirements.absolute()}"] if needs.requirements else []
    requirements += [*needs.packages, *(f"-e {project}" for project in needs.editable)]
    (home / "wanted.in").write_text("\n".join([*requirements, ""]), encoding="utf-8")
    kept = [f"{name}=={pins[name].partition('+')[0]}\n" for name in OF_LOCK if name in pins]
    (home / "kept.txt").write_text("".join(kept), encoding="utf-8")
    lenient = ["--override", "kept.txt"] if needs.is_lenient else []
    text, builds = _compile_requirements(needs, home, lenient), list[str]()
    if re.search(WITH_TORCH.pattern, text, re.MULTILINE) and not pip_settings.no_index(os.environ):
        try:
            text, builds = _compile_requirements(needs, home, [*CPU_BUILDS, *lenient]), [*CPU_BUILDS]
        except UpstreamError:
            sys.stderr.write(
                "the index with CPU builds of torch cannot be reached; taking your index's builds\n"
            )
    flags = ("-e ", "--index", "--extra")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(flags)]
    by_author = {
        entry.name: entry.hashes for _, text in _texts(needs) for entry in _entries_with_hashes(text)
    }
    # Only own packages are resolved here: where an index has no hash of a wheel, uv unpacks it, and torch has
    # 700 MB. With --no-deps it would leave such a hash out.
    own, others = list[str](), list[str]()
    for entry in entries_in("\n".join(lines)):
        if entry.name in pins or CUDA_ONLY.fullmatch(entry.name):
            others.append(f"{entry.name} ; sys_platform == 'none'\n")
        else:
            own.append(f"{entry.line}\n")
    (home / "own.in").write_text("".join(own), "utf-8")
    (home / "overrides.txt").write_text("".join([*own, *others]), "utf-8")
    options = [*builds, "--override", "overrides.txt", "--generate-hashes"]
    entries = entries_in(_compile_requirements(needs, home, options, "own.in"))
    _require_first_index([entry for entry in entries if entry.name not in by_author], needs, home)
    return [replace(row, hashes=by_author.get(row.name, row.hashes)) for row in entries]


def _require_first_index(entries: Sequence[Entry], needs: Needs, home: Path) -> None:
    """Refuse a package that is not from the first of the user's indexes with its name: whoever may publish in
    another could replace a private package by a higher version. A hash that the author gives says which
    package is meant, and a user who sets uv's strategy has decided."""
    if not pip_settings.has_several_indexes(os.environ) or os.environ.get(STRATEGY):
        return
    # A package without a version comes from the address that its author names.
    pins = (f"{row.name}=={row.version}\n" for row in entries if row.version)
    (home / "first.in").write_text("".join(pins), "utf-8")
    try:
        _compile_requirements(needs, home, ["--no-deps"], "first.in", strategy="first-index")
    except UsageError as error:
        raise UsageError(
            f"{needs.origin}: a version that only another index has is not taken where"
            f" the first index has a package of that name: {error.message.partition(': ')[2]}",
            fix=f"pin it with its hash, or set {STRATEGY}=unsafe-best-match to trust every index alike",
        ) from error


def _compile_requirements(
    needs: Needs, home: Path, more: Sequence[str], file: str = "wanted.in", *, strategy: str = FIRST_MATCH
) -> str:
    # Versions in a file that is there already would be preferred.
    output = home / f"{file}.{strategy}.txt"
    command = ["pip", "compile", file, "--constraint", "locked.txt", "--output-file", output.name]
    command += ["--quiet", "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--python", sys.executable]
    if needs.editable:
        # uv keeps what a project needs, and does not see a change of the files that its pyproject.toml names.
        command += ["--refresh"]
    process = _uv([*command, *more], home, {} if os.environ.get(STRATEGY) else {STRATEGY: strategy})
    if process.returncode == 0:
        return output.read_text(encoding="utf-8")
    answer = " ".join(process.stderr.replace("╰─▶", "").replace("×", "").split())
    origin = needs.origin
    if NO_NETWORK.search(answer):
        message = f"the packages of {origin} need the package index, which cannot be reached"
        raise UpstreamError(message, fix="type it again with a network: they are then kept")
    if "No solution found" in answer or "unsatisfiable" in answer:
        if absent := ABSENT.search(answer):
            place, fix = "the package index has", "correct its name"
            if variable := next((name for name in WITHOUT_INDEX if os.environ.get(name)), ""):
                place, fix = (
                    f"{variable} rules out the package index, and this machine has",
                    f"{fix}, or unset {variable}",
                )
            asks = "" if absent[1] == origin else f", which {origin} asks for"
            message = f"{place} no package {absent[1]}{asks}"
            raise UsageError(message, fix=f"{fix}; a package of your own is named by its folder")
        message = f"{origin} does not fit the locked packages: {answer}"
        raise UsageError(message, fix="loosen that requirement; what is locked stays as it is")
    message = f"the packages of {origin} could not be resolved: {answer}"
    raise UpstreamError(message, fix="check the package index that pip or uv is set to")


def _install(entries: Sequence[Entry], needs: Needs, home: Path) -> None:
    python = home / "environment" / "bin" / "python"
    _check_install(
        needs, _uv(["venv", "--quiet", "--python", sys.executable, str(home / "environment")], home)
    )
    asks = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(capture([python, "-c", asks]).stdout.strip())
    (home / "install.txt").write_text("".join(f"{entry.text}\n" for entry in entries), encoding="utf-8")
    into = ["pip", "install", "--quiet", "--no-deps", "--python", str(python)]
    builds = CPU_BUILDS if any("+cpu" in entry.line for entry in entries) else ()
    if entries:
        _check_install(needs, _uv([*into, *builds, "-r", "install.txt"], home))
    for project in needs.editable:
        # uv builds it again only where one of few files has changed, unless it is told to.
        _check_install(needs, _uv([*into, "--refresh", "--editable", str(project)], home))
    # Added last, because uv must not know of the locked packages.
    (site / "_qnn_ci_locked.pth").write_text(BEHIND, encoding="utf-8")


def _remove_unused(folder: Path) -> None:
    for stamp in (*folder.glob("*/resolved.txt"), *folder.glob("*.json")):
        if stamp.stat().st_mtime < time.time() - UNUSED_SECONDS:
            stamp.unlink()
            if stamp.parent != folder:
                shutil.rmtree(stamp.parent, ignore_errors=True)


def _uv(
    arguments: Sequence[str], where: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> CompletedProcess[str]:
    program = os.environ.get("QNN_CI_UV") or uv_program()
    if program is None:
        message = "uv is not here, and a suite's own packages need it"
        raise EnvironmentLacking(message, fix="python -m pip install uv")
    # A store, or a copy that is installed, may lie below a project of the user's.
    settings = {**pip_settings.uv_variables(os.environ), **pip_settings.uv_config_variables(os.environ)}
    environ = {**os.environ, **settings, **variables}
    if CPU_BUILDS[0] in arguments:
        # An index that the user did not name, so fail soon if it cannot be reached.
        environ.setdefault("UV_HTTP_RETRIES", "0")
    flags = pip_settings.uv_flags(os.environ) if arguments[0] == "pip" else []
    return capture([program, *arguments, *flags], cwd=where, env=environ, encoding="utf-8")


def _check_install(needs: Needs, process: CompletedProcess[str]) -> None:
    errors = " ".join(process.stderr.split())
    if "hash mismatch" in errors.lower():
        raise IntegrityError(f"{needs.origin}: {errors}", fix="find out who changed the package")
    if process.returncode:
        message = f"the packages of {needs.origin} could not be installed: {errors}"
        fix = "check the package index that pip or uv is set to, and the project's build"
        raise UpstreamError(message, fix=fix)
