"""`buck_parity`: check that a tree's Buck and CMake files build the same, and fix what is certain."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.command_line import switch, valued
from provisioning.base.commands import leave_out
from provisioning.base.files import replace_bytes
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import ROOT, Selection

if TYPE_CHECKING:
    from ci.parity.check import Checked
    from ci.parity.differences import Difference
    from ci.parity.mapping import Mapping
    from ci.parity.tree import Tree
    from provisioning.base.stage_run import StageRun

EXAMPLES = """\
  nox -s buck_parity -- --executorch ~/executorch
  nox -s buck_parity -- --fix
  nox -s buck_parity -- --fix --dry-run
"""

FIX = "name a checkout of ExecuTorch with --executorch DIR or EXECUTORCH_ROOT"


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    valued(parser, "--executorch", "DIR", "the tree to check [EXECUTORCH_ROOT]", type=Path)
    valued(parser, "--mapping", "FILE", "what to compare [manifests/parity.toml]", type=Path)
    switch(parser, "--fix", "fix the Buck files if the fix is certain")
    switch(parser, "--dry-run", "with --fix: write only the patch, beside the report")


def run(args: argparse.Namespace) -> int:
    from ci.parity.mapping import MAPPING, load_mapping
    from provisioning.base.errors import UsageError
    from provisioning.base.stage_run import StageRun

    if args.dry_run and not args.fix:
        raise UsageError("--dry-run changes what --fix does, and there is no --fix", fix="add --fix")
    selection = selection_of(args)
    stage = StageRun.as_typed("buck_parity", selection.profile, "")
    with stage.reported(selection.reports, "parity-not-checked"):
        root = _root(args.executorch, selection)
        if args.fix and not args.dry_run and root.resolve().is_relative_to(selection.store.resolve()):
            raise UsageError(
                f"{root} is in the store, where nothing may change",
                fix="add --dry-run for a patch, or name a tree of your own with --executorch",
            )
        mapping_file = args.mapping or MAPPING
        mapping = load_mapping(mapping_file)
        patch_into = selection.reports if args.fix else None
        _check(stage, root, mapping_file, mapping, patch_into, dry_run=args.dry_run)
    return stage.close(selection.reports)


def _check(
    stage: StageRun,
    root: Path,
    mapping_file: Path,
    mapping: Mapping,
    patch_into: Path | None,
    *,
    dry_run: bool,
) -> None:
    """Compare, and fix where the folder of the patch is named; a dry run writes the patch alone."""
    from ci.parity.check import check
    from ci.parity.differences import Source
    from ci.parity.fix import fix, is_confirmed, patch, with_line_ends_of
    from ci.parity.tree import Tree
    from provisioning.base.errors import CheckFailed, EnvironmentLacking
    from provisioning.base.findings import Artifact

    source = Source(_name(mapping_file), mapping_file.read_text(encoding="utf-8"))
    started, cpu_started = time.perf_counter(), time.process_time()
    tree = Tree(root)
    if mapping.scope.root not in tree.directories:
        raise EnvironmentLacking(f"{root} has no {mapping.scope.root}: no tree of ExecuTorch", fix=FIX)

    result = check(tree, mapping, source)
    stage.metrics["check_seconds"] = round(time.perf_counter() - started, 3)
    stage.metrics["check_cpu_seconds"] = round(time.process_time() - cpu_started, 3)
    if patch_into is not None:
        cmake = result.cmake

        def checked(tree: Tree) -> Checked:
            return check(tree, mapping, source, cmake)

        before = len(_alike(result.differences))
        if changed := fix(tree, mapping, result, checked):
            # A second comparison, which knows nothing of the first.
            again = check(Tree(root, changed), mapping, source)
            if not is_confirmed(result, again):
                raise CheckFailed(
                    "a second comparison does not confirm the fixes, so none is written",
                    fix=leave_out("--fix"),
                )
            result = again
            patch_into.mkdir(parents=True, exist_ok=True)
            file = patch_into / "buck_parity.patch"
            texts = {path: with_line_ends_of(tree.original(path), text) for path, text in changed.items()}
            replace_bytes(file, patch(tree, texts).encode())
            stage.artifacts.append(Artifact.of("patch", file))
            if not dry_run:
                for path, text in texts.items():
                    replace_bytes(root / path, text.encode())
        stage.metrics["mended_files"] = len(changed)
        stage.metrics["mended"] = before - len(_alike(result.differences))
    _report(stage, tree, result)


def _report(stage: StageRun, tree: Tree, result: Checked) -> None:
    from provisioning.base.findings import Severity

    alike = [(Severity.ERROR, *of_one) for of_one in _alike(result.differences).items()]
    alike += [(Severity.NOTE, *of_one) for of_one in _alike(result.notes).items()]
    for severity, (rule, place, _), group in alike:
        message = group[0].message
        if others := [difference.where for difference in group[1:]]:
            message += f"; the same in {', '.join(others)}"
        if variants := dict.fromkeys(variant for difference in group for variant in difference.variants):
            message += f" [{', '.join(variants)}]"
        stage.add(rule, severity, place, message, group[0].fix)
    names = [path.rpartition("/")[2] for path in tree.files]
    stage.metrics["files"] = len(names)
    stage.metrics["buck_files"] = sum(name in ("BUCK", "TARGETS") or name.endswith(".bzl") for name in names)
    stage.metrics["cmake_files"] = sum(name == "CMakeLists.txt" or name.endswith(".cmake") for name in names)
    stage.metrics["buck_libraries"] = len(next(iter(result.buck.values()))[0].libraries)
    stage.metrics["cmake_libraries"] = len(next(iter(result.cmake.values())).libraries)
    stage.metrics["variants"] = len(result.cmake)


def _alike(differences: Sequence[Difference]) -> dict[tuple[str, str, str], list[Difference]]:
    """Two pairs that lack the same header give one finding, because annotations are few."""
    alike: dict[tuple[str, str, str], list[Difference]] = {}
    for finding in differences:
        alike.setdefault((finding.rule, str(finding.place), finding.what), []).append(finding)
    return alike


def _root(named: Path | None, selection: Selection) -> Path:
    """The tree that is named, else the user's own, else the profile's in the store."""
    from provisioning.base.errors import EnvironmentLacking
    from provisioning.components import EXECUTORCH_SOURCE
    from provisioning.environment import users_own
    from provisioning.manifest import load_profile
    from provisioning.store import Store

    if named is None and (own := users_own(EXECUTORCH_SOURCE, selection.store, os.environ, [])):
        named = Path(own[1])
    elif named is None and (pin := load_profile(selection.profile).components.get(EXECUTORCH_SOURCE)):
        tree = Store(selection.store).find_any(EXECUTORCH_SOURCE, pin)
        named = tree.root if tree else None
    if named is None:
        raise EnvironmentLacking("there is no ExecuTorch tree to check", fix=FIX)
    root = named.expanduser().absolute()
    if not root.is_dir():
        raise EnvironmentLacking(f"{root} is no directory", fix=FIX)
    return root


def _name(file: Path) -> str:
    """The path as findings name it: relative to this repository, if it is inside."""
    full = file.absolute()
    return full.relative_to(ROOT).as_posix() if full.is_relative_to(ROOT) else str(file)
