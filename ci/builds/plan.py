"""Everything that decides a build from source, and the commands that follow from it. Nothing is done here."""

from __future__ import annotations

import os
import re
import shlex
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.builds.cmake import Program
from ci.builds.recipes import Project, Recipe, filled
from ci.builds.toolchain import Toolchain
from ci.builds.tree import OWN_NAME, SourceTree

STEERING = (
    "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH", "LD_RUN_PATH", "CMAKE_PREFIX_PATH", "CMAKE_TOOLCHAIN_FILE", "CMAKE_GENERATOR",
    "CMAKE_BUILD_TYPE", "CMAKE_INSTALL_PREFIX", "DESTDIR", "PYTHONPATH", "PYTHONHOME", "NDK_CCACHE",
)  # fmt: skip
"""Variables that would steer compilers and CMake behind the recipe's back; commands run without them."""

SHADOW = "tree"

MEMORY_PER_JOB = 3 << 29
"""A compiler at work on ExecuTorch's largest files, with room to spare: 1.5 GB."""


AS_INCLUDED = [
    f"$<$<COMPILE_LANG_AND_ID:{language},GNU>:-fno-canonical-system-headers>" for language in ("C", "CXX")
]
"""GCC names a system header that links lead to by the shorter of its two paths, unless told not to: what a
binary says would depend on how long the folders' names are."""


@dataclass(frozen=True, slots=True)
class Sdk:
    root: Path
    build_id: str


@dataclass(frozen=True, slots=True)
class Command:
    title: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True)
class Plan:
    target: str
    recipe: Recipe
    tree: SourceTree
    sdk: Sdk
    toolchain: Toolchain
    cmake: Program
    ninja: Program
    python: Path
    python_identity: str
    build_type: str
    launcher: Path | None
    extra: tuple[str, ...]
    jobs: int
    root: Path
    """Of the build: the CMake build directory, the log and what is remembered are below it."""
    dist: Path

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def written(self) -> tuple[str, ...]:
        """Folders of the tree that CMake gets a copy of."""
        return tuple(sorted(each for each in self.recipe.written if (self.tree.root / each).is_dir()))

    @property
    def source(self) -> Path:
        """The tree as CMake is shown it."""
        return self.root / SHADOW / OWN_NAME if self.written else self.tree.root

    @property
    def log(self) -> Path:
        return self.root / "build.log"

    @property
    def flags_file(self) -> Path:
        return self.root / "flags.cmake"

    def flags(self) -> str:
        """A CMake file that each project includes: our flags beside those of the toolchain, none replaced."""
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
        """Folders of this machine, and what binaries say in their place. More specific ones come later."""
        folders = {Path(sysconfig.get_path("include")).parent.parent: "python"}
        # The system's own Python: /usr is in every path of compilers, and of no machine in particular.
        folders.pop(Path("/usr"), None)
        folders[Path(sysconfig.get_path("purelib"))] = "site-packages"  # torch brings pybind11's headers
        folders |= dict.fromkeys(self.toolchain.roots, "toolchain")
        folders |= {self.sdk.root: "qnn-sdk", self.tree.root: OWN_NAME}
        folders |= {self.source: OWN_NAME, self.build: "build"}
        return folders

    def definitions(self, project: Project) -> dict[str, str]:
        given = {**self.recipe.options, **project.options}
        defined = {name: filled(value, self.values()) for name, value in given.items()}
        defined |= {
            **self.toolchain.definitions,
            "CMAKE_BUILD_TYPE": self.build_type,
            "CMAKE_MAKE_PROGRAM": str(self.ninja.path),
            "CMAKE_PROJECT_INCLUDE": str(self.flags_file),
        }
        if self.launcher is not None:
            defined |= {f"CMAKE_{kind}_COMPILER_LAUNCHER": str(self.launcher) for kind in ("C", "CXX")}
        for argument in self.extra:
            if found := re.fullmatch(r"(?:-D)?(\w+)(?::\w+)?=(.*)", argument, re.DOTALL):
                defined[found.group(1)] = found.group(2)
        return defined

    def configure(self, project: Project, forgotten: Sequence[str] = ()) -> Command:
        """`forgotten`: variables that an earlier run gave and that this one leaves to the project."""
        defined = self.definitions(project)
        raw = [argument for argument in self.extra if not re.match(r"(?:-D)?\w+(?::\w+)?=", argument)]
        return Command(
            f"configuring {project.name}",
            (
                str(self.cmake.path),
                *("-S", os.path.normpath(self.source / project.source)),
                *("-B", os.path.normpath(self.build / project.build), "-G", "Ninja"),
                *(f"-U{name}" for name in sorted(set(forgotten) - set(defined))),
                *(f"-D{name}={value}" for name, value in sorted(defined.items())),
                *raw,
            ),
        )

    def compile(self, project: Project) -> Command:
        wanted = [word for target in project.targets for word in ("--target", target)]
        folder = os.path.normpath(self.build / project.build)
        return Command(
            f"building {project.name}",
            (str(self.cmake.path), "--build", folder, "--parallel", str(self.jobs), *wanted),
        )

    def variables(self) -> dict[str, str]:
        """What commands run with, beside the user's own environment without STEERING."""
        return {
            "QNN_SDK_ROOT": str(self.sdk.root),
            "SOURCE_DATE_EPOCH": str(self.tree.time),
            "PYTHONHASHSEED": "0",
            # For projects that are built inside a project.
            "CMAKE_BUILD_PARALLEL_LEVEL": str(self.jobs),
            # A tree that is only read stays as it is.
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
            "NINJA_STATUS": "[%f/%t] ",
        }

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in environ.items() if name not in STEERING}
        return {**kept, **self.variables()}


def default_jobs(environ_cpus: int | None = None, memory: int | None = None) -> int:
    """As many as there are processors, and no more than there is memory for."""
    cpus = environ_cpus or len(os.sched_getaffinity(0))
    available = memory if memory is not None else available_memory()
    return max(1, min(cpus, available // MEMORY_PER_JOB if available else cpus))


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """What this machine, or the container this runs in, has left in bytes; None when neither says."""
    left = []
    if meminfo.is_file():
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="ascii"), re.MULTILINE)
        if found:
            left.append(int(found.group(1)) << 10)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most, now = ((cgroup / name).read_text(encoding="ascii").strip() for name in (limit, used))
        except OSError:
            continue
        if most.isdecimal() and now.isdecimal():
            left.append(max(1, int(most) - int(now) + _reclaimable(cgroup / limit)))
    return min(left, default=None)


def _reclaimable(limit: Path) -> int:
    """What a container has in use only to cache files; after a checkout that is most of it."""
    try:
        text = limit.with_name("memory.stat").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", text, re.MULTILINE)
    return int(found.group(1)) if found else 0
