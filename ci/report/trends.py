"""Every program at a glance: its accuracy as a bar, and what it cost in the last runs as lines."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from ci.report.elements import drawing, drawn_bar, element, short_cell, table, tick
from ci.report.values import Row, entries, mapping, number, passed
from provisioning.base.findings import Metric
from provisioning.base.units import size

LINES = {"sqnr_db": "SQNR", "ddr_read": "DDR read", "pte_bytes": ".pte", "context_bytes": "Context"}
WIDTH, HEIGHT = 100.0, 20.0


def glance(identity: str, programs: Sequence[tuple[str, str, Sequence[Row]]]) -> Element | None:
    """Of each program its name, its anchor or "", and its rows of all stages."""
    shown = [(name, anchor, rows, _joined(rows, "history")) for name, anchor, rows in programs]
    columns = [key for key in LINES if any(_series(history, key) for *_, history in shown)]
    if not columns and not any(_merged(rows, "figures") for _, _, rows, _ in shown):
        return None
    body = [_program(*each, columns) for each in shown]
    head = [element("th", "Program", scope="col"), element("th", "SQNR against float", scope="col")]
    head += [element("th", f"{LINES[key]}, by commit", scope="col") for key in columns]
    caption = (
        "Accuracy with its threshold (thick mark) and baseline (thin mark); each line runs over the last"
        " commits, the newest on the right"
    )
    return table(identity, caption, [element("tr", *head)], body, "stack glance")


def _program(
    name: str, anchor: str, rows: Sequence[Row], history: Sequence[Row], columns: Sequence[str]
) -> Element:
    title = element("a", name, href=f"#{anchor}") if anchor else name
    row = element("tr", element("th", tick(all(map(passed, rows))), " ", title, scope="row"))
    row.append(_accuracy(rows))
    for key in columns:
        series = _series(history, key)
        row.append(element("td", *([_line(series, key)] if series else []), data_label=LINES[key]))
    return row


def _accuracy(rows: Sequence[Row]) -> Element:
    value, threshold, baseline = (
        number(_merged(rows, group), "sqnr_db") for group in ("figures", "thresholds", "baseline")
    )
    if value is None:
        return short_cell("–", "SQNR")
    good = threshold is None or value >= threshold
    text = f"{value:.1f} dB" + (f", at least {threshold:.1f}" if threshold is not None else "")
    label = text + (f", baseline {baseline:.1f}" if baseline is not None else "")
    longest = max(value, threshold or 0, baseline or 0, 1e-12)
    marks = [(threshold, 1.6), (baseline, 0.5)]
    picture = drawn_bar(label, value, longest, "good" if good else "bad", marks)
    return element(
        "td", picture, element("span", text, class_="figure"), data_label="SQNR", data_key=f"{value:.6f}"
    )


def _line(series: Sequence[tuple[str, float]], key: str) -> Element:
    values = [value for _, value in series]
    low, high = min(values), max(values)
    between = high - low or 1.0
    step = WIDTH / max(1, len(values) - 1)
    flat = HEIGHT / 2
    points = [
        (index * step, HEIGHT - 2 - (HEIGHT - 4) * (value - low) / between if high > low else flat)
        for index, value in enumerate(values)
    ]
    if len(points) == 1:
        points.append((WIDTH, points[0][1]))
    shown = _shown(values[-1], key)
    change = "" if values[0] == values[-1] else f", {_shown(values[0], key)} {len(values)} commits ago"
    values_by_commit = "; ".join(f"{commit}: {_shown(value, key)}" for commit, value in series)
    picture = drawing("line", f"{LINES[key]}: {shown}{change}")
    picture.append(element("title", values_by_commit))
    picture.append(element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points)))
    return element("span", picture, element("span", shown, class_="figure"), class_="trend")


def _shown(value: float, key: str) -> str:
    return f"{value:.1f} dB" if key.endswith("_db") else size(int(value))


def _series(history: Sequence[Row], key: str) -> list[tuple[str, float]]:
    return [
        (str(each.get("commit", "")), value) for each in history if (value := number(each, key)) is not None
    ]


def _joined(rows: Sequence[Row], key: str) -> list[Row]:
    return [mapping(each) for row in rows for each in entries(row.get(key))]


def _merged(rows: Sequence[Row], group: str) -> dict[str, Metric]:
    return {key: value for row in rows for key, value in mapping(row.get(group)).items()}
