"""docs/chips.md: the chips by Hexagon and what each does not compile, from manifests/socs.toml and
manifests/refused.toml."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Literal

from pydantic import Field

from lab.generate.shared_tables import replace_table
from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS, ROOT
from provisioning.manifest import Soc, load_socs

PAGE = ROOT / "docs" / "chips.md"


class RefusedOperators(Model):
    """Operators that a Hexagon earlier than `below_arch` does not compile at these precisions; None: that no
    Hexagon compiles."""

    below_arch: Annotated[int, Field(ge=65, le=99)] | None = None
    precisions: tuple[str, ...] = Field(min_length=1)
    operators: tuple[str, ...] = Field(min_length=1)


class RefusedTable(Model):
    schema_: Literal[1] = Field(alias="schema")
    refused: tuple[RefusedOperators, ...]


def page() -> str:
    return replace_table(PAGE, "refused operators", _operators(), replace_table(PAGE, "chips", _chips()))


def _chips() -> str:
    lines = ["| Hexagon | chips, with other names in parentheses |", "| --- | --- |"]
    ordered = sorted(load_socs().items(), key=lambda item: (item[1].arch, item[0]))
    for arch, chips in groupby(ordered, key=lambda item: item[1].arch):
        lines.append(f"| V{arch} | {', '.join(_chip(name, soc) for name, soc in chips)} |")
    return "\n".join(lines) + "\n"


def _chip(name: str, soc: Soc) -> str:
    others = [*soc.called, *soc.sold_as, *([f"LPAI v{soc.lpai}"] if soc.lpai else [])]
    others += [f"from QNN {soc.least_qnn}"] if soc.least_qnn else []
    others += [] if soc.executorch else ["lane onnx only"]
    return f"{name} ({', '.join(others)})" if others else name


def _operators() -> str:
    lines = ["| precision | operators | V68 | V69 | V73, V75, V81 |", "| --- | --- | --- | --- | --- |"]
    for row in load(MANIFESTS / "refused.toml", RefusedTable).refused:
        takes = ["yes" if row.below_arch and arch >= row.below_arch else "no" for arch in (68, 69, 73)]
        cells = [", ".join(row.precisions), ", ".join(row.operators), *takes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
