"""Every rule of the catalogue: what makes it fire, and what keeps it silent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Severity
from provisioning.build_ids import version_in
from provisioning.components import NDK_PREBUILT, NDK_RUNTIME, NDK_TOOLCHAIN
from provisioning.dist import BuiltFrom, describe, description_of
from provisioning.executorch import Executorch
from provisioning.manifest import load_profile, soc_named
from provisioning.source_tree import state_of
from provisioning.stage_variables import Note
from provisioning.store import Store
from provisioning.store.inventory import definition_of
from provisioning.validation import Result, State, catalogue, check
from provisioning.validation.compiler_probe import Answer
from provisioning.validation.context import ComponentTree, Context
from provisioning.validation.ndk import SYSROOT
from tests.support.elves import AARCH64, HEXAGON, X86_64, Library, skel
from tests.support.environments import (
    ANDROID,
    BUILD,
    LINUX,
    OTHER_BUILD,
    PROFILE,
    SOCS,
    X86,
    context_of,
    library,
    users_tree,
    write_elfsigner,
    write_ndk,
    write_sdk,
)
from tests.support.environments import host as this_host
from tests.support.http_server import FileServer
from tests.support.sdk_archives import component, sdk_zip, tree_at
from tests.support.windows import dll

DLL = "lib/aarch64-windows-msvc/QnnHtp.dll"
STUB = f"lib/{ANDROID}/libQnnHtpV75Stub.so"

Arrange = Callable[[Path], Context]


def result_of(rule: str, context: Context) -> Result:
    return check([context], [catalogue()[rule]])[0]


def placed(place: str, content: Library | bytes) -> Arrange:
    """The healthy environment with one library more, or another one in its place."""

    def arrange(base: Path) -> Context:
        path = write_sdk(base / "sdk") / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return context_of(base)

    return arrange


def host(name: str, **more: Any) -> Arrange:
    """One of the host's libraries, as it should not be."""
    return placed(f"lib/{X86}/{name}", library(name, **more))


def android(**more: Any) -> Arrange:
    return placed(f"lib/{ANDROID}/libQnnHtp.so", library("libQnnHtp.so", AARCH64, **more))


def dsp(name: str, content: Library) -> Arrange:
    return placed(f"lib/hexagon-v75/unsigned/{name}", content)


def machine(**changes: Any) -> Arrange:
    return changed(host=this_host(**changes))


def removed(*places: str) -> Arrange:
    def arrange(base: Path) -> Context:
        sdk = write_sdk(base / "sdk")
        for place in places:
            (sdk / place).unlink()
        return context_of(base)

    return arrange


def changed(**changes: Any) -> Arrange:
    return lambda base: context_of(base, **changes)


def environ(variables: dict[str, str]) -> Arrange:
    """The healthy environment with other variables in the user's shell."""

    def arrange(base: Path) -> Context:
        context = context_of(base)
        return replace(context, environ={**context.environ, **variables})

    return arrange


def versioned_sdk(text: str) -> Arrange:
    def arrange(base: Path) -> Context:
        (write_sdk(base / "sdk") / "sdk.yaml").write_text(text)
        return context_of(base)

    return arrange


CLANG = str(NDK_PREBUILT / "bin" / "clang++")
CLANG_OF_C = str(NDK_PREBUILT / "bin" / "clang")
LLD = str(NDK_PREBUILT / "bin" / "ld.lld")
SYSROOT_LIBC = str(SYSROOT / "30" / "libc.so")
LIBC_OF_34 = library("libc.so", AARCH64, content=b"\0LIBC_R\0LIBC_S\0LIBC_T\0LIBC_U\0").encode()


def disguised(otherwise: str, version: str = "17.0.2") -> bytes:
    """Another compiler that calls itself Android's clang."""
    says = f'echo "Android (1, based on r1) clang version {version}"'
    return f'#!/bin/sh\ncase "$*" in\n--version) {says};;\n*) {otherwise or "true"};;\nesac\n'.encode()


CRTBEGIN = str(SYSROOT / "30" / "crtbegin_so.o")
UNABLE = disguised(
    "case $* in *-dumpmachine*|*-resource-dir*) ;; *) echo error: no stdio.h >&2; exit 1;; esac"
)
"""A compiler that lacks what a program needs."""

MACHO = bytes.fromhex("cffaedfe 07000001 03000000")
"""Of a program for macOS."""


def spoilt_ndk(place: str, content: bytes | None) -> Arrange:
    """The healthy environment, whose NDK has other bytes there, or lacks the file."""

    def arrange(base: Path) -> Context:
        file = write_ndk(base / "ndk") / place
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        return context_of(base)

    return arrange


def ndk_of_macos(base: Path) -> Context:
    folder = write_ndk(base / "ndk") / NDK_PREBUILT
    folder.rename(folder.with_name("darwin-x86_64"))
    return context_of(base)


def glibc_in_android(base: Path) -> Context:
    """What somebody gets who copies the folder of Linux over that of Android."""
    sdk = write_sdk(base / "sdk")
    for file in (sdk / "lib" / LINUX).iterdir():
        shutil.copy(file, sdk / "lib" / ANDROID)
    return context_of(base)


def python_path(*adaptor: str) -> Arrange:
    """A folder executorch/ on PYTHONPATH, with these files."""

    def arrange(base: Path) -> Context:
        for file in ("__init__.py", *adaptor):
            place = base / "src" / "executorch" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        return environ({"PYTHONPATH": f"{base}/src"})(base)

    return arrange


def module_on_the_path(name: str, archive: str = "") -> Arrange:
    """A file on PYTHONPATH, in a folder or an archive, where torch is installed."""

    def arrange(base: Path) -> Context:
        place = base / "src" / name
        place.parent.mkdir(parents=True)
        place.touch()
        if archive:
            shutil.make_archive(str(base / archive), "zip", base / "src")
        context = environ({"PYTHONPATH": f"{base}/{f'{archive}.zip' if archive else 'src'}"})(base)
        names = frozenset({"torch", "random"})
        return replace(context, host=replace(context.host, modules=names, regular_packages=names))

    return arrange


def sdk_with(**facts: Any) -> Arrange:
    """A tree of the user's of which this was found."""

    def arrange(base: Path) -> Context:
        context = context_of(base)
        return replace(
            context, trees={**context.trees, "qnn-sdk": replace(context.trees["qnn-sdk"], **facts)}
        )

    return arrange


own_sdk_was_upgraded = sdk_with(change="was 2.37.0 at its first use, and is 2.48.0 now")


def without_headers(base: Path) -> Context:
    (write_sdk(base / "sdk") / "include" / "QNN" / "QnnInterface.h").unlink()
    return context_of(base)


def writable_by_all(base: Path) -> Context:
    (write_sdk(base / "sdk") / "lib" / X86 / "libQnnHtp.so").chmod(0o666)
    return context_of(base)


def properties_are_a_pipe(base: Path) -> Context:
    (properties := write_ndk(base / "ndk") / "source.properties").unlink()
    os.mkfifo(properties)
    return context_of(base)


def ndk_of(revision: str) -> Arrange:
    def arrange(base: Path) -> Context:
        write_ndk(base / "ndk", revision)
        return context_of(base)

    return arrange


def hexagon_sdk_named(version: str, *, signs: bool = True) -> Arrange:
    def arrange(base: Path) -> Context:
        path = base / "other" / version
        path.mkdir(parents=True)
        if signs:
            write_elfsigner(path)
        context = context_of(base)
        tree = users_tree("hexagon-sdk", "HEXAGON_SDK_ROOT", path)
        return replace(context, trees={**context.trees, "hexagon-sdk": tree})

    return arrange


def answered(answer: Answer) -> Arrange:
    return changed(answers={SOCS[0]: answer})


def no_constraints(base: Path) -> Context:
    (write_sdk(base / "sdk") / "lib" / "python" / "qti").rmdir()
    return context_of(base)


NAMED = load_profile(PROFILE).components["qnn-sdk"].version
PACKAGES = dict(this_host().packages)
HTP, SYSTEM, SKEL = f"lib/{X86}/libQnnHtp.so", f"lib/{X86}/libQnnSystem.so", "libQnnHtpV75Skel.so"
IN_DSP = "lib/hexagon-v75/unsigned"
LIBC = ("libc.so.6",)
TOO_NEW = {"libc.so.6": ["GLIBC_2.99"]}
WITHOUT_NUMBER = {"libc.so.6": ["GLIBC_ABI_OF_NOBODY", "GLIBC_2.2.5"]}
OTHER_ERROR = Answer("backend", code=1008, detail="Stub lib id mismatch")


def forged_tree(base: Path) -> Context:
    """A tree of the store that is consistent in itself, and has none of the files that are pinned."""
    profile = load_profile("wheels")
    inventory = replace(
        tree_at(base).inventory,
        definition=definition_of("qnn-sdk", profile.pins["qnn-sdk"]),
        targets=("x86_64-linux",),
    )
    root = base / "store" / "trees" / "qnn-sdk-2.49"
    root.mkdir(parents=True)
    root.with_name(f"{root.name}.json").write_text(inventory.to_json())
    return replace(context_of(base), profile=profile, trees={"qnn-sdk": ComponentTree(root, "store")})


def tree_made_here(base: Path) -> tuple[Context, Path]:
    """A tree that the store made itself, and one of its files."""
    files = sdk_zip(base / "sdk.zip")
    with FileServer(files) as server:
        sdk = component(server.url("/sdk.zip"), files)
        tree = Store(base / "store").provision("qnn-sdk", sdk)
    assert Store(base / "store").is_proved(tree)
    context = replace(context_of(base), trees={"qnn-sdk": ComponentTree(tree.root, "store")})
    return context, tree.root / HTP


def flipped_bit(base: Path) -> Context:
    """Its length, mode and times are as before."""
    context, file = tree_made_here(base)
    status = file.stat()
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    file.chmod(0o444)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return context


def replaced_library(base: Path) -> Context:
    context, file = tree_made_here(base)
    library("libQnnHtp.so", content=f"{OTHER_BUILD}\0".encode()).write(base / "other.so")
    (base / "other.so").replace(file)
    return context


def of_another_date(name: str = "libQnnSystem.so") -> Arrange:
    """libQnnSystem.so holds no whole id, but its end alone."""
    return host(name, content=b"\x0049\0" + OTHER_BUILD.rpartition(".")[2].encode() + b"\0Text")


def of_another_version(base: Path) -> Context:
    return host("libGenie.so", content=b"\0AISW_VERSION: 2.31.0\0")(base)


ERRORS: list[tuple[str, str, Arrange]] = [
    ("store-tree", "qnn-sdk-2.49", forged_tree),
    ("store-tree", "qnn-sdk-2.37", flipped_bit),
    ("store-tree", "qnn-sdk-2.37", replaced_library),
    ("qnn-build-id", SYSTEM, of_another_date()),
    ("one-build-id", SYSTEM, of_another_date()),
    ("one-build-id", "libGenie.so", of_another_version),
    ("pe-machine", DLL, placed(DLL, dll(0x8664))),
    ("elf-readable", DLL, placed(DLL, dll()[:200])),
    ("qnn-build-id", DLL, placed(DLL, dll(content=f"{OTHER_BUILD}\0".encode()))),
    ("one-build-id", DLL, placed(DLL, dll(content=f"{OTHER_BUILD}\0".encode()))),
    ("qnn-version", "/sdk", versioned_sdk("product: QAIRT\nversion: 2.31.0.250130\n")),
    ("ndk-revision", "/ndk", ndk_of("26.3.11579264")),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, None)),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, b"")),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, MACHO)),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, Library(machine=AARCH64, program=True).encode())),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, b"#!/bin/sh\nexit 1\n")),
    ("ndk-usable", "/ndk", spoilt_ndk(str(NDK_TOOLCHAIN), None)),
    ("ndk-usable", "/ndk", spoilt_ndk(str(NDK_TOOLCHAIN), b"")),
    ("ndk-usable", "/ndk", spoilt_ndk(str(NDK_PREBUILT / NDK_RUNTIME), None)),
    ("ndk-usable", "/ndk", spoilt_ndk(str(NDK_PREBUILT / NDK_RUNTIME), Library().encode())),
    ("ndk-usable", "/ndk", spoilt_ndk(str(NDK_PREBUILT / NDK_RUNTIME), b"")),
    ("ndk-usable", "/ndk", ndk_of_macos),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, b"#!/bin/sh\necho g++ 12.2.0")),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, b"#!/bin/sh\necho Debian clang version 14.0.6")),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, disguised('exec g++ "$@"'))),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, disguised("echo /usr/lib/llvm-14/lib/clang/14"))),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, disguised("", "18.0.1"))),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG_OF_C, None)),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG_OF_C, b"#!/bin/sh\necho gcc 12.2.0")),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG_OF_C, disguised("", "17.0.3"))),
    ("ndk-usable", "/ndk", spoilt_ndk(LLD, None)),
    ("ndk-usable", "/ndk", spoilt_ndk(LLD, b"#!/bin/sh\necho GNU ld 2.40")),
    ("ndk-usable", "/ndk", spoilt_ndk(str(NDK_TOOLCHAIN), b"if(ANDROID)\n")),
    ("ndk-usable", "/ndk", spoilt_ndk(SYSROOT_LIBC, None)),
    ("ndk-usable", "/ndk", spoilt_ndk(SYSROOT_LIBC, Library().encode())),
    ("ndk-usable", "/ndk", spoilt_ndk(SYSROOT_LIBC, LIBC_OF_34)),
    ("ndk-usable", "/ndk", spoilt_ndk(CRTBEGIN, library("", AARCH64, android_api=34).encode())),
    ("ndk-usable", "/ndk", spoilt_ndk(str(NDK_TOOLCHAIN), b"if(ANDROID)\nendif()\nset(ANDROID_ABI")),
    ("ndk-usable", "/ndk", spoilt_ndk(CLANG, UNABLE)),
    ("text-relocations", "libX.so", host("libX.so", writable_code=True)),
    ("official-files", "/sdk", sdk_with(differs_from_official=("sdk.yaml: changed",))),
    ("required-libraries", "/sdk", without_headers),
    ("system-library", "libstdc++.so.6", host("libstdc++.so.6")),
    ("library-name", STUB, placed(STUB, library("", AARCH64))),
    ("qnn-build-id", "libQnnHtp.so", android(content=b"")),
    ("elf-machine", f"lib/{ANDROID}/", glibc_in_android),
    ("python-path", "PYTHONPATH", python_path()),
    ("python-path", "PYTHONPATH", module_on_the_path("torch.py")),
    ("python-path", "PYTHONPATH", module_on_the_path("random.cpython-311-x86_64-linux-gnu.so")),
    ("python-path", "PYTHONPATH", module_on_the_path("torch/__init__.py")),
    ("python-path", "PYTHONPATH", module_on_the_path("torch/__init__.py", archive="packed")),
    ("ndk-revision", "/ndk", properties_are_a_pipe),
    ("elf-machine", "libX.so", host("libX.so", program=True)),
    ("hexagon-sdk-version", "5.5.5.0", hexagon_sdk_named("5.5.5.0")),
    ("hexagon-sdk-version", "6.5.0.0", hexagon_sdk_named("6.5.0.0", signs=False)),
    ("python-packages", "torch", machine(packages={**PACKAGES, "torch": "2.1.0+cpu"})),
    ("cxx-compiler", "compiler", machine(compiler="")),
    ("glibc-version", "glibc", machine(glibc="2.31")),
    ("host-os", "host", machine(system="Darwin", machine="arm64")),
    ("required-libraries", f"lib/{X86}", removed(f"lib/{X86}/libQnnHtpPrepare.so")),
    ("soc-known", "SM7950", changed(socs={"SM7950": soc_named("SM7950")})),
    ("soc-libraries", f"{IN_DSP}/{SKEL}", removed(f"{IN_DSP}/{SKEL}")),
    ("lpai-libraries", "libQnnLpaiSkel.so", removed("lib/lpai-v6/unsigned/libQnnLpaiSkel.so")),
    ("elf-readable", HTP, placed(HTP, Library(soname="libQnnHtp.so").encode()[:-8])),
    ("library-name", STUB, placed(STUB, library("libQnnHtpV81Stub.so", AARCH64))),
    ("library-name", DLL, placed(DLL, dll(name="QnnSystem.dll"))),
    ("elf-machine", f"lib/{ANDROID}/libX.so", placed(f"lib/{ANDROID}/libX.so", library("libX.so", X86_64))),
    ("elf-machine", f"{IN_DSP}/libX.so", dsp("libX.so", library("libX.so", AARCH64))),
    ("hexagon-arch", "libQnnHtpV79Skel.so", dsp("libQnnHtpV79Skel.so", skel(79, BUILD))),
    ("needed-resolved", SYSTEM, host("libQnnSystem.so", needed=("libc++.so.1",), runpath="$ORIGIN/../b")),
    ("needed-resolved", "libQnnHtp.so", android(needed=("libfoo.so",))),
    # It needs a version of a library that it does not need.
    ("needed-resolved", HTP, host("libQnnHtp.so", versions=TOO_NEW)),
    ("symbol-versions", HTP, host("libQnnHtp.so", needed=LIBC, versions=TOO_NEW)),
    ("symbol-versions", HTP, host("libQnnHtp.so", needed=LIBC, versions=WITHOUT_NUMBER)),
    ("android-api", f"lib/{ANDROID}/libQnnHtp.so", android(android_api=35)),
    ("text-relocations", "libX.so", host("libX.so", textrel=True)),
    ("executable-stack", "libX.so", host("libX.so", execstack=True)),
    ("compiler-answers", OTHER_BUILD, answered(Answer("backend", build_id=OTHER_BUILD, code=14001))),
    ("compiler-answers", "SM8650", answered(OTHER_ERROR)),
    ("compiler-answers", "SM8650", answered(Answer("device", made_device=True, build_id=OTHER_BUILD))),
    (
        "compiler-answers",
        "SM8650",
        answered(Answer("program", made_device=True, compiles=False, build_id=BUILD)),
    ),
    ("user-variables", "ADSP_LIBRARY_PATH", changed(notes=(Note("split at both", "ADSP_LIBRARY_PATH"),))),
]
WARNINGS: list[tuple[str, str, Arrange]] = [
    ("python-path", "PYTHONPATH", module_on_the_path("sitecustomize.py")),
    ("qnn-version", "/sdk", versioned_sdk("")),
    ("qnn-version", "/sdk", sdk_with(versions={"directory": NAMED})),
    ("own-tree", "/sdk", own_sdk_was_upgraded),
    ("open-files", "/sdk", writable_by_all),
    ("open-files", "/sdk", sdk_with(open_to_others=("user 1234 can change sdk.yaml",))),
    ("needed-resolved", "libX.so", host("libX.so", needed=("libc++.so.1",))),
    ("symbol-versions", "libX.so", host("libX.so", needed=LIBC, versions=TOO_NEW)),
    ("android-page-size", "libQnnHtp.so", android(alignment=0x1000)),
    ("absolute-rpath", "libX.so", host("libX.so", runpath="$ORIGIN:/build/out/lib")),
    ("compiler-answers", "", answered(Answer("probe", detail="FileNotFoundError: 'flatc'"))),
]


def built_from_source(base: Path) -> Context:
    """Stages take executorch from the overlay of another release's tree."""
    (base / "overlay").mkdir()
    (base / "tree").mkdir()
    describe(base / "overlay", BuiltFrom(base / "tree", "qnn-2.48", state_of(base / "tree")))
    own = machine(packages={**PACKAGES, "executorch": "1.5.0+cff6f4d"})(base)
    overlay = base / "overlay"
    return replace(own, executorch=Executorch(description_of(overlay), overlay))


def built_before_an_edit(base: Path) -> Context:
    context = built_from_source(base)
    (base / "tree" / "CMakeLists.txt").touch()
    return context


ERRORS.append(("python-packages", "executorch", built_before_an_edit))
NOTES: list[tuple[str, str, Arrange]] = [
    ("python-packages", "executorch", built_from_source),
    ("hexagon-arch", "libX.so", dsp("libX.so", Library(machine=HEXAGON, flags=0x68))),
    ("quantization-constraints", "sdk", no_constraints),
]
FIRING = [
    pytest.param(rule, subject, arrange, severity, id=f"{rule} {severity.value} {index}")
    for severity, cases in {Severity.ERROR: ERRORS, Severity.WARNING: WARNINGS, Severity.NOTE: NOTES}.items()
    for index, (rule, subject, arrange) in enumerate(cases)
]

SILENT: list[tuple[str, Arrange]] = [
    ("store-tree", lambda base: tree_made_here(base)[0]),
    (
        "one-build-id",
        host("libQnnSystem.so", content=b"\x0049\0" + BUILD.rpartition(".")[2].encode() + b"\0Text"),
    ),
    ("one-build-id", host("libGenie.so", content=f"AISW_VERSION: {version_in(BUILD)}\0".encode())),
    # Another library's date and version are not of QNN.
    ("one-build-id", host("libX.so", content=b"\x00260101101010\0AISW_VERSION: 1.0.0\0")),
    # Beside the healthy environment, in which every rule is silent.
    ("python-packages", machine(packages={name: f"{version}+cpu" for name, version in PACKAGES.items()})),
    ("user-variables", changed(notes=(Note("executorch is what build_x86 built"),))),
    ("python-path", module_on_the_path("my_model.py")),
    ("python-path", module_on_the_path("torch/notes.txt")),
    ("python-path", python_path("backends/qualcomm/python/PyQnnManagerAdaptor.so")),
    ("python-path", python_path("../executorch.egg-info/PKG-INFO")),
    ("elf-readable", placed(f"lib/{X86}/libX.so", b"INPUT(-lfoo)")),
    ("library-name", placed(DLL, dll(name="qnnhtp.dll"))),
    ("library-name", placed(f"lib/{X86}/libX.so", Library(soname="libX.so.1"))),
    ("needed-resolved", host("libX.so", needed=("libQnnSystem.so",), runpath="$ORIGIN")),
    ("symbol-versions", host("libX.so", versions={"libc.so.6": ["GLIBC_2.2.5"]})),
    ("soc-known", changed(socs={"new": soc_named("SM7950").model_copy(update={"least_qnn": BUILD[1:]})})),
]


@pytest.mark.parametrize(("rule", "subject", "arrange", "severity"), FIRING)
def test_a_rule_fires(rule: str, subject: str, arrange: Arrange, severity: Severity, tmp_path: Path) -> None:
    findings = result_of(rule, arrange(tmp_path)).findings
    assert [(subject in f.subject, f.severity) for f in findings[:1]] == [(True, severity)], findings


@pytest.mark.parametrize(("rule", "arrange"), SILENT)
def test_a_rule_is_silent_where_nothing_is_wrong(rule: str, arrange: Arrange, tmp_path: Path) -> None:
    result = result_of(rule, arrange(tmp_path))
    # Not applicable would be silent too, and would prove nothing.
    assert (result.state, result.findings) == (State.PASS, ())


def test_every_rule_has_a_case_that_makes_it_fire() -> None:
    assert {rule for rule, *_ in (*ERRORS, *WARNINGS, *NOTES)} == set(catalogue())


def test_a_healthy_environment_passes_every_rule(tmp_path: Path) -> None:
    results = check([context_of(tmp_path)], catalogue().values())
    assert {result.rule.id: result.findings for result in results if result.state is not State.PASS} == {}


def bare(base: Path) -> Context:
    """A selection that uses no SDK."""
    return replace(
        context_of(base),
        trees={},
        libraries=(),
        environ={},
        answers={},
        targets=(),
    )


NOT_APPLICABLE: list[tuple[str, Arrange]] = [
    *[
        (rule, bare)
        for rule, rule_ in catalogue().items()
        if rule_.module == "libraries"
        or rule in ("qnn-version", "qnn-build-id", "soc-known", "ndk-revision", "hexagon-sdk-version")
        or rule == "compiler-answers"
    ],
    ("compiler-answers", changed(answers={})),
    ("symbol-versions", changed(libraries=())),
]


@pytest.mark.parametrize(("rule", "arrange"), NOT_APPLICABLE)
def test_a_rule_without_anything_to_look_at_says_so(rule: str, arrange: Arrange, tmp_path: Path) -> None:
    result = result_of(rule, arrange(tmp_path))
    assert (result.state, bool(result.reason), result.findings) == (State.NOT_APPLICABLE, True, ())


@pytest.mark.parametrize(
    ("rule", "arrange", "reason"),
    [
        ("python-packages", changed(host=this_host(packages={})), "none of executorch, torch, torchao"),
        ("qnn-build-id", changed(libraries=()), "holds a QNN build id"),
        ("hexagon-sdk-version", hexagon_sdk_named("latest"), "holds no version"),
    ],
)
def test_a_rule_that_cannot_look_warns_and_does_not_pass(
    rule: str, arrange: Arrange, reason: str, tmp_path: Path
) -> None:
    result = result_of(rule, arrange(tmp_path))
    assert result.state is State.COULD_NOT_RUN
    assert [(f.severity, reason in f.message, bool(f.fix)) for f in result.findings] == [
        (Severity.WARNING, True, True)
    ]


def test_a_target_that_the_profile_cannot_have_is_a_note_of_all_targets_and_an_error_of_itself(
    tmp_path: Path,
) -> None:
    shutil.rmtree(write_sdk(tmp_path / "sdk") / "lib" / ANDROID)
    context = replace(context_of(tmp_path), profile=load_profile("wheels"))
    for every, severity in ((True, Severity.NOTE), (False, Severity.ERROR)):
        found = result_of("required-libraries", replace(context, every_target=every)).findings
        assert [finding.severity for finding in found] == [severity]


def test_what_windows_needs_is_asked_of_the_chips_that_it_runs_on(tmp_path: Path) -> None:
    healthy = removed("lib/aarch64-windows-msvc/QnnHtpV75Stub.dll")(tmp_path)
    assert not result_of("soc-libraries", healthy).findings
    phones = {name: soc for name, soc in healthy.socs.items() if not soc.windows}
    named = replace(healthy, socs=phones, targets=("aarch64-windows",))
    (error,) = result_of("soc-libraries", named).findings
    assert "SC8380XP" in error.fix
    assert not result_of("soc-libraries", replace(named, every_target=True)).findings


@pytest.mark.parametrize(
    ("place", "content", "told"),
    [
        (SKEL, skel(79, OTHER_BUILD), "hexagon-arch"),
        (SKEL, Library(content=f"{OTHER_BUILD}\0".encode(), needed=("libnone.so",)), "elf-machine"),
        (SKEL, skel(75, OTHER_BUILD), "qnn-build-id"),
    ],
)
def test_a_file_of_another_chip_machine_or_build_is_one_error(
    tmp_path: Path, place: str, content: Library, told: str
) -> None:
    context = placed(f"{IN_DSP}/{place}", content.encode())(tmp_path)
    results = check([context], catalogue().values())
    about = [finding for result in results for finding in result.findings if finding.subject.endswith(place)]
    assert [(finding.rule, finding.severity) for finding in about] == [(told, Severity.ERROR)]
    # Alone each rule still says what it sees.
    assert result_of("one-build-id", context).findings


def errors_of(context: Context) -> list[Finding]:
    results = check([context], catalogue().values())
    return [error for result in results for error in result.findings if error.severity is Severity.ERROR]


def test_a_library_of_a_build_that_executorch_cannot_drive_is_one_error(tmp_path: Path) -> None:
    content = library("libQnnHtp.so", content=f"{OTHER_BUILD}\0".encode()).encode()
    context = replace(
        placed(HTP, content)(tmp_path),
        answers={SOCS[0]: Answer("backend", build_id=OTHER_BUILD, code=14001)},
    )
    assert [error.rule for error in errors_of(context)] == ["qnn-build-id"]


def test_an_sdk_of_another_release_is_named_once_and_so_is_its_pair_with_executorch(tmp_path: Path) -> None:
    context = versioned_sdk("version: 2.48.40.260702\n")(tmp_path)
    context = replace(
        context,
        libraries=tuple(
            replace(file, build_ids=(OTHER_BUILD,), build_pieces=()) for file in context.libraries
        ),
        answers={SOCS[0]: Answer("backend", build_id=OTHER_BUILD, code=14001)},
    )
    assert [error.rule for error in errors_of(context)] == ["qnn-version", "compiler-answers"]


def test_a_library_that_all_others_need_is_one_error(tmp_path: Path) -> None:
    sdk = write_sdk(tmp_path / "sdk")
    for name in ("libQnnHtp.so", "libQnnSystem.so", "libGenie.so"):
        library(name, needed=("libc++.so.1",)).write(sdk / "lib" / X86 / name)
    detail = "ended by signal 6 after: Cannot Open QNN library /sdk/lib/libQnnHtp.so, with error: libc++.so.1"
    context = replace(context_of(tmp_path), answers={SOCS[0]: Answer("build id", detail=detail)})
    (error,) = errors_of(context)
    assert (error.rule, "2 others need it too" in error.message) == ("needed-resolved", True)


@pytest.mark.parametrize(
    ("arrange", "answer", "rule"),
    [
        (
            removed(SYSTEM),
            Answer("backend", build_id=BUILD, detail="Cannot Open QNN library libQnnSystem.so, with error"),
            "required-libraries",
        ),
        (
            placed(HTP, library("libQnnHtp.so").encode()[:200]),
            Answer("build id", detail="it was ended by signal 7"),
            "elf-readable",
        ),
    ],
)
def test_a_library_that_is_missing_or_cut_off_is_one_error(
    arrange: Arrange, answer: Answer, rule: str, tmp_path: Path
) -> None:
    context = replace(arrange(tmp_path), answers={SOCS[0]: answer})
    assert [error.rule for error in errors_of(context)] == [rule]


def test_for_a_chip_that_executorch_does_not_know_the_fix_names_one_that_it_knows(tmp_path: Path) -> None:
    answer = Answer("soc", chips=frozenset({"SM8650", "SM8750", "SXR2330P"}))
    context = replace(context_of(tmp_path), answers={"CQ8725S": answer})

    (error,) = [error for error in errors_of(context) if error.rule == "compiler-answers"]

    assert isinstance(error.fix, Fix) and error.fix.flags == ("--soc", "SM8750")
