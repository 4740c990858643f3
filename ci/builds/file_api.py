"""What CMake says of a project that it configured, by its File API: its targets, and what they need.

https://cmake.org/cmake/help/latest/manual/cmake-file-api.7.html
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast, get_args

from provisioning.base.errors import CheckFailed

API = Path(".cmake/api/v1")
QUERY = API / "query/codemodel-v2"
"""CMake answers when it configures a build directory with this file."""

Loaded = Literal["EXECUTABLE", "SHARED_LIBRARY", "MODULE_LIBRARY"]
"""The types of targets that are run or loaded."""


@dataclass(frozen=True, slots=True)
class CMakeTarget:
    name: str
    kind: str
    build: Path
    """The build directory of its project."""
    defined_in: Path
    """The folder of the CMake file that defines it."""
    artifacts: tuple[Path, ...]
    sources: tuple[Path, ...]
    objects: str
    """What the paths of its object files begin with, below `build`."""
    linked: tuple[str, ...]
    """Names of the libraries on its link line, those of static libraries included."""
    parts: tuple[str, ...]
    """Identities of the targets that it depends on."""
    identity: str

    @property
    def loaded(self) -> bool:
        return self.kind in get_args(Loaded)


def ask(build: Path) -> None:
    (build / QUERY).parent.mkdir(parents=True, exist_ok=True)
    (build / QUERY).touch()


def answer(build: Path) -> Path:
    """CMake's newest answer; configuring again gives another name."""
    return max((build / API / "reply").glob("index-*.json"))


def targets(build: Path) -> list[CMakeTarget]:
    """The targets of a project that was configured after `ask`."""
    reply = build / API / "reply"
    try:
        index = _read(answer(build))
        model = _read(reply / index["reply"]["codemodel-v2"]["jsonFile"])
        (configuration,) = model["configurations"]
        source = Path(model["paths"]["source"])
        return [
            _target(_read(reply / entry["jsonFile"]), source, build) for entry in configuration["targets"]
        ]
    except (OSError, ValueError, KeyError) as error:
        raise CheckFailed(
            f"{reply}: expected CMake's answer about its targets, found {type(error).__name__}: {error}",
            fix="build with --clean",
        ) from error


def linked_into(shipped: Iterable[CMakeTarget], known: Iterable[CMakeTarget]) -> list[CMakeTarget]:
    """`shipped`, and all targets whose object files went into them."""
    known = list(known)
    by_identity = {(target.build, target.identity): target for target in known}
    by_file: dict[str, list[CMakeTarget]] = {}
    for target in known:
        for artifact in target.artifacts:
            by_file.setdefault(artifact.name, []).append(target)
    found: dict[tuple[Path, str], CMakeTarget] = {}
    waiting = list(shipped)
    while waiting:
        target = waiting.pop()
        if found.setdefault((target.build, target.identity), target) is not target:
            continue
        # A project that uses the installed libraries of another one names them by their files.
        waiting += [library for name in target.linked for library in by_file.get(name, ())]
        parts = (by_identity.get((target.build, part)) for part in target.parts)
        waiting += [part for part in parts if part is not None and part.kind == "OBJECT_LIBRARY"]
    return list(found.values())


def files_read(targets_: Iterable[CMakeTarget], dependencies: Mapping[Path, str]) -> Iterator[Path]:
    """The sources of targets, and the headers that their compiling read.

    `dependencies`: what `ninja -t deps` prints, by build directory."""
    wanted = list(targets_)
    for target in wanted:
        yield from target.sources
    for build, printed in dependencies.items():
        prefixes = tuple(target.objects for target in wanted if target.build == build)
        inside = False
        for line in printed.splitlines():
            if line.startswith("    "):
                if inside:
                    yield build / line[4:]
            else:
                inside = line.startswith(prefixes)


def _target(found: Mapping[str, Any], source: Path, build: Path) -> CMakeTarget:
    name, paths = found["name"], found["paths"]
    fragments = [
        word
        for fragment in found.get("link", {}).get("commandFragments", ())
        if fragment.get("role") == "libraries"
        for word in shlex.split(fragment["fragment"])
    ]
    return CMakeTarget(
        name=name,
        kind=found["type"],
        build=build,
        defined_in=source / paths["source"],
        artifacts=tuple(build / artifact["path"] for artifact in found.get("artifacts", ())),
        sources=tuple(source / entry["path"] for entry in found.get("sources", ())),
        objects=str(PurePosixPath(paths["build"], "CMakeFiles", f"{name}.dir")) + "/",
        linked=tuple(PurePosixPath(word).name for word in fragments if not word.startswith("-")),
        parts=tuple(dependency["id"] for dependency in found.get("dependencies", ())),
        identity=found["id"],
    )


def _read(path: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
