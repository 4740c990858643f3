"""Resolve and install the packages that a suite needs, by uv, with the locked packages as constraints.

`resolve_packages` finds versions with their hashes: a package that is not locked must come from the first of
the user's indexes that has its name. `install_entries` makes an environment of them that also finds the
locked packages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from urllib.parse import unquote

from ci.models.package_needs import Needs, texts_of
from ci.work import LOCKED
from provisioning import pip_settings
from provisioning.base.commands import capture, quote_command
from provisioning.base.errors import (
    EnvironmentLacking,
    IntegrityError,
    UpstreamError,
    UsageError,
)
from provisioning.installer import NO_NETWORK, uv_program
from provisioning.lock_files import CUDA_ONLY, Entry, entries_in

WITHOUT_INDEX = ("PIP_NO_INDEX", "UV_NO_INDEX", "UV_OFFLINE")
"""Each of these variables rules out the package index."""

CPU_BUILDS = ("--torch-backend=cpu",)

STRATEGY, FIRST_MATCH = "UV_INDEX_STRATEGY", "unsafe-first-match"
"""uv resolves packages from the first index with a version that fits, because an index that mirrors some of
the locked packages need not have their pins. Packages that are not locked must come from the first index that
has them."""

LOCKED_ALWAYS = ("torch", "executorch")
"""These packages stay as they are locked, whatever versions a discovered project pins."""

ABSENT = re.compile(r"\b(\S+) was not found in the (?:package registry|provided package locations)")

FAILED_BUILD = re.compile(r"Failed to build `([^`]+)`")

WITH_TORCH = re.compile(r"^(torchvision|torchaudio)==")
"""These packages must come from the same build as torch, which is for the CPU."""


def locked_versions() -> dict[str, str]:
    """Return the versions of the packages in this environment, by name."""
    import importlib.metadata

    return {
        re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower(): distribution.version
        for distribution in importlib.metadata.distributions()
    }


def _entries_with_hashes(text: str) -> list[Entry]:
    return [entry for entry in entries_in(text) if entry.hashes]


def resolve_packages(needs: Needs, pins: Mapping[str, str], home: Path) -> list[Entry]:
    home.mkdir(parents=True)
    # Few indexes have builds with a local version, such as torch's for the CPU.
    constraints = "".join(f"{name}=={version.partition('+')[0]}\n" for name, version in sorted(pins.items()))
    (home / "locked.txt").write_text(constraints, encoding="utf-8")
    requirements = [f"-r {needs.requirements.absolute()}"] if needs.requirements else []
    requirements += [*needs.packages, *(f"-e {project}" for project in needs.editable)]
    (home / "wanted.in").write_text("\n".join([*requirements, ""]), encoding="utf-8")
    kept = [f"{name}=={pins[name].partition('+')[0]}\n" for name in LOCKED_ALWAYS if name in pins]
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
        entry.name: entry.hashes for _, text in texts_of(needs) for entry in _entries_with_hashes(text)
    }
    # Only own packages are resolved here: where an index has no hash of a wheel, uv unpacks it, and torch has
    # 700 MB. With --no-deps it would leave such a hash out.
    own, left_out = list[str](), list[str]()
    for entry in entries_in("\n".join(lines)):
        if entry.name in pins or CUDA_ONLY.fullmatch(entry.name):
            left_out.append(f"{entry.name} ; sys_platform == 'none'\n")
        else:
            own.append(f"{entry.line}\n")
    (home / "own.in").write_text("".join(own), "utf-8")
    (home / "overrides.txt").write_text("".join([*own, *left_out]), "utf-8")
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
        command += _refresh_flags()
    process = run_uv([*command, *more], home, {} if os.environ.get(STRATEGY) else {STRATEGY: strategy})
    if process.returncode == 0:
        return output.read_text(encoding="utf-8")
    _require_network(needs, process.stderr)
    _require_build(needs, process.stderr)
    answer = " ".join(process.stderr.replace("╰─▶", "").replace("×", "").split())
    origin = needs.origin
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


def run_uv(
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


BEHIND = f"import os, site; p = os.environ.get({LOCKED!r}); p and site.addsitedir(p)\n"
"""A .pth file that puts the locked packages behind the own ones. As it reads a variable, it is equal on every
machine."""


def install_entries(entries: Sequence[Entry], needs: Needs, home: Path) -> None:
    python = home / "environment" / "bin" / "python"
    _check_install(
        needs, run_uv(["venv", "--quiet", "--python", sys.executable, str(home / "environment")], home)
    )
    asks = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(capture([python, "-c", asks]).stdout.strip())
    (home / "install.txt").write_text("".join(f"{entry.text}\n" for entry in entries), encoding="utf-8")
    into = ["pip", "install", "--quiet", "--no-deps", "--python", str(python)]
    builds = CPU_BUILDS if any("+cpu" in entry.line for entry in entries) else ()
    if entries:
        _check_install(needs, run_uv([*into, *builds, "-r", "install.txt"], home))
    for project in needs.editable:
        # uv builds it again only where one of few files has changed, unless it is told to.
        _check_install(needs, run_uv([*into, *_refresh_flags(), "--editable", str(project)], home))
    # Added last, because uv must not know of the locked packages.
    (site / "_qnn_ci_locked.pth").write_text(BEHIND, encoding="utf-8")


def _check_install(needs: Needs, process: CompletedProcess[str]) -> None:
    errors = " ".join(process.stderr.split())
    if "hash mismatch" in errors.lower():
        raise IntegrityError(f"{needs.origin}: {errors}", fix="find out who changed the package")
    if process.returncode:
        _require_network(needs, process.stderr)
        _require_build(needs, process.stderr)
        message = f"the packages of {needs.origin} could not be installed: {errors}"
        fix = "check the package index that pip or uv is set to, and the project's build"
        raise UpstreamError(message, fix=fix)


def _refresh_flags() -> list[str]:
    """Return the flag for uv to look at a project anew, which it refuses where it may use no network."""
    return [] if os.environ.get("UV_OFFLINE") else ["--refresh"]


def _require_network(needs: Needs, errors: str) -> None:
    """Raise UpstreamError if uv's errors say that the package index cannot be reached."""
    if NO_NETWORK.search(errors):
        message = f"the packages of {needs.origin} need the package index, which cannot be reached"
        raise UpstreamError(message, fix="type it again with a network: they are then kept")


def _require_build(needs: Needs, errors: str) -> None:
    """Raise EnvironmentLacking if uv's errors say that a package could not be built."""
    if failed := FAILED_BUILD.search(errors):
        package, _, address = failed[1].partition(" @ file://")
        of_whom = "" if unquote(address) == needs.origin else f", for {needs.origin},"
        message = f"the build of {package}{of_whom} failed: {_last_words(errors)}"
        build = quote_command("python", "-m", "pip", "wheel", "--no-deps", unquote(address) or package)
        raise EnvironmentLacking(message, fix=f"this shows its whole output: {build}")


def _last_words(errors: str) -> str:
    """Return the last line that a package's build wrote, which uv quotes before its own hints."""
    own = re.split(r"^\s*hint: ", errors, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line.strip(" │├╰─▶×") for line in own.splitlines()]
    return [line for line in lines if line][-1].removeprefix("cause: ")
