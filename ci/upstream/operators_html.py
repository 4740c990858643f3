"""reports/operators.html: the operator table with filters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from ci.suites.operator_table import DIFFERS, FAILING, MEANINGS, PLAIN, Cell, Table, in_db
from ci.suites.precision import MEASURED_SCHEMES, ONNX_PRECISIONS
from provisioning.base.settings import DEFAULT_SOC

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
                _html_cell(name, row[name], table.marked(operator, name, row[name]))
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
