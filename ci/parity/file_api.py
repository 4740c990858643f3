"""What CMake itself says of a configured build: its file API's reply.

The objects read are few, so they are read directly: a package for it would bring more than this does.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.parity.model import Item, Place
from provisioning.base.commands import quoted
from provisioning.base.errors import EnvironmentLacking, UsageError


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    folder: str
    """Where its CMakeLists.txt is, in the tree."""
    files: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    targets: Mapping[str, Target]


def read_reply(build: Path, root: Path) -> Reply:
    """The targets of a build directory whose sources are the tree at `root`."""
    folder = build / ".cmake" / "api" / "v1" / "reply"
    indexes = sorted(folder.glob("index-*.json"))
    query = build / ".cmake" / "api" / "v1" / "query"
    again = f"{quoted('touch', query / 'codemodel-v2')} && {quoted('cmake', build)}"
    if not indexes:
        raise EnvironmentLacking(
            f"{build} holds no reply of CMake's file API",
            remedy=f"{quoted('mkdir', '-p', query)} && {again}",
        )
    index = _json(indexes[-1])
    models = [one for one in index.get("objects", []) if one.get("kind") == "codemodel"]
    if not models:
        raise EnvironmentLacking(f"{indexes[-1]} holds no codemodel", remedy=again)
    model = _json(folder / models[0]["jsonFile"])
    source = Path(model["paths"]["source"]).resolve()
    top = Path(root).resolve()
    if not source.is_relative_to(top):
        raise UsageError(
            f"{build} was configured from {source}, and not from the tree {top}",
            remedy="name a build directory of this tree",
        )
    prefix = source.relative_to(top).as_posix()
    targets = {}
    for one in model["configurations"][0]["targets"]:
        data = _json(folder / one["jsonFile"])
        if data.get("type") != "UTILITY":
            targets[data["name"]] = _target(data, source, top, "" if prefix == "." else prefix)
    return Reply(targets)


def _target(data: dict[str, Any], source: Path, top: Path, prefix: str) -> Target:
    graph = data.get("backtraceGraph", {})
    folder = _in_tree(data["paths"]["source"], source, top) or prefix
    files = []
    for one in data.get("sources", []):
        path = _in_tree(one["path"], source, top)
        if path is not None and not one.get("isGenerated") and (top / path).is_file():
            files.append(Item(path, _place(graph, one.get("backtrace"), source, top, folder)))
    return Target(data["name"], folder, tuple(files))


def _in_tree(path: str, source: Path, top: Path) -> str | None:
    full = Path(posixpath.normpath(source / path))
    return full.relative_to(top).as_posix() if full.is_relative_to(top) else None


def _place(graph: dict[str, Any], node: int | None, source: Path, top: Path, folder: str) -> Place:
    if node is not None:
        at = graph["nodes"][node]
        file = _in_tree(graph["files"][at["file"]], source, top)
        if file is not None:
            return Place(file, at.get("line", 1))
    return Place(posixpath.join(folder, "CMakeLists.txt"), 1)


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentLacking(
            f"cannot read {path}: {error}", remedy="configure the build directory again"
        ) from error
    if not isinstance(data, dict):
        raise EnvironmentLacking(
            f"{path}: expected an object, found {type(data).__name__}", remedy="configure it again"
        )
    return data
