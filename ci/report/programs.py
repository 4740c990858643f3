"""The page's sections on models: a matrix by scheme, then each program, in one form for all lanes.

And what the commands for one model did in this folder, by the rows that each keeps in its report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ci.one_model.report import MODELS
from ci.report.values import (
    LANES,
    ORDER,
    Row,
    entries,
    in_unit,
    mapping,
    number,
    rows_of,
    verdict_of,
    word,
)
from ci.suite.accuracy import cost_rule
from provisioning.base.findings import Finding, Report
from provisioning.base.rendering import plural
from provisioning.base.units import in_decibels, seconds, size

COST_TITLES = {
    "ddr_read": "DDR read",
    "ddr_written": "DDR written",
    "ddr_spilled": "spilled",
    "ddr_filled": "filled",
    "pte_bytes": ".pte",
    "context_bytes": "context",
    "cpu_seconds": "compiling",
}
"""The columns of costs, in order."""
FIGURES = {
    "metric": "metric of the task",
    "float_metric": "the same of the float model",
    "reference_metric": "the same of the quantized model",
    "max_metric_loss": "loss against the float model",
    "sqnr_db": "SQNR against float",
    "slice_sqnr_db": "SQNR of the worst slice",
    "reference_sqnr_db": "SQNR against quantized",
    "cosine": "cosine with float",
    "variation_sqnr_db": "SQNR of what depends on the input",
    "agreement": "equal integers",
    "reference_agreement": "integers equal to quantized",
    "top1": "top-1 agreement",
    "max_rel": "largest relative error",
}
LESS_IS_BETTER = ("max_abs", "max_rel", "max_metric_loss")
LANES_OF_PAGE = {**LANES, "check": "check"}
STAGES = {"executorch": ("test_lowering", "test_emulator"), "llm": ("", "test_llm"), "check": ("", "check")}
"""By lane: the stage that compiles its programs, and the one that runs them. ONNX has one for both."""
IN_CELLS = {"onnx": "ONNX"}
"""The word that tells a lane's programs from others of the same case and scheme."""
SHOWN_OPERATORS = 6
CACHED = "cached: measured in an earlier run"


@dataclass(frozen=True, slots=True)
class Box:
    """A part of the graph, which runs on the HTP or on the CPU."""

    where: str
    count: int
    grows: int
    operators: str


@dataclass(frozen=True, slots=True)
class ShownFigure:
    name: str
    text: str
    good: bool = True
    """False for one that its threshold or its baseline refuses."""


@dataclass(frozen=True, slots=True)
class ProgramView:
    lane: str
    name: str
    case: str
    scheme: str
    label: str
    """The program's name in the cell of its case and scheme."""
    verdict: str
    brief: str
    findings: Collection[Finding]
    partition: Sequence[Box]
    accuracy: Sequence[ShownFigure]
    slices: Sequence[str]
    text: TextView
    other_build: str
    """The QNN that the baseline is of, if it is another."""
    costs: Sequence[ShownFigure]
    durations: str
    commands: Sequence[str]

    @property
    def anchor(self) -> str:
        return f"{self.lane}-{quote(self.name, errors='replace')}"


@dataclass(frozen=True, slots=True)
class Programs:
    schemes: Sequence[str]
    cases: Sequence[str]
    cells: Mapping[tuple[str, str], Sequence[ProgramView]]
    """The programs by case and scheme."""
    worst_first: Sequence[ProgramView]


def programs_of(reports: Iterable[Report]) -> Programs | None:
    """The programs of all lanes in the suite's order; None without any. Rows of another form are left out."""
    rows: dict[tuple[str, str], dict[str, Row]] = {}
    findings: dict[tuple[str, str], dict[tuple[str, str], Finding]] = {}
    for report in reports:
        if not (lane := LANES_OF_PAGE.get(report.stage)):
            continue
        for name, values in rows_of(report, "programs").items():
            rows.setdefault((lane, name), {})[report.stage] = values
        for finding in report.findings:
            # Two stages report a program that was not compiled; show it once.
            same = findings.setdefault((lane, finding.subject), {})
            same.setdefault((finding.rule, finding.message), finding)
    if not rows:
        return None
    programs = [
        _program(lane, name, row, findings.get((lane, name), {}).values())
        for (lane, name), row in rows.items()
    ]
    cells = defaultdict(list)
    for program in programs:
        cells[program.case, program.scheme].append(program)
    worst_first = sorted(programs, key=lambda program: (ORDER.index(program.verdict), program.name))
    bad = {program.case for program in programs if program.verdict == ORDER[0]}
    return Programs(
        # Float first, then by name.
        sorted({program.scheme for program in programs}, key=lambda name: (not name.startswith("fp"), name)),
        sorted(dict.fromkeys(program.case for program in programs), key=lambda case: case not in bad),
        cells,
        worst_first,
    )


def _program(lane: str, name: str, rows: Mapping[str, Row], findings: Collection[Finding]) -> ProgramView:
    first = next(iter(rows.values()))
    # ExecuTorch's programs are compiled by one stage and run by another one.
    compiled, ran = (rows.get(stage, {}) for stage in STAGES.get(lane, (*rows, *rows)))
    scheme = word(first, "scheme") or word(first, "precision")
    label = f"{word(first, 'soc')} {word(first, 'run').removeprefix(scheme).lstrip('-')}".strip()
    costs = [*_costs(compiled, {finding.rule for finding in findings}), *_size_of(ran)]
    return ProgramView(
        lane,
        name,
        word(first, "case") or name,
        scheme,
        f"{label} {IN_CELLS.get(lane, '')}".strip(),
        verdict_of(*rows.values()),
        ", ".join(_brief(compiled, ran, rows.values())),
        findings,
        [_box(row) for row in map(mapping, entries(compiled.get("partition")))],
        list(accuracy_of(ran)),
        [entry for entry in entries(ran.get("slices")) if isinstance(entry, str)],
        text_of(ran),
        word(compiled, "baseline_build_id"),
        costs,
        ", ".join(_durations(compiled)),
        [command for row in rows.values() if (command := word(row, "command"))],
    )


def _brief(lowered: Row, ran: Row, rows: Iterable[Row]) -> Iterator[str]:
    if "delegates" in lowered:
        yield plural(int(number(lowered, "delegates") or 0), "delegate")
        yield f"{int(number(lowered, 'cpu_operators') or 0)} on the CPU"
    yield from filter(None, [word(ran, "through")])
    figures = mapping(ran.get("figures"))
    if (sqnr := number(figures, "sqnr_db")) is not None:
        yield in_unit("sqnr_db", sqnr)
    if (share := number(figures, "agreement")) is not None:
        yield f"{share:.6g} equal"
    if all(row.get("cached") for row in rows):
        yield "cached"


def _box(row: Row) -> Box:
    where, count = word(row, "where"), int(number(row, "count") or 0)
    counts = mapping(row.get("operators"))
    operators = sorted(counts, key=lambda name: (-(number(counts, name) or 0), name))
    listed = [
        f"{name.removeprefix('aten.').removesuffix('.default')} × {counts[name]}"
        for name in operators[:SHOWN_OPERATORS]
    ]
    if more := len(operators) - len(listed):
        listed.append(f"and {plural(more, 'kind')} more")
    return Box(where, count, min(5, max(1, count).bit_length()), ", ".join(listed))


ALWAYS = ("metric", "float_metric", "reference_metric", "sqnr_db", "cosine", "variation_sqnr_db", "agreement")
"""Shown without a threshold too."""


def accuracy_of(row: Row) -> Iterator[ShownFigure]:
    figures, wanted = mapping(row.get("figures")), mapping(row.get("thresholds"))
    for key, name in FIGURES.items():
        value, mark = number(figures, key), number(wanted, key)
        if value is None or (mark is None and key not in ALWAYS):
            continue
        good = mark is None or (value <= mark if key in LESS_IS_BETTER else value >= mark)
        text = in_unit(key, value)
        if mark is not None:
            text += f" ({'at most' if key in LESS_IS_BETTER else 'at least'} {in_unit(key, mark)})"
        yield ShownFigure(name, text, good)


def _costs(row: Row, rules: Collection[str]) -> Iterator[ShownFigure]:
    """The stage decides which cost is bad, because it knows the tolerances."""
    values, agreed = mapping(row.get("costs")), mapping(row.get("baseline"))
    for key, title in COST_TITLES.items():
        value, mark = number(values, key), number(agreed, key)
        if value is None or (not value and not mark):
            continue
        text = in_unit(key, value) + _beside(key, value, mark)
        if key == "cpu_seconds":
            text += _earlier(row)
        yield ShownFigure(title, text, good=cost_rule(key) not in rules)


def _beside(key: str, value: float, agreed: float | None) -> str:
    if agreed is None:
        return " (no baseline)"
    change = f"{100 * (value - agreed) / agreed:+.1f} %" if agreed else ""
    return " (as agreed)" if value == agreed else f" ({change or 'more'}, baseline {in_unit(key, agreed)})"


def _durations(lowered: Row) -> Iterator[str]:
    """Time and memory of the compile, marked if they are from an earlier run."""
    if (value := number(lowered, "seconds")) is not None:
        memory = number(lowered, "peak_bytes")
        with_memory = "" if memory is None else f" with {size(int(memory))} of memory"
        yield f"compiled in {seconds(value)}{with_memory}{_earlier(lowered)}"


def _earlier(row: Row) -> str:
    return f" ({CACHED})" if row.get("cached") else ""


def _size_of(row: Row) -> Iterator[ShownFigure]:
    if (value := number(row, "bytes")) is not None:
        yield ShownFigure("size of the binaries", size(int(value)))


# What language models have beside: how they read a text

TEXT_FIGURES = {
    "first_choice": "first choice",
    "perplexity_ratio": "perplexity ratio",
    "divergence": "divergence",
    "divergence_99": "99 % of it",
}
WHERE = {
    "htp": "on HTP",
    "genie": "by Genie itself",
}


@dataclass(frozen=True, slots=True)
class TextView:
    figures: Sequence[tuple[str, Sequence[str]]]
    """By reader: the cells of TEXT_FIGURES."""
    parts: Sequence[ShownFigure]


def text_of(row: Row) -> TextView:
    """All of it is empty in the row of another program."""
    return TextView(
        list(_text_figures(mapping(row.get("figures")))),
        list(_parts(row)),
    )


def _text_figures(figures: Row) -> Iterator[tuple[str, Sequence[str]]]:
    for reader, values in figures.items():
        row = mapping(values)
        cells = [_with_error(mapping(row.get(key))) for key in TEXT_FIGURES]
        if cells[0]:
            yield _reader(reader), cells


def _reader(name: str) -> str:
    kind, _, where = name.partition("_")
    return f"{kind} {WHERE.get(where, where)}"


def _with_error(figure: Row) -> str:
    value, error = number(figure, "value"), number(figure, "error")
    return "" if value is None else f"{value:.4g}" + ("" if error is None else f" ± {error:.2g}")


def _parts(row: Row) -> Iterator[ShownFigure]:
    for layer in map(mapping, entries(row.get("parts"))):
        if (value := number(layer, "db")) is None:
            continue
        least, cpu = number(layer, "least_db"), number(layer, "cpu_db")
        text = f"{word(layer, 'output')} {in_decibels(value)}"
        text += "" if least is None else f" (at least {least:.1f})"
        text += "" if cpu is None else f", {cpu:.1f} on the CPU"
        good = least is None or value >= least
        yield ShownFigure(word(layer, "name"), text, good)


# What was done of one model


@dataclass(frozen=True, slots=True)
class ModelView:
    verb: str
    model: str
    verdict: str
    when: str
    command: str
    said: Sequence[str]

    @property
    def brief(self) -> str:
        """The first line with a figure in dB, as people ask for it first; else the first line."""
        return next((line for line in self.said if " dB" in line), next(iter(self.said), "nothing"))


def of_one_model(report: Report) -> bool:
    """Whether a report holds what was done of several models, one command after the other."""
    return MODELS in report.metrics


def models_of(reports: Sequence[Report]) -> list[ModelView]:
    """The latest first."""
    return sorted(_models(reports), key=lambda model: model.when, reverse=True)


def _models(reports: Sequence[Report]) -> Iterator[ModelView]:
    for report in filter(of_one_model, reports):
        for name, row in rows_of(report, MODELS).items():
            verdict, when, command = (word(row, key) for key in ("verdict", "when", "command"))
            lines = [line for line in entries(row.get("said")) if isinstance(line, str)]
            passed = "pass" if verdict == "pass" else "fail"
            yield ModelView(report.stage, name, passed, when, command, lines)
