"""The page's section on models: a matrix by scheme, then each program's partition, accuracy and costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote
from xml.etree.ElementTree import Element

from ci.report.elements import Bar, badge, bars, element, one_line_code, table, tick, verdicts
from ci.report.trends import glance
from ci.report.values import Row, entries, mapping, number, passed, rows_of, word
from provisioning.base.findings import Finding, Metric, Report, Severity
from provisioning.base.rendering.text import plural
from provisioning.base.units import seconds, size

STAGES = ("test_lowering", "test_emulator")

FIGURES = {
    "sqnr_db": "SQNR against float",
    "reference_sqnr_db": "SQNR against quantized",
    "cosine": "cosine with float",
    "top1": "top-1 agreement",
    "max_rel": "largest relative error",
}
LESS_IS_BETTER = ("max_abs", "max_rel")
SHOWN_OPERATORS = 6
CACHED = "cached: measured in an earlier run"


@dataclass
class Shown:
    """One program, with its rows of both stages."""

    name: str
    case: str = ""
    run: str = ""
    scheme: str = ""
    soc: str = ""
    rows: dict[str, Row] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Both stages report a program that was not compiled; show it once."""
        if not any((each.rule, each.message) == (finding.rule, finding.message) for each in self.findings):
            self.findings.append(finding)

    @property
    def passed(self) -> bool:
        return all(map(passed, self.rows.values()))

    @property
    def anchor(self) -> str:
        return "program-" + quote(self.name, errors="replace")


def programs_section(reports: Sequence[Report]) -> Element | None:
    """None if no stage reported programs."""
    programs = collected(reports)
    if not programs:
        return None
    bad = sum(not each.passed for each in programs)
    return element(
        "section",
        element("h2", "Models"),
        verdicts(len(programs), bad),
        _matrix(programs),
        *_glance(programs),
        _filter(),
        *(_program(each) for each in sorted(programs, key=lambda each: (each.passed, each.name))),
        id="models",
    )


def collected(reports: Iterable[Report]) -> list[Shown]:
    """The programs in the order of the suite. Rows in an unexpected form are left out."""
    programs: dict[str, Shown] = {}
    for report in reports:
        if report.stage not in STAGES:
            continue
        for name, values in rows_of(report, "programs").items():
            case, run, scheme, soc = (word(values, key) for key in ("case", "run", "scheme", "soc"))
            programs.setdefault(name, Shown(name, case, run, scheme, soc)).rows[report.stage] = values
        for finding in report.findings:
            if finding.subject in programs:
                programs[finding.subject].add(finding)
    return list(programs.values())


def _matrix(programs: Sequence[Shown]) -> Element:
    schemes = sorted({each.scheme for each in programs}, key=_scheme_order)
    bad = {each.case for each in programs if not each.passed}
    cases = sorted(dict.fromkeys(each.case for each in programs), key=lambda case: case not in bad)
    head = element(
        "tr", element("th", "Model", scope="col"), *(element("th", each, scope="col") for each in schemes)
    )
    rows = []
    for case in cases:
        row = element("tr", element("th", case, scope="row"))
        for scheme in schemes:
            cell = element("td", data_label=scheme)
            for each in programs:
                if (each.case, each.scheme) == (case, scheme):
                    label = (
                        each.soc
                        if each.run == each.scheme
                        else f"{each.soc} {each.run.removeprefix(scheme).lstrip('-')}"
                    )
                    kind = "pass" if each.passed else "fail"
                    mark = ("✓" if each.passed else "✗") + "\N{NO-BREAK SPACE}"
                    cell.append(element("a", mark + label, href=f"#{each.anchor}", class_=f"badge {kind}"))
            row.append(cell)
        rows.append(row)
    return table("matrix", "Models by scheme; each chip links to its program below", [head], rows)


def _glance(programs: Sequence[Shown]) -> list[Element]:
    ordered = sorted(programs, key=lambda each: (each.passed, each.name))
    shown = glance("glance", [(each.name, each.anchor, [*each.rows.values()]) for each in ordered])
    return [] if shown is None else [shown]


def _scheme_order(scheme: str) -> tuple[bool, str]:
    """Float first, then by name."""
    return not scheme.startswith("fp"), scheme


def _filter() -> Element:
    return element(
        "form",
        element(
            "input", type="search", name="words", placeholder="Filter programs", aria_label="Filter programs"
        ),
        element("label", element("input", type="checkbox", name="bad"), " failed ones only"),
        element("output", class_="soft"),
        class_="filters",
        id="program-filter",
        hidden="hidden",
    )


def _program(shown: Shown) -> Element:
    lowered, ran = (shown.rows.get(stage, {}) for stage in STAGES)
    brief = []
    if "delegates" in lowered:
        brief.append(plural(int(number(lowered, "delegates") or 0), "delegate"))
        brief.append(f"{int(number(lowered, 'cpu_operators') or 0)} on the CPU")
    if (sqnr := number(mapping(ran.get("figures")), "sqnr_db")) is not None:
        brief.append(f"{sqnr:.1f} dB")
    if shown.rows and all(row.get("cached") for row in shown.rows.values()):
        brief.append("cached")
    summary = element(
        "summary",
        tick(shown.passed),
        " ",
        element("strong", shown.name),
        element("span", f" {', '.join(brief)}", class_="soft"),
    )
    whole = element(
        "details", summary, id=shown.anchor, class_="program", data_verdict="pass" if shown.passed else "fail"
    )
    if not shown.passed:
        whole.set("open", "open")
    for finding in shown.findings:
        whole.append(_finding(finding))
    if partition := _partition(lowered.get("partition")):
        whole.append(partition)
    whole.extend(bars("Accuracy on the emulator (mark: the threshold)", _accuracy(ran)))
    title = "Cost (mark: the baseline)"
    if other := word(lowered, "baseline_build_id"):
        title = f"Cost (mark: the baseline, which another build made: QNN {other})"
    whole.extend(bars(title, _costs(lowered, {finding.rule for finding in shown.findings})))
    if durations := _durations(lowered, ran):
        whole.append(element("p", ", ".join(durations), class_="soft"))
    for row in shown.rows.values():
        whole.append(
            element("p", element("span", "Repeat with: ", class_="soft"), one_line_code(word(row, "command")))
        )
    return whole


def _finding(finding: Finding) -> Element:
    paragraph = element(
        "p",
        badge(finding.severity.value),
        " ",
        one_line_code(finding.rule),
        " ",
        element("span", finding.message, class_="text"),
        class_="message",
    )
    if (finding.remedy and finding.severity is not Severity.NOTE) or finding.rule == "lowering-cpu-operator":
        paragraph.append(element("span", f"→ {finding.remedy}", class_="remedy text"))
    return paragraph


def _partition(parts: Metric) -> Element | None:
    """The graph as boxes in order: what runs on the HTP, and what runs on the CPU in between."""
    boxes = []
    for row in map(mapping, entries(parts)):
        where, count = word(row, "where"), int(number(row, "count") or 0)
        counts = mapping(row.get("operators"))
        operators = sorted(counts, key=lambda name: (-(number(counts, name) or 0), name))
        listed = [f"{_short_name(name)} × {counts[name]}" for name in operators[:SHOWN_OPERATORS]]
        if more := len(operators) - len(listed):
            listed.append(f"and {plural(more, 'kind')} more")
        kind = "cpu" if where == "cpu" else "htp"
        box = element(
            "li",
            element("strong", where.upper()),
            element("span", f" {plural(count, 'operator')}"),
            element("small", ", ".join(listed)),
            class_=f"{kind} grow-{min(5, max(1, count).bit_length())}",
        )
        boxes.append(box)
    return element("ol", *boxes, class_="partition", aria_label="partition of the graph") if boxes else None


def _short_name(operator: str) -> str:
    return operator.removeprefix("aten.").removesuffix(".default")


def _accuracy(row: Row) -> Iterator[Bar]:
    figures, wanted = mapping(row.get("figures")), mapping(row.get("thresholds"))
    for key, name in FIGURES.items():
        value, mark = number(figures, key), number(wanted, key)
        if value is None or (mark is None and key not in ("sqnr_db", "cosine")):
            continue
        good = mark is None or (value <= mark if key in LESS_IS_BETTER else value >= mark)
        shown = _decibels if key.endswith("_db") else _six_digits
        text = shown(value)
        if mark is not None:
            text += f" ({'at most' if key in LESS_IS_BETTER else 'at least'} {shown(mark)})"
        yield Bar(name, value, mark, text, good)


def _costs(row: Row, rules: Collection[str]) -> Iterator[Bar]:
    """The stage decides which cost is bad, because it knows the tolerances."""
    from ci.suites.baseline import COSTS, cost_rule

    values, agreed = mapping(row.get("costs")), mapping(row.get("baseline"))
    for key, cost in COSTS.items():
        value, mark = number(values, key), number(agreed, key)
        if value is None or (not value and not mark):
            continue
        shown = seconds if key.endswith("seconds") else _size
        text = shown(value) + _beside(value, mark, shown)
        if key == "cpu_seconds":
            text += _earlier(row)
        yield Bar(cost.title or key, value, mark, text, cost_rule(key) not in rules)


def _beside(value: float, agreed: float | None, shown: Callable[[float], str]) -> str:
    if agreed is None:
        return " (no baseline)"
    change = f"{100 * (value - agreed) / agreed:+.1f} %" if agreed else ""
    return " (as agreed)" if value == agreed else f" ({change or 'more'}, baseline {shown(agreed)})"


def _size(value: float) -> str:
    return size(int(value))


def _decibels(value: float) -> str:
    return f"{value:.1f} dB"


def _six_digits(value: float) -> str:
    return f"{value:.6g}"


def _durations(lowered: Row, ran: Row) -> list[str]:
    """Times and memory, marked if they are from an earlier run."""
    parts = []
    if (value := number(lowered, "seconds")) is not None:
        memory = number(lowered, "peak_bytes")
        with_memory = "" if memory is None else f" with {size(int(memory))} of memory"
        parts.append(f"compiled in {seconds(value)}{with_memory}{_earlier(lowered)}")
    for key, name in (("load_ms", "loaded"), ("run_ms", "one inference")):
        if (value := number(ran, key)) is not None:
            parts.append(f"{name} in {_milliseconds(value)}{_earlier(ran)}")
    return parts


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else seconds(value / 1000)


def _earlier(row: Row) -> str:
    return f" ({CACHED})" if row.get("cached") else ""
