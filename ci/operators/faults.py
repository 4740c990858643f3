"""What is known to go wrong with the operators of a program, by manifests/known_faults.toml."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from ci.operators.conditions import CONDITIONS, Traits, key_of
from ci.operators.table import name_in_table
from provisioning.base.units import EXACT_DB
from provisioning.components import version_in
from provisioning.known_faults import Fault, Product, load_faults
from provisioning.manifest import soc_named

DECIBELS = re.compile(r"(-?\d+(?:\.\d+)?)(?: to -?\d+(?:\.\d+)?)? dB")


class Met(NamedTuple):
    fault: Fault
    line: str
    operator: str
    """Of the node, as the graph has it."""

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        return f"known of {self.operator}{at}: {self.fault.title} ({self.fault.id})"


@cache
def versions_of(build_id: str = "") -> Mapping[Product, str]:
    """Of what is installed here, and of a build of QNN; an empty id is of none."""
    versions: dict[Product, str] = {"executorch": importlib.metadata.version("executorch")}
    return {**versions, **({"qnn": version_in(build_id)} if build_id else {})}


def faults_in(
    nodes: Mapping[str, Traits],
    scheme: str,
    soc: str,
    versions: Mapping[Product, str],
    *,
    dies: bool = False,
    least: float | None = None,
    seen_db: float | None = None,
) -> list[Met]:
    """Those of the emulator that programs of ExecuTorch can have, with these nodes (`delegated_nodes`): such
    as give wrong numbers, or with `dies` no program. `least`: the least value of their inputs, if
    known. First comes what is measured to lose as much as is seen."""
    arch = soc_named(soc).arch
    found = []
    for fault in load_faults():
        if (
            fault.met
            and fault.dies is dies
            and fault.where == "emulator"
            and fault.lane in ("executorch", "any")
            and (not fault.schemes or scheme in fault.schemes)
            and (not fault.arches or arch in fault.arches)
            and (fault.least is None or least is None or least <= fault.least)
            and any(fault.concerns(product, version) for product, version in versions.items())
        ):
            node = next(_concerned(fault, nodes), None)
            found += [Met(fault, node.line, node.operator)] if node else []
    return (
        sorted(found, key=lambda met: abs(effect_db(met.fault) - seen_db)) if seen_db is not None else found
    )


def effect_db(fault: Fault) -> float:
    """The SQNR that its script printed first; that of equal outputs if it printed none."""
    printed = DECIBELS.search(fault.figure or fault.effect)
    return float(printed[1]) if printed else EXACT_DB


def _concerned(fault: Fault, nodes: Mapping[str, Traits]) -> Iterator[Traits]:
    wanted = {key_of(name) for name in fault.operators}
    for node in nodes.values():
        if (
            not _names_of(node.operator).isdisjoint(wanted)
            and not node.added
            and (not fault.overloads or node.operator.rpartition(".")[2] in fault.overloads)
            and (not fault.kinds or not {*fault.kinds}.isdisjoint(node.kinds))
            and (not fault.when or CONDITIONS[fault.when](node))
        ):
            yield node


@cache
def _names_of(operator: str) -> frozenset[str]:
    return frozenset((key_of(operator), key_of(name_in_table(operator))))
