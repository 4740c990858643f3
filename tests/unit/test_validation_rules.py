"""Every rule of the catalogue: what makes it fire, and what keeps it silent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from provisioning.base.findings import Severity
from provisioning.loader_search import SystemLibraries
from provisioning.manifest import load_profile, soc_named
from provisioning.validation import Result, State, catalogue, check
from provisioning.validation.context import Context, Tree
from provisioning.validation.probe import Answer
from provisioning.validation.scan import libraries
from tests.support.elves import AARCH64, HEXAGON, X86_64, Library, skel
from tests.support.environments import (
    ANDROID,
    BUILD,
    LINUX,
    OTHER_BUILD,
    PIN,
    PROFILE,
    SOCS,
    X86,
    context_of,
    host,
    library,
    measured,
    users_tree,
    with_tool,
    write_ndk,
    write_sdk,
)

EXECUTORCH = load_profile(PROFILE).packages["executorch"]

Arrange = Callable[[Path], Context]


class Fault(NamedTuple):
    rule: str
    name: str
    arrange: Arrange
    subject: str
    says: str
    severity: Severity = Severity.ERROR


def result_of(rule: str, context: Context) -> Result:
    return check([context], [catalogue()[rule]])[0]


def placed(place: str, made: Library | bytes) -> Arrange:
    """The healthy environment with one library more, or another one in its place."""

    def arrange(base: Path) -> Context:
        path = write_sdk(base / "sdk") / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made if isinstance(made, bytes) else made.encode())
        return context_of(base)

    return arrange


def removed(*places: str) -> Arrange:
    def arrange(base: Path) -> Context:
        sdk = write_sdk(base / "sdk")
        for place in places:
            (sdk / place).unlink()
        return context_of(base)

    return arrange


def changed(**changes: Any) -> Arrange:
    return lambda base: context_of(base, **changes)


def environ(change: Callable[[Path], dict[str, str]]) -> Arrange:
    """The healthy environment with other variables in the user's shell."""

    def arrange(base: Path) -> Context:
        context = context_of(base)
        return replace(context, environ={**context.environ, **change(base)})

    return arrange


def library_path(*entries: str) -> Arrange:
    """`{sdk}` is the healthy SDK's host directory, `{base}` a directory of the test's."""

    def arrange(base: Path) -> Context:
        ours = base / "sdk" / "lib" / X86
        value = ":".join(entry.format(sdk=ours, base=base) for entry in entries)
        return environ(lambda _: {"LD_LIBRARY_PATH": value})(base)

    return arrange


def other_sdk_first(base: Path) -> Context:
    library("libQnnHtp.so").write(base / "other" / "lib" / X86 / "libQnnHtp.so")
    return library_path(f"{{base}}/other/lib/{X86}", "{sdk}")(base)


def other_sdk_alone(base: Path) -> Context:
    library("libQnnHtp.so").write(base / "other" / "lib" / X86 / "libQnnHtp.so")
    return library_path(f"{{base}}/other/lib/{X86}")(base)


def file_in_library_path(base: Path) -> Context:
    (base / "file").write_text("")
    return library_path("{sdk}", "{base}/file")(base)


def versioned_sdk(text: str) -> Arrange:
    def arrange(base: Path) -> Context:
        (write_sdk(base / "sdk") / "sdk.yaml").write_text(text)
        return context_of(base)

    return arrange


def sdk_in_directory_named(name: str) -> Arrange:
    def arrange(base: Path) -> Context:
        sdk = write_sdk(base / name)
        context = context_of(base)
        return replace(
            context, trees={**context.trees, "qnn-sdk": users_tree("qnn-sdk", "QNN_SDK_ROOT", sdk)}
        )

    return arrange


def ndk_of(revision: str) -> Arrange:
    def arrange(base: Path) -> Context:
        write_ndk(base / "ndk", revision)
        return context_of(base)

    return arrange


def no_ndk(base: Path) -> Context:
    (base / "ndk").mkdir(parents=True)
    return context_of(base)


def hexagon_sdk_named(version: str) -> Arrange:
    def arrange(base: Path) -> Context:
        path = base / "other" / version
        path.mkdir(parents=True)
        context = context_of(base)
        tree = users_tree("hexagon-sdk", "HEXAGON_SDK_ROOT", path)
        return replace(context, trees={**context.trees, "hexagon-sdk": tree})

    return arrange


def answered(answer: Answer) -> Arrange:
    return changed(answers={SOCS[0]: answer})


def stale_sdk_variable(base: Path) -> Context:
    context = context_of(base)
    sdk = replace(context.trees["qnn-sdk"], origin="store")
    return replace(
        context,
        trees={**context.trees, "qnn-sdk": sdk},
        environ={**context.environ, "QNN_SDK_ROOT": "/opt/elsewhere"},
    )


def foreign_only(base: Path) -> Context:
    """The only libfoo.so on the library path is of another machine."""
    Library(machine=AARCH64, soname="libfoo.so").write(base / "sdk2" / "libfoo.so")
    needing = Library(soname="libQnnSystem.so", needed=("libfoo.so",))
    context = placed(f"lib/{X86}/libQnnSystem.so", needing)(base)
    variables = {**context.variables, "LD_LIBRARY_PATH": str(base / "sdk2")}
    return replace(context, variables=variables)


def dangling_link(base: Path) -> Context:
    (write_sdk(base / "sdk") / "lib" / X86 / "libGone.so").symlink_to("libGone.so.1")
    return context_of(base)


ERROR_14001 = Answer(
    "backend",
    build_id=OTHER_BUILD,
    code=14001,
    detail="unknown custom config socModel 0",
    interpreter="python",
)

FAULTS = [
    Fault(
        "qnn-version",
        "sdk.yaml of another version",
        versioned_sdk("product: QAIRT\nversion: 2.31.0.250130\n"),
        "/sdk",
        f"sdk.yaml says 2.31.0.250130, profile qnn-2.48 pins {PIN.version}",
    ),
    Fault(
        "qnn-version",
        "directory of another version",
        sdk_in_directory_named("2.31.0.250130"),
        "/2.31.0.250130",
        "the directory's name says 2.31.0.250130",
    ),
    Fault(
        "qnn-version",
        "nothing that says the version",
        versioned_sdk(""),
        "/sdk",
        "has no sdk.yaml and no version in its name",
        Severity.WARNING,
    ),
    Fault(
        "qnn-build-id",
        "a library of another build",
        placed(f"lib/{X86}/libQnnHtp.so", Library(content=f"{OTHER_BUILD}\0".encode())),
        f"lib/{X86}/libQnnHtp.so",
        f"holds build id {OTHER_BUILD}, expected v{PIN.version} of profile qnn-2.48",
    ),
    Fault(
        "qnn-build-id",
        "an edited sdk.yaml",
        versioned_sdk(f"version: {PIN.version}\nbuild_id: v{PIN.version}999999\n"),
        "/sdk",
        f"libraries hold build id {BUILD}, expected v{PIN.version}999999 of sdk.yaml",
    ),
    Fault(
        "ndk-revision", "r26d for r26c", ndk_of("26.3.11579264"), "/ndk", "is r26d (26.3.11579264), profile"
    ),
    Fault(
        "ndk-revision", "r26b for r26c", ndk_of("26.1.10909125"), "/ndk", "is r26b (26.1.10909125), profile"
    ),
    Fault("ndk-revision", "a revision without a name", ndk_of("21.0.1"), "/ndk", "is 21.0.1, profile"),
    Fault("ndk-revision", "no NDK at all", no_ndk, "/ndk", "it is no Android NDK"),
    Fault(
        "hexagon-sdk-version",
        "an older one",
        hexagon_sdk_named("5.5.5.0"),
        "5.5.5.0",
        "the directory's name says 5.5.5.0, profile qnn-2.48 pins",
    ),
    Fault(
        "python-packages",
        "another torch",
        changed(host=host(packages={**load_profile("qnn-2.48").packages, "torch": "2.1.0+cpu"})),
        "torch",
        "is 2.1.0+cpu in this Python, profile qnn-2.48 pins",
    ),
    Fault(
        "python-packages",
        "no torchao",
        changed(host=host(packages={k: v for k, v in host().packages.items() if k != "torchao"})),
        "torchao",
        "is not installed",
    ),
    Fault("cmake-version", "too old", changed(host=with_tool("cmake", "3.25.1")), "cmake", "is 3.25.1"),
    Fault("cmake-version", "not there", changed(host=with_tool("cmake", None)), "cmake", "is not on PATH"),
    Fault(
        "cmake-version",
        "older than recommended",
        changed(host=with_tool("cmake", "3.31.2")),
        "cmake",
        "the project is tested with",
        Severity.NOTE,
    ),
    Fault(
        "compiler-version", "none", changed(host=host(tools={})), "compiler", "neither gcc nor clang is on"
    ),
    Fault(
        "compiler-version",
        "only an old gcc",
        changed(host=host(tools={"gcc": replace(host().tools["gcc"], version="8.5.0")})),
        "gcc",
        "is 8.5.0 (/usr/bin/gcc), at least",
    ),
    Fault(
        "python-version", "too old", changed(host=host(python="3.9.18")), "python", "is 3.9.18, at least 3.10"
    ),
    Fault("glibc-version", "too old", changed(host=host(glibc="2.31")), "glibc", "is 2.31, at least"),
    Fault(
        "glibc-version", "another C library", changed(host=host(glibc="")), "glibc", "this system has none"
    ),
    Fault(
        "host-os",
        "another system",
        changed(host=host(system="Darwin", machine="arm64")),
        "host",
        "is Darwin on arm64, expected Linux on x86_64",
    ),
    Fault(
        "host-os",
        "a distribution that nobody tested",
        changed(host=host(distribution="gentoo 2")),
        "host",
        "is gentoo 2, the project is tested on",
        Severity.NOTE,
    ),
    Fault(
        "required-libraries",
        "no offline compiler under either name",
        removed(f"lib/{X86}/libQnnHtpPrepare.so"),
        f"lib/{X86}",
        "lacks libHtpPrepare.so or libQnnHtpPrepare.so, which x86_64-linux needs",
    ),
    Fault(
        "required-libraries",
        "a target's directory is missing",
        removed(
            *(
                f"lib/{ANDROID}/{name}.so"
                for name in (
                    "libQnnHtp",
                    "libQnnSystem",
                    "libQnnLpai",
                    "libQnnLpaiStub",
                    "libQnnHtpV75Stub",
                    "libQnnHtpV81Stub",
                )
            )
        ),
        "/sdk",
        "has no lib/aarch64-android, which aarch64-android needs",
    ),
    Fault(
        "soc-libraries",
        "no skel of the arch",
        removed("lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"),
        "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so",
        "is not there, SM8650 (v75) needs it",
    ),
    Fault(
        "soc-libraries",
        "no stub of the arch",
        removed(f"lib/{LINUX}/libQnnHtpV81Stub.so"),
        f"lib/{LINUX}/libQnnHtpV81Stub.so",
        "is not there, SM8850 (v81) needs it on aarch64-linux",
    ),
    Fault(
        "lpai-libraries",
        "no LPAI skel",
        removed("lib/lpai-v6/unsigned/libQnnLpaiSkel.so"),
        "lib/lpai-v6/unsigned/libQnnLpaiSkel.so",
        "is not there, the LPAI v6 of SM8850 needs it",
    ),
    Fault(
        "one-build-id",
        "a skel of another SDK",
        placed("lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so", skel(75, OTHER_BUILD)),
        "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so",
        f"is of build {OTHER_BUILD}",
    ),
    Fault(
        "elf-readable",
        "truncated",
        placed(f"lib/{X86}/libQnnHtp.so", Library(soname="libQnnHtp.so").encode()[:-8]),
        f"lib/{X86}/libQnnHtp.so",
        "truncated",
    ),
    Fault(
        "elf-readable",
        "a web page",
        placed(f"lib/{X86}/libQnnHtp.so", b"<!DOCTYPE html><html>"),
        f"lib/{X86}/libQnnHtp.so",
        "it is a web page",
    ),
    Fault("elf-readable", "a link to nothing", dangling_link, f"lib/{X86}/libGone.so", "which is not there"),
    Fault(
        "elf-machine",
        "a host library among a device's",
        placed(f"lib/{ANDROID}/libQnnSystem.so", library("libQnnSystem.so", X86_64)),
        f"lib/{ANDROID}/libQnnSystem.so",
        "expected 64-bit AArch64, found 64-bit x86-64",
    ),
    Fault(
        "elf-machine",
        "a device library among the DSP's",
        placed("lib/hexagon-v75/unsigned/libQnnSystem.so", library("libQnnSystem.so", AARCH64)),
        "lib/hexagon-v75/unsigned/libQnnSystem.so",
        "expected 32-bit Hexagon, found 64-bit AArch64",
    ),
    Fault(
        "hexagon-arch",
        "a V79 skel pushed into hexagon-v75",
        placed("lib/hexagon-v75/unsigned/libQnnHtpV79Skel.so", skel(79, BUILD)),
        "lib/hexagon-v75/unsigned/libQnnHtpV79Skel.so",
        "is in hexagon-v75, its name says V79, its header says v79",
    ),
    Fault(
        "hexagon-arch",
        "a renamed skel",
        placed("lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so", skel(73, BUILD)),
        "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so",
        "is in hexagon-v75, its name says V75, its header says v73",
    ),
    Fault(
        "hexagon-arch",
        "a header without an arch",
        placed("lib/hexagon-v75/unsigned/libX.so", Library(machine=HEXAGON, flags=0)),
        "lib/hexagon-v75/unsigned/libX.so",
        "names no Hexagon arch in its header (e_flags 0x0)",
    ),
    Fault(
        "needed-resolved",
        "a library that nobody has",
        placed(
            f"lib/{X86}/libQnnSystem.so",
            Library(soname="libQnnSystem.so", needed=("libc++.so.1",), runpath="$ORIGIN/../b"),
        ),
        f"lib/{X86}/libQnnSystem.so",
        "needs libc++.so.1, which is nowhere in LD_LIBRARY_PATH",
    ),
    Fault(
        "needed-resolved",
        "only one of another machine",
        foreign_only,
        f"lib/{X86}/libQnnSystem.so",
        "passed over for another class or machine: ",
    ),
    Fault(
        "needed-resolved",
        "a device library that no device has",
        placed(f"lib/{LINUX}/libQnnHtp.so", library("libQnnHtp.so", AARCH64, needed=("libfoo.so",))),
        f"lib/{LINUX}/libQnnHtp.so",
        "needs libfoo.so, which is neither beside it nor among what aarch64-linux itself provides",
    ),
    Fault(
        "symbol-versions",
        "a newer glibc is needed",
        placed(f"lib/{X86}/libQnnHtp.so", library("libQnnHtp.so", versions={"libc.so.6": ["GLIBC_2.99"]})),
        f"lib/{X86}/libQnnHtp.so",
        "needs GLIBC_2.99 of libc.so.6, which ends at GLIBC_2.36",
    ),
    Fault(
        "symbol-versions",
        "a version without a number is needed",
        placed(
            f"lib/{X86}/libQnnHtp.so",
            library("libQnnHtp.so", versions={"libc.so.6": ["GLIBC_ABI_DT_RELR", "GLIBC_2.2.5"]}),
        ),
        f"lib/{X86}/libQnnHtp.so",
        "needs GLIBC_ABI_DT_RELR of libc.so.6, which does not define it",
    ),
    Fault(
        "symbol-versions",
        "a newer libstdc++ is needed",
        placed(
            f"lib/{X86}/libQnnSystem.so",
            library("libQnnSystem.so", versions={"libstdc++.so.6": ["GLIBCXX_3.4.31"]}),
        ),
        f"lib/{X86}/libQnnSystem.so",
        "needs GLIBCXX_3.4.31 of libstdc++.so.6",
    ),
    Fault(
        "needed-resolved",
        "a library that no target requires lacks one",
        placed(f"lib/{X86}/libX.so", Library(soname="libX.so", needed=("libc++.so.1",))),
        f"lib/{X86}/libX.so",
        "needs libc++.so.1",
        Severity.WARNING,
    ),
    Fault(
        "symbol-versions",
        "a library that no target requires is too new",
        placed(f"lib/{X86}/libX.so", library("libX.so", versions={"libc.so.6": ["GLIBC_2.99"]})),
        f"lib/{X86}/libX.so",
        "needs GLIBC_2.99",
        Severity.WARNING,
    ),
    Fault(
        "hexagon-arch",
        "a newer library without an arch in its name",
        placed("lib/hexagon-v75/unsigned/libX.so", Library(machine=HEXAGON, flags=0x79)),
        "lib/hexagon-v75/unsigned/libX.so",
        "is in hexagon-v75, its header says v79",
    ),
    Fault(
        "hexagon-arch",
        "an older library without an arch in its name",
        placed("lib/hexagon-v75/unsigned/libX.so", Library(machine=HEXAGON, flags=0x68)),
        "lib/hexagon-v75/unsigned/libX.so",
        "is in hexagon-v75, its header says v68",
        Severity.NOTE,
    ),
    Fault(
        "android-page-size",
        "pages of 4 KB",
        placed(f"lib/{ANDROID}/libQnnHtp.so", library("libQnnHtp.so", AARCH64, alignment=0x1000)),
        f"lib/{ANDROID}/libQnnHtp.so",
        "aligned to 0x4000, found 0x1000",
        Severity.WARNING,
    ),
    Fault(
        "android-api",
        "built for a newer Android",
        placed(f"lib/{ANDROID}/libQnnHtp.so", library("libQnnHtp.so", AARCH64, android_api=35)),
        f"lib/{ANDROID}/libQnnHtp.so",
        "Android API 30 at most, found 35",
    ),
    Fault(
        "text-relocations",
        "one has them",
        placed(f"lib/{X86}/libX.so", library("libX.so", textrel=True)),
        f"lib/{X86}/libX.so",
        "has text relocations",
    ),
    Fault(
        "executable-stack",
        "one asks for it",
        placed(f"lib/{X86}/libX.so", library("libX.so", execstack=True)),
        f"lib/{X86}/libX.so",
        "asks for an executable stack",
    ),
    Fault(
        "absolute-rpath",
        "a build directory",
        placed(f"lib/{X86}/libX.so", library("libX.so", runpath="$ORIGIN:/build/out/lib")),
        f"lib/{X86}/libX.so",
        "/build/out/lib",
        Severity.WARNING,
    ),
    Fault(
        "library-path-mixed",
        "a device's directory",
        library_path("{sdk}", "/opt/qairt/lib/aarch64-android"),
        "LD_LIBRARY_PATH",
        "/opt/qairt/lib/aarch64-android holds libraries of aarch64-android, not of this host",
    ),
    Fault(
        "library-path-mixed",
        "the DSP's directory",
        library_path("/opt/qairt/lib/hexagon-v75/unsigned", "{sdk}"),
        "LD_LIBRARY_PATH",
        "holds libraries of hexagon, not of this host",
    ),
    Fault(
        "library-path-order",
        "another SDK first",
        other_sdk_first,
        "LD_LIBRARY_PATH",
        "and both hold libQnnHtp",
    ),
    Fault("library-path-order", "another SDK alone", other_sdk_alone, "LD_LIBRARY_PATH", "is not among them"),
    Fault(
        "library-path-missing",
        "a directory that is not there",
        library_path("{sdk}", "{base}/nowhere"),
        "LD_LIBRARY_PATH",
        "/nowhere is not there",
        Severity.WARNING,
    ),
    Fault(
        "library-path-missing",
        "a file",
        file_in_library_path,
        "LD_LIBRARY_PATH",
        "/file is not a directory",
        Severity.WARNING,
    ),
    Fault(
        "library-path-missing",
        "an empty entry",
        library_path("{sdk}", ""),
        "LD_LIBRARY_PATH",
        "has an empty entry, which means the current directory",
        Severity.WARNING,
    ),
    Fault(
        "adsp-library-path",
        "separated by colons",
        environ(lambda _: {"ADSP_LIBRARY_PATH": "/data/local/tmp:/vendor/dsp"}),
        "ADSP_LIBRARY_PATH",
        "is separated by `:`, FastRPC splits at `;`",
    ),
    Fault(
        "sdk-root-empty",
        "QNN_SDK_ROOT set to nothing",
        environ(lambda _: {"QNN_SDK_ROOT": ""}),
        "QNN_SDK_ROOT",
        "is set but empty",
    ),
    Fault(
        "variables-contradict",
        "two NDKs",
        environ(lambda _: {"ANDROID_NDK_HOME": "/opt/android-ndk-r28c"}),
        "ANDROID_NDK_HOME",
        "is /opt/android-ndk-r28c, ANDROID_NDK_ROOT is",
    ),
    Fault(
        "variables-contradict",
        "two profiles",
        environ(lambda _: {"QNN_CI_PROFILE": "wheels"}),
        "QNN_CI_PROFILE",
        "is wheels, and --profile qnn-2.48 was chosen",
        Severity.WARNING,
    ),
    Fault(
        "variables-contradict",
        "a variable of another shell",
        stale_sdk_variable,
        "QNN_SDK_ROOT",
        "is /opt/elsewhere, and profile qnn-2.48 uses",
        Severity.WARNING,
    ),
    Fault(
        "compiler-answers",
        "a pair that does not work",
        answered(ERROR_14001),
        "SM8650",
        "creating an HTP device failed with 14001, invalid device configuration",
    ),
    Fault(
        "compiler-answers",
        "no adaptor",
        answered(Answer("adaptor", detail="ModuleNotFoundError: PyQnnManagerAdaptor")),
        "SM8650",
        "has no working QNN adaptor: ModuleNotFoundError",
    ),
    Fault(
        "compiler-answers",
        "libraries that do not load",
        answered(Answer("build id", detail="libc++.so.1: cannot open")),
        "SM8650",
        "cannot load libQnnHtp.so",
    ),
    Fault(
        "compiler-answers",
        "a fault that is known",
        answered(Answer("build id", detail="libc++.so.1: cannot open shared object file")),
        "SM8650",
        "need libc++, libc++abi and libunwind, which this host lacks",
    ),
    Fault(
        "compiler-answers",
        "a chip that it does not know",
        answered(Answer("soc", detail="this executorch does not know the chip SM1")),
        "SM8650",
        "does not know the chip",
    ),
    Fault(
        "compiler-answers",
        "another fault of QNN",
        answered(Answer("backend", code=1008, detail="Stub lib id mismatch")),
        "SM8650",
        "creating an HTP device failed with 1008: Stub lib id mismatch",
    ),
    Fault(
        "compiler-answers",
        "libraries of another SDK answered",
        answered(Answer("device", made_device=True, build_id=OTHER_BUILD)),
        "SM8650",
        f"the compiler loaded QNN {OTHER_BUILD}, which is not in",
    ),
    Fault(
        "qnn-compat",
        "a pair measured as broken",
        changed(measured=measured(BUILD, "unknown custom config socModel 0")),
        BUILD,
        "and broken: device: unknown custom config socModel 0",
    ),
    Fault(
        "qnn-compat",
        "a pair nobody measured",
        changed(measured=measured(OTHER_BUILD)),
        BUILD,
        "it was not measured with executorch",
        Severity.WARNING,
    ),
    Fault(
        "qnn-compat",
        "measured with another executorch",
        changed(host=host(packages={"executorch": "1.4.0"})),
        BUILD,
        "it was not measured with executorch 1.4.0",
        Severity.WARNING,
    ),
]

SILENT: dict[str, list[tuple[str, Arrange]]] = {
    "qnn-version": [
        ("sdk.yaml agrees", context_of),
        ("the directory's name agrees", sdk_in_directory_named(PIN.version)),
        ("fewer digits of the same version", versioned_sdk("version: '2.48.0'\n")),
    ],
    "qnn-build-id": [("all libraries hold it", context_of)],
    "ndk-revision": [("the pinned one", context_of)],
    "hexagon-sdk-version": [("the pinned one", context_of)],
    "python-packages": [
        ("the pinned ones", context_of),
        ("a CPU build", changed(host=host(packages={n: f"{v}+cpu" for n, v in host().packages.items()}))),
    ],
    "cmake-version": [("new enough", context_of), ("newer", changed(host=with_tool("cmake", "4.2.0")))],
    "compiler-version": [
        ("both", context_of),
        ("a good clang beside an old gcc", changed(host=with_tool("gcc", "8.5.0"))),
        ("gcc alone", changed(host=with_tool("clang", None))),
    ],
    "python-version": [("new enough", context_of), ("a candidate", changed(host=host(python="3.15.0rc1")))],
    "glibc-version": [("new enough", context_of)],
    "host-os": [("as tested", context_of)],
    "required-libraries": [
        ("all there", context_of),
        (
            "the wheels' name of the offline compiler",
            placed(f"lib/{X86}/libHtpPrepare.so", library("libSnpeHtp.so")),
        ),
    ],
    "soc-libraries": [("stub and skel of each arch", context_of)],
    "lpai-libraries": [("all there", context_of)],
    "one-build-id": [
        ("one build", context_of),
        (
            "a library of others without an id",
            placed(f"lib/{X86}/libc++.so.1", Library(soname="libc++.so.1")),
        ),
    ],
    "elf-readable": [
        ("whole files", context_of),
        ("a linker script", placed(f"lib/{X86}/libX.so", b"INPUT(-lfoo)")),
    ],
    "elf-machine": [
        ("each in its place", context_of),
        ("a directory that nobody described", placed("lib/mips/libX.so", Library(machine=8))),
    ],
    "hexagon-arch": [("one arch each", context_of)],
    "needed-resolved": [
        ("on the system", context_of),
        (
            "beside it by RUNPATH",
            placed(f"lib/{X86}/libX.so", Library(needed=("libQnnSystem.so",), runpath="$ORIGIN")),
        ),
    ],
    "symbol-versions": [
        ("none", context_of),
        ("old enough", placed(f"lib/{X86}/libX.so", Library(versions={"libc.so.6": ["GLIBC_2.2.5"]}))),
    ],
    "android-page-size": [("16 KB, and skels of 4 KB", context_of)],
    "android-api": [("the project's level", context_of)],
    "text-relocations": [("none", context_of)],
    "executable-stack": [("none", context_of)],
    "absolute-rpath": [("only $ORIGIN", context_of)],
    "library-path-mixed": [
        ("only the host's", context_of),
        ("directories of others", library_path("{sdk}", "/usr/lib/aarch64-android-tools")),
    ],
    "library-path-order": [
        ("ours first", context_of),
        ("ours after one without QNN", library_path("/usr/lib", "{sdk}")),
    ],
    "library-path-missing": [
        ("all there", context_of),
        ("an entry for the loader to fill in", library_path("{sdk}", "$ORIGIN/lib")),
    ],
    "adsp-library-path": [("semicolons", context_of)],
    "sdk-root-empty": [
        ("set to a directory", context_of),
        ("not set", lambda base: replace(context_of(base), environ={})),
    ],
    "variables-contradict": [
        ("they agree", context_of),
        (
            "by another name of the same directory",
            environ(lambda base: {"ANDROID_NDK": f"{base}/sdk/../ndk"}),
        ),
    ],
    "compiler-answers": [("a device of the SDK's build", context_of)],
    "qnn-compat": [
        ("a pair that works", context_of),
        ("a local version of it", changed(host=host(packages={"executorch": EXECUTORCH + "+cpu"}))),
        ("no executorch installed: the profile's", changed(host=host(packages={}))),
    ],
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.rule}: {fault.name}")
def test_a_rule_fires_on_its_fault(fault: Fault, tmp_path: Path) -> None:
    findings = result_of(fault.rule, fault.arrange(tmp_path)).findings
    assert [
        (fault.subject in finding.subject, fault.says in finding.message, finding.severity)
        for finding in findings[:1]
    ] == [(True, True, fault.severity)], findings


@pytest.mark.parametrize(
    ("rule", "arrange"),
    [pytest.param(rule, arrange, id=f"{rule}: {name}") for rule, c in SILENT.items() for name, arrange in c],
)
def test_a_rule_is_silent_where_nothing_is_wrong(rule: str, arrange: Arrange, tmp_path: Path) -> None:
    result = result_of(rule, arrange(tmp_path))
    # Not applicable would be silent too, and would prove nothing.
    assert (result.state, result.findings) == (State.PASS, ())


def test_every_rule_has_a_fault_that_makes_it_fire() -> None:
    assert {fault.rule for fault in FAULTS} == set(catalogue())


def test_every_rule_has_a_case_that_keeps_it_silent() -> None:
    assert set(SILENT) == set(catalogue())


def test_a_healthy_environment_passes_every_rule(tmp_path: Path) -> None:
    results = check([context_of(tmp_path)], catalogue().values())
    assert {result.rule.id: result.findings for result in results if result.state is not State.PASS} == {}


def bare(base: Path) -> Context:
    """A directory that is no SDK, named by --tree."""
    (base / "bare").mkdir()
    context = context_of(base)
    return replace(
        context,
        trees={"qnn-sdk": Tree(base / "bare", "tree")},
        libraries=(),
        environ={},
        answers={},
        targets=(),
    )


NOT_APPLICABLE: list[tuple[str, Arrange]] = [
    *[
        (rule, bare)
        for rule, rule_ in catalogue().items()
        if rule_.reads_tree
        or rule in ("qnn-version", "ndk-revision", "hexagon-sdk-version", "compiler-answers")
        or rule in ("library-path-mixed", "library-path-order", "library-path-missing", "adsp-library-path")
    ],
    ("soc-libraries", changed(targets=("x86_64-linux",))),
    ("compiler-answers", changed(answers={})),
    ("lpai-libraries", changed(socs={"SM8650": soc_named("SM8650")})),
    ("symbol-versions", changed(system_libraries=SystemLibraries())),
]


@pytest.mark.parametrize(("rule", "arrange"), NOT_APPLICABLE)
def test_a_rule_without_anything_to_look_at_says_so(rule: str, arrange: Arrange, tmp_path: Path) -> None:
    result = result_of(rule, arrange(tmp_path))
    assert (result.state, bool(result.reason), result.findings) == (State.NOT_APPLICABLE, True, ())


@pytest.mark.parametrize(
    ("rule", "arrange", "reason"),
    [
        (
            "compiler-answers",
            answered(Answer("absent", detail="executorch is not installed")),
            "is not installed",
        ),
        ("python-packages", changed(host=host(packages={})), "none of executorch, torch, torchao"),
        ("cmake-version", changed(host=with_tool("cmake", "")), "does not say its version"),
        ("qnn-build-id", changed(libraries=()), "holds a QNN build id"),
        ("one-build-id", changed(libraries=()), "holds a QNN build id"),
        ("hexagon-sdk-version", hexagon_sdk_named("latest"), "holds no version"),
        ("glibc-version", changed(host=None), "was not looked at"),
    ],
)
def test_a_rule_that_cannot_look_warns_and_does_not_pass(
    rule: str, arrange: Arrange, reason: str, tmp_path: Path
) -> None:
    result = result_of(rule, arrange(tmp_path))
    assert result.state is State.COULD_NOT_RUN
    assert [(f.severity, reason in f.message, bool(f.remedy)) for f in result.findings] == [
        (Severity.WARNING, True, True)
    ]


def test_a_profile_of_wheels_names_those_that_carry_the_target(tmp_path: Path) -> None:
    shutil.rmtree(write_sdk(tmp_path / "sdk") / "lib" / ANDROID)
    context = context_of(tmp_path, profile=load_profile("wheels"))
    (finding,) = result_of("required-libraries", context).findings
    assert finding.remedy == "use an official SDK, which has all targets: --profile qnn-2.37 or qnn-2.48"


def test_a_missing_directory_is_told_once(tmp_path: Path) -> None:
    shutil.rmtree(write_sdk(tmp_path / "sdk") / "lib" / ANDROID)
    results = check([context_of(tmp_path)], [catalogue()["required-libraries"], catalogue()["soc-libraries"]])
    assert [len(result.findings) for result in results] == [1, 0]


def test_outside_an_sdk_every_library_counts(tmp_path: Path) -> None:
    Library(soname="libX.so", needed=("libfoo.so",)).write(tmp_path / "package" / "libX.so")
    found = tuple(libraries(tmp_path / "package"))
    (finding,) = result_of("needed-resolved", context_of(tmp_path, libraries=found)).findings
    assert finding.severity is Severity.ERROR


def test_the_searched_paths_are_in_the_finding(tmp_path: Path) -> None:
    context = placed(
        f"lib/{X86}/libX.so", Library(soname="libX.so", needed=("libfoo.so",), rpath="$ORIGIN/../../extra")
    )(tmp_path)
    (finding,) = result_of("needed-resolved", context).findings
    sdk = tmp_path / "sdk"
    assert finding.message == (
        f"needs libfoo.so, which is nowhere in RPATH {sdk / 'extra'}, LD_LIBRARY_PATH {sdk / 'lib' / X86},"
        f" the loader's cache, {tmp_path / 'system'}"
    )


def test_a_directory_of_the_library_path_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = library_path("{sdk}", "{base}")(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    (finding,) = result_of("library-path-missing", context).findings
    assert finding.message == f"{tmp_path} cannot be read by this user"
