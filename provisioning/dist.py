"""Name what builds put into dist/ for later stages, and read it again.

A target's folder, dist/<target>/, has a runner and libraries. The *overlay* is the folder that `build_x86`
makes for PYTHONPATH: the Python packages of an ExecuTorch tree as it built them. Its description says of
which tree, so that a stage can tell whether the tree has changed since."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from provisioning.base.files import replace_text
from provisioning.base.settings import DEFAULT_TARGET, dist_path
from provisioning.source_tree import TreeState, state_of

RUNNER = Path("bin/qnn_executor_runner")
"""The runner's place in the folder of a target."""
LIBRARIES = Path("lib")
MANIFEST = "manifest.json"
"""The manifest's name. Only a build from ExecuTorch's source has one."""
OURS = Path("wheel")
"""The folder of `build_runner`, with a bin/ and lib/ of its own: ExecuTorch's runner has the same name."""
BUNDLES = dist_path() / "bundles"
SIGNED = dist_path() / "overlay"
"""The libraries that `sign_lpai` signed, as they lie in an SDK."""
FOLDER = "overlay"
"""The overlay's name below dist/<target>/."""
DESCRIPTION = "overlay.json"
"""The file of an overlay that describes the tree it was built from."""
OVERLAY = dist_path() / DEFAULT_TARGET / FOLDER

_SCHEMA = 2


def runner_of(dist: Path) -> Path | None:
    """Return the runner for a target: the one built from ExecuTorch's source, else ours, else None."""
    runner = build_of(dist) / RUNNER
    return runner if runner.is_file() else None


def build_of(dist: Path) -> Path:
    """Return the folder of the build whose runner serves a target."""
    return dist if (dist / MANIFEST).is_file() and (dist / RUNNER).is_file() else dist / OURS


@dataclass(frozen=True, slots=True)
class BuiltFrom:
    """The tree that an overlay or a wheel was built from, as it was then."""

    tree: Path
    profile: str
    state: TreeState

    def __str__(self) -> str:
        return f"{self.tree} at {self.state.commit or 'no commit'}{'+changes' if self.state.changed else ''}"


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
