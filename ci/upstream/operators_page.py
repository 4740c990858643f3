"""The operator table from the records of suites, and its pages: docs/operators.md, reports/operators.html."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from ci.suites.accuracy import LEAST_DB
from ci.suites.baseline import Recorded, baseline_path, load_baseline
from ci.suites.operator_table import (
    EXACT,
    MEANINGS,
    TABLE,
    Cell,
    Table,
    in_db,
    key_of,
    read,
)
from ci.suites.precision import MEASURED_SCHEMES, PRECISIONS
from ci.upstream.adapters import ORDER
from ci.upstream.judge import Judge
from ci.upstream.ledger import DIRECTORY, Part, Record, Verdict, load_record
from ci.upstream.value_cases import ONNX_PRECISIONS, ONNX_SUITE, cases
from provisioning.base.files import replace_text
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT
from provisioning.manifest import load_socs

OPERATORS = ("operators", "values")
"""The suites that the table is made from."""

PLAIN = "plain"
"""Our own case of usual values and shape."""

FAILING = ("wrong", "dies", "crash")

PAGE = ROOT / "docs" / "operators.md"

THROUGH_ONNX = " onnx"
"""What follows a chip's name where ONNX Runtime compiled: its u8u8 stands under 8a8w, u16u8 under 16a8w."""

INTRODUCTION = """\
# Which operator works, in which scheme

You want to know, before you build on an operator, whether HTP takes it, at which precision, and how exact
it is. These are measurements: ExecuTorch's own suite for backends, lowered by the QNN compiler and run on the
HTP emulator, each against the quantized model on the CPU. Repeat a row, or measure what is missing:

```console
$ nox -s test_upstream -- operators values -k 'test_log. or *-log-*' --flow 16a4w
$ nox -s test_upstream -- operators values --sample 1/25 --table   # put what it measures into this page
```

A cell has what most cases gave, of ExecuTorch's suite and our own plain one, and the least signal-to-noise
ratio of these. In parentheses is how many tests gave another result. A verdict depends on
values and shapes: [manifests/upstream/values.toml](../manifests/upstream/values.toml) has ranges and shapes
that are tried beside, and the second table has all cases that go wrong. `files`: whether ExecuTorch has a
builder (`lowers`) and a rule of the quantizer (`quantizes`) under the operator's own name; operators that it
decomposes have none.
"""


def table_of(
    records: Mapping[str, Mapping[str, Record]],
    upstream: Mapping[str, Sequence[str]],
    onnx: Mapping[str, Recorded],
) -> Table:
    """From records by suite and chip, and from the baseline of the plain cases in ONNX Runtime's lane."""
    parts: dict[tuple[str, str, str], list[tuple[str, str, Part]]] = defaultdict(list)
    measured = {}
    for chips in records.values():
        for soc, record in chips.items():
            for test, row in record.tests.items():
                if row.parts and (key := _key(test)):
                    operator, scheme, own, case = key
                    parts[operator, soc, scheme] += [(own, case, part) for part in row.parts]
                    measured[soc] = record.versions()
    cells: dict[str, dict[str, dict[str, Cell]]] = {}
    for (operator, soc, scheme), rows in sorted(parts.items()):
        cells.setdefault(operator, {}).setdefault(soc, {})[scheme] = _cell(operator, rows)
    for program, costs in sorted(onnx.items()):
        operator, precision, soc = program.split("/")
        place, scheme = soc + THROUGH_ONNX, PRECISIONS[precision].executorch
        figure = costs.accuracy.get("reference_sqnr_db", costs.accuracy.get("sqnr_db"))
        result = "whole" if not costs.refused else "part" if costs.taken else "cpu"
        part = Part(result, None if figure is None else round(min(figure, EXACT), 1), costs.refused)
        cells.setdefault(operator, {}).setdefault(place, {})[scheme] = _cell(operator, [(PLAIN, "", part)])
        measured[place] = f"onnxruntime-qnn, QNN {costs.build_id}"
    files = {name: tuple(words) for name, words in upstream.items()}
    return Table.model_validate(
        {"schema": 1, "measured": measured, "upstream": files, "cells": dict(sorted(cells.items()))}
    )


def _key(test: str) -> tuple[str, str, str, str] | None:
    """Operator, scheme, case of our own and test of ExecuTorch's: abs, 8a8w, "", shapes for
    `test_abs.test_abs_shapes[qnn_8a8w-…]`, and log, 8a8w, small, "" for `test_values[qnn_8a8w-log-small]`."""
    flow, _, rest = test.partition("[")[2].rstrip("]").partition("-")
    scheme = flow.removeprefix("qnn_") if flow != "qnn" else "fp16"
    if scheme not in MEASURED_SCHEMES:
        return None
    if test.startswith("test_values["):
        operator, _, case = rest.partition("-")
        return operator, scheme, case, ""
    file, _, function = test.partition("[")[0].partition(".")
    return file.removeprefix("test_"), scheme, "", function.removeprefix(f"{file}_").removeprefix("test_")


def _cell(operator: str, rows: list[tuple[str, str, Part]]) -> Cell:
    """Most of the suite's own models and of the plain case decide. What is otherwise is named beside it: one
    unusual case that dies does not make an operator one that dies."""
    inputs = {case.name: case.inputs for case in cases() if case.operator == operator}
    judged = [row for row in rows if _result(row[2]) != "bad_test"] or rows
    usual = [row for row in judged if row[0] in ("", PLAIN)] or judged
    counts = Counter(_result(part) for _, _, part in usual)
    result = max(counts, key=lambda each: (counts[each], -ORDER.index(each)))
    alike = [part for _, _, part in usual if _result(part) == result]
    others: dict[str, str] = {}
    for own, test, part in usual:
        if (own in ("", PLAIN)) and (each := _result(part)) != result:
            others[test or own] = min(each, others.get(test or own, each), key=ORDER.index)
    return Cell(
        result=result,  # type: ignore[arg-type]
        sqnr_db=min((part.sqnr_db for part in alike if part.sqnr_db is not None), default=None),
        models=len(judged),
        cpu=tuple(sorted({name for part in alike for name in part.cpu})),
        others=others,  # type: ignore[arg-type]
        bad={inputs.get(own, own): part.sqnr_db for own, _, part in judged if own and _fails(part)},
    )


def _fails(part: Part) -> bool:
    """Of our own cases. Where values are large, ExecuTorch's tolerances refuse good outputs too."""
    return _result(part) in FAILING and (part.sqnr_db is None or part.sqnr_db < LEAST_DB)


def _result(part: Part) -> str:
    if part.result in ("failed", "memory", "timeout"):
        return "dies"
    if part.result not in MEANINGS:
        return "bad_test"
    low = part.sqnr_db is not None and part.sqnr_db < LEAST_DB
    return "wrong" if low and part.result not in ("crash", "dies", "bad_test") else part.result


def write_table(judge: Judge, verdicts: Iterable[Verdict], measured: str) -> list[Path]:
    """reports/operators/table.json and reports/operators.html: the records, and what ran now on top."""
    records = _records(judge.ledger.profile)
    now = judge.record.with_verdicts(verdicts, measured)
    records.setdefault(judge.ledger.suite, {})[judge.soc] = now
    table = table_of(records, upstream_files() or read().upstream, _onnx(judge.ledger.profile))
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
    return table_of(_records(DEFAULT_PROFILE), upstream_files() or read().upstream, _onnx(DEFAULT_PROFILE))


def table_json() -> str:
    """manifests/upstream/operators/table.json."""
    return committed().as_json()


def _onnx(profile: str) -> Mapping[str, Recorded]:
    return load_baseline(baseline_path(ONNX_SUITE, profile)).programs


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
    return "\n".join(_markdown(committed())) + "\n"


def _markdown(table: Table) -> Iterator[str]:
    yield INTRODUCTION
    yield from ("| word | meaning |", "| --- | --- |")
    yield from (f"| {word} | {meaning} |" for word, meaning in MEANINGS.values())
    yield from _whole_table(table, DEFAULT_SOC, MEASURED_SCHEMES)
    yield from _bad_values(table)
    yield from _other_chips(table)
    yield from _whole_table(table, DEFAULT_SOC + THROUGH_ONNX, ONNX_SCHEMES)


ONNX_SCHEMES = tuple(PRECISIONS[name].executorch for name in ONNX_PRECISIONS)


def _whole_table(table: Table, place: str, schemes: Sequence[str]) -> Iterator[str]:
    soc, _, onnx = place.partition(" ")
    through = f" through ONNX Runtime ({', '.join(ONNX_PRECISIONS)})" if onnx else ""
    yield from ("", f"## {soc}{through}", "")
    yield f"Measured with {table.measured.get(place, 'nothing yet')}."
    yield from (
        "",
        f"| operator | {' | '.join(schemes)} | files |",
        f"| --- |{' --- |' * len(schemes)} --- |",
    )
    for operator, chips in table.cells.items():
        if row := chips.get(place):
            texts = [str(row[scheme]) if scheme in row else "" for scheme in schemes]
            files = ", ".join(table.upstream.get(key_of(operator), ()))
            yield f"| {operator} | {' | '.join(texts)} | {files} |"


def _bad_values(table: Table) -> Iterator[str]:
    yield from ("", "## Where values and shapes decide", "")
    yield f"What is wrong or fails on {DEFAULT_SOC}: inputs by range or shape, and ExecuTorch's tests."
    yield from ("", "| operator | inputs | schemes | result |", "| --- | --- | --- | --- |")
    for operator, chips in table.cells.items():
        schemes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for scheme, cell in sorted(chips.get(DEFAULT_SOC, {}).items()):
            for inputs, figure in cell.bad.items():
                schemes[inputs, in_db(figure)].append(scheme)
            for test, result in cell.others.items():
                if result in FAILING and test != PLAIN:
                    schemes[test, MEANINGS[result][0]].append(scheme)
        for (inputs, words), names in sorted(schemes.items()):
            yield f"| {operator} | {inputs} | {', '.join(names)} | {words} |"


def _other_chips(table: Table) -> Iterator[str]:
    others = [soc for soc in sorted(table.measured) if soc != DEFAULT_SOC and not soc.endswith(THROUGH_ONNX)]
    if not others:
        return
    yield from (
        "",
        "## Other chips",
        "",
        f"One plain case a cell; shown where a result is not {DEFAULT_SOC}'s.",
        "",
    )
    yield from (f"- {soc} (V{load_socs()[soc].arch}): measured with {table.measured[soc]}" for soc in others)
    yield from ("", f"| operator | scheme | {DEFAULT_SOC} | {' | '.join(others)} |")
    yield f"| --- | --- | --- |{' --- |' * len(others)}"
    for operator, chips in table.cells.items():
        usual = chips.get(DEFAULT_SOC, {})
        for scheme in MEASURED_SCHEMES:
            rows = [chips.get(soc, {}).get(scheme) for soc in others]
            if scheme in usual and any(cell and cell.result != usual[scheme].result for cell in rows):
                texts = " | ".join(str(cell) if cell else "" for cell in rows)
                yield f"| {operator} | {scheme} | {usual[scheme]} | {texts} |"


STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1d2229; --faint: #e8ebf0; --good: #d9f0df;
  --half: #fbeecb; --bad: #f8d5d2 }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --ink: #e4e7ec; --faint: #2b313a;
  --good: #1d4029; --half: #4a3c12; --bad: #5a2422 } }
body { margin: 0 auto; max-width: 1200px; padding: 1rem; background: var(--ground); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif }
.filters { display: flex; flex-wrap: wrap; gap: .6rem; margin: .8rem 0 }
input, select { font: inherit; padding: .3rem .5rem; background: var(--ground); color: var(--ink);
  border: 1px solid currentColor; border-radius: 4px; max-width: 100% }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th[scope=row] { position: sticky; left: 0; background: var(--ground) }
table { table-layout: fixed; min-width: 900px } td, th { overflow-wrap: anywhere }
th, td { border: 1px solid var(--faint); padding: .25rem .5rem; text-align: left; vertical-align: top }
.whole { background: var(--good) } .float, .part, .cpu, .mixed { background: var(--half) }
.wrong, .dies, .crash, .no_kernel { background: var(--bad) }
"""

SCRIPT = """
const $ = id => document.getElementById(id);
function show() {
  const word = $('word').value.toLowerCase(), scheme = $('scheme').value, result = $('result').value;
  for (const row of document.querySelectorAll('tbody tr')) {
    const results = [...row.querySelectorAll('td[data-scheme]')]
      .filter(cell => !scheme || cell.dataset.scheme === scheme)
      .flatMap(cell => cell.dataset.results.split(' '));
    const named = row.querySelector('th').textContent.includes(word)
      && row.dataset.soc.includes($('soc').value);
    row.hidden = !(named && (!result || results.includes(result)));
  }
  for (const cell of document.querySelectorAll('[data-scheme]'))
    cell.hidden = scheme && cell.dataset.scheme !== scheme;
}
for (const id of ['word', 'scheme', 'result', 'soc']) $(id).addEventListener('input', show);
"""


def html_of(table: Table) -> str:
    """One self-contained file with filters by operator, scheme, chip and result."""
    rows = []
    for operator, chips in table.cells.items():
        for soc, row in chips.items():
            usual = chips.get(DEFAULT_SOC, {})
            cells = "".join(_html_cell(row.get(name), name, usual.get(name)) for name in MEASURED_SCHEMES)
            head = f'<th scope="row">{escape(operator)}</th><td>{escape(soc)}</td>'
            rows.append(f'<tr data-soc="{escape(soc)}">{head}{cells}</tr>')
    heads = "".join(f'<th data-scheme="{scheme}">{scheme}</th>' for scheme in MEASURED_SCHEMES)
    measured = "; ".join(f"{soc}: {on}" for soc, on in sorted(table.measured.items()))
    legend = "".join(
        f'<li><span class="{name}">{word}</span>: {escape(text)}</li>'
        for name, (word, text) in MEANINGS.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Operators on HTP</title><style>{STYLE}</style></head><body>
<h1>Operators on HTP</h1>
<p>Measured on the emulator. {escape(measured)}. A cell has what most cases gave and their least
signal-to-noise ratio against the quantized model on the CPU; in parentheses how many tests gave another
result. An empty cell was not measured. ≠ marks what is not as on {DEFAULT_SOC}.
ONNX Runtime compiled what is under{THROUGH_ONNX}: u8u8 is under 8a8w, u16u8 under 16a8w.</p>
<ul>{legend}</ul>
<div class="filters"><input id="word" placeholder="operator" aria-label="operator">
{_select("scheme", "every scheme", {s: s for s in MEASURED_SCHEMES})}
{_select("result", "every result", {name: word for name, (word, _) in MEANINGS.items()})}
{_select("soc", "every chip", {s: s for s in sorted(table.measured)})}</div>
<div class="scroll"><table><thead><tr><th>operator</th><th>chip</th>{heads}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>
<script>{SCRIPT}</script></body></html>
"""


def _html_cell(cell: Cell | None, scheme: str, usual: Cell | None) -> str:
    if cell is None:
        return f'<td data-scheme="{scheme}" data-results=""></td>'
    differs = f"<br>≠ {escape(str(usual))}" if usual and usual.result != cell.result else ""
    bad = "".join(f"<br>{escape(case)}: {in_db(figure)}" for case, figure in sorted(cell.bad.items()))
    bad += "".join(
        f"<br>{escape(test)}: {MEANINGS[result][0]}"
        for test, result in sorted(cell.others.items())
        if test != PLAIN
    )
    results = " ".join(sorted({cell.result, *cell.others.values()}))
    mixed = cell.bad or not set(FAILING).isdisjoint(cell.others.values())
    colour = "mixed" if mixed and cell.result not in FAILING else cell.result
    return (
        f'<td data-scheme="{scheme}" class="{colour}" data-results="{results}">'
        f"{escape(str(cell))}{differs}{bad}</td>"
    )


def _select(name: str, every: str, choices: Mapping[str, str]) -> str:
    options = "".join(f'<option value="{value}">{escape(text)}</option>' for value, text in choices.items())
    return f'<select id="{name}" aria-label="{name}"><option value="">{every}</option>{options}</select>'
