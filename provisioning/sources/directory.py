"""The user's own installation: read, never copied or changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.commands import Fix, quoted
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import user_path
from provisioning.components import KINDS, identity_of

ARCHIVES = (".zip", ".tar", ".gz", ".xz", ".7z", ".bin", ".run")
SEARCH_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Adopted:
    path: Path
    version: str
    """Of its own metadata, or its name; empty if none has it."""


def adopt(component: str, value: str, variable: str) -> Adopted:
    """Use the folder that `variable` names as `component`, or raise an error that names the right one."""
    if not value.strip():
        raise EnvironmentLacking(
            f"{variable} is set but empty, which tools take for a path",
            fix=f"unset {variable}, or set it to the {component}'s folder",
        )
    path = user_path(value, variable)
    where = f"{variable}={value}"
    try:
        _check(component, path, where, variable)
    except PermissionError as error:
        raise EnvironmentLacking(
            f"{where}: cannot be read ({error.filename or path})",
            fix=quoted("chmod", "-R", "u+rX", path),
        ) from error
    path = path.resolve()
    by_name = _version_in(path.name) if KINDS[component].named_by_version else ""
    return Adopted(path, identity_of(component, path).version or by_name)


def is_root(component: str, path: Path) -> bool:
    kind = KINDS[component]
    return (all if kind.all_landmarks else any)((path / landmark).exists() for landmark in kind.landmarks)


def _check(component: str, path: Path, where: str, variable: str) -> None:
    if not path.exists():
        near = next((parent for parent in path.parents if parent.is_dir()), None)
        if near == Path("/"):
            near = None
        raise EnvironmentLacking(
            f"{where}: there is no such folder" + (f" (there is {near})" if near else ""),
            fix=_export(variable, _nearby(component, near) if near else None),
        )
    if path.is_file():
        if path.name.lower().endswith(ARCHIVES):
            raise EnvironmentLacking(
                f"{where}: is an archive that is not unpacked",
                fix=f"unpack it, and set {variable} to the folder that holds {_landmark_words(component)}",
            )
        raise EnvironmentLacking(
            f"{where}: is a file, expected a folder",
            fix=_export(variable, _nearby(component, path.parent)),
        )
    names = sorted(entry.name for entry in path.iterdir())
    if is_root(component, path):
        return
    archive = next((name for name in names if name.lower().endswith(ARCHIVES[:2])), None)
    right = _nearby(component, path)
    listing = ", ".join(names[:6]) + (", …" if len(names) > 6 else "") if names else "nothing"
    hint = f"; {archive} in it is not unpacked" if archive and right is None else ""
    raise EnvironmentLacking(
        f"{where}: is not the root of {component}: expected {_landmark_words(component)} in it, "
        f"found {listing}{hint}",
        fix=_export(variable, right),
    )


def _landmark_words(component: str) -> str:
    kind = KINDS[component]
    return (" and " if kind.all_landmarks else " or ").join(kind.landmarks)


def _export(variable: str, right: Path | None) -> str:
    if right is None:
        return Fix("correct {}, or unset it and run `{}`", variable, ("provision",))
    return f"export {variable}={quoted(right)}"


def _nearby(component: str, path: Path) -> Path | None:
    """The root that was probably meant: above (where lib was named), or a few folders below."""
    for parent in [path.absolute(), *path.absolute().parents][:5]:
        if parent != Path("/") and is_root(component, parent):
            return parent
    level = [path]
    for _ in range(SEARCH_DEPTH):
        below = []
        for folder in level:
            try:
                below += sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
            except OSError:  # not readable, or removed meanwhile
                continue
        # Of several roots, the user probably means the newest version.
        roots = [folder for folder in below if is_root(component, folder)]
        if roots:
            return max(roots, key=_version_order).absolute()
        level = below[:200]
    return None


def _version_order(path: Path) -> tuple[tuple[int, ...], str]:
    return tuple(int(n) for n in re.findall(r"\d+", path.name)), path.name


def _version_in(name: str) -> str:
    match = re.search(r"\d+(?:\.\d+)+", name)
    return match.group() if match else ""
