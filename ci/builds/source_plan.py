"""Everything that decides a build from source. Nothing is built here."""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.builds.build_tools import BuildTool
from ci.builds.cmake import Build, ConfiguredProject
from ci.builds.file_api import CMakeTarget, targets
from ci.builds.recipes import Recipe, RecipeProject, filled
from ci.builds.toolchain import Toolchain
from ci.builds.tree import OWN_NAME, SourceTree
from ci.jobs import available_memory

LINKS = "tree"

MEMORY_PER_JOB = 3 << 29
"""1.5 GB: what a compiler needs for ExecuTorch's largest files, and a margin."""

AS_INCLUDED = [
    f"$<$<COMPILE_LANG_AND_ID:{language},GNU>:-fno-canonical-system-headers>" for language in ("C", "CXX")
]
"""GCC names a system header by the shorter of its two paths if links lead to it, unless this flag is set.
Otherwise the bytes of a binary would depend on the length of folder names.
"""

AS_RELATIVE = """\
# ccache names files as seen from the folder that compilers run in, so that other folders share its results.
foreach(tree {trees})
  file(RELATIVE_PATH relative "${{CMAKE_BINARY_DIR}}" "${{tree}}")
  add_compile_options("-ffile-prefix-map=${{relative}}={name}")
endforeach()
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
    def written(self) -> tuple[str, ...]:
        """Folders of the tree that CMake's builds write into, so CMake gets copies."""
        return tuple(sorted(folder for folder in self.recipe.written if (self.tree.root / folder).is_dir()))

    @property
    def source(self) -> Path:
        """The tree as CMake sees it."""
        return self.root / LINKS / OWN_NAME if self.written else self.tree.root

    @property
    def flags_file(self) -> Path:
        return self.root / "flags.cmake"

    def flags(self) -> str:
        """A CMake file that each project includes. It adds our flags to the toolchain's."""
        maps = [f"-ffile-prefix-map={folder}={name}" for folder, name in self.private().items()]
        compile_flags = "".join(f"  [=[{flag}]=]\n" for flag in (*maps, *AS_INCLUDED))
        link_flags = "".join(f"  [=[{flag}]=]\n" for flag in self.recipe.link_flags)
        text = f"include_guard(GLOBAL)\nadd_compile_options(\n{compile_flags})\n"
        trees = dict.fromkeys((self.tree.root.resolve(), self.source))
        text += AS_RELATIVE.format(trees=" ".join(f"[=[{tree}]=]" for tree in trees), name=OWN_NAME)
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
        defined = {name: filled(value, self.values()) for name, value in options.items()}
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
            settings={
                "commit": self.tree.commit,
                "build type": self.build_type,
                "arguments": " ".join(self.extra),
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
                # Another folder with the same content finds what this one compiled.
                "CCACHE_BASEDIR": str(self.root),
                "CCACHE_NOHASHDIR": "1",
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
