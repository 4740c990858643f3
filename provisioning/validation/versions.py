"""Rules about versions: what a component says it is, what the profile pins, what the host has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provisioning.base.findings import Severity
from provisioning.base.settings import DEFAULT_TARGET
from provisioning.build_id import version_in
from provisioning.components import ANDROID_NDK, HEXAGON_SDK, QNN_SDK
from provisioning.elf import version_key
from provisioning.manifest import Requirement, refused_by
from provisioning.validation import CouldNotRun, NotApplicable, Problem, rule, tables
from provisioning.validation.context import ComponentTree, Context, Host, Library, Need


def tree_of(context: Context, component: str) -> ComponentTree:
    """The component's tree, or a reason for the rule not to apply."""
    if component not in context.trees:
        raise NotApplicable(f"this selection uses no {component}")
    return context.trees[component]


def holders_of_build_ids(context: Context) -> list[Library]:
    """The libraries that hold a QNN build id, or a reason for the rule not to apply."""
    tree = tree_of(context, QNN_SDK)
    holders = [library for library in context.libraries if library.build_ids]
    if not holders and tree.origin == "tree":
        raise NotApplicable("no library holds a QNN build id")
    if not holders:
        raise CouldNotRun(f"no library below {tree.named} holds a QNN build id")
    return holders


def host_of(context: Context) -> Host:
    if context.host is None:
        raise CouldNotRun("the host was not looked at")
    return context.host


@rule(
    "qnn-version",
    Severity.ERROR,
    summary="The QNN SDK is the version that the profile pins",
    why="""
        Only measured pairs of executorch and QNN are known to work: with most others the compiler cannot
        create a device. This rule compares the versions in sdk.yaml and in the directory's name with the
        profile.
    """,
    example="/opt/qairt/2.48.0.260626 (QNN_SDK_ROOT): sdk.yaml says 2.48.0.260626, profile qnn-2.37 pins"
    " 2.37.0.250724",
    fix="use the profile of this SDK with --profile, or provision the pinned one: nox -s provision",
)
def qnn_version(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    pinned = context.profile.components[QNN_SDK].version
    stated = {source: version for source, version in tree.stated.items() if "build_id" not in source}
    if not stated and tree.origin == "tree":
        raise NotApplicable(f"{tree.named} has no sdk.yaml and no version in its name")
    if not stated:
        yield Problem(
            tree.named,
            "has no sdk.yaml and no version in its name, so its files do not say which QNN it is",
            "reinstall the SDK with its sdk.yaml, or provision it: nox -s provision",
            Severity.WARNING,
        )
    for source, version in stated.items():
        if not _same_release(version, pinned):
            yield Problem(
                tree.named,
                f"{_says(source)} {version}, profile {context.profile.name} pins {pinned}",
            )


def _says(source: str) -> str:
    return "the directory's name says" if source == "directory" else f"{source} says"


def _same_release(version: str, pinned: str) -> bool:
    """Whether one is the other, or the other with more digits: 2.49.40 and 2.49.40.260810."""
    parts = list(zip(version.split("."), pinned.split("."), strict=False))
    return len(parts) >= 3 and all(one == other for one, other in parts)


@rule(
    "qnn-build-id",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="The build id inside the QNN libraries is the pinned one",
    why="""
        Every QNN library holds the id of its build. A file copied from another SDK, or an edited sdk.yaml,
        makes the version look right while the libraries are not.
    """,
    example="lib/x86_64-linux-clang/libQnnHtp.so: holds build id v2.48.40.260702151143, expected"
    " v2.49.40.260810104044 of profile wheels",
    fix="restore the libraries of one SDK: nox -s provision, or unpack the SDK again",
)
def qnn_build_id(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    holders = holders_of_build_ids(context)
    pin = context.profile.components[QNN_SDK]
    expected = {f"profile {context.profile.name}": pin.build_id or f"v{pin.version}"}
    if stated := tree.stated.get("sdk.yaml build_id"):
        expected["sdk.yaml"] = stated
    for source, build_id in expected.items():
        # A profile without a build id still pins the version, with which every id begins.
        wrong = {
            library.place: others
            for library in holders
            if (others := [held for held in library.build_ids if not held.startswith(build_id)])
        }
        found = sorted({held for others in wrong.values() for held in others})
        if len(wrong) == len(holders) and len(found) == 1:
            yield Problem(
                tree.named,
                f"all {len(wrong)} QNN libraries hold build id {found[0]}, expected {build_id} of {source}",
            )
            continue
        for place, others in wrong.items():
            yield Problem(place, f"holds build id {', '.join(others)}, expected {build_id} of {source}")


@rule(
    "quantization-constraints",
    Severity.NOTE,
    summary="The SDK has the constraints by which executorch refuses to quantize an operator",
    why="""
        An SDK of QNN 2.41 or later says in lib/python which types each operator takes, and executorch's
        quantizer leaves alone what does not fit. SDKs made of wheels lack it: there executorch annotates
        more, and what does not fit shows only when it is lowered, or with an official SDK.
    """,
    example="qnn-sdk 2.49.40 (store): has no lib/python, so executorch's quantizer checks no constraints",
    fix="quantize with an official SDK too before you ship: --profile qnn-2.48",
)
def quantization_constraints(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    if "executorch" not in context.profile.packages or DEFAULT_TARGET not in context.targets:
        raise NotApplicable("nothing is quantized with this selection")
    if not (tree.path / "lib" / "python" / "qti").is_dir():
        yield Problem(tree.named, "has no lib/python, so executorch's quantizer checks no constraints")


@rule(
    "soc-known",
    Severity.ERROR,
    Need.LIBRARIES,
    summary="The QNN build knows each chosen chip",
    why="""
        A chip that is younger than the QNN build has no entry in its libraries. Compiling for it then ends in
        "Request feature arch with value 85 unsupported" or in a model that runs on the CPU, and on the device
        in "No Snapdragon SOC detected". manifests/socs.toml has the first build that was seen to know a chip.
    """,
    example="CQ8750S: QNN 2.37.1 does not know it, 2.47.0 was the first that did",
    fix="use a profile with that QNN or a later one, or a chip that this one knows",
)
def soc_known(context: Context) -> Iterator[Problem]:
    builds = {
        held.removeprefix("v") for library in holders_of_build_ids(context) for held in library.build_ids
    }
    for name, soc in context.socs.items():
        for build in sorted(builds):
            if soc.least_qnn and version_key(build) < version_key(soc.least_qnn):
                version = version_in(build)
                yield Problem(name, f"QNN {version} does not know it, {soc.least_qnn} was the first that did")


@rule(
    "soc-operators",
    Severity.NOTE,
    summary="The chosen chips take the operators that later Hexagons take",
    why="""
        V68 and V69 do not compile some operators that V73 does. Through ONNX Runtime such an operator goes to
        the CPU, or compiling ends with 1002, which reads as if memory were lacking. manifests/socs.toml has
        what was measured.
    """,
    example="SM8450: V69 does not compile BatchNormalization, Conv, ConvTranspose, depthwise Conv at u16u16"
    " (V73 takes them)",
    fix="docs/chips.md has the whole table; choose another precision for these operators, or another chip",
)
def soc_operators(context: Context) -> Iterator[Problem]:
    for name, soc in context.socs.items():
        for refused in refused_by(soc.arch):
            yield Problem(name, f"V{soc.arch} does not compile {refused}")


@rule(
    "ndk-revision",
    Severity.ERROR,
    summary="The Android NDK is the revision that the profile pins",
    why="""
        The NDK decides the compiler, the C++ library and the alignment of Android builds. A build directory
        that was started with another revision fails with errors that name neither. `26.3` is r26d, not r26c.
    """,
    example="/opt/android-ndk-r26d (ANDROID_NDK_ROOT): is r26d (26.3.11579264), profile qnn-2.37 pins r26c"
    " (26.2.11394342)",
    fix="point ANDROID_NDK_ROOT to the pinned NDK, or unset it and: nox -s provision --"
    " --component android-ndk",
)
def ndk_revision(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, ANDROID_NDK)
    ndk = tables.validation().ndk.named
    revision = tree.stated.get("source.properties")
    if revision is None:
        yield Problem(tree.named, "has no source.properties with a Pkg.Revision: it is no Android NDK")
        return
    pin = context.profile.components.get(ANDROID_NDK)
    if pin is None:
        raise NotApplicable(f"profile {context.profile.name} pins no NDK; this one is {ndk(revision)}")
    if revision != pin.version:
        yield Problem(
            tree.named, f"is {ndk(revision)}, profile {context.profile.name} pins {ndk(pin.version)}"
        )


@rule(
    "hexagon-sdk-version",
    Severity.ERROR,
    summary="The Hexagon SDK is the version that the profile pins",
    why="""
        Signing needs a Hexagon SDK that knows the chip's arch: v79 from 6.0.0, v81 from 6.4.0. The version is
        read from the name of the SDK's directory, where every Hexagon SDK has it.
    """,
    example="/opt/Hexagon_SDK/5.5.5.0 (HEXAGON_SDK_ROOT): the directory's name says 5.5.5.0, profile qnn-2.48"
    " pins 6.5.0.0",
    fix="point HEXAGON_SDK_ROOT to the pinned SDK, or unset it and: nox -s provision --"
    " --component hexagon-sdk",
)
def hexagon_sdk_version(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, HEXAGON_SDK)
    pin = context.profile.components.get(HEXAGON_SDK)
    if pin is None:
        raise NotApplicable(f"profile {context.profile.name} pins no Hexagon SDK")
    if tree.origin == "store":
        # The inventory verifies a tree of the store, and its version with it.
        return
    version = tree.stated.get("directory")
    if version is None:
        raise CouldNotRun(
            f"the name of {tree.named} holds no version",
            "point HEXAGON_SDK_ROOT to the directory that is named by the version, …/Hexagon_SDK/6.5.0.0",
        )
    if version != pin.version:
        yield Problem(
            tree.named,
            f"the directory's name says {version}, profile {context.profile.name} pins {pin.version}",
        )


@rule(
    "python-packages",
    Severity.ERROR,
    Need.HOST,
    summary="executorch, torch and torchao are the versions that the profile pins",
    why="""
        executorch is built against one torch, and its QNN backend works with few QNN versions. Another
        version fails late: on import, on export or on the device.
    """,
    example="torch: is 2.12.1+cpu in this Python, profile wheels pins 2.13.0",
    fix="run it as a session, which installs the pinned packages: nox -s validate",
)
def python_packages(context: Context) -> Iterator[Problem]:
    host = host_of(context)
    pins = context.profile.packages
    if not pins:
        raise NotApplicable(f"profile {context.profile.name} pins no Python packages")
    if not any(name in host.packages for name in pins):
        raise CouldNotRun(
            f"none of {', '.join(pins)} is installed in this Python", "nox -s validate, or install them"
        )
    for name, pinned in pins.items():
        found = host.packages.get(name)
        if found is None:
            yield Problem(name, f"is not installed, profile {context.profile.name} pins {pinned}")
        elif found.partition("+")[0] != pinned:
            yield Problem(name, f"is {found} in this Python, profile {context.profile.name} pins {pinned}")


def _compared(name: str, found: str, wanted: Requirement) -> Iterator[Problem]:
    if version_key(_numeric(found)) < version_key(_numeric(wanted.floor)):
        yield Problem(name, f"is {found}, at least {wanted.floor} is required")
    elif wanted.recommended and version_key(_numeric(found)) < version_key(_numeric(wanted.recommended)):
        yield Problem(
            name,
            f"is {found}, the project is tested with {wanted.recommended}",
            severity=Severity.NOTE,
        )


def _numeric(version: str) -> str:
    """The leading numbers: `3.14.0` of `3.14.0rc1`."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return found[0] if found else "0"


@rule(
    "cmake-version",
    Severity.ERROR,
    Need.HOST,
    Need.TOOLS,
    summary="CMake is new enough for executorch's package",
    why="""
        An older CMake silently leaves out executorch's targets, and the build fails much later because it
        does not find them.
    """,
    example="cmake: is 3.25.1 (/usr/bin/cmake), at least 3.28 is required",
    fix="python -m pip install 'cmake>=3.28'",
)
def cmake_version(context: Context) -> Iterator[Problem]:
    yield from _tool(context, "cmake")


@rule(
    "compiler-version",
    Severity.ERROR,
    Need.HOST,
    Need.TOOLS,
    summary="A C++ compiler is there and new enough",
    why="""
        The runner and the host's libraries are built with gcc or clang. One of the two must meet the floor.
        Between the floor and the recommended version a build may work, but the project does not test it.
    """,
    example="gcc: is 8.5.0 (/usr/bin/gcc), at least 9.4 is required",
    fix="install gcc or clang of at least the required version, from the distribution's packages",
)
def compiler_version(context: Context) -> Iterator[Problem]:
    host = host_of(context)
    wanted = {name: context.profile.host[name] for name in ("gcc", "clang") if name in context.profile.host}
    if not wanted:
        raise NotApplicable(f"profile {context.profile.name} names no compiler")
    problems: dict[str, list[Problem]] = {}
    for name, requirement in wanted.items():
        tool = host.tools.get(name)
        if tool is not None and tool.version:
            problems[name] = list(_compared(name, f"{tool.version} ({tool.path})", requirement))
    if not problems:
        floors = " or ".join(f"{name} {requirement.floor}" for name, requirement in wanted.items())
        yield Problem("compiler", f"neither {' nor '.join(wanted)} is on PATH; {floors} is required")
        return
    # One good compiler is enough: judge only the one with the fewest problems.
    yield from min(problems.values(), key=lambda found: [p.severity is not Severity.NOTE for p in found])


@rule(
    "python-version",
    Severity.ERROR,
    Need.HOST,
    summary="Python is new enough",
    why="""
        The project's floor is in the profile. executorch has wheels for some versions of Python only. The
        lock files are made for the recommended version.
    """,
    example="python: is 3.9.2, at least 3.10 is required",
    fix="use a newer Python, and reinstall nox with it",
)
def python_version(context: Context) -> Iterator[Problem]:
    if "python" not in context.profile.host:
        raise NotApplicable(f"profile {context.profile.name} names no Python")
    yield from _compared("python", host_of(context).python, context.profile.host["python"])


@rule(
    "glibc-version",
    Severity.ERROR,
    Need.HOST,
    summary="The host's glibc is new enough for QNN's x86 libraries",
    why="""
        QNN's host libraries are linked against a certain glibc. On an older system, or an image based on one,
        they fail to load with `version GLIBC_… not found`. The floor is in the profile.
    """,
    example="glibc: is 2.31, at least 2.34 is required",
    fix="use a newer distribution or base image: Debian 12, Ubuntu 22.04 and later have it",
)
def glibc_version(context: Context) -> Iterator[Problem]:
    host = host_of(context)
    if "glibc" not in context.profile.host:
        raise NotApplicable(f"profile {context.profile.name} names no glibc")
    if not host.glibc:
        yield Problem(
            "glibc", f"this system has none, {context.profile.host['glibc'].floor} or later is required"
        )
        return
    yield from _compared("glibc", host.glibc, context.profile.host["glibc"])


@rule(
    "host-os",
    Severity.ERROR,
    Need.HOST,
    summary="The host is one that QNN's compiler and emulator run on",
    why="""
        The compiler and the HTP emulator of this project are libraries for Linux on x86-64. A distribution
        that the project is not tested on is a note.
    """,
    example="host: is Darwin on arm64, expected Linux on x86_64",
    fix="use a Linux machine or container on x86-64",
)
def host_os(context: Context) -> Iterator[Problem]:
    host = host_of(context)
    table = tables.validation().host
    if host.system not in table.systems or host.machine not in table.machines:
        yield Problem(
            "host",
            f"is {host.system} on {host.machine}, expected {' or '.join(table.systems)} on"
            f" {' or '.join(table.machines)}",
        )
    elif host.distribution not in table.tested:
        yield Problem(
            "host",
            f"is {host.distribution or 'a Linux without os-release'}, the project is tested on"
            f" {', '.join(table.tested)}",
            "nothing to fix: report what does not work there",
            Severity.NOTE,
        )


def _tool(context: Context, name: str) -> Iterator[Problem]:
    host = host_of(context)
    wanted = context.profile.host.get(name)
    if wanted is None:
        raise NotApplicable(f"profile {context.profile.name} names no {name}")
    tool = host.tools.get(name)
    if tool is None:
        yield Problem(name, f"is not on PATH, at least {wanted.floor} is required")
    elif not tool.version:
        raise CouldNotRun(f"{tool.path} does not say its version")
    else:
        yield from _compared(name, f"{tool.version} ({tool.path})", wanted)
