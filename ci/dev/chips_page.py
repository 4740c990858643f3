"""docs/chips.md: the table of operators that a Hexagon does not compile, from manifests/socs.toml."""

from __future__ import annotations

from provisioning.base.files import with_table
from provisioning.base.settings import ROOT
from provisioning.manifest import load_refused

PAGE = ROOT / "docs" / "chips.md"


def page() -> str:
    return with_table(PAGE, "refused operators", _table())


def _table() -> str:
    lines = ["| precision | operators | V68 | V69 | V73, V75, V81 |", "| --- | --- | --- | --- | --- |"]
    for each in load_refused():
        takes = ["yes" if each.below_arch and arch >= each.below_arch else "no" for arch in (68, 69, 73)]
        cells = [", ".join(each.precisions), ", ".join(each.operators), *takes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
