"""The variables that stages run with: the profile, the roots of trees, their library folders, and the user's
own entries that do not conflict with them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from provisioning.base.errors import UsageError
from provisioning.base.settings import (
    Selection,
)
from provisioning.components import COMPONENT_VARIABLES, KINDS, QNN_SDK
from provisioning.executorch import PYTHON_PATH, Executorch, is_same_folder

if TYPE_CHECKING:
    pass

HOST_LIBRARIES = "x86_64-linux-clang"
"""The directory under the SDK's lib/ and bin/ that runs on the host."""

DEVICE_DIRECTORIES = {
    "aarch64-android": "/data/local/tmp/qnn-ci",
    "aarch64-linux": "/opt/qnn-ci",
}
"""The folders of our files on the device unless QNN_CI_DEVICE_DIR says otherwise."""

DEVICE_DSP_DIRECTORIES = {
    "aarch64-android": ("/vendor/dsp/cdsp", "/vendor/lib/rfsa/adsp", "/system/lib/rfsa/adsp", "/dsp"),
    "aarch64-linux": ("/usr/lib/rfsa/adsp", "/dsp"),
}
"""The device's own DSP files. ADSP_LIBRARY_PATH replaces the default search, so it must name them too, last:
if a skel of the system image were found before ours, QNN would fail with 1008."""

_DEVICE_LIBRARY_DIRECTORY = re.compile(
    r"/lib/(?:aarch64-[^/]+|hexagon-v\d+|lpai-v\d+|x86_64-windows-[^/]+)(?:/|$)"
)

_HOST_LIBRARY_DIRECTORY = re.compile(rf"/lib/{HOST_LIBRARIES}/?$")

_LOADER_SPECIAL = re.compile(r"[:;]|\$\{?(?:ORIGIN|LIB|PLATFORM)\b")


@dataclass(frozen=True, slots=True)
class Root:
    """The place of one component. `variable` is the one that names it, as the user spelt it for a
    `directory`."""

    path: Path
    origin: Literal["store", "directory"]
    variable: str
    version: str = ""
    """The version of a tree of the store; empty for a directory of the user's, which may hold anything."""
    change: str = ""
    """What became of a directory of the user's since its first use."""


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    variable: str = ""
    """The user's variable that is not taken as it is, if it is about one."""

    def __str__(self) -> str:
        return self.text


def stage_variables(
    selection: Selection,
    roots: Mapping[str, Root],
    environ: Mapping[str, str],
    notes: list[Note],
    executorch: Executorch,
) -> tuple[dict[str, str], tuple[str, ...]]:
    variables = {
        "QNN_CI_PROFILE": selection.profile,
        "QNN_CI_TARGET": selection.target,
        "QNN_CI_SOC": selection.soc,
        "QNN_CI_STORE": str(selection.store),
    }
    for component, root in roots.items():
        variables[COMPONENT_VARIABLES[component]] = str(root.path)
        variables |= {name: str(root.path) for name in KINDS[component].aliases if name in environ}
    sdk = roots[QNN_SDK].path
    before = environ.get("LD_LIBRARY_PATH", "")
    if (libraries := _library_path(sdk, before, notes)) or before:
        variables["LD_LIBRARY_PATH"] = libraries
    if value := environ.get("LD_PRELOAD", ""):
        variables["LD_PRELOAD"] = _preload(sdk, value, notes)
    # No stage reads it; QNN's own tools and scripts do, beside QNN_SDK_ROOT.
    qairt = environ.get("QAIRT_SDK_ROOT", "")
    if qairt and environ.get("QNN_SDK_ROOT") and not is_same_folder(qairt, str(sdk)):
        variables["QAIRT_SDK_ROOT"] = str(sdk)
        text = f"QAIRT_SDK_ROOT={qairt} contradicts QNN_SDK_ROOT={sdk}, which is the one used"
        notes.append(Note(text, "QAIRT_SDK_ROOT"))
    programs = sdk / "bin" / HOST_LIBRARIES
    entries = [str(programs)] if programs.is_dir() else []
    if entries:
        rest = [entry for entry in environ.get("PATH", os.defpath).split(":") if entry not in entries]
        variables["PATH"] = ":".join(entries + rest)
    if (python_path := executorch.python_path(environ)) != environ.get(PYTHON_PATH, ""):
        variables[PYTHON_PATH] = python_path
    if selection.target in DEVICE_DIRECTORIES:
        variables["ADSP_LIBRARY_PATH"] = _dsp_path(selection.target, environ, notes)
    return variables, tuple(entries)


def _library_path(sdk: Path, entries: str, notes: list[Note]) -> str:
    """The host's libraries of this SDK, then the user's own entries that do not conflict with them."""
    ours = str(sdk / "lib" / HOST_LIBRARIES)
    if special := _LOADER_SPECIAL.search(ours):
        raise UsageError(
            f"LD_LIBRARY_PATH cannot carry {ours!r}: {special.group()!r} means something else to the loader",
            fix="move it to a path without that, with --store or QNN_CI_STORE for the store",
        )
    folders = [ours] if Path(ours).is_dir() else []
    if not folders:
        notes.append(Note(f"{ours} is not there, so nothing of this SDK runs on the host"))
    for entry in re.split("[:;]", entries) if entries else []:
        if not entry:
            notes.append(Note("an empty entry of LD_LIBRARY_PATH, the current directory, is left out"))
        elif why := _why_left_out(entry, ours):
            notes.append(Note(f"{why} and is left out of LD_LIBRARY_PATH", "LD_LIBRARY_PATH"))
        elif not any(is_same_folder(entry, folder) for folder in folders):
            folders.append(entry)
    return ":".join(folders)


def _why_left_out(entry: str, ours: str) -> str:
    """Say why an entry of LD_LIBRARY_PATH cannot stay; empty if it can."""
    if _DEVICE_LIBRARY_DIRECTORY.search(entry):
        return f"{entry} holds a device's libraries"
    # Some copy an SDK's libraries to a folder like /opt/qnn. Behind ours, it gives what ours lacks.
    has_qnn = _HOST_LIBRARY_DIRECTORY.search(entry) or Path(entry, "libQnnHtp.so").exists()
    return f"{entry} is of another QNN SDK" if has_qnn and not is_same_folder(entry, ours) else ""


def _preload(sdk: Path, entries: str, notes: list[Note]) -> str:
    """Return what the user has loaded before all else, without the libraries of another QNN SDK."""
    ours = sdk / "lib" / HOST_LIBRARIES
    libraries = []
    for entry in filter(None, re.split("[: ]", entries)):
        folder, name = os.path.split(entry)
        # One without a folder is looked for in LD_LIBRARY_PATH, where ours come first.
        if name.startswith(("libQnn", "libHtp")) and folder and not is_same_folder(folder, str(ours)):
            text = f"{entry} is of another QNN SDK and is left out of LD_PRELOAD"
            notes.append(Note(text, "LD_PRELOAD"))
        else:
            libraries.append(entry)
    return ":".join(libraries)


def _dsp_path(target: str, environ: Mapping[str, str], notes: list[Note]) -> str:
    ours = environ.get("QNN_CI_DEVICE_DIR") or DEVICE_DIRECTORIES[target]
    value = environ.get("ADSP_LIBRARY_PATH", "")
    if ":" in value:
        text = "FastRPC splits ADSP_LIBRARY_PATH at `;`, not at `:`; it was split at both"
        notes.append(Note(text, "ADSP_LIBRARY_PATH"))
    entries = [ours, *re.split("[:;]", value), *DEVICE_DSP_DIRECTORIES[target]]
    return ";".join(dict.fromkeys(entry for entry in entries if entry))
