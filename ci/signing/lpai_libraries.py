"""Say which libraries must be signed for a chip's LPAI, where they are, and whether the SDKs are recent
enough.

`to_sign` lists the files; manifests/ has the table of chips and libraries. What is of another chip or build,
or too old, is refused before anything is signed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ci.signing import signed_library
from ci.signing.elf_headers import BadLibrary
from provisioning import qnn_libraries
from provisioning.base.commands import session
from provisioning.base.documents import Model, load
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.settings import MANIFESTS, profile_names
from provisioning.build_ids import build_ids, version_in
from provisioning.components import ELFSIGNER
from provisioning.elf import version_key
from provisioning.environment import Environment
from provisioning.manifest import load_profile, load_socs, soc_named
from provisioning.sources import Version
from provisioning.stage_variables import Root


class NeededLibrary(Model):
    component: Literal["qnn-sdk", "hexagon-sdk", "executorch-source"]
    path: str
    """A path below the component's root, with {lpai} and {arch}; `*` matches the highest version."""
    direct: bool = False
    """Whether it is loaded only if ExecuTorch itself runs on the DSP (`--direct`)."""

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


class ElfsignerTable(Model):
    """What is assumed of elfsigner. Words may hold {library}, {library_name} and {folder}."""

    sign: Annotated[tuple[str, ...], Field(min_length=1)]
    signed_name: str
    answer: str
    """The answer to a question that the user accepted."""
    source: Annotated[tuple[str, ...], Field(min_length=1)]


class LpaiTable(Model):
    schema_: Literal[1] = Field(alias="schema")
    time_limit_seconds: Annotated[int, Field(gt=0)]
    python_below: Version
    elfsigner: ElfsignerTable
    hexagon_sdk: dict[str, Version]
    libraries: Annotated[tuple[NeededLibrary, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip to sign for. It stands for all chips with the same LPAI and Hexagon arch."""

    name: str
    lpai: int
    arch: int

    @property
    def directory(self) -> Path:
        """Where signed libraries go, in an SDK and in the overlay."""
        return Path("lib") / f"lpai-v{self.lpai}" / "signed"


@cache
def load_table() -> LpaiTable:
    return load(MANIFESTS / "lpai.toml", LpaiTable)


def chip_of(socs: Sequence[str]) -> Chip:
    """The chip to sign for. Several names are one chip if their LPAI and Hexagon arch are the same."""
    chips = []
    for name in socs:
        soc = soc_named(name)
        if soc.lpai is None:
            with_lpai = sorted(n for n, s in load_socs().items() if s.lpai is not None)
            raise UsageError(f"{name} has no LPAI", fix=f"use --soc with one of: {', '.join(with_lpai)}")
        chips.append(Chip(name, soc.lpai, soc.arch))
    if len({(chip.lpai, chip.arch) for chip in chips}) > 1:
        raise UsageError(f"{' and '.join(socs)} load different libraries", fix="sign for one at a time")
    return chips[0]


def to_sign(
    chip: Chip, environment: Environment | None, paths: Sequence[Path], *, direct: bool
) -> list[Path]:
    """The files to sign. `paths` replace the manifest's list; in direct mode, entries of the same name."""
    for path in paths:
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file", fix="name the library to sign")
    if paths and not direct:
        return _distinct(paths)
    if environment is None:
        raise UsageError("no library is named", fix="name them with --library")
    by_name = {path.name: path for path in paths}
    files = list(by_name.values())
    gaps: list[tuple[NeededLibrary, str]] = []
    for library in load_table().libraries:
        if library.name in by_name or (library.direct and not direct):
            continue
        root = environment.roots.get(library.component)
        pattern = library.path.format(lpai=chip.lpai, arch=chip.arch)
        matches = list(root.path.glob(pattern)) if root else []
        if matches:
            files.append(max(matches, key=lambda path: version_key(".".join(re.findall(r"\d+", str(path))))))
        else:
            gaps.append((library, str(root.path / pattern) if root else f"no {library.component}"))
    if gaps:
        rows = "; ".join(f"{library.name} ({where})" for library, where in gaps)
        raise EnvironmentLacking(
            f"{len(gaps)} of the libraries to sign are not there: {rows}",
            fix=f"{_profile_that_signs()}, whose SDK has them, or name each with --library FILE",
        )
    return _distinct(files)


def check_qnn(chip: Chip, root: Root | None, files: Sequence[Path]) -> str:
    """Return the QNN version; empty if it is not known. Raises if it is too old for the chip's LPAI."""
    builds = {build.lstrip("v") for path in files for build in build_ids(path)}
    version = (version_of("qnn-sdk", root) if root else "") or min(builds, key=_numbers, default="")
    lpai = qnn_libraries.table().lpai[str(chip.lpai)]
    if version and _older(version, lpai.since):
        where = f" in {root.path}" if root else ""
        raise EnvironmentLacking(
            f"LPAI v{chip.lpai} needs QNN {lpai.since} or later, found {version}{where}",
            fix=f"use a profile with a later QNN: {_profiles_with('qnn-sdk', lpai.since)}",
        )
    if not version and root is not None:
        raise EnvironmentLacking(
            f"{root.path} does not say its QNN version (no sdk.yaml, no version in its name)",
            fix=f"set {root.variable} to an SDK of QNN {lpai.since} or later",
        )
    return version


def require_fit(chip: Chip, root: Root | None, files: Sequence[Path]) -> None:
    """Refuse a library of QNN's for another chip or build, and any for a later Hexagon or for none."""
    sdk = version_of("qnn-sdk", root) if root else ""
    of_build: dict[str, Path] = {}
    for path in files:
        builds = build_ids(path)
        try:
            arch = _arch(path)
        except UsageError:
            # Said where it is signed, while the others are.
            continue
        if arch is None:
            raise UsageError(f"{path} is no Hexagon library", fix="name a library for the DSP: a skel")
        if arch > chip.arch or (builds and arch != chip.arch):
            raise UsageError(
                f"{path} is for Hexagon v{arch}, and {chip.name} has v{chip.arch}",
                fix=f"name the file of lib/hexagon-v{chip.arch}, or sign for one of its chips with --soc",
            )
        for build in builds:
            of_build.setdefault(build, path)
            if sdk and _numbers(version_in(build)) != _numbers(sdk)[:3]:
                raise UsageError(
                    f"{path} is of QNN {version_in(build)}, and {root.path if root else ''} is QNN {sdk}",
                    fix="name the file of that SDK, or another SDK with QNN_SDK_ROOT",
                )
    if len(of_build) > 1:
        (one, first), (other, second), *_ = of_build.items()
        raise UsageError(
            f"{first} is of build {one}, and {second} of {other}", fix="sign libraries of one build at a time"
        )


def elfsigner_script(environment: Environment, files: Iterable[Path], chip: Chip) -> Path:
    """The path of elfsigner. Raises if its Hexagon SDK is too old for an arch that is to be signed."""
    root = environment.roots.get("hexagon-sdk")
    if root is None:
        raise EnvironmentLacking(
            "there is no Hexagon SDK, whose elfsigner signs for devices",
            fix=session("provision", *_profile_that_signs().split(), "--component", "hexagon-sdk")
            + ", or set HEXAGON_SDK_ROOT; a pipeline that has none can use --signer dev",
        )
    script = root.path / ELFSIGNER
    if not script.is_file():
        raise EnvironmentLacking(
            f"{root.path} has no {ELFSIGNER}", fix=f"set {root.variable} to a whole Hexagon SDK"
        )
    version = version_of("hexagon-sdk", root)
    if not version:
        raise EnvironmentLacking(
            f"{root.path} does not say which Hexagon SDK it is",
            fix=f"set {root.variable} to the directory named by the version, …/Hexagon_SDK/6.5.0.0",
        )
    limits = load_table().hexagon_sdk
    for arch in sorted({chip.arch, *(a for path in files if (a := _arch(path)) is not None)}):
        limit = limits.get(str(arch))
        if limit is not None and _older(version, limit):
            raise EnvironmentLacking(
                f"Hexagon v{arch} needs Hexagon SDK {limit} or later to sign, found {version} in {root.path}",
                fix=f"set {root.variable} to a later one, or use a profile that has it: "
                f"{_profiles_with('hexagon-sdk', limit)}",
            )
    return script


def _distinct(paths: Iterable[Path]) -> list[Path]:
    by_name: dict[str, Path] = {}
    for path in paths:
        first = by_name.setdefault(path.name, path)
        if first != path:
            raise UsageError(
                f"{first} and {path} would both become {path.name}", fix="sign them one at a time"
            )
    return list(by_name.values())


def version_of(component: str, root: Root) -> str:
    """The version that the store or the user's own directory states; empty if none."""
    from provisioning.own_installation import adopt

    return root.version or adopt(component, str(root.path), root.variable).version


def _arch(path: Path) -> int | None:
    with signed_library.map_file(path) as data:
        try:
            return signed_library.layout_of(data).arch
        except BadLibrary as error:
            raise UsageError(f"{path}: {error.message}", fix="name a Hexagon library") from error


def _older(version: str, limit: str) -> bool:
    parts = _numbers(limit)
    return _numbers(version)[: len(parts)] < parts


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _profile_that_signs() -> str:
    """A profile with a Hexagon SDK; its QNN SDK has the libraries, too."""
    return next(
        f"--profile {name}" for name in profile_names() if "hexagon-sdk" in load_profile(name).components
    )


def _profiles_with(component: str, version: str) -> str:
    good = [
        f"--profile {name}"
        for name in profile_names()
        for key, pin in load_profile(name).components.items()
        if key == component and not _older(pin.version, version)
    ]
    return " or ".join(good) or "none has one yet"
