"""Rules of `validate` about versions and variables: what a component says it is, what is pinned, what the
host has.

Each function with `@rule` yields a problem for each subject. Their words are in manifests/checks.toml."""

from __future__ import annotations

import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

from provisioning import qnn_libraries
from provisioning.base.commands import Fix, quote_command
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Severity
from provisioning.base.settings import DEFAULT_TARGET
from provisioning.build_ids import version_in
from provisioning.components import ANDROID_NDK, HEXAGON_SDK, KINDS, QNN_SDK, ndk_name
from provisioning.elf import version_key
from provisioning.qnn_libraries import Library
from provisioning.store.trees import Trees
from provisioning.validation import CouldNotRun, NotApplicable, Problem, rule
from provisioning.validation.context import ComponentTree, Context, Host


def tree_of(context: Context, component: str) -> ComponentTree:
    """The component's tree, or a reason for the rule not to apply."""
    if component not in context.trees:
        raise NotApplicable(f"this selection uses no {component}")
    return context.trees[component]


def holders_of_build_ids(context: Context) -> list[Library]:
    """The libraries that hold a QNN build id, or a reason for the rule not to apply."""
    tree = tree_of(context, QNN_SDK)
    holders = [library for library in context.libraries if library.build_ids]
    if not holders:
        raise CouldNotRun(f"no library below {tree.label} holds a QNN build id")
    return holders


def build_of(holders: Iterable[Library]) -> str:
    """The build id that most libraries hold: the SDK's own."""
    counts = Counter(build_id for library in holders for build_id in library.build_ids)
    return max(counts, key=lambda build_id: (counts[build_id], build_id))


def find_other_builds(context: Context, build_id: str) -> dict[str, tuple[str, ...]]:
    """Return what libraries say of their build, by place, where it contradicts this id; that may lack its
    end."""
    builds = {library.place: tuple(library.contradicting_builds(build_id)) for library in context.libraries}
    return {place: ids for place, ids in builds.items() if ids}


@rule("qnn-version")
def qnn_version(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    pin = context.profile.components[QNN_SDK].version
    versions = {source: version for source, version in tree.versions.items() if "build_id" not in source}
    if "sdk.yaml" not in versions:
        yield Problem(
            tree.label,
            "has no sdk.yaml that says a version, as each QNN SDK has",
            Fix(
                "reinstall it with its sdk.yaml, or use the pinned one: unset QNN_SDK_ROOT; {}",
                ("provision",),
            ),
            Severity.WARNING,
        )
    for source, version in versions.items():
        if not _same_release(version, pin):
            yield Problem(
                tree.label,
                f"{_speaker(source)} {version}, profile {context.profile.name} pins {pin}",
            )


def _speaker(source: str) -> str:
    return "the directory's name says" if source == "directory" else f"{source} says"


def _same_release(version: str, pin: str) -> bool:
    """Whether one is the other, or the other with more digits: 2.49.40 and 2.49.40.260810."""
    parts = list(zip(version.split("."), pin.split("."), strict=False))
    return len(parts) >= 3 and all(one == other for one, other in parts)


@rule("qnn-build-id")
def qnn_build_id(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    holders = holders_of_build_ids(context)
    pin = context.profile.components[QNN_SDK]
    builds = {f"profile {context.profile.name}": pin.build_id or f"v{pin.version}"}
    sdk_build = tree.versions.get("sdk.yaml build_id")
    if sdk_build and all(sdk_build.startswith(value) for value in builds.values()):
        builds = {f"{', '.join(builds)} and sdk.yaml": sdk_build}
    elif sdk_build:
        builds["sdk.yaml"] = sdk_build
    for source, build_id in builds.items():
        # A profile without a build id still pins the version, with which every id begins.
        wrong = find_other_builds(context, build_id)
        ids = {wrong.get(library.place, (build_id,)) for library in holders}
        common = ", ".join(ids.pop()) if len(ids) == 1 else build_id
        if common != build_id:
            subject = tree.label if source != "sdk.yaml" else f"{tree.label}, sdk.yaml"
            expectation = f"expected {build_id} of {source}"
            yield Problem(subject, f"all {len(holders)} QNN libraries hold build id {common}, {expectation}")
            wrong = find_other_builds(context, common)
        for place, foreign in wrong.items():
            message = f"is of build {', '.join(foreign)}, expected {build_id} of {source}"
            yield Problem(place, message, also=foreign)
    for library in context.libraries:
        says_nothing = not library.unreadable and not library.build_ids and not library.build_pieces
        if says_nothing and qnn_libraries.table().names_build(library.name):
            yield Problem(
                library.place, "holds no QNN build id, as this library does in every SDK that was seen"
            )


@rule("open-files")
def open_files(context: Context) -> Iterator[Problem]:
    if not context.trees:
        raise NotApplicable("there is no tree")
    for tree in context.trees.values():
        for words in tree.open_to_others:
            yield Problem(tree.label, words, quote_command("chmod", "-R", "go-w", tree.path))


@rule("official-files")
def official_files(context: Context) -> Iterator[Problem]:
    compared = {name: tree for name, tree in context.trees.items() if tree.differs_from_official is not None}
    if not compared:
        raise NotApplicable("no hash of the files of your own SDKs is recorded")
    for tree in compared.values():
        wrong = tree.differs_from_official or ()
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            yield Problem(tree.label, f"{wrong[0]}{more}")


@rule("store-tree")
def store_tree(context: Context) -> Iterator[Problem]:
    for name, place in context.trees.items():
        root = place.path.parent if KINDS[name].inside else place.path
        store = Trees(root.parents[1])
        for tree in store.trees(root.name) if place.origin == "store" else ():
            if tree.root != root:
                continue
            wrong = store.damage(tree, context.profile.pins[name])
            if wrong is None:
                wrong = store.verify(tree)
                yield Problem(
                    place.label,
                    "was not made here, and git has no hash of its files: only its inventory was compared",
                    Fix("prove it by its download: {}", ("provision", "--component", name)),
                    Severity.WARNING,
                )
            if wrong:
                more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
                yield Problem(place.label, f"{wrong[0]}{more}")


@rule("own-tree")
def own_tree(context: Context) -> Iterator[Problem]:
    own = {name: tree for name, tree in context.trees.items() if tree.origin == "directory"}
    if not own:
        raise NotApplicable("every component comes from the store")
    for tree in own.values():
        if tree.change:
            yield Problem(tree.label, tree.change, Fix("if that is right: {}", ("store", "adopt", tree.path)))


@rule("quantization-constraints")
def quantization_constraints(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    if "executorch" not in context.profile.packages or DEFAULT_TARGET not in context.targets:
        raise NotApplicable("nothing is quantized with this selection")
    if not (tree.path / "lib" / "python" / "qti").is_dir():
        yield Problem(tree.label, "has no lib/python, so executorch's quantizer checks no constraints")


@rule("soc-known")
def soc_known(context: Context) -> Iterator[Problem]:
    builds = {
        text.removeprefix("v") for library in holders_of_build_ids(context) for text in library.build_ids
    }
    for name, soc in context.socs.items():
        for build in sorted(builds):
            if soc.least_qnn and version_key(build) < version_key(soc.least_qnn):
                version = version_in(build)
                yield Problem(name, f"QNN {version} does not know it, {soc.least_qnn} was the first that did")


@rule("ndk-revision")
def ndk_revision(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, ANDROID_NDK)
    revision = tree.versions.get("source.properties")
    if revision is None:
        yield Problem(tree.label, "has no source.properties with a Pkg.Revision: it is no Android NDK")
        return
    pin = context.profile.components.get(ANDROID_NDK)
    if pin is None:
        raise NotApplicable(f"profile {context.profile.name} pins no NDK; this one is {ndk_name(revision)}")
    if revision != pin.version:
        yield Problem(
            tree.label,
            f"is {ndk_name(revision)}, profile {context.profile.name} pins {ndk_name(pin.version)}",
        )


@rule("ndk-usable")
def ndk_usable(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, ANDROID_NDK)
    if tree.unusable:
        yield Problem(tree.label, tree.unusable)


@rule("hexagon-sdk-version")
def hexagon_sdk_version(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, HEXAGON_SDK)
    pin = context.profile.components.get(HEXAGON_SDK)
    if pin is None:
        raise NotApplicable(f"profile {context.profile.name} pins no Hexagon SDK")
    if tree.origin == "store":
        # The inventory verifies a tree of the store, and its version with it.
        return
    if tree.unusable:
        yield Problem(tree.label, tree.unusable)
    version = tree.versions.get("directory")
    if version is None:
        raise CouldNotRun(
            f"the name of {tree.label} holds no version",
            "point HEXAGON_SDK_ROOT to the directory that is named by the version, …/Hexagon_SDK/6.5.0.0",
        )
    if version != pin.version:
        yield Problem(
            tree.label,
            f"the directory's name says {version}, profile {context.profile.name} pins {pin.version}",
        )


@rule("python-packages")
def python_packages(context: Context) -> Iterator[Problem]:
    host = context.host
    pins = context.profile.packages
    if not pins:
        raise NotApplicable(f"profile {context.profile.name} pins no Python packages")
    if not any(name in host.packages for name in pins):
        raise CouldNotRun(f"none of {', '.join(pins)} is installed in this Python")
    build = context.executorch.build
    try:
        context.executorch.current()
    except EnvironmentLacking as error:
        yield Problem("executorch", error.message, error.fix)
    for name, number in pins.items():
        version = host.packages.get(name)
        pin = f"profile {context.profile.name} pins {number}"
        if version is None:
            yield Problem(name, f"is not installed, {pin}")
        elif version.partition("+")[0] == number:
            continue
        elif name == "executorch" and build is not None:
            yield Problem(name, f"is {version}, built from {build}; {pin}", severity=Severity.NOTE)
        else:
            yield Problem(name, f"is {version} in this Python, {pin}")


@rule("cxx-compiler")
def cxx_compiler(context: Context) -> Iterator[Problem]:
    if not context.host.compiler:
        yield Problem("compiler", "neither g++ nor clang++ is on PATH, or CXX names what is not there")


@rule("glibc-version")
def glibc_version(context: Context) -> Iterator[Problem]:
    glibc, floor = context.host.glibc, context.profile.host.get("glibc")
    if floor is None:
        raise NotApplicable(f"profile {context.profile.name} names no glibc")
    if not glibc or version_key(glibc) < version_key(floor):
        yield Problem("glibc", f"is {glibc or 'not of this system'}, at least {floor} is required")


@rule("host-os")
def host_os(context: Context) -> Iterator[Problem]:
    host = context.host
    if (host.system, host.machine) != ("Linux", "x86_64"):
        yield Problem("host", f"is {host.system} on {host.machine}, expected Linux on x86_64")


@rule("user-variables")
def user_variables(context: Context) -> Iterator[Problem]:
    for note in context.notes:
        if note.variable:
            yield Problem(note.variable, note.text)


_METADATA = (".dist-info", ".egg-info")
_ADAPTOR = "backends/qualcomm/python/PyQnn*.so"


def hiding_packages(context: Context) -> dict[str, list[str]]:
    """The pinned packages which each folder of PYTHONPATH hides, and other modules that would be imported
    instead of installed ones. An adaptor shows a build on purpose."""
    hidden: dict[str, list[str]] = {}
    python_path = context.environ.get("PYTHONPATH", "")
    # Python takes an empty entry for the folder that it is started in.
    for entry in python_path.split(os.pathsep) if python_path else ():
        folder = Path(entry)
        packages = [name for name in context.profile.packages if _hides_package(folder, name, context.host)]
        modules = _hiding_modules(folder, context.host, context.profile.packages.keys())
        if names := sorted({*packages, *modules}):
            hidden[entry or "."] = names
    return hidden


def _hides_package(entry: Path, name: str, host: Host) -> bool:
    folder = entry / name
    if not folder.is_dir() or any(folder.glob(_ADAPTOR)) or any(entry.glob(f"{name}[-.]*info")):
        return False
    return name not in host.regular_packages or (folder / "__init__.py").is_file()


def _hiding_modules(entry: Path, host: Host, pinned: Set[str]) -> Iterator[str]:
    """Files and packages in this folder, or archive, that have an installed module's name; a folder of
    packages has their metadata."""
    names = _names_in(entry)
    if any(name.endswith(_METADATA) for name in names):
        return
    for name in names:
        module, _, suffix = name.partition(".")
        is_file = suffix.rpartition(".")[2] in ("py", "pyc", "so")
        if is_file and module in host.modules | pinned:
            yield name
        elif name.endswith("/__init__.py") and name.count("/") == 1:
            package = name.partition("/")[0]
            if package in host.regular_packages:
                yield package


_STARTER = re.compile(r"(?:site|user)customize\.(?:.+\.)?(?:py|pyc|so)")
"""A module that Python runs as it starts, whatever the program."""


def _starter_in(entry: Path) -> str:
    """The name of such a module in this folder, or archive; none in a folder of installed packages."""
    names = _names_in(entry)
    if any(name.endswith(_METADATA) for name in names):
        return ""
    return next(filter(_STARTER.fullmatch, names), "")


def _names_in(entry: Path) -> list[str]:
    """The files in a folder, and the first ones in its packages; the files of an archive."""
    try:
        if entry.is_file() and zipfile.is_zipfile(entry):
            return zipfile.ZipFile(entry).namelist()
        names = [path.name for path in entry.iterdir() if path.is_file() or path.suffix]
        return names + [path.relative_to(entry).as_posix() for path in entry.glob("*/__init__.py")]
    except (OSError, zipfile.BadZipFile):
        return []


@rule("python-path")
def python_path(context: Context) -> Iterator[Problem]:
    if not context.environ.get("PYTHONPATH"):
        raise NotApplicable("PYTHONPATH is not set")
    entries = context.environ["PYTHONPATH"].split(os.pathsep)
    hidden = hiding_packages(context)
    rest = ":".join(entry for entry in entries if (entry or ".") not in hidden)
    fix = quote_command("export", f"PYTHONPATH={rest}") if rest else "unset PYTHONPATH"
    for entry, names in hidden.items():
        yield Problem(
            "PYTHONPATH",
            f"{entry} holds {' and '.join(names)}, which Python imports instead of what is installed",
            f"leave the folder out: {fix}",
        )
    for entry in entries:
        if name := _starter_in(Path(entry)):
            message = f"{entry or '.'} holds {name}, which Python runs before each program of ours"
            yield Problem("PYTHONPATH", message, "take it out of that folder", Severity.WARNING)
