"""The operator table: how each operator works on HTP in each scheme, measured by ExecuTorch's own suite.

`manifests/upstream/operators/table.json` keeps the accepted cells; docs/operators.md shows them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ci.upstream.adapters import EXACT, ORDER
from ci.upstream.judge import Judge
from ci.upstream.ledger import Verdict
from ci.upstream.suite import Machinery
from provisioning.base.documents import Model
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text
from provisioning.base.settings import MANIFESTS

KEPT = MANIFESTS / "upstream" / "operators" / "table.json"

SCHEMES = {
    "qnn": "fp16",
    "qnn_8a8w": "8a8w",
    "qnn_16a8w": "16a8w",
    "qnn_16a4w": "16a4w",
    "qnn_16a16w": "16a16w",
}
"""By the suite's flow. Its `qnn_16a4w_block` uses the scheme of 8a8w, and so adds nothing."""

LEAST_DB = 20.0
"""A cell with a lower SQNR is wrong, even if the suite's own tolerance lets it pass."""

Result = Literal["crashes", "dies", "wrong", "bad_test", "no_kernel", "cpu", "part", "float", "whole"]

WORDS: Mapping[str, str] = {
    "whole": "whole",
    "float": "float",
    "part": "part",
    "cpu": "CPU",
    "no_kernel": "no kernel",
    "bad_test": "no test",
    "wrong": "WRONG",
    "dies": "DIES",
    "crashes": "CRASHES",
}
MEANINGS: Mapping[str, str] = {
    "whole": "all of it is one delegate on HTP",
    "float": "on HTP, but not quantized: it runs in fp16 there",
    "part": "some operators stay on the CPU",
    "cpu": "all of it stays on the CPU",
    "no_kernel": "it stays on the CPU, and ExecuTorch has no kernel of it: such a program does not run",
    "bad_test": "ExecuTorch's test does not test it",
    "wrong": f"lowers and runs, and its outputs are wrong or below {LEAST_DB:g} dB",
    "dies": "the partitioner takes it, and lowering fails",
    "crashes": "the process that lowers or runs it ends by a signal",
}


INTRODUCTION = """\
# Which operator works, in which scheme

You want to know, before you build on an operator, whether HTP takes it, at which precision, and how exact
it is. These are measurements: ExecuTorch's own suite for backends, lowered by the QNN compiler and run on the
HTP emulator, each against the quantized model on the CPU. Repeat a row, or measure what is missing:

```console
$ nox -s test_upstream -- operators -k test_log. --flow 16a4w
$ nox -s test_upstream -- operators --sample 1/4 --table   # put what it measures into this page
```

A verdict depends on values and shapes: these are the ones that ExecuTorch's suite draws. Figures are the
least signal-to-noise ratio of all models that the suite tries.
"""


class Cell(Model):
    """One operator in one scheme on one chip."""

    result: Result
    sqnr_db: float | None = None
    """The least of all models that the operator's tests try, compared with the quantized model."""
    models: Annotated[int, Field(ge=1)] = 1
    cpu: tuple[str, ...] = ()


class Table(Model):
    """The file."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    measured: Mapping[str, str] = {}
    """What each chip was measured with."""
    cells: Mapping[str, Mapping[str, Mapping[str, Cell]]] = {}
    """By operator, scheme and chip."""


def cells_of(verdicts: Iterable[Verdict]) -> dict[str, dict[str, Cell]]:
    """By operator and scheme."""
    parts: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for verdict in verdicts:
        if key := _key(verdict.test):
            parts[key] += [{"result": "crashes"}] if verdict.crashed else verdict.parts
    cells: dict[str, dict[str, Cell]] = defaultdict(dict)
    for (operator, scheme), found in sorted(parts.items()):
        if found:
            cells[operator][scheme] = _cell(found)
    return dict(cells)


def _key(test: str) -> tuple[str, str] | None:
    """`test_abs.test_abs_shapes[qnn_8a8w-…]` is the operator abs in 8a8w."""
    flow = test.partition("[")[2].rstrip("]").partition("-")[0]
    return (test.partition(".")[0].removeprefix("test_"), SCHEMES[flow]) if flow in SCHEMES else None


def _cell(parts: list[Mapping[str, Any]]) -> Cell:
    judged = [part for part in parts if part["result"] != "bad_test"] or parts
    figures = [part["sqnr_db"] for part in judged if part.get("sqnr_db") is not None]
    least = min(figures, default=None)
    result = min((part["result"] for part in judged), key=("crashes", *ORDER).index)
    if least is not None and least < LEAST_DB and result not in ("crashes", "dies"):
        result = "wrong"
    cpu = sorted({name for part in judged for name in part.get("cpu", ())})
    return Cell(result=result, sqnr_db=least, models=len(judged), cpu=tuple(cpu))


def write_table(judge: Judge, verdicts: Iterable[Verdict], on: Machinery) -> Path:
    """reports/operators/table.json, and reports/operators.html beside it."""
    cells = {
        operator: {scheme: {judge.soc: cell} for scheme, cell in row.items()}
        for operator, row in cells_of(verdicts).items()
    }
    table = Table(measured={judge.soc: _measured_with(on)}, cells=cells)
    path = judge.logs.parents[1] / "operators" / "table.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, as_json(table))
    replace_text(path.parents[1] / "operators.html", html_of(table))
    return path


def _measured_with(on: Machinery) -> str:
    return f"executorch {on.versions['executorch']}, QNN {on.build_id}"


def agree(written: Path) -> None:
    """Put the cells of a run into the accepted table."""
    new, old = read(written), read(KEPT) if KEPT.is_file() else Table()
    cells = {name: {scheme: dict(row) for scheme, row in all_.items()} for name, all_ in old.cells.items()}
    for operator, schemes in new.cells.items():
        for scheme, row in schemes.items():
            cells.setdefault(operator, {}).setdefault(scheme, {}).update(row)
    replace_text(KEPT, as_json(Table(measured={**old.measured, **new.measured}, cells=cells)))


def read(path: Path) -> Table:
    try:
        return Table.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(
            f"{path} is no table of operators: {str(error).splitlines()[0]}",
            remedy="nox -s test_upstream -- operators --table writes it again",
        ) from error


def as_json(table: Table) -> str:
    found = table.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return json.dumps({"schema": 1, **found}, indent=1, sort_keys=True) + "\n"


def text_of(cell: Cell) -> str:
    """`whole 58.2`, or `part 38.9: unsqueeze_copy`."""
    figure = "" if cell.sqnr_db is None else " exact" if cell.sqnr_db >= EXACT else f" {cell.sqnr_db:.0f} dB"
    names = ", ".join(name.removeprefix("aten::") for name in cell.cpu)
    beside = f": {names}" if names and cell.result in ("part", "cpu", "no_kernel") else ""
    return f"{WORDS[cell.result]}{figure}{beside}"


def markdown() -> str:
    """docs/operators.md."""
    table = read(KEPT) if KEPT.is_file() else Table()
    return "\n".join(_markdown(table)) + "\n"


def _markdown(table: Table) -> Iterator[str]:
    schemes = list(SCHEMES.values())
    yield INTRODUCTION
    yield "| word | meaning |"
    yield "| --- | --- |"
    yield from (f"| {WORDS[name]} | {meaning} |" for name, meaning in MEANINGS.items())
    for soc, on in sorted(table.measured.items()):
        yield ""
        yield f"## {soc}"
        yield ""
        yield f"Measured with {on}."
        yield ""
        yield f"| operator | {' | '.join(schemes)} |"
        yield f"| --- |{' --- |' * len(schemes)}"
        for operator, row in sorted(table.cells.items()):
            texts = [text_of(row[s][soc]) if soc in row.get(s, {}) else "" for s in schemes]
            if any(texts):
                yield f"| {operator} | {' | '.join(texts)} |"


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
th, td { border: 1px solid var(--faint); padding: .25rem .5rem; text-align: left; vertical-align: top }
.whole { background: var(--good) } .float, .part, .cpu { background: var(--half) }
.wrong, .dies, .crashes, .no_kernel { background: var(--bad) }
"""

SCRIPT = """
const $ = id => document.getElementById(id);
function show() {
  const word = $('word').value.toLowerCase(), scheme = $('scheme').value, result = $('result').value;
  for (const row of document.querySelectorAll('tbody tr')) {
    const cells = [...row.querySelectorAll('td')].filter(cell => !scheme || cell.dataset.scheme === scheme);
    const named = row.querySelector('th').textContent.includes(word)
      && row.dataset.soc.includes($('soc').value);
    row.hidden = !(named && (!result || cells.some(cell => cell.className === result)));
  }
  for (const cell of document.querySelectorAll('[data-scheme]'))
    cell.hidden = scheme && cell.dataset.scheme !== scheme;
}
for (const id of ['word', 'scheme', 'result', 'soc']) $(id).addEventListener('input', show);
"""


def html_of(table: Table) -> str:
    """One self-contained file with filters by operator, scheme, chip and result."""
    schemes = list(SCHEMES.values())
    rows = []
    for soc in sorted(table.measured):
        for operator, row in sorted(table.cells.items()):
            if any(soc in row.get(scheme, {}) for scheme in schemes):
                cells = "".join(_html_cell(row.get(scheme, {}).get(soc), scheme) for scheme in schemes)
                rows.append(f'<tr data-soc="{escape(soc)}"><th>{escape(operator)}</th>{cells}</tr>')
    heads = "".join(f'<th data-scheme="{scheme}">{scheme}</th>' for scheme in schemes)
    measured = "; ".join(f"{soc}: {on}" for soc, on in sorted(table.measured.items()))
    legend = "".join(f"<li><b>{WORDS[name]}</b>: {escape(text)}</li>" for name, text in MEANINGS.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Operators on HTP</title><style>{STYLE}</style></head><body>
<h1>Operators on HTP</h1>
<p>As ExecuTorch's own suite measures them on the emulator. {escape(measured)}.</p>
<div class="filters"><input id="word" placeholder="operator" aria-label="operator">
{_select("scheme", "every scheme", {s: s for s in schemes})}
{_select("result", "every result", WORDS)}
{_select("soc", "every chip", {s: s for s in sorted(table.measured)})}</div>
<div class="scroll"><table><thead><tr><th>operator</th>{heads}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div>
<ul>{legend}</ul><script>{SCRIPT}</script></body></html>
"""


def _html_cell(cell: Cell | None, scheme: str) -> str:
    if cell is None:
        return f'<td data-scheme="{scheme}"></td>'
    return f'<td data-scheme="{scheme}" class="{cell.result}">{escape(text_of(cell))}</td>'


def _select(name: str, every: str, choices: Mapping[str, str]) -> str:
    options = "".join(f'<option value="{value}">{escape(text)}</option>' for value, text in choices.items())
    return f'<select id="{name}" aria-label="{name}"><option value="">{every}</option>{options}</select>'
