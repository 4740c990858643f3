"""From a tree and its mapping to every difference: the whole of the check, without a disk to write to."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from dataclasses import dataclass

from ci.parity import buck, compare, pins
from ci.parity.cmake.evaluator import Project, evaluate
from ci.parity.compare import Difference
from ci.parity.file_api import Reply
from ci.parity.mapping import Mapping, Variant
from ci.parity.model import Side
from ci.parity.tree import Tree


@dataclass(frozen=True, slots=True)
class Checked:
    differences: tuple[Difference, ...]
    buck: MappingOf[tuple[str, bool], Side]
    """By variant, and by what `is_oss` says."""
    cmake: MappingOf[str, Side]


def check(
    tree: Tree,
    mapping: Mapping,
    *,
    source: compare.Source,
    replies: MappingOf[str, Reply] | None = None,
    cmake: MappingOf[str, Side] | None = None,
) -> Checked:
    """`source` is where the mapping came from; `replies` are configured builds by variant; `cmake` is that
    side of an earlier check, when no CMake file has changed since."""
    constraints = frozenset(key for variant in mapping.variants for key in variant.select)
    found = compare.Findings(mapping, source)
    bucks = buck.evaluate(tree, mapping.buck, mapping.variants, constraints, mapping.scope.roots)
    cmakes: dict[str, Side] = {}
    for variant in mapping.variants:
        side = cmake[variant.name] if cmake else evaluate(tree, project(mapping, variant))
        cmakes[variant.name] = side
        if reply := (replies or {}).get(variant.name):
            compare.against_reply(found, variant.name, side, reply)
        for answer in (True, False):
            compare.variant(found, variant, bucks[variant.name, answer], side)
    compare.tree(found, tree, bucks, cmakes)
    pins.check(found, tree)
    return Checked(found.settled(), bucks, cmakes)


def project(mapping: Mapping, variant: Variant) -> Project:
    return Project(
        entry=mapping.cmake.entry,
        variables={**mapping.cmake.variables, **variant.cmake},
        ignored=frozenset(mapping.cmake.ignored_commands),
        outside=frozenset(mapping.cmake.outside),
        targets=frozenset(name for dependency in mapping.dependencies for name in dependency.cmake),
    )
