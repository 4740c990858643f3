"""The page's part about ONNX Runtime's lane: each program, beside what ExecuTorch makes of the same model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from ci.report.elements import badge, element, number, table
from provisioning.findings import Metric, Report
from provisioning.rendering.text import plural, size

STAGE = "test_onnx"

COLUMNS = (
    ("Program", ""),
    ("Lane", ""),
    ("QNN", ""),
    ("SQNR dB", "number"),
    ("Cosine", "number"),
    ("Size", "number"),
    ("DDR read", "number"),
    ("DDR written", "number"),
)

LANES = {"onnx": "ONNX Runtime", "executorch": "ExecuTorch"}


def lanes_section(reports: Sequence[Report]) -> Element | None:
    """None when ONNX Runtime's stage did not run."""
    programs = {
        name: row
        for report in reports
        if report.stage == STAGE
        for name, row in _mapping(report.metrics.get("programs")).items()
    }
    if not programs:
        return None
    pairs = sum(bool(_mapping(_mapping(row).get("lanes")).get("executorch")) for row in programs.values())
    said = f"{plural(len(programs), 'program')}, {pairs} of them beside ExecuTorch at the same precision"
    rows = [each for name, row in programs.items() for each in _rows(name, _mapping(row))]
    caption = "Accuracy on the emulator against the float model, and what a program costs"
    return element(
        "section",
        element("h2", "ONNX Runtime beside ExecuTorch"),
        element("p", said, class_="soft"),
        table("lanes", caption, COLUMNS, rows),
        id="onnx",
    )


def _rows(name: str, row: Mapping[str, Metric]) -> list[Element]:
    bad = row.get("verdict") != "pass"
    lanes = _mapping(row.get("lanes"))
    made = []
    for lane, title in LANES.items():
        figures = _mapping(lanes.get(lane))
        if not figures and lane != "onnx":
            continue
        shown = f"{title}, baseline" if figures.get("agreed") else title
        head = element("th", name, scope="row")
        if lane == "onnx" and bad:
            head = element("th", badge("fail", "✗"), " ", name, scope="row")
        made.append(
            element(
                "tr",
                head,
                element("td", shown, class_="short", data_label="lane"),
                element("td", element("code", str(figures.get("build_id", "–"))), data_label="QNN"),
                _cell(figures, "sqnr_db", "SQNR dB", ".1f"),
                _cell(figures, "cosine", "cosine", ".6f"),
                _bytes(figures, "size", "size"),
                _bytes(figures, "ddr_read", "DDR read"),
                _bytes(figures, "ddr_written", "DDR written"),
            )
        )
    return made


def _cell(figures: Mapping[str, Metric], key: str, label: str, form: str) -> Element:
    value = figures.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return number("–", -1, label)
    return number(format(value, form), value, label)


def _bytes(figures: Mapping[str, Metric], key: str, label: str) -> Element:
    value = figures.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return number("–", -1, label)
    return number(size(value), value, label)


def _mapping(value: Metric) -> Mapping[str, Metric]:
    return value if isinstance(value, dict) else {}
