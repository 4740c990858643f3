"""Every program at a glance: its accuracy as a bar, and what it cost in the last runs as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from ci.report.elements import badge, drawing, element, short
from provisioning.base.findings import Metric
from provisioning.base.units import size

Row = Mapping[str, Metric]

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
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
        id=identity,
        class_="stack glance",
    )
    return element("div", table, class_="scroll")


def _program(
    name: str, anchor: str, rows: Sequence[Row], history: Sequence[Row], columns: Sequence[str]
) -> Element:
    good = all(row.get("verdict") == "pass" for row in rows)
    title = element("a", name, href=f"#{anchor}") if anchor else name
    row = element(
        "tr", element("th", badge("pass" if good else "fail", "✓" if good else "✗"), " ", title, scope="row")
    )
    row.append(_accuracy(rows))
    for key in columns:
        series = _series(history, key)
        row.append(element("td", *([_line(series, key)] if series else []), data_label=LINES[key]))
    return row


def _accuracy(rows: Sequence[Row]) -> Element:
    value, threshold, baseline = (
        _number(_merged(rows, group), "sqnr_db") for group in ("figures", "thresholds", "baseline")
    )
    if value is None:
        return short("–", "SQNR")
    good = threshold is None or value >= threshold
    text = f"{value:.1f} dB" + (f", at least {threshold:.1f}" if threshold is not None else "")
    longest = max(value, threshold or 0, baseline or 0, 1e-12) * 1.05
    picture = drawing("bar", text + (f", baseline {baseline:.1f}" if baseline is not None else ""))
    picture.append(
        element("rect", width=f"{max(0.5, WIDTH * max(value, 0) / longest):.2f}", height="20",
                class_="good" if good else "bad")
    )  # fmt: skip
    for mark, width in ((threshold, "1.6"), (baseline, "0.5")):
        if mark is not None:
            place = f"{max(0.0, WIDTH * mark / longest):.2f}"
            picture.append(element("rect", x=place, width=width, height="20", class_="mark"))
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
    told = "; ".join(f"{commit}: {_shown(value, key)}" for commit, value in series)
    picture = drawing("line", f"{LINES[key]}: {shown}{change}")
    picture.append(element("title", told))
    picture.append(element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points)))
    return element("span", picture, element("span", shown, class_="figure"), class_="trend")


def _shown(value: float, key: str) -> str:
    return f"{value:.1f} dB" if key.endswith("_db") else size(int(value))


def _series(history: Sequence[Row], key: str) -> list[tuple[str, float]]:
    return [
        (str(each.get("commit", "")), value) for each in history if (value := _number(each, key)) is not None
    ]


def _joined(rows: Sequence[Row], key: str) -> list[Row]:
    found: list[Row] = []
    for row in rows:
        entries = row.get(key)
        found += [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    return found


def _merged(rows: Sequence[Row], group: str) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for row in rows:
        values = row.get(group)
        if isinstance(values, dict):
            found |= values
    return found


def _number(row: Row, key: str) -> float | None:
    value = row.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
    return float(value) if usable and isinstance(value, int | float) else None
