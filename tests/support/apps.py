"""Small Android packages. No index has QNN's Android libraries, so these are small ELF files with the real
ones' name, build id, NDK note and alignment."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.elves import AARCH64, Library, skel
from tests.support.programs import BUILD_ID


def library(name: str, *needed: str, build: str = BUILD_ID) -> bytes:
    content = build.encode() + b"\0"
    return Library(
        AARCH64, needed=("libc.so", *needed), content=content, soname=name, alignment=0x4000, android_api=29
    ).encode()


def qnn(arch: int = 75, build: str = BUILD_ID) -> dict[str, bytes]:
    """Name → bytes of what an app needs for one HTP arch."""
    names = ("libQnnHtp.so", "libQnnSystem.so", f"libQnnHtpV{arch}Stub.so")
    held = {name: library(name, build=build) for name in names}
    return {**held, f"libQnnHtpV{arch}Skel.so": skel(arch, build).encode()}


def in_abi(libraries: Mapping[str, bytes], folder: str = "lib/arm64-v8a") -> dict[str, bytes]:
    return {f"{folder}/{name}": data for name, data in libraries.items()}


def package(path: Path, members: Mapping[str, bytes]) -> Path:
    """An APK or AAR."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {"AndroidManifest.xml": b"\3\0\b\0", **members}.items():
            archive.writestr(name, data)
    return path
