"""What the page shows of a language model beside what it shows of any program: how it reads a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ci.report.values import Bar, Row, bar_of, entries, longest_of, mapping, number, word
from provisioning.base.units import in_decibels, size

WIDTH, HEIGHT = 100.0, 20.0
"""Of a drawing."""
FIGURES = {
    "first_choice": "first choice",
    "tied_choice": "or as good",
    "perplexity_ratio": "perplexity ratio",
    "divergence": "divergence",
    "divergence_50": "its median",
    "divergence_99": "99 % of it",
}
WHERE = {
    "htp": "on HTP",
    "cpu": "on the CPU",
    "htp_cpu": "on HTP against the CPU",
    "genie": "by Genie itself",
}


@dataclass(frozen=True, slots=True)
class PositionLine:
    name: str
    points: str
    label: str


@dataclass(frozen=True, slots=True)
class TextView:
    figures: Sequence[tuple[str, Sequence[str]]]
    """By reader: the cells of FIGURES."""
    positions: Sequence[PositionLine]
    parts: Sequence[Bar]


def text_of(row: Row) -> TextView:
    """All of it is empty in the row of another program."""
    return TextView(
        list(_figures(mapping(row.get("figures")))),
        list(_positions(mapping(row.get("positions")))),
        list(_parts(row)),
    )


def _figures(figures: Row) -> Iterator[tuple[str, Sequence[str]]]:
    for reader, values in figures.items():
        row = mapping(values)
        cells = [_with_error(mapping(row.get(key))) for key in FIGURES]
        if cells[0]:
            yield _reader(reader), cells


def _reader(name: str) -> str:
    kind, _, where = name.partition("_")
    return f"{kind} {WHERE.get(where, where)}"


def _with_error(figure: Row) -> str:
    value, error = number(figure, "value"), number(figure, "error")
    return "" if value is None else f"{value:.4g}" + ("" if error is None else f" ± {error:.2g}")


def _positions(lines: Row) -> Iterator[PositionLine]:
    series = {
        name: values
        for name, line in lines.items()
        if (values := [float(entry) for entry in entries(line) if isinstance(entry, int | float)])
    }
    highest = longest_of(*(max(values) for values in series.values()))
    for name, values in series.items():
        # One place alone is a line, too.
        drawn = values * 2 if len(values) == 1 else values
        step = WIDTH / (len(drawn) - 1)
        points = " ".join(
            f"{index * step:.1f},{HEIGHT - 1 - (HEIGHT - 2) * value / highest:.1f}"
            for index, value in enumerate(drawn)
        )
        label = f"{values[0]:.2g} at the beginning, {values[-1]:.2g} at the end, at most {max(values):.2g}"
        yield PositionLine(_reader(name), points, label)


def _parts(row: Row) -> Iterator[Bar]:
    rows = [mapping(entry) for entry in entries(row.get("parts"))]
    longest = longest_of(
        *(number(row, key) for row in rows for key in ("db", "typical_db", "cpu_db", "least_db"))
    )
    for layer in rows:
        if (value := number(layer, "db")) is None:
            continue
        least, cpu, typical = (number(layer, key) for key in ("least_db", "cpu_db", "typical_db"))
        expected = number(layer, "typical_least_db")
        text = f"{word(layer, 'output')} {in_decibels(value)}"
        text += "" if least is None else f" (at least {least:.1f})"
        text += "" if cpu is None else f", {cpu:.1f} on the CPU"
        good = least is None or value >= least
        if typical is not None:
            text += f"; at the median position {typical:.1f}" + (
                "" if expected is None else f" (at least {expected:.1f})"
            )
            good = good and (expected is None or typical >= expected)
        yield bar_of(
            word(layer, "name"), value, text, good=good, marks=[(least, 0.6), (cpu, 0.2)], longest=longest
        )


def costs_of_text(row: Row) -> Iterator[Bar]:
    speed = mapping(row.get("speed"))
    rates = [(key, number(speed, key)) for key in ("tokens_per_second", "read_per_second")]
    names = {"tokens_per_second": "generated on the emulator", "read_per_second": "read on the emulator"}
    longest = longest_of(*(rate for _, rate in rates))
    for key, rate in rates:
        if rate is not None:
            text = f"{rate:.4g} tokens a second"
            yield bar_of(names[key], rate, text, good=True, longest=longest)
    for key, title in (("bytes", "size of the binaries"), ("peak", "memory while it was made")):
        if (value := number(row, key)) is not None:
            yield bar_of(title, value, size(int(value)), good=True)
