"""A healthy environment made of small files, for tests to spoil in one place each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from provisioning.base.settings import TARGETS
from provisioning.components import ELFSIGNER, NDK_PREBUILT, NDK_RUNTIME, NDK_TOOLCHAIN
from provisioning.manifest import load_profile, soc_named
from provisioning.qnn_libraries import Library as Found
from provisioning.qnn_libraries import libraries_in, read
from provisioning.validation.compiler_probe import Answer
from provisioning.validation.context import ComponentTree, Context, Host, loading_of, read_tree
from provisioning.validation.ndk import LINKED, SYSROOT
from tests.support.elves import AARCH64, HEXAGON, X86_64, Library, skel
from tests.support.scripts import script
from tests.support.windows import dll

PROFILE = "qnn-2.48"
PIN = load_profile(PROFILE).components["qnn-sdk"]
NDK = load_profile(PROFILE).components["android-ndk"].version
BUILD = f"v{PIN.version}121212"
OTHER_BUILD = "v2.31.0.250130151446_114721"
SOCS = ("SM8650", "SM8850", "SC8440XP")
ARCHES = (75, 81)
X86, ANDROID, LINUX = "x86_64-linux-clang", "aarch64-android", "aarch64-oe-linux-gcc11.2"


_READ: dict[bytes, Found] = {}


def scanned(root: Path) -> tuple[Found, ...]:
    """The tree's libraries. Each content is read once in a test run: environments differ in a file or two."""

    def read_once(path: Path, place: str) -> Found:
        content = path.read_bytes() if path.is_file() else b""
        if content not in _READ:
            _READ[content] = read(path, place)
        return replace(_READ[content], path=path, place=place)

    return tuple(libraries_in(root, read_once))


def library(name: str, machine: int = X86_64, **more: Any) -> Library:
    """One of QNN's own libraries."""
    return Library(**{"machine": machine, "soname": name, "content": f"{BUILD}\0".encode(), **more})


def write_sdk(root: Path) -> Path:
    """A QNN SDK in the official layout, for all targets and the arches of SOCS."""
    (root / "lib" / "python" / "qti").mkdir(parents=True)
    (root / "include" / "QNN").mkdir(parents=True)
    (root / "include" / "QNN" / "QnnInterface.h").touch()
    (root / "sdk.yaml").write_text(f"product: QAIRT\nversion: {PIN.version}\nbuild_id: {BUILD}\n")
    for name in ("libQnnHtp.so", "libQnnHtpPrepare.so", "libQnnSystem.so"):
        library(name, needed=("libc.so.6",), runpath="$ORIGIN").write(root / "lib" / X86 / name)
    devices = {
        ANDROID: {"needed": ("libc.so", "libcdsprpc.so"), "alignment": 0x4000, "android_api": 30},
        LINUX: {"needed": ("libc.so.6", "libcdsprpc.so"), "alignment": 0x10000},
    }
    stubs = [f"libQnnHtpV{arch}Stub.so" for arch in ARCHES]
    for directory, more in devices.items():
        for name in ("libQnnHtp.so", "libQnnSystem.so", "libQnnLpai.so", "libQnnLpaiStub.so", *stubs):
            library(name, AARCH64, **more).write(root / "lib" / directory / name)
    for arch in ARCHES:
        place = root / "lib" / f"hexagon-v{arch}" / "unsigned"
        skel(arch, BUILD, needed=("libc++.so.1",)).write(place / f"libQnnHtpV{arch}Skel.so")
    for name in ("QnnHtp.dll", "QnnSystem.dll", *(f"QnnHtpV{arch}Stub.dll" for arch in ARCHES)):
        place = root / "lib" / "aarch64-windows-msvc" / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(dll(content=f"{BUILD}\0".encode()))
    library("libQnnLpaiSkel.so", HEXAGON, flags=0x81).write(root / "lib/lpai-v6/unsigned/libQnnLpaiSkel.so")
    return root


CLANG = """\
case "$*" in
*-dumpmachine*) echo aarch64-unknown-linux-android30 ;;
*-print-resource-dir*) echo {root}/lib/clang/17 ;;
*) echo "Android (10552028, based on r487747d) clang version 17.0.2" ;;
esac"""


def write_ndk(root: Path, revision: str = NDK) -> Path:
    clang = root / NDK_PREBUILT / "bin" / "clang++"
    clang.parent.mkdir(parents=True)
    for compiler in (clang, clang.with_name("clang")):
        script(compiler, CLANG.format(root=root / NDK_PREBUILT))
    script(clang.with_name("ld.lld"), "echo LLD 17.0.2")
    (root / NDK_PREBUILT / "AndroidVersion.txt").write_text("17.0.2\nbased on r487747d\n")
    library("libc++_shared.so", AARCH64, content=b"").write(root / NDK_PREBUILT / NDK_RUNTIME)
    for name in LINKED:
        content = b"\0LIBC\0LIBC_R\0" if name == "libc.so" else b""
        library(name, AARCH64, content=content).write(root / SYSROOT / "30" / name)
    (root / NDK_TOOLCHAIN).parent.mkdir(parents=True)
    (root / NDK_TOOLCHAIN).write_text("if(NOT DEFINED ANDROID_ABI)\n  set(ANDROID_ABI arm64-v8a)\nendif()\n")
    (root / "source.properties").write_text(f"Pkg.Desc = Android NDK\nPkg.Revision = {revision}\n")
    return root


def write_elfsigner(hexagon: Path) -> None:
    place = hexagon / ELFSIGNER
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("print('signed')\n")


_LOOKED_AT: dict[tuple[str, str, tuple[object, ...]], ComponentTree] = {}


def users_tree(component: str, variable: str, path: Path) -> ComponentTree:
    """A tree of the user's. Each content is looked at once in a test run: an NDK's programs are started."""
    key = component, variable, tuple(_content(path))
    if key not in _LOOKED_AT:
        _LOOKED_AT[key] = replace(read_tree(component, path, "directory", variable), differs_from_official=())
    return replace(_LOOKED_AT[key], path=path)


def _content(root: Path) -> Iterator[object]:
    """Yield what decides the findings: names, modes, owners, and bytes without the tree's own place."""
    yield root.name
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        yield str(path.relative_to(root)), status.st_mode, status.st_uid
        if path.is_symlink():
            yield str(path.readlink())
        elif path.is_file():
            yield path.read_bytes().replace(bytes(root), b"ROOT")


def host(**changes: Any) -> Host:
    """A host that has what is needed."""
    profile = load_profile(PROFILE)
    return replace(
        Host(
            system="Linux",
            machine="x86_64",
            glibc=profile.host["glibc"],
            compiler="g++",
            packages=dict(profile.packages),
        ),
        **changes,
    )


def context_of(base: Path, **changes: Any) -> Context:
    """Everything as it should be, for what `base` holds: sdk, ndk, Hexagon_SDK/<version>."""
    sdk = base / "sdk" if (base / "sdk").is_dir() else write_sdk(base / "sdk")
    ndk = base / "ndk" if (base / "ndk").is_dir() else write_ndk(base / "ndk")
    hexagon = base / "Hexagon_SDK" / load_profile(PROFILE).components["hexagon-sdk"].version
    write_elfsigner(hexagon)
    host_libraries = sdk / "lib" / X86
    environ: Mapping[str, str] = {
        "QNN_SDK_ROOT": str(sdk),
        "LD_LIBRARY_PATH": str(host_libraries),
        "ADSP_LIBRARY_PATH": "/opt/qnn;/vendor/dsp/cdsp",
        "ANDROID_NDK_ROOT": str(ndk),
        "ANDROID_NDK_HOME": str(ndk),
        "PYTHONPATH": str(base / "own"),
    }
    context = Context(
        profile=load_profile(PROFILE),
        targets=TARGETS,
        socs={name: soc_named(name) for name in SOCS},
        trees={
            "qnn-sdk": users_tree("qnn-sdk", "QNN_SDK_ROOT", sdk),
            "android-ndk": users_tree("android-ndk", "ANDROID_NDK_ROOT", ndk),
            "hexagon-sdk": users_tree("hexagon-sdk", "HEXAGON_SDK_ROOT", hexagon),
        },
        environ=environ,
        variables=environ,
        libraries=scanned(sdk),
        host=host(),
        loading=loading_of(changes.get("libraries", scanned(sdk)), environ),
        answers={name: Answer("device", made_device=True, build_id=BUILD) for name in SOCS},
    )
    return replace(context, **changes)
