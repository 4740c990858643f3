"""The kinds of component: a name, and one row each with all that is peculiar to it; the build id of QNN's
files; and the user's own installation, which is read, never copied or changed.

Which version a profile takes, and from where, is in the profile's `[components.NAME]`.
"""

from __future__ import annotations

import errno
import mmap
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provisioning.base.commands import Fix, interview, quote_command
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import open_regular
from provisioning.base.settings import user_path

ComponentName = Literal["qnn-sdk", "android-ndk", "hexagon-sdk", "executorch-source", "executorch-runtime"]

QNN_SDK: ComponentName = "qnn-sdk"
ANDROID_NDK: ComponentName = "android-ndk"
NDK_PREBUILT = Path("toolchains/llvm/prebuilt/linux-x86_64")
NDK_RUNTIME = Path("sysroot/usr/lib/aarch64-linux-android/libc++_shared.so")
"""The runtime library's path below NDK_PREBUILT."""
NDK_TOOLCHAIN = Path("build/cmake/android.toolchain.cmake")
HEXAGON_SDK: ComponentName = "hexagon-sdk"
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
    reads: Callable[[str], Identity] = lambda text: Identity()
    """Reads that file's text."""
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
            reads=_sdk_identity,
            needed_by=("x86_64-linux", "aarch64-android", "aarch64-linux", "aarch64-windows"),
        ),
        Kind(
            ANDROID_NDK,
            "ANDROID_NDK_ROOT",
            ("source.properties", "toolchains"),
            all_landmarks=True,
            aliases=("ANDROID_NDK_HOME", "ANDROID_NDK"),
            metadata="source.properties",
            reads=_ndk_identity,
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
            reads=lambda text: Identity(text.strip()),
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
    return kind.reads(metadata_text(root / kind.metadata)) if kind.metadata else Identity()


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


ANSWER_SECONDS = 20.0
"""How long a program may take to say its version; a compiler on a busy machine takes less."""


def version_line(program: Path) -> tuple[str, str]:
    """The first line that a program prints of itself for `--version`; else why there is none."""
    import subprocess

    try:
        process = interview([program, "--version"], ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return "", f"it gave no answer within {ANSWER_SECONDS:g} s"
    except OSError as error:
        return "", error.strerror or str(error)
    if process.returncode == -signal.SIGXFSZ:
        return "", "it prints without end"
    lines = process.stdout.splitlines()
    if lines and not process.returncode:
        return lines[0].strip(), ""
    words = (process.stderr.strip() or process.stdout.strip()).splitlines()
    return "", f"it ended with exit code {process.returncode}" + (f": {words[-1][:200]}" if words else "")


def ndk_name(revision: str) -> str:
    """Name the NDK by its letter too: 26.0 is r26, 26.1 r26b, 26.2 r26c."""
    match = re.fullmatch(r"(\d+)\.(\d)\.\d+", revision)
    if match is None:
        return revision
    letter = "" if match[2] == "0" else chr(ord("a") + int(match[2]))
    return f"r{match[1]}{letter} ({revision})"


BUILD_ID = re.compile(rb"v2\.\d{1,3}\.\d{1,3}\.\d{12}(?:_\d+)?")
_PIECES = (
    re.compile(rb"\0(2\d[01]\d[0-3]\d[0-2]\d[0-5]\d[0-5]\d(?:_\d+)?)(?=\0)"),
    re.compile(rb"AISW_VERSION: (\d+\.\d+\.\d+)(?![\d.])"),
)
"""These patterns are searched one by one, since a pattern that begins in one way alone is found six times as
fast."""


def version_in(build_id: str) -> str:
    """`2.49.40`."""
    return ".".join(build_id.removeprefix("v").split(".")[:3])


def build_ids(path: Path) -> tuple[str, ...]:
    """Every distinct id in the file, in order. One pass over a map of it: 98 MB take 35 ms, no memory."""
    return _distinct(path, BUILD_ID)


def build_pieces(path: Path) -> tuple[str, ...]:
    """Return what a library without an id tells of its build: the end, `260810104044`, or a version,
    `2.49.40`.

    libQnnSystem.so has the first, libGenie.so and libQnnHtpNetRunExtensions.so the second."""
    return _distinct(path, *_PIECES)


def is_piece_of(piece: str, build_id: str) -> bool:
    """Whether a library with this piece may be of the build; `build_id` may lack its end."""
    version = version_in(build_id)
    end = build_id.removeprefix(f"v{version}").removeprefix(".")
    return piece == version if "." in piece else piece.startswith(end)


def _distinct(path: Path, *patterns: re.Pattern[bytes]) -> tuple[str, ...]:
    if path.stat().st_size == 0:
        return ()
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        matches = (match[match.lastindex or 0] for pattern in patterns for match in pattern.finditer(content))
        return tuple(sorted({match.decode() for match in matches}))


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
        _check(component, path, where, variable)
    except PermissionError as error:
        raise EnvironmentLacking(
            f"{where}: cannot be read ({error.filename or path})",
            fix=quote_command("chmod", "-R", "u+rX", path),
        ) from error
    path = path.resolve()
    by_name = _version_in(path.name) if KINDS[component].named_by_version else ""
    return Adopted(path, identity_of(component, path).version or by_name)


def is_root(component: str, path: Path) -> bool:
    kind = KINDS[component]
    return (all if kind.all_landmarks else any)((path / landmark).exists() for landmark in kind.landmarks)


def _check(component: str, path: Path, where: str, variable: str) -> None:
    if not path.exists():
        trouble = "there is no such folder"
    elif path.is_file():
        trouble = "is a file, expected a folder; if it is an archive, unpack it"
    else:
        names = sorted(entry.name for entry in path.iterdir())
        if is_root(component, path):
            return
        text = ", ".join(names[:6]) + (", …" if len(names) > 6 else "") if names else "nothing"
        trouble = f"is not the root of {component}: expected {_landmark_words(component)} in it, found {text}"
    near = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
    right = _nearby(component, near) if near != Path("/") else None
    raise EnvironmentLacking(f"{where}: {trouble}", fix=_export(variable, right))


def _landmark_words(component: str) -> str:
    kind = KINDS[component]
    return (" and " if kind.all_landmarks else " or ").join(kind.landmarks)


def _export(variable: str, right: Path | None) -> str:
    if right is None:
        return Fix("correct {}, or unset it and run `{}`", variable, ("provision",))
    return f"export {variable}={quote_command(right)}"


def _nearby(component: str, path: Path) -> Path | None:
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


def _version_in(name: str) -> str:
    match = re.search(r"\d+(?:\.\d+)+", name)
    return match.group() if match else ""
