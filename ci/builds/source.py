"""Building ExecuTorch's Qualcomm backend and runner from a tree: build, check, put into dist/."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ci.builds import built_files
from ci.builds.built_files import BILL_OF_MATERIALS, OURS, alone_in, part_of, replace_build
from ci.builds.cmake import STEERING, answer
from ci.builds.install import PYTHON, assemble, collect, describe, identity, strip_program
from ci.builds.source_plan import BuildOptions, SourcePlan, notes_of, plan_of
from ci.builds.tree import link_with_copies, make_overlay
from provisioning.base.commands import quoted
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Artifact, Severity
from provisioning.base.settings import DEFAULT_TARGET, MANIFESTS, ROOT, Selection
from provisioning.base.stage_run import StageRun
from provisioning.dist import FOLDER, MANIFEST
from provisioning.manifest import load_profile

PLACED = "placed.json"
"""What the last build put into dist/, in its build folder."""


def script(plan: SourcePlan) -> str:
    """The commands that a build runs; comments stand for steps without a command."""
    lines = [f"# {plan.recipe.summary}", f"unset {' '.join(STEERING)}"]
    cmake_build = plan.cmake_build()
    lines += [f"export {name}={quoted(value)}" for name, value in cmake_build.environ({}).items()]
    lines += [f"# {plan.flags_file} has the compilers' flags."]
    if plan.written:
        lines += [f"# {plan.source} has links to {plan.tree.root}, and copies of {', '.join(plan.written)}."]
    lines += ["", *map(str, cmake_build.commands())]
    lines += ["", f"# Checked, and put into {plan.dist} with a manifest and a bill of materials:"]
    lines += ["#   programs → bin/, shared libraries → lib/"]
    lines += [f"#   {name} → {PYTHON}/{place}/" for name, place in plan.recipe.python.items()]
    return "\n".join(lines) + "\n"


def build(options: BuildOptions, selection: Selection, stage: StageRun) -> None:
    plan = plan_of(options, selection, os.environ)
    profile = load_profile(selection.profile)
    for note in notes_of(plan, profile):
        stage.findings.append(note)
        sys.stderr.write(f"warning: {note.message}\n  try: {note.fix}\n")
    stage.metrics |= {
        "executorch": plan.tree.version,
        "commit": plan.tree.commit + ("+changes" if plan.tree.changed else ""),
        "toolchain": plan.toolchain.identity,
        "qnn_build_id": plan.sdk.build_id,
        "build_type": plan.build_type,
        "jobs": plan.jobs,
    }
    with alone_in(plan.root, "build"):
        _compile(plan, stage, clean=options.clean)
        # Builds of other trees have their own build folders, but share this one.
        with alone_in(plan.dist, "dist"):
            floor = options.glibc or profile.host["glibc"]
            built = _put_into_dist(plan, stage, floor, selection)
            if built and plan.target == DEFAULT_TARGET:
                put_into_python(plan, stage)


def _compile(plan: SourcePlan, stage: StageRun, *, clean: bool) -> None:
    def prepare() -> None:
        if not plan.flags_file.is_file() or plan.flags_file.read_text(encoding="utf-8") != plan.flags():
            replace_text(plan.flags_file, plan.flags())
        plan.build.mkdir(exist_ok=True)
        if plan.written:
            folders = [project.source for project in plan.recipe.projects]
            link_with_copies(plan.tree.root, plan.written, plan.source, folders)

    begun = time.monotonic()
    state = plan.cmake_build().run(clean=clean, prepare=prepare)
    stage.metrics |= {
        "rebuilt_because": list(state.reasons),
        "build_seconds": round(time.monotonic() - begun, 2),
    }


def _put_into_dist(plan: SourcePlan, stage: StageRun, glibc: str, selection: Selection) -> bool:
    """Replace the last build if the files pass every check; returns whether they did."""
    strip = strip_program(plan.build) if plan.build_type == "Release" else ""
    answers = [answer(plan.build / project.build).name for project in plan.recipe.projects]
    rules = [identity(plan, selection.profile), glibc, strip, _own_code(), answers]
    placed = plan.root / PLACED
    if not _stands(placed, rules, plan.dist):
        placed.unlink(missing_ok=True)
        private = dict.fromkeys([*plan.private(), ROOT, Path.home()])
        built = collect(plan)
        with part_of(plan.dist) as part:
            copies = assemble(list(built), part, strip)
            stage.findings += built_files.check(copies, plan.target, glibc, private)
            if any(finding.severity is Severity.ERROR for finding in stage.findings):
                return False
            describe(plan, copies, built.values(), part, selection.profile)
            replace_build(part, plan.dist)
        stamps = {"built": _stamps(file.path for file in built), "dist": _stamps(_placed_in(plan.dist))}
        replace_text(placed, json.dumps({"rules": rules, **stamps}, indent=2))
    files = json.loads((plan.dist / MANIFEST).read_text(encoding="utf-8"))["files"]
    stage.artifacts += [
        Artifact(file["kind"], str(plan.dist / file["path"]), file["sha256"], file["size"]) for file in files
    ]
    stage.artifacts += [Artifact.of("sbom", plan.dist / BILL_OF_MATERIALS)]
    stage.artifacts += [Artifact.of("manifest", plan.dist / MANIFEST)]
    return True


def _stands(placed: Path, rules: Sequence[object], dist: Path) -> bool:
    """Whether dist/ has what CMake built last, checked by the same rules: a gigabyte is not copied again."""
    try:
        record = json.loads(placed.read_text(encoding="utf-8"))
        stamps = {"built": _stamps(map(Path, record["built"])), "dist": _stamps(_placed_in(dist))}
        return bool(record == json.loads(json.dumps({"rules": rules, **stamps})))
    except (OSError, ValueError, KeyError):
        return False


def _placed_in(dist: Path) -> Iterator[Path]:
    for name in OURS:
        yield from [dist / name] if (dist / name).is_file() else (dist / name).rglob("*")


def _stamps(files: Iterable[Path]) -> dict[str, tuple[int, int, int]]:
    stamps = {str(path): path.stat() for path in files}
    return {path: (stamp.st_size, stamp.st_mtime_ns, stamp.st_ino) for path, stamp in stamps.items()}


def _own_code() -> str:
    """A digest of what decides what a build ships, and whether it passes."""
    tables = (MANIFESTS / "validation.toml", MANIFESTS / "device_libraries.toml")
    files = (*sorted(Path(__file__).parent.glob("*.py")), *tables)
    return hashlib.sha256("".join(map(hash_file, files)).encode()).hexdigest()


def put_into_python(plan: SourcePlan, stage: StageRun) -> None:
    ours = plan.dist / FOLDER
    make_overlay(plan.tree, dict(_python_files(plan)), ours, stage.profile)
    stage.metrics["python_path"] = str(ours)
    sys.stdout.write(f"export PYTHONPATH={quoted(ours)}${{PYTHONPATH:+:$PYTHONPATH}}\n")


def _python_files(plan: SourcePlan) -> Iterator[tuple[str, Path]]:
    root = plan.dist / PYTHON
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(root)), path
    for copy in plan.recipe.copies:
        if not copy.built:
            yield f"{copy.to}/{Path(copy.file).name}", plan.tree.root / copy.file
        elif (plan.build / copy.file).is_file():
            yield copy.to, plan.build / copy.file
