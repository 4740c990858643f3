"""Building ExecuTorch's Qualcomm backend and runner from a tree: build, check, and put into dist/<target>/
what CMake built, a manifest, a bill of materials, licences."""

from __future__ import annotations

import datetime as dt
import fnmatch
import json
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from ci.builds import built_files
from ci.builds.built_files import (
    BILL_OF_MATERIALS,
    LICENCES,
    LoadableFile,
    alone_in,
    part_of,
    replace_build,
)
from ci.builds.cmake import STEERING, CMakeTarget, files_read, linked_into
from ci.builds.source_plan import BuildOptions, SourcePlan, plan_of
from ci.builds.tree import Kind, RecipeProject, Submodule, link_with_copies, make_overlay, submodules
from provisioning import elf
from provisioning.base.commands import capture, quote_command
from provisioning.base.errors import CheckFailed
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Severity
from provisioning.base.settings import DEFAULT_TARGET, ROOT, Selection
from provisioning.base.stage_run import StageRun
from provisioning.components import ANDROID_NDK, QNN_SDK
from provisioning.dist import FOLDER, MANIFEST
from provisioning.manifest import load_profile

if TYPE_CHECKING:
    from cyclonedx.model.component import Component
    from packageurl import PackageURL

SCHEMA = 1

_LICENCE = re.compile(r"(?i)(licen[cs]e|copying|notice|copyright)([._-].*)?")
PYTHON = "python"
"""The folder of dist/<target>/ with what Python loads."""
_GITHUB = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?")


def script(plan: SourcePlan) -> str:
    """The commands that a build runs; comments stand for steps without a command."""
    lines = [f"# {plan.recipe.summary}", f"unset {' '.join(STEERING)}"]
    cmake_build = plan.cmake_build()
    lines += [f"export {name}={quote_command(value)}" for name, value in cmake_build.environ({}).items()]
    lines += [f"# {plan.flags_file} has the compilers' flags."]
    if plan.outputs:
        lines += [f"# {plan.source} has links to {plan.tree.root}, and copies of {', '.join(plan.outputs)}."]
    lines += ["", *map(str, cmake_build.commands())]
    lines += ["", f"# Checked, and put into {plan.dist} with a manifest and a bill of materials:"]
    lines += ["#   programs → bin/, shared libraries → lib/"]
    lines += [f"#   {name} → {PYTHON}/{place}/" for name, place in plan.recipe.python.items()]
    return "\n".join(lines) + "\n"


def build(options: BuildOptions, selection: Selection, stage: StageRun) -> None:
    plan = plan_of(options, selection, os.environ)
    stage.metrics |= {
        "executorch": plan.tree.version,
        "commit": plan.tree.commit + ("+changes" if plan.tree.state.changed else ""),
        "toolchain": plan.toolchain.identity,
        "qnn_build_id": plan.sdk.build_id,
        "build_type": plan.build_type,
        "jobs": plan.jobs,
    }
    with alone_in(plan.root, "build"):
        _compile(plan, stage, clean=options.clean)
        # Builds of other trees have their own build folders, but share this one.
        with alone_in(plan.dist, "dist"):
            floor = options.glibc or load_profile(selection.profile).host["glibc"]
            good = _put_into_dist(plan, stage, floor, selection)
            if good and plan.target == DEFAULT_TARGET:
                put_into_python(plan, stage)


def _compile(plan: SourcePlan, stage: StageRun, *, clean: bool) -> None:
    def prepare() -> None:
        if not plan.flags_file.is_file() or plan.flags_file.read_text(encoding="utf-8") != plan.flags():
            replace_text(plan.flags_file, plan.flags())
        plan.build.mkdir(exist_ok=True)
        if plan.outputs:
            folders = [project.source for project in plan.recipe.projects]
            link_with_copies(plan.tree.root, plan.outputs, plan.source, folders)

    start = time.monotonic()
    state = plan.cmake_build().run(clean=clean, prepare=prepare)
    stage.metrics |= {
        "rebuilt_because": list(state.reasons),
        "build_seconds": round(time.monotonic() - start, 2),
    }


def _put_into_dist(plan: SourcePlan, stage: StageRun, glibc: str, selection: Selection) -> bool:
    """Replace the last build if the files pass every check; returns whether they did."""
    strip = strip_program(plan.build) if plan.build_type == "Release" else ""
    private = dict.fromkeys([*plan.private(), ROOT, Path.home()])
    targets_by_file = collect(plan)
    with part_of(plan.dist) as part:
        copies = assemble(list(targets_by_file), part, strip)
        stage.findings += built_files.check(copies, plan.target, glibc, private)
        if any(finding.severity is Severity.ERROR for finding in stage.findings):
            return False
        describe(plan, copies, targets_by_file.values(), part, selection.profile)
        replace_build(part, plan.dist)
    files = json.loads((plan.dist / MANIFEST).read_text(encoding="utf-8"))["files"]
    stage.artifacts += [
        Artifact(file["kind"], str(plan.dist / file["path"]), file["sha256"], file["size"]) for file in files
    ]
    stage.artifacts += [Artifact.of("sbom", plan.dist / BILL_OF_MATERIALS)]
    stage.artifacts += [Artifact.of("manifest", plan.dist / MANIFEST)]
    return True


def put_into_python(plan: SourcePlan, stage: StageRun) -> None:
    ours = plan.dist / FOLDER
    make_overlay(plan.tree, dict(_python_files(plan)), ours, stage.profile)
    stage.metrics["python_path"] = str(ours)
    sys.stdout.write(f"export PYTHONPATH={quote_command(ours)}${{PYTHONPATH:+:$PYTHONPATH}}\n")


def _python_files(plan: SourcePlan) -> Iterator[tuple[str, Path]]:
    root = plan.dist / PYTHON
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(root)), path
    for copy in plan.recipe.copies:
        yield f"{copy.to}/{Path(copy.file).name}", plan.tree.root / copy.file


def collect(plan: SourcePlan) -> dict[LoadableFile, CMakeTarget]:
    """The programs and shared libraries that CMake built of ExecuTorch's own, without those of submodules.

    Raises CheckFailed for a missing one that the recipe names."""
    foreign = {plan.source / submodule.path for submodule in submodules(plan.tree)}
    targets_by_file = {}
    for target in plan.targets():
        if not target.is_loaded or foreign.intersection((target.defined_in, *target.defined_in.parents)):
            continue
        folder = _folder(plan, target)
        for path in target.artifacts:
            if path.is_file():
                targets_by_file[LoadableFile(_kind(folder), path, f"{folder}/{path.name}")] = target
    places = [file.place for file in targets_by_file]
    gaps = [pattern for pattern in plan.recipe.ships if not fnmatch.filter(places, pattern)]
    if gaps:
        listing = ", ".join(sorted(places)) or "none"
        raise CheckFailed(
            f"expected the build to make {gaps[0]}, found {listing}",
            fix=f"read {plan.cmake_build().log}; if the tree names it otherwise, correct manifests/recipes/",
        )
    return dict(sorted(targets_by_file.items(), key=lambda item: item[0].place))


def _folder(plan: SourcePlan, target: CMakeTarget) -> str:
    """Return the folder of a target below dist/<target>/."""
    if target.kind == "EXECUTABLE":
        return "bin"
    for pattern, place in plan.recipe.python.items():
        if fnmatch.fnmatchcase(target.name, pattern):
            return f"{PYTHON}/{place}"
    return "lib"


def _kind(folder: str) -> Kind:
    kinds: dict[str, Kind] = {"bin": "runner", "lib": "library"}
    return kinds.get(folder, "adaptor")


def assemble(files: Sequence[LoadableFile], part: Path, strip: str) -> list[LoadableFile]:
    """Copy the files to `part` and strip them if `strip` names a program; returns the copies."""
    copies = []
    for file in files:
        to = part / file.place
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path, to)
        to.chmod(0o755)
        if strip and (run := capture([strip, "--strip-unneeded", str(to)])).returncode != 0:
            raise CheckFailed(
                f"{strip} failed on {to.name} with exit code {run.returncode}: {run.stderr.strip()[-300:]}",
                fix="give another one: --cmake-arg CMAKE_STRIP=/path/to/strip",
            )
        copies.append(LoadableFile(file.kind, to, file.place))
    return copies


def strip_program(build: Path) -> str:
    """The program that CMake found for this target."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8", errors="replace")
    strip = re.search(r"^CMAKE_STRIP:\w+=(.+)$", cache, re.MULTILINE)
    if strip is None or not Path(strip.group(1)).is_file():
        raise CheckFailed(
            "CMake found no program that strips for this target",
            fix="give one: --cmake-arg CMAKE_STRIP=/path/to/strip",
        )
    return strip.group(1)


def describe(
    plan: SourcePlan, copies: Sequence[LoadableFile], shipped: Iterable[CMakeTarget], part: Path, profile: str
) -> None:
    """Write licences, the bill of materials and the manifest beside the files."""
    files = [_entry_of(file) for file in copies]
    places = places_read(plan, shipped)
    copy_licences(plan.tree.root, places, part / LICENCES)
    if plan.toolchain.version:
        # Its C++ library is part of what was linked.
        copy_licences(plan.toolchain.roots[0], {"."}, part / LICENCES / ANDROID_NDK)
    compiler = bill_item("compiler", _public_text(plan, plan.toolchain.identity), kind="application")
    ndk = bill_item(ANDROID_NDK, plan.toolchain.version, kind="framework")
    items = [
        bill_item(QNN_SDK, plan.sdk.build_id, licence="Qualcomm AI Stack License"),
        ndk if plan.toolchain.version else compiler,
        *(submodule_item(submodule) for submodule in _submodules_read(submodules(plan.tree), places)),
        *(bill_item(file["path"], kind="file", sha256=file["sha256"]) for file in files),
    ]
    commit = plan.tree.commit
    purl = package_url("github", "executorch", commit, "pytorch")
    version = plan.tree.version or commit or "unknown"
    subject = bill_item("executorch", version, kind="application", purl=purl)
    bill = document(subject, items, {"qnn-ci:target": plan.target})
    (part / BILL_OF_MATERIALS).write_text(bill, encoding="utf-8")
    manifest = {**identity(plan, profile), "files": files}
    (part / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def identity(plan: SourcePlan, profile: str) -> dict[str, object]:
    """The manifest without its files."""
    return {
        "schema": SCHEMA,
        "target": plan.target,
        "profile": profile,
        "recipe": plan.recipe.summary,
        "executorch": plan.tree.version,
        "commit": plan.tree.commit,
        "changed": plan.tree.state.changed,
        "build_type": plan.build_type,
        "toolchain": plan.toolchain.version or re.sub(r"^\S+: ", "", plan.toolchain.identity),
        "qnn_build_id": plan.sdk.build_id,
        "link_flags": list(plan.recipe.link_flags),
        "options": {project.name: _public_options(plan, project) for project in plan.recipe.projects},
    }


def _public_options(plan: SourcePlan, project: RecipeProject) -> dict[str, str]:
    options = plan.definitions(project).items()
    return {name: _public_text(plan, value) for name, value in options if name not in _PRIVATE}


def _entry_of(file: LoadableFile) -> dict[str, Any]:
    """A file of dist/<target>/, as the manifest lists it; `build_id` is GNU's, when the linker wrote one."""
    artifact, header = Artifact.of(file.kind, file.path), elf.read(file.path)
    return {
        "path": file.place,
        "kind": file.kind,
        "sha256": artifact.sha256,
        "size": artifact.size,
        "machine": header.machine,
        "build_id": header.gnu_build_id,
        "needed": header.needed,
    }


def places_read(plan: SourcePlan, shipped: Iterable[CMakeTarget]) -> set[str]:
    """The files of the tree from which these targets, and all that is linked into them, were compiled."""
    targets = plan.targets()
    builds = {target.build for target in targets}
    dependencies = {
        build: capture([str(plan.ninja.path), "-C", str(build), "-t", "deps"]).stdout for build in builds
    }
    roots = [f"{root}/" for root in (plan.source, plan.tree.root, plan.tree.root.resolve())]
    places = set()
    for path in {os.path.normpath(path) for path in files_read(linked_into(shipped, targets), dependencies)}:
        places |= {path.removeprefix(root) for root in roots if path.startswith(root)}
    return places


def copy_licences(tree: Path, places: Iterable[str], into: Path) -> None:
    """Copy the licence texts that lie beside these files or above them, each to its place in the tree."""
    folders = {"."}.union(*(map(str, PurePosixPath(place).parents) for place in places))
    for folder in sorted(folders):
        for path in sorted((tree / folder).iterdir()):
            if _LICENCE.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                to = into / folder / path.name
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)


def _submodules_read(candidates: Iterable[Submodule], places: Iterable[str]) -> list[Submodule]:
    """The submodules with some of the files that were read; of nested ones the inner one has the file."""
    by_path = {submodule.path: submodule for submodule in candidates}
    paths = set()
    for place in places:
        inner = next((str(parent) for parent in PurePosixPath(place).parents if str(parent) in by_path), None)
        paths |= {inner} if inner else set()
    return [by_path[path] for path in sorted(paths)]


def submodule_item(submodule: Submodule) -> Component:
    github = _GITHUB.fullmatch(submodule.url)
    purl = package_url("github", github[2], submodule.commit, github[1]) if github else None
    return bill_item(submodule.path.rpartition("/")[2], submodule.commit, purl=purl)


_PRIVATE = {
    "CMAKE_PROJECT_INCLUDE", "CMAKE_MAKE_PROGRAM", "PYTHON_EXECUTABLE", "CMAKE_C_COMPILER",
    "CMAKE_CXX_COMPILER", "CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER",
}  # fmt: skip
"""Variables that only name folders of this machine."""


def _public_text(plan: SourcePlan, text: str) -> str:
    for folder, name in reversed(plan.private().items()):
        text = text.replace(str(folder), f"<{name}>")
    return re.sub(r"^\S+: ", "", text)


SPECIFICATION = "1.6"
SUBJECT = "subject"

Described = Literal["application", "container", "file", "framework", "library"]


def package_url(kind: str, name: str, version: str, namespace: str = "") -> PackageURL:
    """`pkg:pypi/rich@14.0`."""
    from packageurl import PackageURL

    return PackageURL(kind, namespace, name, version)


def bill_item(
    name: str,
    version: str = "",
    *,
    kind: Described = "library",
    purl: PackageURL | None = None,
    licence: str = "",
    sha256: str = "",
    description: str = "",
) -> Component:
    """The thing that a bill of materials describes, or a thing that is in it."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense

    return Component(
        name=name,
        version=version or None,
        type=ComponentType(kind),
        bom_ref=f"file:{name}" if kind == "file" else str(purl or f"{name}@{version}"),
        purl=purl,
        licenses=[DisjunctiveLicense(name=licence)] if licence else (),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else (),
        description=description or None,
    )


def document(
    subject: Component,
    items: Iterable[Component],
    properties: Mapping[str, str] | None = None,
    created: dt.datetime | None = None,
) -> str:
    """A bill of materials in CycloneDX's format: the same content gives the same bytes. Items with the same
    reference become one; of those, one that names its licence is kept."""
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    unique = {str(item.bom_ref): item for item in sorted(items, key=lambda item: [*item.licenses])}
    subject.bom_ref.value = SUBJECT
    bill = Bom(components=unique.values())
    bill.metadata.component = subject
    # Otherwise it would get the current time, and differ each time.
    bill.metadata.timestamp = created  # type: ignore[assignment]
    bill.metadata.properties.update(
        Property(name=name, value=value) for name, value in (properties or {}).items()
    )
    bill.register_dependency(
        subject, [item for item in unique.values() if item.type is not ComponentType.FILE]
    )

    def text(content: str) -> str:
        bill.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, content)
        version = SchemaVersion.from_version(SPECIFICATION)
        return make_outputter(bill, OutputFormat.JSON, version).output_as_string(indent=2) + "\n"

    # The number follows from all else that it holds.
    return text(text(""))
