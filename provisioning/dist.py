"""What builds put into dist/ for later stages: runners, bundles, signed libraries, and the overlay for
PYTHONPATH of `build_x86`, with the state of the source tree that it was built of."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from provisioning.base.commands import capture
from provisioning.base.files import hash_file, replace_text
from provisioning.base.rendering import plural
from provisioning.base.settings import DEFAULT_TARGET, dist_path

RUNNER = Path("bin/qnn_executor_runner")
LIBRARIES = Path("lib")
MANIFEST = "manifest.json"
"""The manifest's name. Only a build from ExecuTorch's source has one."""
OURS = Path("wheel")
"""The folder of `build_runner`, with a bin/ and lib/ of its own: ExecuTorch's runner has the same name."""
BUNDLES = dist_path() / "bundles"
SIGNED = dist_path() / "overlay"
"""The libraries that `sign_lpai` signed, as they lie in an SDK."""


def runner_of(dist: Path) -> Path | None:
    """The runner for a target: that of a build from ExecuTorch's source, else ours, else none."""
    runner = build_of(dist) / RUNNER
    return runner if runner.is_file() else None


def build_of(dist: Path) -> Path:
    """The folder of the build whose runner serves a target."""
    return dist if (dist / MANIFEST).is_file() and (dist / RUNNER).is_file() else dist / OURS


FOLDER = "overlay"
"""The overlay's name below dist/<target>/."""
DESCRIPTION = "overlay.json"
OVERLAY = dist_path() / DEFAULT_TARGET / FOLDER

REPOSITORY = ".git"
_SCHEMA = 2
_READ_BY_BUILDS = re.compile(
    r"(?:.*/)?(?:CMakeLists\.txt|[^/]+\.(?:c|cc|cpp|cxx|h|hh|hpp|inc|inl|S|cmake|in|fbs|ya?ml))"
    r"|version\.txt|(?:codegen|tools/cmake)/.*"
)
"""What is compiled or generated from. Python's other files are seen through the overlay's links."""


@dataclass(frozen=True, slots=True)
class TreeState:
    """What decides what is built from a source tree."""

    commit: str = ""
    """The commit that is checked out; empty if it is no git repository."""
    changed: bool = False
    """Whether any file of the repository differs from the commit."""
    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each changed or new file that builds read; empty for a file that is gone. A submodule at
    another commit has that commit."""

    def __str__(self) -> str:
        files = f" with {plural(len(self.files), 'changed file')}" if self.files else ""
        return f"{self.commit[:12] or 'a tree without git'}{files}"


@dataclass(frozen=True, slots=True)
class BuiltFrom:
    tree: Path
    profile: str
    state: TreeState

    def __str__(self) -> str:
        return f"{self.tree} at {self.state.commit or 'no commit'}{'+changes' if self.state.changed else ''}"


def state_of(tree: Path) -> TreeState:
    """Describe a tree's state. A tree of the store never changes, and a tree without git is known by sizes
    and times."""
    if not (tree / REPOSITORY).exists():
        return TreeState(files={} if _is_of_store(tree) else _stamps(tree))
    entries = list(_entries(git_output(tree, "status", "--porcelain=v2", "-z", "--untracked-files=all")))
    files: dict[str, str] = {}
    for _, submodule, path in entries:
        if submodule.startswith("S"):
            inner = state_of(tree / path)
            files |= {path: inner.commit} if submodule[1] == "C" else {}
            files |= {f"{path}/{name}": digest for name, digest in inner.files.items()}
        elif _READ_BY_BUILDS.fullmatch(path):
            file = tree / path
            files[path] = hash_file(file) if file.is_file() else ""
    is_changed = any(kind != "?" for kind, _, _ in entries)
    return TreeState(git_output(tree, "rev-parse", "HEAD"), is_changed, dict(sorted(files.items())))


def describe(folder: Path, build: BuiltFrom) -> None:
    """Write the description into an overlay."""
    data = {"schema": _SCHEMA, "tree": str(build.tree), "profile": build.profile, **asdict(build.state)}
    replace_text(folder / DESCRIPTION, json.dumps(data, indent=2) + "\n")


def description_of(folder: Path) -> BuiltFrom | None:
    """Read an overlay's description. Returns None if there is no overlay, or its description is damaged or of
    another release."""
    try:
        data = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if data["schema"] != _SCHEMA:
            return None
        state = TreeState(data["commit"], data["changed"], data["files"])
        return BuiltFrom(Path(data["tree"]), data["profile"], state)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def staleness(build: BuiltFrom) -> str:
    """Say what the tree has that was not built; empty if that is nothing."""
    now = state_of(build.tree)
    if (now.commit, now.files) == (build.state.commit, build.state.files):
        return ""
    names = sorted(name for name, _ in now.files.items() ^ build.state.files.items())
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    difference = f": {', '.join(names[:3])}{more}" if names else ""
    return f"{build.tree} was built from {build.state}, and the tree is {now}{difference}"


def git_output(root: Path, *arguments: str) -> str:
    """Return git's output for the repository whose top is exactly `root`; empty otherwise."""
    if not (root / REPOSITORY).exists():
        return ""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Write nothing into the tree, not even git's index.
    environ |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    settings = ("-c", f"safe.directory={root}", "-c", "log.showSignature=false")
    command = ["git", *settings, "-C", str(root), *arguments]
    try:
        process = capture(command, env=environ)
    except FileNotFoundError:
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""


def _entries(status: str) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, what changed of a submodule, path) of `git status --porcelain=v2 -z`."""
    fields = iter(status.split("\0"))
    for line in fields:
        kind, _, rest = line.partition(" ")
        if kind == "?":
            yield kind, "", rest
        elif kind == "1":
            yield kind, rest.split(" ")[1], rest.split(" ", 7)[7]
        elif kind == "2":
            yield kind, rest.split(" ")[1], rest.split(" ", 8)[8]
            yield kind, "N", next(fields)  # what it was renamed from
        elif kind == "u":
            yield kind, rest.split(" ")[1], rest.split(" ", 9)[9]


def _is_of_store(tree: Path) -> bool:
    return tree.parent.with_name(f"{tree.parent.name}.json").is_file()


def _stamps(tree: Path) -> dict[str, str]:
    """One digest over the names, sizes and times of what builds read."""
    digest = hashlib.sha256()
    for path in sorted(_files(tree)):
        status = os.stat(path)  # noqa: PTH116  there are a hundred thousand
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return {"(sizes and times)": digest.hexdigest()}


def _files(tree: Path) -> Iterable[str]:
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118
            if _READ_BY_BUILDS.fullmatch(os.path.relpath(path, tree)) and os.path.isfile(path):  # noqa: PTH113
                yield path
