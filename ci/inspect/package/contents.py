"""What a package holds, read from its files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ci.artifacts.bounds import Malformed
from ci.artifacts.compiled_onnx import CONTEXT_OPERATOR, CompiledModel, read_model
from ci.artifacts.dlc import MARK, contexts_by_chip
from ci.artifacts.program import (
    CONTEXT_MARK,
    IDENTIFIER,
    CompiledProgram,
    ContextStrings,
    bytes_of,
    first_bytes,
    read,
)
from ci.inspect.package.android_xml import elements
from provisioning import elf
from provisioning.archive import DEFAULT, extract
from provisioning.archive.reader import STORED, Zip
from provisioning.base.errors import ArchiveError, CheckFailed, UsageError
from provisioning.build_id import BUILD_ID, build_ids

ABIS = {
    "arm64-v8a": elf.AARCH64,
    "armeabi-v7a": "EM_ARM",
    "x86": "EM_386",
    "x86_64": elf.X86_64,
}
"""The machine of each of Android's ABIs."""

PHONES = "arm64-v8a"
MANIFEST = "AndroidManifest.xml"
DIALOG = "genie_config.json"
ARCHIVES = {".apk": "app", ".aar": "library for apps"}
_OTHER_ARCHIVES = {
    ".aab": "bundletool build-apks --mode=universal, and name the universal.apk in what it writes",
    ".apks": "unzip it, and name the folder of its APKs",
    ".xapk": "unzip it, and name the folder of its APKs",
}
_HELD = re.compile(
    r"(?:assets|res/raw)/.+|.+\.(?:so|pte|bin|dlc|onnx|serialized|json)|" + re.escape(MANIFEST)
)
_STUB_OR_SKEL = re.compile(r"libQnnHtpV(\d{2,3})(Stub|Skel)\.so")


@dataclass(frozen=True, slots=True)
class AppManifest:
    min_sdk: int
    target_sdk: int
    extracted: bool
    """Whether Android unpacks the libraries into a folder when it installs the app."""
    native_libraries: tuple[str, ...]
    """Of the phone, that the app asks for by `uses-native-library`."""


@dataclass(frozen=True, slots=True)
class PackagedLibrary:
    place: str
    elf: elf.Elf | None
    """None for a damaged one; `why` then says how."""
    builds: tuple[str, ...]
    """QNN's."""
    why: str = ""
    compressed: bool = False
    offset: int | None = None
    """Where it begins in an APK that holds it uncompressed."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.place).name

    @property
    def abi(self) -> str:
        """The folder of an APK or AAR that it lies in; empty elsewhere."""
        folder = PurePosixPath(self.place).parent
        return folder.name if folder.parent.name in ("lib", "jni") else ""

    def arch_of(self, half: str) -> int | None:
        """The HTP arch of a `Stub` or `Skel`; None for any other library."""
        match = _STUB_OR_SKEL.fullmatch(self.name)
        return int(match[1]) if match and match[2] == half else None

    @property
    def of_dsp(self) -> bool:
        return self.elf is not None and self.elf.machine == elf.HEXAGON


@dataclass(frozen=True, slots=True)
class PackagedModel:
    place: str
    kind: str
    contents: CompiledProgram | CompiledModel | ContextStrings


@dataclass(frozen=True, slots=True)
class Package:
    path: Path
    kind: str
    manifest: AppManifest | None = None
    libraries: tuple[PackagedLibrary, ...] = ()
    models: tuple[PackagedModel, ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Place → why a file that looks like a model is none."""
    dialogs: tuple[Path, ...] = ()
    """Genie's configurations, while the package is open."""
    root: Path = Path()
    """Where its files can be read, while it is open."""


def is_package(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() in (*ARCHIVES, *_OTHER_ARCHIVES)


@contextmanager
def opened(path: Path) -> Iterator[Package]:
    """Raises CheckFailed for a damaged one, UsageError for one that is not read here."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder", fix="name an APK, an AAR or a folder")
    if fix := _OTHER_ARCHIVES.get(path.suffix.lower()):
        raise UsageError(f"{path}: expected an APK, an AAR or a folder, found {path.suffix}", fix=fix)
    with tempfile.TemporaryDirectory() as temporary:
        if not path.is_dir():
            yield _read(path, ARCHIVES[path.suffix.lower()], {"": path}, Path(temporary))
            return
        apks = {f"{apk.name}/": apk for apk in sorted(path.glob("*.apk"))}
        if apks:
            yield _read(path, f"app in {len(apks)} APKs", apks, Path(temporary))
        else:
            yield _read(path, "folder", {}, path)


def _read(path: Path, kind: str, archives: Mapping[str, Path], root: Path) -> Package:
    packed: dict[str, tuple[bool, int | None]] = {}
    for prefix, archive in archives.items():
        packed |= _unpack(archive, prefix, root)
    # Regular files alone: a link may lead out of the package, and a pipe never ends.
    files = (file for file in sorted(root.rglob("*")) if file.is_file() and not file.is_symlink())
    places = [file.relative_to(root).as_posix() for file in files]
    if not places:
        raise CheckFailed(f"{path}: expected libraries or models in it, found none", fix="name another one")
    libraries = [_library(root, place, packed.get(place)) for place in places if place.endswith(".so")]
    models: list[PackagedModel] = []
    damaged: dict[str, str] = {}
    for place in places:
        try:
            if (model := _model(root, place)) is not None:
                models.append(model)
        except (CheckFailed, Malformed, ValueError) as error:
            damaged[place] = str(error).removeprefix(f"{root / place}: ")
    return Package(
        path,
        kind,
        _manifest(path, root, archives),
        tuple(libraries),
        tuple(models),
        damaged,
        tuple(root / place for place in places if PurePosixPath(place).name == DIALOG),
        root,
    )


def _unpack(archive: Path, prefix: str, root: Path) -> dict[str, tuple[bool, int | None]]:
    """Where each member begins and whether it is compressed, by its place."""

    def place(name: str) -> str | None:
        return f"{prefix}{name}" if _HELD.fullmatch(name) and not name.endswith("/") else None

    try:
        extract(archive, root, place)
        with Zip(archive, most_members=DEFAULT.members) as opened_zip:
            return {
                f"{prefix}{member.name}": (member.method != STORED, opened_zip.data_start(member))
                for member in opened_zip.members
                if member.name.endswith(".so")
            }
    except ArchiveError as error:
        raise CheckFailed(error.message, fix="build or download it again") from error


def _library(root: Path, place: str, packed: tuple[bool, int | None] | None) -> PackagedLibrary:
    compressed, offset = packed or (False, None)
    try:
        header = elf.read(root / place)
    except elf.NotElf as error:
        return PackagedLibrary(place, None, (), error.reason, compressed, offset)
    ids = build_ids(root / place)
    return PackagedLibrary(place, header, ids, "", compressed, None if compressed else offset)


def _model(root: Path, place: str) -> PackagedModel | None:
    """None for any other file."""
    path = root / place
    head = first_bytes(path)
    if path.suffix == ".onnx":
        if CONTEXT_OPERATOR.encode() not in bytes_of(path):
            return None  # Compiled on the device, if at all.
        return PackagedModel(place, "ONNX", read_model(path))
    if head[4:8] == IDENTIFIER or path.suffix == ".pte":
        return PackagedModel(place, "ExecuTorch program", read(path))
    if head.startswith(MARK):
        contexts = contexts_by_chip(bytes_of(path)) if path.suffix == ".dlc" else {}
        return PackagedModel(place, "DLC", _joined(contexts)) if contexts else None
    named = path.suffix in (".bin", ".serialized")
    if head.startswith(CONTEXT_MARK) or (named and BUILD_ID.search(bytes_of(path))):
        return PackagedModel(place, "QNN context", read(path))
    return None


def _joined(contexts: Mapping[str, bytes]) -> ContextStrings:
    """A flexible context as one that is for several chips."""
    from ci.artifacts.bounds import Budget
    from ci.artifacts.program import context_of

    parts = [context_of(memoryview(data), Budget(len(data))) for data in contexts.values()]
    return ContextStrings(
        size=sum(part.size for part in parts),
        build_ids=tuple(sorted({build for part in parts for build in part.build_ids})),
        socs=tuple(sorted({soc for part in parts for soc in part.socs})),
        arches=tuple(sorted({arch for part in parts for arch in part.arches})),
        vtcm_bytes=tuple(sorted({size for part in parts for size in part.vtcm_bytes})),
        graphs=tuple(sorted({graph for part in parts for graph in part.graphs})),
        half_floats=all(part.half_floats for part in parts),
    )


def _manifest(path: Path, root: Path, archives: Mapping[str, Path]) -> AppManifest | None:
    """Of all APKs together: a split says nothing of libraries, its base does."""
    min_sdk, target_sdk, extracted, names = 1, 0, True, list[str]()
    for prefix in archives:
        file = root / f"{prefix}{MANIFEST}"
        if not file.is_file():
            raise CheckFailed(
                f"{path}: expected {MANIFEST} in {prefix or path.name}, found none", fix="build it again"
            )
        try:
            for element in elements(file.read_bytes()):
                attributes = element.attributes
                if element.path == "manifest/uses-sdk":
                    min_sdk = max(min_sdk, _number(attributes.get("minSdkVersion"), 1))
                    target_sdk = max(target_sdk, _number(attributes.get("targetSdkVersion"), 0))
                elif element.path == "manifest/application":
                    extracted = extracted and attributes.get("extractNativeLibs", True) is not False
                elif element.path == "manifest/application/uses-native-library":
                    names.append(str(attributes.get("name", "")))
        except Malformed as error:
            raise CheckFailed(f"{path}: {prefix}{MANIFEST}: found {error}", fix="build it again") from error
    return AppManifest(min_sdk, target_sdk or min_sdk, extracted, tuple(names)) if archives else None


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) else default
