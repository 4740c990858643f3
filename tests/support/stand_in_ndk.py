"""An Android NDK in the official layout with only what the miniature tree needs, made by clang and lld.

Its programs are Android's by every header. They also run under qemu, on a device root that `make_device_root`
puts together from the cross compiler's C library: it has the names that Android's loader would have.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from provisioning.base.settings import ROOT
from tests.support.elves import AARCH64, Library
from tests.support.scripts import script

SOURCE = ROOT / "tests" / "support" / "ndk_tree"
REVISION = "26.2.11394342"
API = 30
GLIBC = Path("/usr/aarch64-linux-gnu/lib")


CLANG = """\
case "$*" in
--version) echo "Android (a stand-in) clang version 17.0.2" ;;
-print-resource-dir) echo {llvm}/lib/clang/17 ;;
*) exec {program} "$@" ;;
esac"""
"""What it says of itself is Android's; it compiles by this machine's clang."""


def make_ndk(root: Path, revision: str = REVISION, api: int = API) -> Path:
    llvm = root / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64"
    sysroot = llvm / "sysroot"
    shutil.copytree(SOURCE / "build", root / "build")
    shutil.copytree(SOURCE / "sysroot" / "include", sysroot / "usr" / "include")
    properties = (SOURCE / "source.properties").read_text(encoding="utf-8")
    (root / "source.properties").write_text(properties.replace(REVISION, revision), encoding="utf-8")
    (root / "NOTICE").write_text("What is in the stand-in is of this project.\n", encoding="utf-8")
    (llvm / "bin").mkdir()
    for name in ("clang", "clang++", "ld.lld"):
        program = shutil.which(name)
        assert program is not None, "the stand-in NDK needs clang: apt-get install clang lld"
        if name == "ld.lld":
            (llvm / "bin" / name).symlink_to(program)
        else:
            script(llvm / "bin" / name, CLANG.format(llvm=llvm, program=program))
    library = Library(machine=AARCH64, soname="libc++_shared.so")
    library.write(sysroot / "usr" / "lib" / "aarch64-linux-android" / "libc++_shared.so")
    _make_libraries(sysroot / "usr" / "lib" / "aarch64-linux-android" / str(API), api)
    return root


def make_device_root(root: Path) -> Path:
    """What qemu-aarch64 -L needs to run what the NDK made."""
    loader = root / "system" / "bin" / "linker64"
    loader.parent.mkdir(parents=True)
    shutil.copy2((GLIBC / "ld-linux-aarch64.so.1").resolve(), loader)
    libraries = root / "system" / "lib64"
    libraries.mkdir()
    for name, real in (("libc.so", "libc.so.6"), ("libdl.so", "libdl.so.2")):
        shutil.copy2((GLIBC / real).resolve(), libraries / name)
    # Its own C library knows its loader by this name.
    shutil.copy2(loader, libraries / "ld-linux-aarch64.so.1")
    shutil.copy2((GLIBC / "libc.so.6").resolve(), libraries / "libc.so.6")
    return root


def _make_libraries(into: Path, api: int) -> None:
    source = SOURCE / "sysroot" / "lib"
    into.mkdir(parents=True)
    for name, parts in {
        "crtbegin_dynamic.o": ("crtbegin.S", "start.S"),
        "crtbegin_so.o": ("crtbegin.S",),
        "crtend_android.o": (),
        "crtend_so.o": (),
    }.items():
        text = "\n".join((source / part).read_text(encoding="utf-8") for part in parts)
        assembly = into / f"{name}.S"
        assembly.write_text(text.replace("API", str(api)), encoding="utf-8")
        _clang("-c", str(assembly), "-o", str(into / name))
        assembly.unlink()
    for name in ("libc", "libdl"):
        flags = ("-shared", "-nostdlib", "-fuse-ld=lld", "-fno-builtin", f"-Wl,-soname,{name}.so")
        _clang(*flags, str(source / f"{name}.c"), "-o", str(into / f"{name}.so"))


def _clang(*arguments: str) -> None:
    subprocess.run(["clang", f"--target=aarch64-linux-android{API}", *arguments], check=True)
