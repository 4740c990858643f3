"""What a build directory was made by, and whether it can go on with what is asked now."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ci.builds.link_tree import link_with_copies
from ci.builds.plan import SHADOW, Plan
from provisioning.base.errors import UsageError

MEMORY = "made-by.json"
FORMAT = 2


@dataclass(frozen=True, slots=True)
class Memory:
    """`hard`: with another value nothing in the directory may be used. `soft`: CMake and Ninja cope."""

    hard: dict[str, str]
    soft: dict[str, str]
    options: dict[str, list[str]]
    """By project, what was given to CMake."""

    def encode(self) -> str:
        made = {"format": FORMAT, "hard": self.hard, "soft": self.soft, "options": self.options}
        return json.dumps(made, indent=2, sort_keys=True) + "\n"


@dataclass(frozen=True, slots=True)
class Readiness:
    memory: Memory | None
    """What the directory remembers, if it can go on."""
    reasons: tuple[str, ...]
    """Why it must be emptied first; none when it need not."""
    changes: tuple[str, ...] = ()
    """What else is other than the last time."""


def asked(plan: Plan) -> Memory:
    return Memory(
        hard={
            "toolchain": plan.toolchain.identity,
            "cmake": plan.cmake.identity,
            "ninja": str(plan.ninja.path),
            # Compilers' dependency files do not notice an SDK that was exchanged for an older one.
            "qnn sdk": f"{plan.sdk.build_id} in {plan.sdk.root}",
            "python": plan.python_identity,
            "tree": f"{plan.tree.root}, as {plan.source}",
            "build directory": str(plan.build),
        },
        soft={
            "commit": plan.tree.commit,
            "build type": plan.build_type,
            "launcher": str(plan.launcher or ""),
            "arguments": " ".join(plan.extra),
        },
        options={project.name: sorted(plan.definitions(project)) for project in plan.recipe.projects},
    )


def readiness(plan: Plan) -> Readiness:
    """Raises UsageError when the directory holds something that no build of ours put there."""
    root = plan.root
    if not root.exists() or not any(root.iterdir()):
        return Readiness(None, ())
    kept = recall(root)
    if kept is None:
        if not _ours(root):
            raise UsageError(
                f"{root} is not empty, and not a build directory that was made here",
                remedy="name an empty or new directory with --build-dir",
            )
        return Readiness(None, ("what made it is not known",))
    now = asked(plan)
    reasons = tuple(_differences(kept.hard, now.hard))
    return Readiness(None if reasons else kept, reasons, tuple(_differences(kept.soft, now.soft)))


def recall(root: Path) -> Memory | None:
    try:
        kept = json.loads((root / MEMORY).read_text(encoding="utf-8"))
        if kept.pop("format") != FORMAT:
            return None
        return Memory(**kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def empty(root: Path) -> None:
    """Only what a build puts there, whatever else is in the folder."""
    (root / MEMORY).unlink(missing_ok=True)
    for name in ("build", SHADOW):
        if (root / name).exists():
            shutil.rmtree(root / name)


def prepare(plan: Plan, before: Memory | None = None) -> None:
    """Make the directory, the tree for CMake, the flags of its projects and the record of what is to come.

    `before`: what the directory remembers; its options are in CMake's caches until `remember` says otherwise.
    """
    plan.root.mkdir(parents=True, exist_ok=True)
    # First, for it tells a directory of ours, however early its making ends.
    plan.flags_file.write_text(plan.flags(), encoding="utf-8")
    plan.build.mkdir(exist_ok=True)
    if plan.written:
        link_with_copies(plan.tree.root, plan.written, plan.source)
    made = asked(plan)
    kept = before.options if before else {}
    options = {name: sorted({*given, *kept.get(name, ())}) for name, given in made.options.items()}
    _write(plan, replace(made, options=options))


def remember(plan: Plan) -> None:
    """That all projects were configured as is asked."""
    _write(plan, asked(plan))


def _write(plan: Plan, memory: Memory) -> None:
    (plan.root / MEMORY).write_text(memory.encode(), encoding="utf-8")


def _ours(root: Path) -> bool:
    names = {path.name for path in root.iterdir()}
    return "flags.cmake" in names and names <= {"build", "build.log", "flags.cmake", SHADOW, MEMORY}


def _differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"{name} was {before.get(name) or 'none'}, is {now.get(name) or 'none'}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
