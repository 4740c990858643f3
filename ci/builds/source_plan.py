"""Everything that decides a build from source, and how it is found by a command line and an environment.

Nothing is built here.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.builds import toolchain
from ci.builds.built_files import OURS, refuse_foreign, require_writable
from ci.builds.cmake import RECORD, Build, CMakeTarget, ConfiguredProject, targets
from ci.builds.toolchain import BuildTool, Toolchain, find_cmake, find_ninja
from ci.builds.tree import (
    OWN_NAME,
    Recipe,
    RecipeProject,
    SourceTree,
    file_names,
    fill_placeholders,
    load_recipe,
    open_tree,
)
from ci.work import available_memory
from provisioning.base.commands import add_flags
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import DEFAULT_TARGET, OFFICIAL_PROFILE, Selection, dist_path, outputs_path
from provisioning.build_ids import build_ids
from provisioning.components import ANDROID_NDK, EXECUTORCH_SOURCE, QNN_SDK
from provisioning.dist import DESCRIPTION, FOLDER, RUNNER
from provisioning.environment import Environment, resolve, users_own
from provisioning.manifest import Part, Profile, load_profile

LINKS = "tree"

MEMORY_PER_JOB = 3 << 29
"""1.5 GB: what a compiler needs for ExecuTorch's largest files, and a margin."""

AS_INCLUDED = [
    f"$<$<COMPILE_LANG_AND_ID:{language},GNU>:-fno-canonical-system-headers>" for language in ("C", "CXX")
]
"""GCC names a system header by the shorter of its two paths if links lead to it, unless this flag is set.
Otherwise the bytes of a binary would depend on the length of folder names.
"""

_DEFINITION = re.compile(r"(?:-D)?(\w+)(?::\w+)?=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LocatedSdk:
    root: Path
    build_id: str


@dataclass(frozen=True, slots=True)
class SourcePlan:
    target: str
    recipe: Recipe
    tree: SourceTree
    names: Mapping[str, Sequence[str]]
    """The names of the tree's files, by folder, before the build."""
    sdk: LocatedSdk
    toolchain: Toolchain
    cmake: BuildTool
    ninja: BuildTool
    python: Path
    python_identity: str
    build_type: str
    launcher: Path | None
    extra: tuple[str, ...]
    jobs: int
    root: Path
    """The folder that is built in."""
    dist: Path

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Folders of the tree that CMake's builds write into, so CMake gets copies."""
        return tuple(sorted(folder for folder in self.recipe.written if (self.tree.root / folder).is_dir()))

    @property
    def source(self) -> Path:
        """The tree as CMake sees it."""
        return self.root / LINKS / OWN_NAME if self.outputs else self.tree.root

    @property
    def flags_file(self) -> Path:
        return self.root / "flags.cmake"

    def flags(self) -> str:
        """A CMake file that each project includes. It adds our flags to the toolchain's."""
        maps = [f"-ffile-prefix-map={folder}={name}" for folder, name in self.private().items()]
        compile_flags = "".join(f"  [=[{flag}]=]\n" for flag in (*maps, *AS_INCLUDED))
        link_flags = "".join(f"  [=[{flag}]=]\n" for flag in self.recipe.link_flags)
        text = f"include_guard(GLOBAL)\nadd_compile_options(\n{compile_flags})\n"
        return text + (f"add_link_options(\n{link_flags})\n" if link_flags else "")

    def values(self) -> dict[str, str]:
        return {
            "tree": str(self.source),
            "build": str(self.build),
            "sdk": str(self.sdk.root),
            "python": str(self.python),
            **self.toolchain.values,
        }

    def private(self) -> dict[Path, str]:
        """Folders of this machine, and the names that replace them in binaries. Inner folders come later."""
        folders = {Path(sysconfig.get_path("include")).parent.parent: "python"}
        # Not /usr, of the system's Python: every compiler's paths contain it, on every machine.
        folders.pop(Path("/usr"), None)
        folders[Path(sysconfig.get_path("purelib"))] = "site-packages"  # torch brings pybind11's headers
        folders |= dict.fromkeys(self.toolchain.roots, "toolchain")
        folders |= {self.sdk.root: "qnn-sdk", self.tree.root: OWN_NAME}
        folders |= {self.source: OWN_NAME, self.build: "build"}
        return folders

    def definitions(self, project: RecipeProject) -> dict[str, str]:
        options = {**self.recipe.options, **project.options}
        defined = {name: fill_placeholders(value, self.values()) for name, value in options.items()}
        defined |= {
            **self.toolchain.definitions,
            "CMAKE_BUILD_TYPE": self.build_type,
            "CMAKE_PROJECT_INCLUDE": str(self.flags_file),
        }
        for argument in self.extra:
            if definition := _DEFINITION.fullmatch(argument):
                defined[definition.group(1)] = definition.group(2)
        return defined

    def targets(self) -> list[CMakeTarget]:
        """The targets of all projects, once they are configured."""
        return [target for project in self.recipe.projects for target in targets(self.build / project.build)]

    def cmake_build(self) -> Build:
        names = "".join("\0".join([folder, *files, ""]) for folder, files in self.names.items())
        return Build(
            folder=self.root,
            cmake=self.cmake,
            ninja=self.ninja,
            projects=tuple(map(self._cmake_project, self.recipe.projects)),
            jobs=self.jobs,
            identity={
                "toolchain": self.toolchain.identity,
                # The compilers' dependency files do not notice an older SDK that replaces a newer one.
                "qnn sdk": f"{self.sdk.build_id} in {self.sdk.root}",
                "python": self.python_identity,
                # CMake reads these variables once.
                "launcher": str(self.launcher or ""),
                "tree": f"{self.tree.root}, as {self.source}",
            },
            variables=self.variables(),
            owned=("build", LINKS),
            # CMake looks for files when it configures, and only then.
            listing=hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest(),
        )

    def _cmake_project(self, project: RecipeProject) -> ConfiguredProject:
        return ConfiguredProject(
            project.name,
            self.source / project.source,
            self.build / project.build,
            self.definitions(project),
            tuple(option for option in self.extra if not _DEFINITION.fullmatch(option)),
            project.install,
        )

    def variables(self) -> dict[str, str]:
        """The variables for the build's commands."""
        launched = (
            {}
            if self.launcher is None
            else {
                # Variables and not definitions: projects that are built inside a project read them too.
                **{f"CMAKE_{kind}_COMPILER_LAUNCHER": str(self.launcher) for kind in ("C", "CXX")},
                # Headers that this build generates are always young.
                "CCACHE_SLOPPINESS": "include_file_ctime,include_file_mtime",
            }
        )
        return {
            "QNN_SDK_ROOT": str(self.sdk.root),
            "SOURCE_DATE_EPOCH": str(self.tree.time),
            "PYTHONHASHSEED": "0",
            # For projects that are built inside a project.
            "CMAKE_BUILD_PARALLEL_LEVEL": str(self.jobs),
            # The tree is only read.
            "PYTHONDONTWRITEBYTECODE": "1",
            **launched,
        }


def default_jobs() -> int:
    """One job for each processor, as far as memory allows."""
    cpus, available = len(os.sched_getaffinity(0)), available_memory()
    return max(1, min(cpus, available // MEMORY_PER_JOB if available else cpus))


HEADER = Path("include/QNN/QnnInterface.h")
LAUNCHERS = ("ccache", "sccache")


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What a build from source was asked for; None if the user left the choice to us."""

    executorch: Path | None
    build_type: str
    jobs: int | None
    clean: bool
    build_dir: Path | None
    output: Path | None
    glibc: str | None
    cmake_arg: Sequence[str]
    toolchain_file: Path | None


def plan_of(options: BuildOptions, selection: Selection, environ: Mapping[str, str]) -> SourcePlan:
    if options.build_dir:
        require_writable(options.build_dir, "--build-dir")
        refuse_foreign(options.build_dir, RECORD, "--build-dir")
    if options.output:
        require_writable(options.output, "--output")
        refuse_foreign(options.output, str(RUNNER), "--output", OURS)
        if selection.target == DEFAULT_TARGET:
            refuse_foreign(options.output / FOLDER, DESCRIPTION, "--output")
    profile = load_profile(selection.profile)
    recipe = load_recipe(selection.target)
    ndk = [ANDROID_NDK] if recipe.toolchain == "ndk" else []
    needs = (QNN_SDK, *ndk, *([] if options.executorch else [EXECUTORCH_SOURCE]))
    _check_headers(profile, selection, environ, needs)
    environment = resolve(selection, environ, needs=needs)
    environment.explain(builds=True)
    suffix = "" if options.build_type == "RelWithDebInfo" else f"-{options.build_type}"
    launcher = next((path for name in LAUNCHERS if (path := shutil.which(name))), None)
    tree = open_tree(
        options.executorch.absolute() if options.executorch else environment.root(EXECUTORCH_SOURCE).path,
        recipe.submodules,
    )
    return SourcePlan(
        target=selection.target,
        recipe=recipe,
        tree=tree,
        names=file_names(tree.root),
        sdk=sdk_at(environment.root(QNN_SDK).path),
        toolchain=_toolchain(options, recipe, environment, environ),
        cmake=find_cmake(profile.host["cmake"]),
        ninja=find_ninja(),
        python=Path(sys.executable),
        python_identity=f"{sys.implementation.cache_tag} {platform.python_version()} at {sys.executable}",
        build_type=options.build_type,
        launcher=Path(launcher) if launcher else None,
        extra=tuple(options.cmake_arg),
        jobs=options.jobs or default_jobs(),
        root=(
            options.build_dir or outputs_path() / "build" / "executorch" / f"{selection.target}{suffix}"
        ).absolute(),
        dist=(options.output or dist_path() / selection.target).absolute(),
    )


def _brings_headers(part: Part) -> bool:
    """Whether this part of an SDK places the headers, or all of its files."""
    return not part.place or any(re.fullmatch(place.match, str(HEADER)) for place in part.place)


def _check_headers(
    profile: Profile, selection: Selection, environ: Mapping[str, str], needs: tuple[str, ...]
) -> None:
    """Refuse a profile without headers before anything is provisioned for it."""
    has_headers = any(map(_brings_headers, profile.components[QNN_SDK].parts))
    if has_headers or users_own(QNN_SDK, selection.store, environ, []):
        return
    message = f"the profile {profile.name} has QNN's libraries without the headers that a build needs"
    try:
        # All that lacks is said at once, with the command that brings it.
        resolve(replace(selection, profile=OFFICIAL_PROFILE), environ, needs=needs)
    except EnvironmentLacking as lacking:
        raise EnvironmentLacking(
            f"{message}, and {OFFICIAL_PROFILE} has them; {lacking.message}", fix=lacking.fix
        ) from lacking
    raise EnvironmentLacking(message, fix=add_flags("--profile", OFFICIAL_PROFILE))


def sdk_at(root: Path) -> LocatedSdk:
    if not (root / HEADER).is_file():
        raise EnvironmentLacking(
            f"{root}: expected {HEADER} to compile against, found none: the libraries of wheels come without",
            fix=f"name an official SDK with QNN_SDK_ROOT, or select --profile {OFFICIAL_PROFILE}",
        )
    libraries = sorted(root.glob("lib/*/libQnnHtp.so")) or sorted(root.glob("lib/*/libQnn*.so"))
    ids = build_ids(libraries[0]) if libraries else ()
    if not ids:
        raise EnvironmentLacking(
            f"{root}: no library below lib/ tells its build id", fix="name a whole SDK with QNN_SDK_ROOT"
        )
    return LocatedSdk(root, ids[0])


def _toolchain(
    options: BuildOptions, recipe: Recipe, environment: Environment, environ: Mapping[str, str]
) -> Toolchain:
    if recipe.toolchain == "ndk":
        return toolchain.ndk(environment.root(ANDROID_NDK).path)
    if recipe.toolchain == "cross":
        return toolchain.cross(recipe, environ, options.toolchain_file)
    return toolchain.host(environ)
