"""The page's section on ONNX Runtime: its programs beside those of ExecuTorch, and all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from ci.report.elements import element, number_cell, sortable, table, tick, verdicts
from ci.report.trends import glance
from ci.report.values import Row, mapping, number, passed, rows_of
from provisioning.base.findings import Report
from provisioning.base.rendering.text import plural
from provisioning.base.units import size

STAGE = "test_onnx"


@dataclass(frozen=True, slots=True)
class Figure:
    key: str
    name: str
    form: str = ""
    """The format of the number; empty for bytes."""

    def cell(self, figures: Row, label: str) -> Element:
        value = number(figures, self.key)
        if value is None:
            return number_cell("–", -1, label)
        return number_cell(format(value, self.form) if self.form else size(int(value)), value, label)


SQNR, COSINE = Figure("sqnr_db", "SQNR dB", ".1f"), Figure("cosine", "Cosine", ".6f")
COSTS = (Figure("size", "Size"), Figure("ddr_read", "DDR read"), Figure("ddr_written", "DDR written"))


def lanes_section(reports: Sequence[Report]) -> Element | None:
    """None if ONNX Runtime's stage did not run."""
    programs = {
        name: row
        for report in reports
        if report.stage == STAGE
        for name, row in rows_of(report, "programs").items()
    }
    if not programs:
        return None
    bad = sum(not passed(row) for row in programs.values())
    section = element("section", element("h2", "ONNX Runtime"), verdicts(len(programs), bad), id="onnx")
    pairs = {name: row for name, row in programs.items() if _lane(row, "executorch")}
    if pairs:
        section.extend([element("h3", "Beside ExecuTorch"), _beside(pairs)])
    section.extend([element("h3", "Every program"), _every(programs)])
    ordered = sorted(programs.items(), key=lambda item: passed(item[1]))
    if (shown := glance("onnx-glance", [(name, "", [row]) for name, row in ordered])) is not None:
        section.append(shown)
    return section


def _beside(pairs: Mapping[str, Row]) -> Element:
    """One row a program: each figure of both lanes side by side."""
    figures = (SQNR, *COSTS)
    lanes = {"onnx": "ONNX", "executorch": "ExecuTorch"}
    builds = {
        lane: ", ".join(sorted({str(_lane(row, lane).get("build_id")) for row in pairs.values()}))
        for lane in lanes
    }
    agreed = sum(bool(_lane(row, "executorch").get("agreed")) for row in pairs.values())
    caption = f"At the same precision for the same chip: QNN {builds['onnx']} against {builds['executorch']}"
    if agreed:
        caption += f"; in {plural(agreed, 'row')} ExecuTorch's figures are its baseline's"
    first = element("tr", element("th", "Program", scope="col", rowspan="2"))
    first.extend(element("th", each.name, scope="colgroup", colspan="2", class_="number") for each in figures)
    second = element("tr")
    for _ in figures:
        second.extend(element("th", title, scope="col", class_="number") for title in lanes.values())
    body = [
        element(
            "tr",
            element("th", name, scope="row"),
            *(
                each.cell(_lane(row, lane), f"{each.name}, {title}")
                for each in figures
                for lane, title in lanes.items()
            ),
        )
        for name, row in pairs.items()
    ]
    return table("lanes", caption, [first, second], body)


def _every(programs: Mapping[str, Row]) -> Element:
    figures = (SQNR, COSINE, *COSTS)
    columns = [("Program", ""), ("Verdict", ""), *((each.name, "number") for each in figures)]
    rows = []
    for name, row in sorted(programs.items(), key=lambda item: passed(item[1])):
        cells = [each.cell(_lane(row, "onnx"), each.name) for each in figures]
        verdict = element("td", tick(passed(row)), data_label="verdict")
        rows.append(element("tr", element("th", name, scope="row"), verdict, *cells))
    caption = "Accuracy on the emulator against the float model, and what it costs"
    if others := sorted(
        {str(row["baseline_build_id"]) for row in programs.values() if "baseline_build_id" in row}
    ):
        caption += f"; the baseline has costs of another build, QNN {', '.join(others)}"
    return sortable("onnx-programs", caption, columns, rows)


def _lane(row: Row, lane: str) -> Row:
    return mapping(mapping(row.get("lanes")).get(lane))
