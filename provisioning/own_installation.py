"""The user's own installation of a component, such as an SDK that QNN_SDK_ROOT names: it is checked and used
where it is, and never copied or changed.

`adopt` is what others call. If the folder is not the component's root, its error names the right one
nearby."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.commands import Fix, quote_command
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import user_path
from provisioning.components import KINDS, identity_of


@dataclass(frozen=True, slots=True)
class Adopted:
    path: Path
    version: str
    """The version that its own metadata or its folder's name states; empty if neither does."""


def adopt(component: str, value: str, variable: str) -> Adopted:
    """Use the folder that `variable` names as `component`, or raise an error that names the right one."""
    path = user_path(value, variable)
    where = f"{variable}={value}"
    try:
        _require_root(component, path, where, variable)
    except PermissionError as error:
        raise EnvironmentLacking(
            f"{where}: cannot be read ({error.filename or path})",
            fix=quote_command("chmod", "-R", "u+rX", path),
        ) from error
    path = path.resolve()
    by_name = _version_in_name(path.name) if KINDS[component].named_by_version else ""
    return Adopted(path, identity_of(component, path).version or by_name)


def is_root(component: str, path: Path) -> bool:
    kind = KINDS[component]
    return (all if kind.all_landmarks else any)((path / landmark).exists() for landmark in kind.landmarks)


def _require_root(component: str, path: Path, where: str, variable: str) -> None:
    if problem := _why_no_root(component, path):
        existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
        meant = _nearby_root(component, existing) if existing != Path("/") else None
        raise EnvironmentLacking(f"{where}: {problem}", fix=_fix_of_variable(variable, meant))


def _why_no_root(component: str, path: Path) -> str:
    """Say why a path is not the component's root; empty if it is."""
    if not path.exists():
        return "there is no such folder"
    if path.is_file():
        return "is a file, expected a folder; if it is an archive, unpack it"
    names = sorted(entry.name for entry in path.iterdir())
    if is_root(component, path):
        return ""
    found = ", ".join([*names[:6], *(["…"] if len(names) > 6 else [])]) or "nothing"
    kind = KINDS[component]
    landmarks = (" and " if kind.all_landmarks else " or ").join(kind.landmarks)
    return f"is not the root of {component}: expected {landmarks} in it, found {found}"


def _fix_of_variable(variable: str, meant: Path | None) -> str:
    if meant is None:
        return Fix("correct {}, or unset it and run `{}`", variable, ("provision",))
    return f"export {variable}={quote_command(meant)}"


def _nearby_root(component: str, path: Path) -> Path | None:
    """The root that was probably meant: above (where lib was named), or a few folders below."""
    for parent in [path.absolute(), *path.absolute().parents][:5]:
        if parent != Path("/") and is_root(component, parent):
            return parent
    for pattern in ("[!.]*", "[!.]*/[!.]*"):
        # Of several roots, the user probably means the newest version.
        if roots := [folder for folder in path.glob(pattern) if is_root(component, folder)]:
            return max(roots, key=_version_order).absolute()
    return None


def _version_order(path: Path) -> tuple[tuple[int, ...], str]:
    return tuple(int(n) for n in re.findall(r"\d+", path.name)), path.name


def _version_in_name(name: str) -> str:
    match = re.search(r"\d+(?:\.\d+)+", name)
    return match.group() if match else ""
