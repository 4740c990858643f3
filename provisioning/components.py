"""The kinds of component that a profile can provision, such as the QNN SDK and the Android NDK.

`KINDS` has a row for each: the variable that names the user's own installation, the files by which its root
is recognised, and where its version is read. Which version a profile takes, and from where, is in the
profile's `[components.NAME]`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provisioning.base.files import open_regular

ComponentName = Literal["qnn-sdk", "android-ndk", "hexagon-sdk", "executorch-source", "executorch-runtime"]

QNN_SDK: ComponentName = "qnn-sdk"
ANDROID_NDK: ComponentName = "android-ndk"
NDK_PREBUILT = Path("toolchains/llvm/prebuilt/linux-x86_64")
NDK_RUNTIME = Path("sysroot/usr/lib/aarch64-linux-android/libc++_shared.so")
"""The runtime library's path below NDK_PREBUILT."""
NDK_TOOLCHAIN = Path("build/cmake/android.toolchain.cmake")
HEXAGON_SDK: ComponentName = "hexagon-sdk"
ELFSIGNER = Path("tools/elfsigner/elfsigner.py")
EXECUTORCH_SOURCE: ComponentName = "executorch-source"
EXECUTORCH_RUNTIME: ComponentName = "executorch-runtime"

_MOST_TEXT = 65536


@dataclass(frozen=True, slots=True)
class Identity:
    """Version and build id in a component's own files; empty if they have none."""

    version: str = ""
    build_id: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    name: ComponentName
    variable: str
    """Names the user's own installation."""
    landmarks: tuple[str, ...]
    """Files and folders by which its root is recognised."""
    all_landmarks: bool = False
    """Whether all of them must exist, because each alone is a common name."""
    aliases: tuple[str, ...] = ()
    """Names of the variable in other tools, used if ours is not set."""
    metadata: str = ""
    """The file that holds its version."""
    read_identity: Callable[[str], Identity] = lambda text: Identity()
    """Reads the version from that file's text."""
    named_by_version: bool = True
    """Whether an installation's folder is named by its version, if no file has it."""
    inside: str = ""
    """The folder below the store's tree that is its root, where its name matters."""
    needed_by: tuple[str, ...] = ()
    """Targets that need it for everything, if the profile has it."""


def _value(text: str, key: str) -> str:
    """One scalar of a flat YAML file: enough for the few lines SDKs put there, and no parser to load."""
    match = re.search(rf"^\s*{key}\s*:\s*(['\"]?)([^\s'\"#]+)\1\s*(?:#.*)?$", text, re.MULTILINE)
    return match.group(2) if match else ""


def _sdk_identity(text: str) -> Identity:
    return Identity(_value(text, "version").removeprefix("v"), _value(text, "build[_-]?id"))


def _ndk_identity(text: str) -> Identity:
    revision = re.search(r"^Pkg\.Revision\s*=\s*(\S+)", text, re.MULTILINE)
    return Identity(revision.group(1) if revision else "")


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            QNN_SDK,
            "QNN_SDK_ROOT",
            ("include/QNN", "lib/x86_64-linux-clang", "sdk.yaml"),
            metadata="sdk.yaml",
            read_identity=_sdk_identity,
            needed_by=("x86_64-linux", "aarch64-android", "aarch64-linux", "aarch64-windows"),
        ),
        Kind(
            ANDROID_NDK,
            "ANDROID_NDK_ROOT",
            ("source.properties", "toolchains"),
            all_landmarks=True,
            aliases=("ANDROID_NDK_HOME", "ANDROID_NDK"),
            metadata="source.properties",
            read_identity=_ndk_identity,
            # Folders are named by the release, r26c, or by the user.
            named_by_version=False,
            needed_by=("aarch64-android",),
        ),
        Kind(HEXAGON_SDK, "HEXAGON_SDK_ROOT", ("tools/elfsigner", "tools/HEXAGON_Tools")),
        Kind(
            EXECUTORCH_SOURCE,
            "EXECUTORCH_ROOT",
            ("backends/qualcomm", "CMakeLists.txt"),
            all_landmarks=True,
            metadata="version.txt",
            read_identity=lambda text: Identity(text.strip()),
            named_by_version=False,
            inside="executorch",
        ),
        Kind(EXECUTORCH_RUNTIME, "EXECUTORCH_RUNTIME_ROOT", ("share/cmake/executorch-config.cmake",)),
    )
}

COMPONENT_VARIABLES: Mapping[str, str] = {name: kind.variable for name, kind in KINDS.items()}


def identity_of(component: str, root: Path) -> Identity:
    """Version and build id in the component's own files. Raises PermissionError if one cannot be read."""
    kind = KINDS[component]
    return kind.read_identity(metadata_text(root / kind.metadata)) if kind.metadata else Identity()


def metadata_text(path: Path) -> str:
    """The beginning of a text file; empty where there is none, or something else, such as a pipe."""
    try:
        with open_regular(path) as stream:
            return stream.read(_MOST_TEXT).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENXIO):
            return ""
        raise


def ndk_name(revision: str) -> str:
    """Name the NDK by its letter too: 26.0 is r26, 26.1 r26b, 26.2 r26c."""
    match = re.fullmatch(r"(\d+)\.(\d)\.\d+", revision)
    if match is None:
        return revision
    letter = "" if match[2] == "0" else chr(ord("a") + int(match[2]))
    return f"r{match[1]}{letter} ({revision})"
