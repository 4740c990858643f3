"""Small Android packages. aapt writes the manifest; no index has QNN's Android libraries, so these are small
ELF files with the real ones' name, build id, NDK note and alignment: by our own writer or by lld."""

from __future__ import annotations

import struct
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.elves import AARCH64, Library, skel
from tests.support.needs import program
from tests.support.programs import BUILD_ID

FRAMEWORK = "/usr/share/android-framework-res/framework-res.apk"
PAGE = 0x4000
FASTRPC = '<uses-native-library android:name="libcdsprpc.so" android:required="false"/>'
MANIFEST = "AndroidManifest.xml"


def manifest(inside: str = FASTRPC, *, target: int = 34, unpacked: bool = True, split: str = "") -> str:
    return f"""<?xml version="1.0" encoding="utf-8"?>
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="example.net"{split}>
  <uses-sdk android:minSdkVersion="29" android:targetSdkVersion="{target}"/>
  <application android:extractNativeLibs="{str(unpacked).lower()}">{inside}</application>
</manifest>
"""


def library(name: str, *needed: str, build: str = BUILD_ID, **more: object) -> bytes:
    values = {"soname": name, "alignment": PAGE, "android_api": 29, **more}
    content = build.encode() + b"\0"
    return Library(AARCH64, needed=("libc.so", *needed), content=content, **values).encode()  # type: ignore[arg-type]


def qnn(arch: int = 75, build: str = BUILD_ID) -> dict[str, bytes]:
    """Name → bytes of what an app needs for one HTP arch."""
    names = ("libQnnHtp.so", "libQnnSystem.so", f"libQnnHtpV{arch}Stub.so")
    held = {name: library(name, build=build) for name in names}
    return {**held, f"libQnnHtpV{arch}Skel.so": skel(arch, build).encode()}


_SOURCE = """\
const char build[] = "{build}";
__asm__(".section .note.android.ident,\\"a\\",@note\\n.balign 4\\n.long 8, 132, 1\\n.asciz \\"Android\\"\\n"
        ".long 29\\n.ascii \\"r26c\\"\\n.zero 60\\n.ascii \\"11394342\\"\\n.zero 56\\n");
"""


def linked(folder: Path, *names: str, build: str = BUILD_ID) -> dict[str, bytes]:
    """Name → bytes of Android libraries that clang and lld make: as `library`, with sections and symbols."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [program("clang++"), "--target=aarch64-linux-android29", "-shared", "-fPIC", "-nostdlib"]
    command += ["-fuse-ld=lld", "-xc", "-Wl,--no-as-needed", f"-Wl,-z,max-page-size={PAGE}"]
    for name in ("libc.so", *names):
        source = folder / f"{name}.c"
        source.write_text(_SOURCE.format(build=build), encoding="utf-8")
        needed = ["-xnone", str(folder / "libc.so")] if name in names else []
        words = [*command, f"-Wl,-soname,{name}", "-o", str(folder / name), str(source), *needed]
        subprocess.run(words, check=True, capture_output=True)
    return {name: (folder / name).read_bytes() for name in names}


def in_abi(libraries: Mapping[str, bytes], folder: str = "lib/arm64-v8a") -> dict[str, bytes]:
    return {f"{folder}/{name}": data for name, data in libraries.items()}


def binary_manifest(text: str, folder: Path) -> bytes:
    """The binary form of a manifest, by aapt."""
    folder.mkdir(parents=True, exist_ok=True)
    source, made = folder / MANIFEST, folder / "made.apk"
    source.write_text(text, encoding="utf-8")
    command = [program("aapt"), "package", "-f", "-M", str(source), "-I", FRAMEWORK, "-F", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(made) as archive:
        return archive.read(MANIFEST)


def package(
    path: Path, manifest_data: bytes, members: Mapping[str, bytes], *, packed: bool = False, page: int = PAGE
) -> Path:
    """An APK or AAR; `packed` compresses its libraries, `page` aligns those that are not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {MANIFEST: manifest_data, **members}.items():
            info = zipfile.ZipInfo(name)
            stored = name.endswith(".so") and not packed
            info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            if stored and archive.fp is not None:
                start = archive.fp.tell() + 30 + len(name.encode())
                info.extra = _padding(-start % page, page)
            archive.writestr(info, data)
    return path


def _padding(size: int, page: int) -> bytes:
    """An extra field of this size, which is at least its own head."""
    size += page if 0 < size < 4 else 0
    return struct.pack("<HH", 0xD935, size - 4) + bytes(size - 4) if size else b""
