"""`buck_parity`: check that a tree's Buck and CMake files build the same."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.flags import add_valued
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import Selection

if TYPE_CHECKING:
    from ci.parity.check import Checked
    from ci.parity.mapping import Difference
    from provisioning.base.stage_run import StageRun

EXAMPLES = """\
  nox -s buck_parity -- --executorch ~/executorch
  nox -s buck_parity -- --mapping parity.toml
"""

FIX = "name a checkout of ExecuTorch with --executorch DIR or EXECUTORCH_ROOT"


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser, executorch=False)
    add_valued(parser, "--executorch", "DIR", "the tree to check [EXECUTORCH_ROOT]", type=Path)
    add_valued(parser, "--mapping", "FILE", "what to compare [manifests/parity.toml]", type=Path)
    parser.add_argument(
        "--accept", action="store_true", help="accept the differences of this tree that the mapping explains"
    )


def run(args: argparse.Namespace) -> int:
    from ci.parity.check import check
    from ci.parity.mapping import MAPPING, load_accepted, load_mapping, save_accepted
    from ci.parity.tree import Tree
    from provisioning.base.errors import EnvironmentLacking
    from provisioning.base.stage_run import StageRun

    selection = selection_of(args)
    stage = StageRun("buck_parity", selection.profile, "")
    with stage.reported(selection.reports, "parity-not-checked"):
        root = _root(args.executorch, selection)
        file = args.mapping or MAPPING
        mapping = load_mapping(file)
        tree = Tree(root)
        if mapping.scope.root not in tree.directories:
            raise EnvironmentLacking(f"{root} has no {mapping.scope.root}: no tree of ExecuTorch", fix=FIX)
        result = check(tree, mapping, file, accepted=None if args.accept else load_accepted(mapping, file))
        if args.accept:
            save_accepted(mapping, file, result.explained)
        _report(stage, result)
    return stage.close(selection.reports)


def _report(stage: StageRun, result: Checked) -> None:
    from provisioning.base.findings import Severity

    groups = [(Severity.ERROR, *entry) for entry in _groups(result.differences).items()]
    groups += [(Severity.NOTE, *entry) for entry in _groups(result.notes).items()]
    for severity, (rule, place, _), group in groups:
        message = group[0].message
        if places := [difference.where for difference in group[1:]]:
            message += f"; the same in {', '.join(places)}"
        if variants := dict.fromkeys(variant for difference in group for variant in difference.variants):
            message += f" [{', '.join(variants)}]"
        stage.add(rule, severity, place, message, group[0].fix)
    stage.metrics["buck_libraries"] = len(next(iter(result.buck.values()))[0].libraries)
    stage.metrics["cmake_libraries"] = len(next(iter(result.cmake.values())).libraries)
    stage.metrics["variants"] = len(result.cmake)


def _groups(differences: Sequence[Difference]) -> dict[tuple[str, str, str], list[Difference]]:
    """Two pairs that lack the same header give one finding, because annotations are few."""
    groups: dict[tuple[str, str, str], list[Difference]] = {}
    for finding in differences:
        groups.setdefault((finding.rule, str(finding.place), finding.what), []).append(finding)
    return groups


def _root(folder: Path | None, selection: Selection) -> Path:
    """Return the tree that is named, else the user's own, else the profile's in the store."""
    from provisioning.base.errors import EnvironmentLacking
    from provisioning.components import EXECUTORCH_SOURCE
    from provisioning.environment import users_own
    from provisioning.manifest import load_profile
    from provisioning.store import Store

    if folder is None and (own := users_own(EXECUTORCH_SOURCE, selection.store, os.environ, [])):
        folder = Path(own[1])
    elif folder is None and (pin := load_profile(selection.profile).components.get(EXECUTORCH_SOURCE)):
        tree = Store(selection.store).find_any(EXECUTORCH_SOURCE, pin)
        folder = tree.root if tree else None
    if folder is None:
        raise EnvironmentLacking("there is no ExecuTorch tree to check", fix=FIX)
    root = folder.expanduser().absolute()
    if not root.is_dir():
        raise EnvironmentLacking(f"{root} is no directory", fix=FIX)
    return root
