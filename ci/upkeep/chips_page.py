"""docs/chips.md: the table of operators that a Hexagon does not compile, from manifests/socs.toml."""

from __future__ import annotations

from provisioning.base.errors import ManifestError
from provisioning.base.settings import ROOT
from provisioning.manifest import load_refused

PAGE = ROOT / "docs" / "chips.md"
BEGIN, END = "<!-- refused operators -->\n", "<!-- end of refused operators -->\n"


def page() -> str:
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ManifestError(
            PAGE, "table", expected=f"the lines {BEGIN.strip()} and {END.strip()}", found="none"
        )
    return f"{before}{BEGIN}\n{_table()}\n{END}{after}"


def _table() -> str:
    lines = ["| precision | operators | V68 | V69 | V73, V75, V81 |", "| --- | --- | --- | --- | --- |"]
    for each in load_refused():
        takes = ["yes" if each.below_arch and arch >= each.below_arch else "no" for arch in (68, 69, 73)]
        cells = [", ".join(each.precisions), ", ".join(each.operators), *takes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
