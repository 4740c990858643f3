"""From a tree and its mapping to all differences: the whole check, without writing to disk."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ci.parity import buck, compare, pins
from ci.parity.cmake.libraries import evaluate
from ci.parity.cmake.trace import ConfigureInput
from ci.parity.differences import Difference, Findings, Source
from ci.parity.mapping import Mapping
from ci.parity.model import Side
from ci.parity.tree import Tree


@dataclass(frozen=True, slots=True)
class Checked:
    differences: tuple[Difference, ...]
    notes: tuple[Difference, ...]
    """What is worth knowing, and no error."""
    buck: MappingOf[str, Sequence[Side]]
    """Buck's sides by variant, one for each of the mapping's builders."""
    cmake: MappingOf[str, Side]


def check(tree: Tree, mapping: Mapping, source: Source) -> Checked:
    """`source` is the mapping's file."""
    constraints = frozenset(key for variant in mapping.variants for key in variant.select)
    findings = Findings(mapping, source)
    with ThreadPoolExecutor(1) as beside:
        # CMake's processes run while Buck's files are evaluated here.
        waiting = beside.submit(cmake_sides, tree, mapping)
        bucks = buck.evaluate(tree, mapping.buck, mapping.variants, constraints, mapping.scope.roots)
        cmakes = waiting.result()
    for variant in mapping.variants:
        compare.variant(findings, variant, bucks[variant.name], cmakes[variant.name])
    compare.tree(findings, tree, bucks, cmakes)
    pins.check(findings, tree)
    settled = findings.settled(tree)
    errors = tuple(difference for difference in settled if not difference.note)
    notes = tuple(difference for difference in settled if difference.note)
    return Checked(errors, notes, bucks, cmakes)


def cmake_sides(tree: Tree, mapping: Mapping) -> dict[str, Side]:
    path = mapping.cmake.lists
    lists = buck.lists(tree, path) if path in tree.files else {}
    dependencies = {name for entry in mapping.dependencies for name in entry.cmake}
    projects = [
        ConfigureInput(
            entries=(mapping.cmake.entry, *mapping.cmake.also, *variant.also),
            includes=mapping.cmake.includes,
            variables={**mapping.cmake.variables, **variant.cmake},
            ignored=mapping.cmake.ignored_commands,
            outside=mapping.cmake.outside,
            targets=frozenset({*dependencies, *mapping.cmake.targets, *variant.targets}),
            lists=lists,
        )
        for variant in mapping.variants
    ]
    sides = evaluate(tree, projects)
    return {variant.name: side for variant, side in zip(mapping.variants, sides, strict=True)}
