"""The operator table's files: docs/operators.md and reports/operators.html."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from ci.lanes.upstream.judge import Judge
from ci.lanes.upstream.ledger import record_of_run
from ci.lanes.upstream.operator_cells import (
    NEWER,
    WELL_DB,
    committed,
    committed_records,
    table_of,
    upstream_files,
)
from ci.lanes.upstream.verdict import UpstreamVerdict
from ci.operators import onnx_page
from ci.operators.html import html_of
from ci.operators.names import names_of
from ci.operators.table import (
    DIFFERS,
    DRAWS,
    FAILING,
    LOSES_DB,
    MEANINGS,
    ONE_DRAW,
    PLAIN,
    PROGRAMS,
    TABLE,
    OperatorTable,
    by_name,
    read,
)
from ci.pipeline.precision import MEASURED_SCHEMES
from ci.pipeline.slices import LEAST_DB
from provisioning.base.files import replace_text
from provisioning.base.settings import DEFAULT_SOC, ROOT
from provisioning.manifest import load_socs

PAGE = ROOT / "docs" / "operators.md"

INTRODUCTION = f"""\
# Which operator works, in which scheme

You want to know, before you build on an operator, whether HTP takes it, at which precision, and how exact
it is. These are measurements: ExecuTorch's own suites, lowered by the QNN compiler and run on the
HTP emulator, each against the quantized model on the CPU. Repeat a row, or measure what is missing:

```console
$ qnn-ci test_upstream operators values -k 'test_log. or *-log-*' --flow 16a8w
$ qnn-ci test_upstream chains -k '*-clone-chain] or *-erf-chain]' --flow 8a8w
$ qnn-ci test_upstream operators values --sample 1/25 --accept   # put what it measures into this page
```

A cell has what most of ExecuTorch's tests and our own plain case gave (of results that are as frequent, the
worst), and its signal-to-noise ratio: the median of {DRAWS} draws of inputs of the plain case, and in
parentheses the least and the greatest, where these differ. A word that some draws do not give is said after
it: `1 of {DRAWS} draws WRONG`. Whole numbers have to be equal in all of them. {ONE_DRAW} marks a figure of
one draw: the least of all cases with that result, as no case has more.

The program of a plain case is calibrated with all draws and compiled once, with the widest range of each
tensor, as `compile` does it. At 16 bits on V68 and V69 it is {PROGRAMS} programs, with weights and scales
of their own: a program is as exact there as its scales happen to be, 55 dB or 82 dB of one linear layer.
Other cases have one draw and ExecuTorch's own observer, which may clip
([shared-moving-average](findings.md)). The worst of them stands after a semicolon, if it is WRONG or LOST
or more than {WELL_DB:g} dB below the draws: `; WRONG -6 dB: across [0.5, 2.5]`, `; 51 dB: small [-0.01,
0.01]`.

A bad result that not all cases gave says in how many: `in 5 of 10`. In parentheses is how many tests gave
another result. `no figure`: there is none where outputs have another shape than the float model's or NaN
where it has none, and where booleans or integers differ.

These cases have one operator alone, and a model has more: an operator is also tried in a chain, between
two linear layers (or 1x1 convolutions), in the forms that models have it in (weights, arguments, scalars,
sizes that are broadcast). CPU is what stays on the CPU there too. `chain` stands before what the chain
gave, in the same form; after it, which other forms gave another word. Where the chain decides, a cell has
its figures alone. Other layers can give 5 dB less. What is lost with weights of four bits is lost in the
layers, and is no LOST. At 16a16w the layers have no bias, which could be cut off there
([bias-beyond-32-bits](findings.md)). Where the layers do not compile themselves, as at 16a16w on V68, a
chain says nothing. Without the word `chain`, a cell is of the operator alone. All chains take about fifty
minutes of a core for each chip. Parts of them add up, and what was done is not done again, also after an
interruption:

```console
$ qnn-ci test_upstream chains --soc SM8750 --sample 1/4 --accept   # then 2/4, 3/4 and 4/4
```

A verdict depends on values and shapes: [manifests/upstream/values.toml](../manifests/upstream/values.toml)
has the forms, and ranges and shapes that are tried beside. Two tables below have the cases that go wrong, and
those that run elsewhere than the cell says. reports/operators.html has the same with filters.

Qualcomm's newer tests (`{NEWER}`) count where the other suites measure nothing. They compare with the float
model, not with the quantized one: `to float` marks such a figure, which has in it what quantizing loses.
Below {LEAST_DB:g} dB its outputs are wrong, or quantizing loses so much, and these tests do not tell the two
apart: WRONG is one that fails there, and one that passes there tests nothing.

`loses`: how much farther from the float model HTP is than the same quantized model on the CPU, where that
is {LOSES_DB:g} dB or more: 16 bits gain less there than they should. `in fp16`: these operators are not
quantized, beside others that are. Schemes that differ in the weights alone give the same for an operator that
has none, as its plain case shows; its ranges and shapes were tried in 16a8w and 8a8w, and count for others.

SM8350 has no fp16: the emulator computes it in float32 there, and the chip does not
([fp16-on-v68](findings.md)), so it has no cells at fp16, and what is `float` or `in fp16` there does not
run on the chip.

`files`: whether ExecuTorch has a builder (`lowers`) and a rule of the quantizer (`quantizes`) for the
operator, or for what it becomes when it is exported; operators that it decomposes have none. {DIFFERS} marks
a cell that is not as these files say: there is a builder or a rule, and it is not whole on HTP; or there is
no rule, and it runs quantized.
"""


def write_table(runs: Sequence[tuple[Judge, Iterable[UpstreamVerdict]]], measured: str) -> list[Path]:
    """reports/operators/table.json and reports/operators.html: the records, and what these suites gave now
    on top, which stands alone in a file for each suite."""
    judge, _ = runs[0]
    reports = judge.logs.parents[1]
    records, texts = committed_records(judge.ledger.profile), dict[Path, str]()
    for run, verdicts in runs:
        given, suite = list(verdicts), run.ledger.suite
        now = run.recorded(given, measured)
        records.setdefault(suite, {})[run.soc] = now
        texts[record_of_run(reports, suite, run.soc)] = now.only([row.test for row in given]).as_json()
    onnx = onnx_page.committed(judge.ledger.profile)
    table = table_of(records, upstream_files() or read().upstream, onnx)
    texts |= {
        reports / "operators" / "table.json": table.as_json(),
        reports / "operators.html": html_of(table),
    }
    (reports / "operators").mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        replace_text(path, text)
    return [*texts]


def accept_table() -> None:
    """Write the table that the committed records give, and its page."""
    table = committed()
    for path, text in table.as_files(TABLE).items():
        replace_text(path, text)
    replace_text(PAGE, markdown_of(table))


@cache
def _of_clone() -> OperatorTable:
    """Made once for all files that `generate` makes of it."""
    return committed()


@cache
def _files_of_clone() -> dict[Path, str]:
    return _of_clone().as_files(TABLE)


def table_json(name: str) -> str:
    """manifests/upstream/operators/table.json, or the file of a chip beside it."""
    return _files_of_clone()[TABLE.with_name(name)]


def markdown() -> str:
    """docs/operators.md."""
    return markdown_of(_of_clone())


def markdown_of(table: OperatorTable) -> str:
    """The page of a table."""
    return "\n".join(_markdown(table)) + "\n"


def _markdown(table: OperatorTable) -> Iterator[str]:
    yield INTRODUCTION
    yield from ("| word | meaning |", "| --- | --- |")
    yield from (f"| {word} | {meaning} |" for word, meaning in MEANINGS.values())
    yield from _whole_table(table)
    yield from _unmeasured(table)
    yield from _bad_values(table)
    yield from _elsewhere(table)
    yield from _other_chips(table)
    yield from onnx_page.markdown(table.onnx)


def _whole_table(table: OperatorTable) -> Iterator[str]:
    yield from ("", f"## {DEFAULT_SOC}", "")
    measured = table.measured.get(DEFAULT_SOC, "nothing yet")
    yield f"Measured with {measured}. {_counted(table, DEFAULT_SOC)}"
    yield from (
        "",
        f"| operator | {' | '.join(MEASURED_SCHEMES)} | files |",
        f"| --- |{' --- |' * len(MEASURED_SCHEMES)} --- |",
    )
    for operator, chips in table.cells.items():
        if row := by_name(chips.get(DEFAULT_SOC, {})):
            texts = [
                table.marked(operator, name, row[name]) if name in row else "" for name in MEASURED_SCHEMES
            ]
            yield f"| {operator} | {' | '.join(texts)} | {', '.join(table.files(operator))} |"


def _counted(table: OperatorTable, soc: str) -> str:
    """How many cells are of a chain too, and how many figures are of one draw, by scheme."""
    rows = [by_name(chips.get(soc, {})) for chips in table.cells.values()]
    cells = [(scheme, cell) for row in rows for scheme, cell in row.items()]
    chained = sum(cell.chain is not None for _, cell in cells)
    once = Counter(scheme for scheme, cell in cells if cell.mark and not cell.of_chain)
    figures = Counter(scheme for scheme, cell in cells if (cell.sqnr_db, cell.float_db) != (None, None))
    counts = [f"{once[name]} of {figures[name]} at {name}" for name in MEASURED_SCHEMES if once[name]]
    draws = f"Figures of one draw: {', '.join(counts) or 'none'}."
    return f"{chained} of {len(cells)} cells are of a chain too. {draws}"


def _unmeasured(table: OperatorTable) -> Iterator[str]:
    known = {name for operator in table.cells for name in names_of(operator)}
    missing = sorted(set(table.upstream) - known)
    if missing:
        yield ""
        yield f"Not measured, and ExecuTorch's files have a builder or a rule for it: {', '.join(missing)}."


def _bad_values(table: OperatorTable) -> Iterator[str]:
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


def _elsewhere(table: OperatorTable) -> Iterator[str]:
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


def _other_chips(table: OperatorTable) -> Iterator[str]:
    others = [soc for soc in sorted(table.measured) if soc != DEFAULT_SOC]
    if not others:
        return
    yield from (
        "",
        "## Other chips",
        "",
        "Plain cases, Qualcomm's newer tests, and where the plain case does not show a fault of "
        f"{DEFAULT_SOC}, a case that does; shown where one of these gives another result than on "
        f"{DEFAULT_SOC}. That chip's own column is the cell above, of all ranges and shapes.",
        "",
    )
    differing = 0
    for soc in others:
        cells = [cell for chips in table.cells.values() for cell in by_name(chips.get(soc, {})).values()]
        count = sum(cell.default is not None for cell in cells)
        arch, measured = load_socs()[soc].arch, table.measured[soc]
        share = f"{count or 'none'} of {len(cells)} cells"
        yield f"- {soc} (V{arch}): {share}; {measured}; {_counted(table, soc)}"
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
