"""From a build directory to dist/<target>/: the recipe's files, a manifest, a bill of materials, licences."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.builds.loadable import LoadableFile
from ci.builds.output_folders import BILL_OF_MATERIALS, LICENCES
from ci.builds.recipes import Output
from ci.builds.source_plan import SourcePlan
from ci.builds.tree import SourceTree, Submodule, adaptors, submodules
from ci.engine.dist import MANIFEST
from provisioning import elf
from provisioning.base.bill_of_materials import Item, document, package_url
from provisioning.base.commands import captured
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Artifact
from provisioning.components import ANDROID_NDK, QNN_SDK

SCHEMA = 1

_LICENCE = re.compile(r"(?i)(licen[cs]e|copying|notice|copyright)([._-].*)?")
_LICENCE_DEPTH = 3
_GITHUB = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?")


@dataclass(frozen=True, slots=True)
class DistFile:
    """A file of dist/<target>/, as the manifest lists it."""

    path: str
    kind: str
    sha256: str
    size: int
    machine: str
    build_id: str
    """The GNU build id, when the linker wrote one."""
    needed: tuple[str, ...]


def collect(plan: SourcePlan, target_only: bool) -> list[LoadableFile]:
    """The recipe's files in the build directory; raises CheckFailed for a missing one."""
    built: list[LoadableFile] = []
    for output in plan.recipe.outputs:
        if target_only and output.kind == "adaptor":
            continue
        names = adaptors(output, plan.tree.root)
        if not names:
            raise CheckFailed(
                f"no CMake file below {plan.tree.root / str(output.defined_in)} defines "
                f"a {output.kind}: nothing fits {output.defined}",
                fix="correct `defined` of that output in manifests/recipes/",
            )
        for name in names:
            built += [
                LoadableFile(output.kind, path, f"{output.to}/{path.name}")
                for path in _files(plan, output, name)
            ]
    return built


def patterns(output: Output, name: str) -> list[str]:
    return [pattern.replace("{name}", name) for pattern in output.files]


def _files(plan: SourcePlan, output: Output, name: str) -> list[Path]:
    matches = [sorted(plan.build.glob(pattern)) for pattern in patterns(output, name)]
    if any(matches):
        # An earlier commit may have installed to another place in this directory: take the newest.
        return max(matches, key=lambda paths: max((path.stat().st_mtime_ns for path in paths), default=0))
    raise CheckFailed(
        f"expected the build to make {' or '.join(patterns(output, name))} in {plan.build}, found none",
        fix=f"read {plan.cmake_build().log}; if the tree names it otherwise, correct manifests/recipes/",
    )


def assemble(built: Sequence[LoadableFile], part: Path, strip: str) -> list[LoadableFile]:
    """Copy the files to `part` and strip them if `strip` names a program; returns the copies."""
    moved = []
    for file in built:
        to = part / file.place
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path, to)
        to.chmod(0o755)
        if strip:
            _strip(strip, to)
        moved.append(LoadableFile(file.kind, to, file.place))
    return moved


def _strip(program: str, path: Path) -> None:
    command = [program, "--strip-unneeded", str(path)]
    done = captured(command)
    if done.returncode != 0:
        raise CheckFailed(
            f"{program} failed on {path.name} with exit code {done.returncode}: {done.stderr.strip()[-300:]}",
            fix="give another one: --cmake-arg CMAKE_STRIP=/path/to/strip",
        )


def strip_program(build: Path) -> str:
    """The program that CMake found for this target."""
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8", errors="replace")
    strip = re.search(r"^CMAKE_STRIP:\w+=(.+)$", cache, re.MULTILINE)
    return strip.group(1) if strip and Path(strip.group(1)).is_file() else ""


def describe(plan: SourcePlan, built: Sequence[LoadableFile], part: Path, profile: str) -> list[DistFile]:
    """Write licences, the bill of materials and the manifest beside the files."""
    files = [dist_file(file) for file in built]
    copy_licences(plan.tree.root, part / LICENCES)
    if plan.toolchain.version:
        # Its C++ library is part of what was linked.
        copy_licences(plan.toolchain.roots[0], part / LICENCES / ANDROID_NDK, depth=0)
    items = [
        *_toolchain_items(plan),
        *map(submodule_item, submodules(plan.tree)),
        *(Item(file.path, kind="file", sha256=file.sha256) for file in files),
    ]
    bill = document(_subject(plan.tree), items, {"qnn-ci:target": plan.target})
    (part / BILL_OF_MATERIALS).write_text(bill, encoding="utf-8")
    manifest = {
        "schema": SCHEMA,
        "target": plan.target,
        "profile": profile,
        "recipe": plan.recipe.summary,
        "executorch": plan.tree.version,
        "commit": plan.tree.commit,
        "changed": plan.tree.changed,
        "build_type": plan.build_type,
        "toolchain": plan.toolchain.version or re.sub(r"^\S+: ", "", plan.toolchain.identity),
        "qnn_build_id": plan.sdk.build_id,
        "link_flags": list(plan.recipe.link_flags),
        "options": {
            project.name: _public(plan, plan.definitions(project)) for project in plan.recipe.projects
        },
        "files": [asdict(file) for file in files],
    }
    (part / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return files


def dist_file(file: LoadableFile) -> DistFile:
    artifact = Artifact.of(file.kind, file.path)
    header = elf.read(file.path)
    return DistFile(
        path=file.place,
        kind=file.kind,
        sha256=artifact.sha256,
        size=artifact.size,
        machine=header.machine,
        build_id=header.gnu_build_id,
        needed=header.needed,
    )


def copy_licences(tree: Path, into: Path, depth: int = _LICENCE_DEPTH) -> None:
    """Copy all licence texts of the tree, each to its place in the tree."""
    for path in licence_texts(tree, depth):
        to = into / path.relative_to(tree)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)


def licence_texts(tree: Path, most: int) -> Iterator[Path]:
    def walk(folder: Path, depth: int) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or path.name.startswith("."):
                continue
            if path.is_file() and _LICENCE.fullmatch(path.name):
                yield path
            elif path.is_dir() and depth < most:
                yield from walk(path, depth + 1)

    yield from walk(tree, 0)


def _subject(tree: SourceTree) -> Item:
    return Item(
        "executorch",
        tree.version or tree.commit or "unknown",
        kind="application",
        purl=package_url("github", "executorch", tree.commit, "pytorch"),
    )


def submodule_item(submodule: Submodule) -> Item:
    github = _GITHUB.fullmatch(submodule.url)
    purl = package_url("github", github[2], submodule.commit, github[1]) if github else ""
    return Item(submodule.path.rpartition("/")[2], submodule.commit, purl=purl)


def _toolchain_items(plan: SourcePlan) -> Iterable[Item]:
    yield Item(QNN_SDK, plan.sdk.build_id, licence="Qualcomm AI Stack License")
    if plan.toolchain.version:
        yield Item(ANDROID_NDK, plan.toolchain.version, kind="framework")
    else:
        yield Item("compiler", _public_text(plan, plan.toolchain.identity), kind="application")


def _public(plan: SourcePlan, definitions: dict[str, str]) -> dict[str, str]:
    return {name: _public_text(plan, value) for name, value in definitions.items() if name not in _PRIVATE}


_PRIVATE = {
    "CMAKE_PROJECT_INCLUDE", "CMAKE_MAKE_PROGRAM", "PYTHON_EXECUTABLE", "CMAKE_C_COMPILER",
    "CMAKE_CXX_COMPILER", "CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER",
}  # fmt: skip
"""Variables that only name folders of this machine."""


def _public_text(plan: SourcePlan, text: str) -> str:
    for folder, name in reversed(plan.private().items()):
        text = text.replace(str(folder), f"<{name}>")
    return re.sub(r"^\S+: ", "", text)
