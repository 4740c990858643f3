"""The operator table from the records of suites, and its pages: docs/operators.md, reports/operators.html."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from ci.suites.accuracy import LEAST_DB
from ci.suites.operator_names import REWORK, key_of, names_of
from ci.suites.operator_table import (
    EXACT,
    FAILING,
    LOSES_DB,
    MEANINGS,
    PLAIN,
    TABLE,
    Case,
    Cell,
    Onnx,
    Result,
    Table,
    by_name,
    in_db,
    read,
)
from ci.suites.precision import MEASURED_SCHEMES, ONNX_PRECISIONS, MeasuredScheme
from ci.upstream import onnx_page
from ci.upstream.adapters import ORDER
from ci.upstream.judge import Judge
from ci.upstream.ledger import DIRECTORY, Part, Record, Verdict, load_record
from ci.upstream.value_cases import SAME_WITHOUT_WEIGHTS, cases
from provisioning.base.files import replace_text
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT
from provisioning.manifest import load_socs

NEWER = "rework-op"
"""Qualcomm's newer tests. They count where the other suites measure nothing."""

OPERATORS = ("operators", "values", NEWER)
"""The suites that the table is made from."""

PAGE = ROOT / "docs" / "operators.md"

DIFFERS = "†"
"""Marks what is not as ExecuTorch's files say."""

INTRODUCTION = f"""\
# Which operator works, in which scheme

You want to know, before you build on an operator, whether HTP takes it, at which precision, and how exact
it is. These are measurements: ExecuTorch's own suites, lowered by the QNN compiler and run on the
HTP emulator, each against the quantized model on the CPU. Repeat a row, or measure what is missing:

```console
$ nox -s test_upstream -- operators values -k 'test_log. or *-log-*' --flow 16a8w
$ nox -s test_upstream -- operators values --sample 1/25 --table   # put what it measures into this page
```

A cell has what most of ExecuTorch's tests and our own plain case gave, and the least signal-to-noise
ratio of all cases with that result. In parentheses is how many tests gave another result. A verdict depends
on values and shapes: [manifests/upstream/values.toml](../manifests/upstream/values.toml) has ranges and
shapes that are tried beside. Two tables below have the cases that go wrong, and those that run elsewhere than
the cell says. reports/operators.html has the same with filters, and the worst case of each cell.

Qualcomm's newer tests (`{NEWER}`) count where the other suites measure nothing. They compare with the float
model, not with the quantized one: `to float` marks such a figure, which has in it what quantizing loses. One
that passes below {LEAST_DB:g} dB tests nothing: its outputs may be wrong, or quantizing may lose so much.

`loses`: how much farther from the float model HTP is than the same quantized model on the CPU, where that
is {LOSES_DB:g} dB or more: 16 bits gain less there than they should. `in fp16`: these operators are not
quantized, beside others that are. Schemes that differ in the weights alone give the same for an operator that
has none, as its plain case shows; its ranges and shapes were tried in 16a8w and 8a8w, and count for others.

`files`: whether ExecuTorch has a builder (`lowers`) and a rule of the quantizer (`quantizes`) for the
operator, or for what it becomes when it is exported; operators that it decomposes have none. {DIFFERS} marks
a cell that is not as these files say: there is a builder or a rule, and it is not whole on HTP; or there is
no rule, and it runs quantized.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What one case of an operator gave."""

    suite: str
    test: str
    part: Part
    own: str = ""
    """The name of our own case."""
    case: str = ""
    """The test of ExecuTorch's."""
    float_db: float | None = None
    like: MeasuredScheme | None = None
    """The scheme that it was measured in, if it counts for another one."""

    @property
    def result(self) -> Result:
        return _result(self.part)

    @property
    def usual(self) -> bool:
        return self.own in ("", PLAIN)


def table_of(
    records: Mapping[str, Mapping[str, Record]],
    upstream: Mapping[str, Sequence[str]],
    onnx: Onnx | None = None,
) -> Table:
    """From records by suite and chip, with what ONNX Runtime compiled."""
    rows: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    names: dict[str, str] = {}
    measured = {}
    for suite in sorted(records, key=(*OPERATORS, *records).index):
        for soc, record in records[suite].items():
            for test, parts in record.tests.items():
                for operator, scheme, row in _rows(suite, test, parts.parts):
                    name = names.setdefault(key_of(operator), operator)
                    rows[name, scheme][soc].append(row)
                    measured[soc] = record.versions()
    cells: dict[str, dict[str, dict[str, Cell]]] = {}
    for (operator, scheme), chips in sorted(rows.items()):
        for soc, own in chips.items():
            each = own
            if other := SAME_WITHOUT_WEIGHTS.get(scheme):
                each = [*own, *_alike(own, rows.get((operator, other), {}).get(soc, []), other)]
            same = {row.test for row in _counted(each)}
            usual = [row for row in chips.get(DEFAULT_SOC, ()) if row.test in same]
            cell = _cell(operator, _counted(each))
            if soc != DEFAULT_SOC and usual and (result := _cell(operator, usual).result) != cell.result:
                cell = cell.model_copy(update={"default": result})
            cells.setdefault(operator, {}).setdefault(soc, {})[scheme] = cell
    files = {name: tuple(words) for name, words in upstream.items()}
    return Table.model_validate(
        {
            "schema": 1,
            "measured": measured,
            "upstream": files,
            "cells": dict(sorted(cells.items())),
            **({"onnx": onnx} if onnx else {}),
        }
    )


def _alike(own: Sequence[Row], others: Sequence[Row], scheme: MeasuredScheme) -> list[Row]:
    """What counts of the scheme that differs in the weights alone, if the plain case gave the same figure
    in both and no other of our own cases was tried."""
    plain, same = ([row.part for row in rows if row.own == PLAIN] for rows in (own, others))
    if not plain or plain != same or plain[0].sqnr_db is None:
        return []
    if any(row.own not in ("", PLAIN) for row in own):
        return []
    return [replace(row, like=scheme) for row in others if row.own not in ("", PLAIN)]


def _rows(suite: str, test: str, parts: Sequence[Part]) -> Iterator[tuple[str, str, Row]]:
    """Each part with its operator and scheme: abs, 8a8w, with the test shapes for
    `test_abs.test_abs_shapes[qnn_8a8w-…]`, and log, 8a8w, with our case small for
    `test_values[qnn_8a8w-log-small]`."""
    head, _, identifier = test.partition("[")
    flow, _, rest = identifier.rstrip("]").partition("-")
    if suite == NEWER:
        yield from _newer_rows(head, flow, test, parts)
        return
    scheme = flow.removeprefix("qnn_") if flow != "qnn" else "fp16"
    if scheme not in MEASURED_SCHEMES:
        return
    own, case = "", ""
    if head == "test_values":
        operator, _, own = rest.partition("-")
    else:
        file, _, function = head.partition(".")
        operator = file.removeprefix("test_")
        case = function.removeprefix(f"{file}_").removeprefix("test_")
    for part in parts:
        yield operator, scheme, Row(suite, test, part, own, case)


NEWER_SCHEMES = {"fp": "fp16", "8a": "8a8w", "16a": "16a8w"}


def _newer_rows(
    function: str, identifier: str, test: str, parts: Sequence[Part]
) -> Iterator[tuple[str, str, Row]]:
    """gather, 8a8w for `test_gather[8a]`; conv1d, 16a4w for `test_conv1d[16a4w_pcq]`.

    Such a test compares outputs only after it made sure that all is one delegate, so a part with a figure is
    whole. It is no test of quantized outputs where it passes with ones that are far from the float model's.
    One that passes without a figure expects an exception, and one that fails before it compares says nothing
    of a place, unless lowering fails."""
    name, _, kind = identifier.partition("_")
    scheme = NEWER_SCHEMES.get(name, name) + ("_block" if kind == "lpbq" else "")
    if scheme not in MEASURED_SCHEMES or "_unsupported" in function:
        return
    operator = function.removeprefix("test_")
    for part in parts:
        tested, float_db = part, None
        if part.result in ("passed", "wrong", "bad_test") and part.sqnr_db is not None:
            # Below -EXACT there is no signal, and no ratio.
            figure = part.sqnr_db if part.sqnr_db > -EXACT else None
            if scheme == "fp16":
                tested = Part("wrong" if part.result == "wrong" else "whole", figure)
            else:
                far = part.result != "wrong" and figure is not None and figure < LEAST_DB
                tested, float_db = Part("bad_test" if far else "whole"), figure
        elif part.result not in ("dies", "crash", "memory", "timeout"):
            continue
        yield (
            REWORK.get(operator, operator),
            scheme,
            Row(NEWER, test, tested, case=function, float_db=float_db),
        )


def _counted(rows: Sequence[Row]) -> Sequence[Row]:
    """Without the newer tests where the others measure anything, and without tests that test nothing."""
    first = [row for row in rows if row.suite != NEWER and row.result != "bad_test"]
    newer = [row for row in rows if row.suite == NEWER]
    return first or newer or rows


def _cell(operator: str, rows: Sequence[Row]) -> Cell:
    """Most of the suite's own models and of the plain case decide. What is otherwise is named beside it: one
    unusual case that dies does not make an operator one that dies."""
    inputs = {case.name: case.inputs for case in cases() if case.operator == operator}
    judged = [row for row in rows if row.result != "bad_test" or row.float_db is not None] or rows
    usual = [row for row in judged if row.usual] or judged
    counts = Counter(row.result for row in usual)
    result = max(counts, key=lambda each: (counts[each], -ORDER.index(each)))
    alike = [row for row in judged if row.result == result]
    least = min(
        ((row.part.sqnr_db, row) for row in alike if row.part.sqnr_db is not None),
        key=lambda each: each[0],
        default=None,
    )
    others: dict[str, Result] = {}
    for row in usual:
        if row.usual and row.result != result:
            name = row.case or row.own
            others[name] = min(row.result, others.get(name, row.result), key=ORDER.index)
    own = [(inputs.get(row.own, row.own), row) for row in judged if row.own]
    losses = [
        min(row.part.quantized_db, MOST_DB) - row.part.float_db
        for row in alike
        if row.part.quantized_db is not None and row.part.float_db is not None
    ]
    loses = max(losses, default=0.0)
    in_float = {name for row in usual if row.result == result for name in row.part.in_float or ()}
    return Cell(
        result=result,
        sqnr_db=least and least[0],
        worst=inputs.get(least[1].own, least[1].case) if least and least[0] < EXACT else "",
        float_db=min((row.float_db for row in alike if row.float_db is not None), default=None),
        loses_db=round(loses, 1) if result in QUANTIZED and loses >= LOSES_DB else None,
        in_float=tuple(sorted(map(_short, in_float))) if result in QUANTIZED else (),
        like=next((row.like for row in judged if row.like), None),
        models=len(judged),
        cpu=tuple(sorted({name for row in usual if row.result == result for name in row.part.cpu})),
        others=others,
        elsewhere={
            name: row.result
            for name, row in own
            if not row.usual and row.result != result and row.result not in (*FAILING, "bad_test")
        },
        bad={
            name: Case(result=row.result, sqnr_db=row.part.sqnr_db) for name, row in own if _fails(row.part)
        },
        newer=tuple(sorted({row.case for row in judged if row.suite == NEWER})),
    )


QUANTIZED = ("whole", "part")

MOST_DB = 100.0
"""Rounding to 16 bits leaves no more; what is nearer to the float model has lost nothing."""


def _short(name: str) -> str:
    """`mul.Tensor` for aten.mul.Tensor, `sin` for aten.sin.default."""
    return name.removeprefix("aten.").removesuffix(".default")


def _fails(part: Part) -> bool:
    """Of our own cases. Where values are large, ExecuTorch's tolerances refuse good outputs too."""
    return _result(part) in FAILING and (part.sqnr_db is None or part.sqnr_db < LEAST_DB)


def _result(part: Part) -> Result:
    if part.result in ("failed", "memory", "timeout"):
        return "dies"
    if part.result not in MEANINGS:
        return "bad_test"
    low = part.sqnr_db is not None and part.sqnr_db < LEAST_DB
    if low and part.result not in ("crash", "dies", "bad_test"):
        return "wrong"
    return part.result  # type: ignore[return-value]


def write_table(runs: Sequence[tuple[Judge, Iterable[Verdict]]], measured: str) -> list[Path]:
    """reports/operators/table.json and reports/operators.html: the records, and what these suites gave now
    on top."""
    judge, _ = runs[0]
    records = _records(judge.ledger.profile)
    for each, verdicts in runs:
        now = each.record.with_verdicts(verdicts, measured)
        records.setdefault(each.ledger.suite, {})[each.soc] = now
    onnx = onnx_page.committed(judge.ledger.profile)
    table = table_of(records, upstream_files() or read().upstream, onnx)
    reports = judge.logs.parents[1]
    paths = [reports / "operators" / "table.json", reports / "operators.html"]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    for path, text in zip(paths, (table.as_json(), html_of(table)), strict=True):
        replace_text(path, text)
    return paths


def accept_table() -> None:
    """Write the table that the committed records give, and its page."""
    replace_text(TABLE, table_json())
    replace_text(PAGE, markdown())


def committed() -> Table:
    onnx = onnx_page.committed(DEFAULT_PROFILE)
    return table_of(_records(DEFAULT_PROFILE), upstream_files() or read().upstream, onnx)


def table_json() -> str:
    """manifests/upstream/operators/table.json."""
    return committed().as_json()


def _records(profile: str) -> dict[str, dict[str, Record]]:
    return {
        suite: {
            path.stem.removeprefix(f"{profile}-"): load_record(suite, profile, "", path)
            for path in sorted((DIRECTORY / suite).glob(f"{profile}-*.json"))
        }
        for suite in OPERATORS
    }


def upstream_files() -> dict[str, list[str]]:
    """What the installed ExecuTorch has for each operator of aten; empty if it is not installed."""
    spec = importlib.util.find_spec("executorch")
    roots = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    by_operator: dict[str, list[str]] = defaultdict(list)
    for root in roots:
        backend = root / "backends" / "qualcomm"
        for word, pattern, files in (
            ("lowers", r'"(aten\.\w+)\.', backend.glob("builders/op_*.py")),
            ("quantizes", r"torch\.ops\.(aten\.\w+)\.", backend.glob("quantizer/annotators/htp_rules.py")),
        ):
            text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(files))
            for name in sorted({key_of(each) for each in re.findall(pattern, text)}):
                by_operator[name].append(word)
    return dict(by_operator)


def markdown() -> str:
    """docs/operators.md."""
    return markdown_of(committed())


def markdown_of(table: Table) -> str:
    """The page of a table."""
    return "\n".join(_markdown(table)) + "\n"


def _markdown(table: Table) -> Iterator[str]:
    yield INTRODUCTION
    yield from ("| word | meaning |", "| --- | --- |")
    yield from (f"| {word} | {meaning} |" for word, meaning in MEANINGS.values())
    yield from _whole_table(table)
    yield from _unmeasured(table)
    yield from _bad_values(table)
    yield from _elsewhere(table)
    yield from _other_chips(table)
    yield from onnx_page.markdown(table.onnx)


def _whole_table(table: Table) -> Iterator[str]:
    yield from ("", f"## {DEFAULT_SOC}", "")
    yield f"Measured with {table.measured.get(DEFAULT_SOC, 'nothing yet')}."
    yield from (
        "",
        f"| operator | {' | '.join(MEASURED_SCHEMES)} | files |",
        f"| --- |{' --- |' * len(MEASURED_SCHEMES)} --- |",
    )
    for operator, chips in table.cells.items():
        if row := by_name(chips.get(DEFAULT_SOC, {})):
            texts = [
                _text(table, operator, name, row[name]) if name in row else "" for name in MEASURED_SCHEMES
            ]
            yield f"| {operator} | {' | '.join(texts)} | {', '.join(table.files(operator))} |"


def _text(table: Table, operator: str, scheme: str, cell: Cell) -> str:
    """The cell, marked where ExecuTorch's files say something else."""
    return f"{cell} {DIFFERS}" if table.contradiction(operator, scheme, cell) else str(cell)


def _unmeasured(table: Table) -> Iterator[str]:
    known = {name for operator in table.cells for name in names_of(operator)}
    missing = sorted(set(table.upstream) - known)
    if missing:
        yield ""
        yield f"Not measured, and ExecuTorch's files have a builder or a rule for it: {', '.join(missing)}."


def _bad_values(table: Table) -> Iterator[str]:
    yield from ("", "## Where values and shapes decide", "")
    yield f"What is wrong or fails on {DEFAULT_SOC}: inputs by range or shape, and ExecuTorch's tests."
    yield from ("", "| operator | inputs | schemes | result |", "| --- | --- | --- | --- |")
    for operator, chips in table.cells.items():
        schemes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for scheme, cell in sorted(chips.get(DEFAULT_SOC, {}).items()):
            for inputs, case in cell.bad.items():
                schemes[inputs, str(case)].append(scheme)
            for test, result in cell.others.items():
                if result in FAILING and test != PLAIN:
                    schemes[test, MEANINGS[result][0]].append(scheme)
        for (inputs, words), names in sorted(schemes.items()):
            yield f"| {operator} | {inputs} | {', '.join(names)} | {words} |"


def _elsewhere(table: Table) -> Iterator[str]:
    """A line for each scheme, shape and pair of results: operators stay apart by these, not by their kind."""
    operators: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for operator, chips in table.cells.items():
        for scheme, cell in chips.get(DEFAULT_SOC, {}).items():
            for inputs, result in cell.elsewhere.items():
                usual, here = MEANINGS[cell.result][0], MEANINGS[result][0]
                operators[inputs, scheme, usual, here].append(operator)
    yield from ("", "## Where values and shapes decide the place", "")
    yield f"What runs on {DEFAULT_SOC}, and otherwise than its cell says."
    yield from ("", "| inputs | scheme | cell | result | operators |", "| --- | --- | --- | --- | --- |")
    for words, names in sorted(operators.items()):
        yield f"| {' | '.join(words)} | {', '.join(names)} |"


def _other_chips(table: Table) -> Iterator[str]:
    others = [soc for soc in sorted(table.measured) if soc != DEFAULT_SOC]
    if not others:
        return
    yield from (
        "",
        "## Other chips",
        "",
        "Plain cases and Qualcomm's newer tests; shown where one of these gives another result than on "
        f"{DEFAULT_SOC}.",
        "",
    )
    differing = 0
    for soc in others:
        cells = [cell for chips in table.cells.values() for cell in by_name(chips.get(soc, {})).values()]
        count = sum(cell.default is not None for cell in cells)
        arch, measured = load_socs()[soc].arch, table.measured[soc]
        yield f"- {soc} (V{arch}): {count or 'none'} of {len(cells)} cells; {measured}"
        differing += count
    if not differing:
        return
    yield from ("", f"| operator | scheme | {DEFAULT_SOC} | {' | '.join(others)} |")
    yield f"| --- | --- | --- |{' --- |' * len(others)}"
    for operator, chips in table.cells.items():
        for scheme in MEASURED_SCHEMES:
            row = [chips.get(soc, {}).get(scheme) for soc in others]
            if defaults := [cell.default for cell in row if cell and cell.default]:
                usual = chips[DEFAULT_SOC].get(scheme, MEANINGS[defaults[0]][0])
                texts = " | ".join(str(cell or "") for cell in row)
                yield f"| {operator} | {scheme} | {usual} | {texts} |"


STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1d2229; --faint: #e8ebf0; --good: #d9f0df;
  --half: #fbeecb; --bad: #f8d5d2 }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --ink: #e4e7ec; --faint: #2b313a;
  --good: #1d4029; --half: #4a3c12; --bad: #5a2422 } }
body { margin: 0 auto; max-width: 1500px; padding: 1rem; background: var(--ground); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif }
.filters { display: flex; flex-wrap: wrap; gap: .6rem; margin: .8rem 0 }
input, select { font: inherit; padding: .3rem .5rem; background: var(--ground); color: var(--ink);
  border: 1px solid currentColor; border-radius: 4px; max-width: 100% }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th[scope=row] { position: sticky; left: 0; background: var(--ground) }
table { table-layout: fixed; min-width: 1100px } td, th { overflow-wrap: anywhere }
th, td { border: 1px solid var(--faint); padding: .25rem .5rem; text-align: left; vertical-align: top }
small { display: block; opacity: .85; line-height: 1.3 }
.whole { background: var(--good) } .float, .part, .cpu, .mixed { background: var(--half) }
.wrong, .dies, .crash, .no_kernel { background: var(--bad) }
"""

SCRIPT = """
const $ = id => document.getElementById(id);
function show() {
  const word = $('word').value.toLowerCase(), scheme = $('scheme').value, result = $('result').value;
  let count = 0;
  for (const row of document.querySelectorAll('tbody tr')) {
    const cells = [...row.querySelectorAll('td[data-scheme]')]
      .filter(cell => !scheme || cell.dataset.scheme === scheme);
    const results = cells.flatMap(cell => cell.dataset.results.split(' '));
    const named = row.querySelector('th').textContent.toLowerCase().includes(word)
      && (!$('soc').value || row.dataset.soc === $('soc').value);
    row.hidden = !(named && cells.length && (!result || results.includes(result)));
    count += !row.hidden;
  }
  for (const cell of document.querySelectorAll('[data-scheme]'))
    cell.hidden = scheme && cell.dataset.scheme !== scheme;
  $('count').textContent = count + ' rows';
}
for (const id of ['word', 'scheme', 'result', 'soc']) $(id).addEventListener('input', show);
show();
"""


def _default_first(row: tuple[str, object]) -> tuple[bool, str]:
    return row[0] != DEFAULT_SOC, row[0]


def html_of(table: Table) -> str:
    """One self-contained file with filters by operator, scheme, chip and result."""
    rows = []
    for operator, chips in table.cells.items():
        files = ", ".join(table.files(operator))
        for soc, row in sorted(chips.items(), key=_default_first):
            cells = "".join(
                _html_cell(name, row[name], _text(table, operator, name, row[name]))
                if name in row
                else _empty(name)
                for name in MEASURED_SCHEMES
            )
            rows.append(_html_row(operator, soc, f"{cells}<td>{files}</td>"))
    onnx_rows = [
        _html_row(
            operator,
            soc,
            "".join(
                _html_cell(name, row[name], str(row[name])) if name in row else _empty(name)
                for name in ONNX_PRECISIONS
            ),
        )
        for operator, chips in table.onnx.cells.items()
        for soc, row in chips.items()
    ]
    places: dict[str, list[str]] = defaultdict(list)
    for place, versions in sorted([*table.measured.items(), *table.onnx.measured.items()]):
        places[versions].append(place)
    measured = "; ".join(f"{', '.join(names)}: {versions}" for versions, names in places.items())
    legend = "".join(
        f'<li><span class="{name}">{word}</span>: {escape(text)}</li>'
        for name, (word, text) in MEANINGS.items()
    )
    results = {name: word for name, (word, _) in MEANINGS.items()}
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Operators on HTP</title><style>{STYLE}</style></head><body>
<h1>Operators on HTP</h1>
<p>Measured on the emulator. {escape(measured)}.</p>
<p>A cell has what most cases gave, and the least signal-to-noise ratio of all cases with that result, against
the quantized model on the CPU; in parentheses how many tests gave another result. Below it are the case with
that ratio, and the cases that gave something else. <q>to float</q>: Qualcomm's newer tests measured it, which
compare with the float model. <q>loses</q>: how much farther from the float model HTP is than the same
quantized model on the CPU. <q>in fp16</q>: operators that are not quantized, beside others that are. An empty
cell was not measured. ≠ marks what is not as the same cases on {DEFAULT_SOC}. {DIFFERS} marks what is not as
ExecuTorch's files say: it has a builder (lowers) or a rule of the quantizer (quantizes), and is not whole on
HTP; or has no rule, and runs quantized.
Below are the operators of ONNX, each by one of its node tests, compiled by ONNX Runtime.</p>
<ul>{legend}</ul>
<div class="filters"><input id="word" placeholder="operator" aria-label="operator">
{_select("scheme", "every scheme", {s: s for s in dict.fromkeys([*MEASURED_SCHEMES, *ONNX_PRECISIONS])})}
{_select("result", "every result", {**results, **MARKS})}
{_select("soc", "every chip", {s: s for s in sorted({*table.measured, *table.onnx.measured})})}
<output id="count"></output></div>
{_html_table(rows, MEASURED_SCHEMES, "<th>files</th>")}
<h2>Operators of ONNX, through ONNX Runtime</h2>
{_html_table(onnx_rows, ONNX_PRECISIONS)}
<script>{SCRIPT}</script></body></html>
"""


UNLIKE_FILES, LOSES, IN_FLOAT = "unlike-files", "loses", "in-float"
MARKS = {
    UNLIKE_FILES: f"{DIFFERS} not as its files",
    LOSES: "loses accuracy",
    IN_FLOAT: "in part in fp16",
}


def _empty(scheme: str) -> str:
    return f'<td data-scheme="{scheme}" data-results=""></td>'


def _html_table(rows: Sequence[str], schemes: Sequence[str], more: str = "") -> str:
    heads = "".join(f'<th data-scheme="{scheme}">{_breakable(scheme)}</th>' for scheme in schemes)
    return f"""<div class="scroll"><table><thead><tr><th>operator</th><th>chip</th>{heads}{more}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>"""


def _html_row(operator: str, soc: str, cells: str) -> str:
    head = f'<th scope="row">{_breakable(operator)}</th><td>{escape(soc)}</td>'
    return f'<tr data-soc="{escape(soc)}">{head}{cells}</tr>'


def _html_cell(scheme: str, cell: Cell, text: str) -> str:
    results = [*cell.results, *([UNLIKE_FILES] if text.endswith(DIFFERS) else [])]
    results += [LOSES] * (cell.loses_db is not None) + [IN_FLOAT] * bool(cell.in_float)
    differs = not set(FAILING).isdisjoint(cell.results) or (cell.result == "whole" and not cell.good)
    colour = "mixed" if differs and cell.result not in (*FAILING, "no_kernel") else cell.result
    notes = "".join(f"<small>{escape(note)}</small>" for note in _notes(cell))
    return (
        f'<td data-scheme="{scheme}" class="{colour}" data-results="{" ".join(results)}">'
        f"{escape(text)}{notes}</td>"
    )


def _notes(cell: Cell) -> Iterator[str]:
    if cell.default:
        yield f"≠ {MEANINGS[cell.default][0]}"
    if cell.worst and cell.models > 1:
        yield f"worst: {cell.worst}"
    for result, (word, _) in MEANINGS.items():
        bad = {name: case for name, case in sorted(cell.bad.items()) if case.result == result}
        names = [
            f"{name}{f' ({figure.strip()})' if (figure := in_db(case.sqnr_db)) else ''}"
            for name, case in bad.items()
        ]
        names += [test for test, each in sorted(cell.others.items()) if each == result and test != PLAIN]
        names += [name for name, each in sorted(cell.elsewhere.items()) if each == result]
        if names:
            yield f"{word}: {', '.join(names)}"


def _breakable(name: str) -> str:
    return escape(name).replace("_", "_<wbr>")


def _select(name: str, every: str, choices: Mapping[str, str]) -> str:
    options = "".join(f'<option value="{value}">{escape(text)}</option>' for value, text in choices.items())
    return f'<select id="{name}" aria-label="{name}"><option value="">{every}</option>{options}</select>'
