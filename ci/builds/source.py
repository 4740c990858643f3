"""Building ExecuTorch's Qualcomm backend and runner from a tree: configure, compile, check, stage."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ci.builds import configure, link_tree, loadable
from ci.builds import install as staging
from ci.builds.execute import execute
from ci.builds.output_folders import alone_in
from ci.builds.plan import STEERING, Plan
from ci.builds.request import notes_of, plan_of
from ci.builds.tree import adaptors
from ci.engine.dist import MANIFEST
from provisioning import overlay
from provisioning.base.commands import quoted, typed
from provisioning.base.disk import disk_errors
from provisioning.base.errors import UsageError
from provisioning.base.findings import Artifact, Severity, StageRun
from provisioning.base.settings import DEFAULT_TARGET, ROOT, Selection, selection_of
from provisioning.manifest import load_profile


def run(args: argparse.Namespace, stage_name: str, target: str) -> int:

    for named in args.target or ():
        if named != target:
            raise UsageError(f"{stage_name} builds for {target}, not for {named}")
    selection = replace(selection_of(args), target=target)
    if args.dry_run:
        sys.stdout.write(script(plan_of(args, selection, os.environ), target_only=args.target_only))
        return 0
    stage = StageRun(stage_name, selection.profile, target, typed(f"nox -s {stage_name} --", sys.argv[2:]))
    with stage.reported(selection.reports, "build", target), disk_errors("--build-dir and --output"):
        _build(args, selection, stage)
    return stage.close(selection.reports)


def script(plan: Plan, *, target_only: bool) -> str:
    """The commands that a build runs. What it does without commands is said in comments."""
    lines = [f"# {plan.recipe.summary}", f"unset {' '.join(STEERING)}"]
    lines += [f"export {name}={quoted(value)}" for name, value in plan.variables().items()]
    lines += [f"# {plan.flags_file} has the compilers' flags."]
    if plan.written:
        lines += [f"# {plan.source} has links to {plan.tree.root}, and copies of {', '.join(plan.written)}."]
    for project in plan.recipe.projects:
        lines += ["", *(str(command) for command in (plan.configure(project), plan.compile(project)))]
    outputs = [each for each in plan.recipe.outputs if not (target_only and each.kind == "adaptor")]
    lines += ["", f"# Checked, and put into {plan.dist} with a manifest and a bill of materials:"]
    lines += [
        f"#   {pattern} → {output.to}/"
        for output in outputs
        for name in adaptors(output, plan.tree.root)
        for pattern in staging.patterns(output, name)[:1]
    ]
    return "\n".join(lines) + "\n"


def _build(args: argparse.Namespace, selection: Selection, stage: StageRun) -> None:
    plan = plan_of(args, selection, os.environ)
    if plan.target == DEFAULT_TARGET and args.install:
        _may_install(plan, selection)
    profile = load_profile(selection.profile)
    stage.findings += notes_of(plan, profile)
    stage.metrics |= {
        "executorch": plan.tree.version,
        "commit": plan.tree.commit + ("+changes" if plan.tree.changed else ""),
        "toolchain": plan.toolchain.identity,
        "qnn_build_id": plan.sdk.build_id,
        "build_type": plan.build_type,
        "jobs": plan.jobs,
    }
    with alone_in(plan.root, "build"):
        _compile(plan, stage, clean=args.clean)
        # Builds of other trees have folders of their own, and this one in common.
        with alone_in(plan.dist, "dist"):
            floor = args.glibc or profile.host["glibc"].floor
            built = _stage(plan, stage, floor, args.target_only, selection)
            if built and plan.target == DEFAULT_TARGET and not args.target_only:
                _put_into_python(plan, stage, install=args.install)


def _compile(plan: Plan, stage: StageRun, *, clean: bool) -> None:
    ready = configure.readiness(plan)
    for reason in ready.reasons:
        sys.stderr.write(f"building anew: {reason}\n")
    if clean or ready.reasons:
        configure.empty(plan.root)
    stage.metrics["rebuilt_because"] = ["--clean"] if clean else list(ready.reasons)
    stage.metrics["changed"] = list(ready.changes)
    known = None if clean else ready.memory
    configure.prepare(plan, known)
    plan.log.write_text("", encoding="utf-8")
    begun, now = time.monotonic(), time.time()
    environ = plan.environ(os.environ)
    for project in plan.recipe.projects:
        before = known.options.get(project.name, ()) if known else ()
        execute(plan.configure(project, before), plan.log, environ, jobs=plan.jobs)
        execute(plan.compile(project), plan.log, environ, jobs=plan.jobs)
    configure.remember(plan)
    stage.metrics["build_seconds"] = round(time.monotonic() - begun, 2)
    if written := link_tree.changed_since(plan.tree.root, now, (plan.root, plan.dist)):
        stage.add(
            "build-tree",
            Severity.WARNING,
            str(plan.tree.root),
            f"it was written to while it was built: {_some(written)}",
            "unless that was you, name the folder under `written` in manifests/recipes/executorch.toml",
        )


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _stage(plan: Plan, stage: StageRun, glibc: str, target_only: bool, selection: Selection) -> bool:
    """Whether all was good, and so put into dist/."""
    part = plan.dist.with_name(f".{plan.dist.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    try:
        built = staging.collect(plan, target_only)
        strip = staging.strip_program(plan.build) if plan.build_type == "Release" else ""
        if plan.build_type == "Release" and not strip:
            message = "CMake found no program that strips for this target: the files keep their symbols"
            remedy = "give one: --cmake-arg CMAKE_STRIP=/path/to/strip"
            stage.add("build-strip", Severity.WARNING, plan.target, message, remedy)
        placed = staging.assemble(built, part, strip)
        private = dict.fromkeys([*plan.private(), ROOT, Path.home()])
        stage.findings += loadable.check(placed, plan.target, glibc, private)
        if any(found.severity is Severity.ERROR for found in stage.findings):
            return False
        staging.describe(plan, placed, part, selection.profile)
        staging.replace(part, plan.dist)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    stage.artifacts += [Artifact.of(file.kind, plan.dist / file.place) for file in built]
    stage.artifacts += [Artifact.of("sbom", plan.dist / staging.BILL_OF_MATERIALS)]
    stage.artifacts += [Artifact.of("manifest", plan.dist / MANIFEST)]
    return True


def _may_install(plan: Plan, selection: Selection) -> None:
    if plan.tree.root.is_relative_to(selection.store):
        raise UsageError(
            f"--install: {plan.tree.root} is in the store, where nothing is changed",
            remedy="leave out --install: an overlay is staged instead",
        )
    if not os.access(plan.tree.root, os.W_OK):
        raise UsageError(
            f"--install: {plan.tree.root} cannot be written to",
            remedy="leave out --install: an overlay is staged instead",
        )


def _put_into_python(plan: Plan, stage: StageRun, *, install: bool) -> None:
    files = dict(_python_files(plan))
    ours = plan.dist / overlay.FOLDER
    if install:
        link_tree.install(plan.tree.root, files)
        # The environment would put that of an earlier build before the tree.
        shutil.rmtree(ours, ignore_errors=True)
        path = plan.tree.root.parent
    else:
        link_tree.make_overlay(plan.tree.root, files, ours)
        path = ours
    stage.metrics["python_path"] = str(path)
    sys.stdout.write(f"export PYTHONPATH={quoted(path)}${{PYTHONPATH:+:$PYTHONPATH}}\n")


def _python_files(plan: Plan) -> Iterator[tuple[str, Path]]:
    root = plan.dist / "python"
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(root)), path
    for copy in plan.recipe.copies:
        yield f"{copy.to}/{Path(copy.file).name}", plan.tree.root / copy.file
