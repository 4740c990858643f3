"""The operator table made again, and its pages: docs/operators.md."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ci.lanes.upstream.judge import Judge
from ci.lanes.upstream.ledger import SuiteRecord, load_record, locked, record_of_run, records_of
from ci.lanes.upstream.operator_cells import NEWER, TABLED, table_of
from ci.lanes.upstream.verdict import UpstreamVerdict
from ci.operators import onnx_page
from ci.operators.onnx_page import OnnxOperators
from ci.operators.table import (
    ALONE,
    DRAWS,
    LOSES_DB,
    MEANINGS,
    PROGRAMS,
    TABLE,
    OperatorTable,
    read,
)
from ci.pipeline.lost_parts import LEAST_DB
from ci.pipeline.precision import MEASURED_SCHEMES
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT
from provisioning.manifest import load_socs

PAGE = ROOT / "docs" / "operators.md"

INTRODUCTION = f"""\
# Which operator works, in which scheme

You want to know, before you build on an operator, whether HTP takes it, at which precision, and how exact
it is. These are measurements: ExecuTorch's own suites, lowered by the QNN compiler and run on the HTP
emulator, each against the quantized model on the CPU. Repeat a row, or measure what is missing:

```console
$ qnn-ci test_upstream operators values -k 'test_log. or *-log-*' --flow 16a8w
$ qnn-ci test_upstream chains -k '*-clone-chain] or *-erf-chain]' --flow 8a8w
$ qnn-ci test_upstream operators values chains --accept    # put what it measures into the table and this page
```

A cell has what most of ExecuTorch's tests and our own plain case gave (of results that are as frequent, the
worst), and the least signal-to-noise ratio that gave it, with the inputs or the test that have it; nothing
stands there for the plain case. A plain case has {DRAWS} draws of inputs, and one that is worse in any of
them is named after a semicolon, with the worst that other inputs gave: `whole 56 dB: small [0.0001, 0.01];
WRONG -6 dB: across [0.5, 2.5]`. Whole numbers have to be equal. There is no figure where outputs have
another shape than the float model's or NaN where it has none, and where booleans or integers differ.

The program of a plain case is calibrated with all draws and compiled once, with the widest range of each
tensor, as `compile` does it. At 16 bits on V68 and V69 it is {PROGRAMS} programs, with weights and scales
of their own: a program is as exact there as its scales happen to be, 55 dB or 82 dB of one linear layer.
Other cases have one draw and ExecuTorch's own observer, which may clip
([shared-moving-average](findings.md)).

These cases have one operator alone, and a model has more: an operator is also tried in a chain, between two
linear layers (or 1x1 convolutions), in the forms that models have it in (weights, arguments, scalars, sizes
that are broadcast). CPU is what stays on the CPU there too: where an operator alone is not whole on HTP,
the chain decides, and its figure stands in the cell. What is lost with weights of four bits is lost in the
layers, and is no LOST. At 16a16w the layers have no bias, which could be cut off there
([bias-beyond-32-bits](findings.md)). Where the layers do not compile themselves, as at 16a16w on V68, a
chain says nothing. All chains take about fifty minutes of a core for each chip; what was done is not done
again, also after an interruption.

A verdict depends on values and shapes: [manifests/upstream/values.toml](../manifests/upstream/values.toml)
has the forms, and ranges and shapes that are tried beside. A table below has what they change.

Qualcomm's newer tests (`{NEWER}`) count where the other suites measure nothing. They compare with the float
model, not with the quantized one. Below {LEAST_DB:g} dB their outputs are wrong, or quantizing loses so
much, and these tests do not tell the two apart: WRONG is one that fails there, and one that passes there
tests nothing.

`loses`: how much farther from the float model HTP is than the same quantized model on the CPU, where that
is {LOSES_DB:g} dB or more: 16 bits gain less there than they should. Schemes that differ in the weights
alone give the same for an operator that has none, as its plain case shows; its ranges and shapes were tried
in 16a8w and 8a8w, and count for others.

SM8350 has no fp16: the emulator computes it in float32 there, and the chip does not
([fp16-on-v68](findings.md)), so it has no cells at fp16, and what is `float` there does not run on the
chip.
"""


def write_table(runs: Sequence[tuple[Judge, Iterable[UpstreamVerdict]]], measured: str) -> list[Path]:
    """reports/operators.json: the committed table with what these suites gave now on top, which
    stands with its draws in a file for each suite."""
    judge, _ = runs[0]
    reports, records = judge.logs.parents[1], dict[str, dict[str, SuiteRecord]]()
    texts = dict[Path, str]()
    for run, verdicts in runs:
        known = [verdict for verdict in verdicts if not verdict.fix and not run.by_chance(verdict)]
        suite, record = run.ledger.suite, SuiteRecord().with_verdicts(known, measured)
        records.setdefault(suite, {})[run.soc] = record
        texts[record_of_run(reports, suite, run.soc)] = record.as_json()
    table, _ = read().updated(_with_newer(records, judge.ledger.profile))
    texts[reports / "operators.json"] = table.as_json()
    (reports / "operators").mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        replace_text(path, text)
    return [*texts]


def _with_newer(records: dict[str, dict[str, SuiteRecord]], profile: str) -> OperatorTable:
    """With what is recorded of the newer tests on the same chips."""
    chips = {soc for rows in records.values() for soc in rows}
    newer = {soc: record for soc, record in records_of(NEWER, profile).items() if soc in chips}
    return table_of({**records, NEWER: {**newer, **records.get(NEWER, {})}})


def accept_table(folder: Path, profile: str = DEFAULT_PROFILE) -> None:
    """Write the table of the records below a folder, which may be of several runs, chips and shards, and its
    page. A cell that has more cases stays."""
    records: dict[str, dict[str, SuiteRecord]] = defaultdict(dict)
    for suite in TABLED:
        for path in sorted(folder.rglob(record_of_run(Path(), suite, "*").name)):
            soc, record = path.stem.rpartition("-")[2], load_record(suite, profile, "", path)
            before = records[suite].get(soc, SuiteRecord(record.measured))
            records[suite][soc] = SuiteRecord(record.measured, {**before.tests, **record.tests})
    if not records:
        raise UsageError(
            f"{folder} has no record of {', '.join(TABLED)}: it needs operators/SUITE-CHIP.json",
            fix="name the reports of a run, or the artifacts of a nightly one",
        )
    with locked():
        table, fewer = read(TABLE).updated(_with_newer(records, profile))
        replace_text(TABLE, table.as_json())
        replace_text(PAGE, markdown_of(table))
    left = f"; {fewer} cells stay as they were: they have more cases than these records" if fewer else ""
    sys.stderr.write(f"wrote {TABLE} and {PAGE}{left}\n")


def markdown() -> str:
    """docs/operators.md."""
    return markdown_of(read())


def markdown_of(table: OperatorTable, onnx: OnnxOperators | None = None) -> str:
    """The page of a table."""
    return "\n".join(_markdown(table, onnx or onnx_page.shipped())) + "\n"


def _markdown(table: OperatorTable, onnx: OnnxOperators) -> Iterator[str]:
    yield INTRODUCTION
    yield from ("| word | meaning |", "| --- | --- |")
    yield from (f"| {word} | {meaning} |" for word, meaning in MEANINGS.values())
    yield from ("", f"## {DEFAULT_SOC}", "")
    yield f"Measured with {table.measured.get(DEFAULT_SOC, 'nothing yet')}."
    yield from ("", f"| operator | {' | '.join(MEASURED_SCHEMES)} |")
    yield f"| --- |{' --- |' * len(MEASURED_SCHEMES)}"
    for operator, chips in table.cells.items():
        if row := chips.get(DEFAULT_SOC):
            yield f"| {operator} | {' | '.join(str(row.get(name, '')) for name in MEASURED_SCHEMES)} |"
    yield from _forms(table)
    yield from _other_chips(table)
    yield from onnx_page.markdown(onnx)


FAILURES = [MEANINGS["lost"], MEANINGS["wrong"], MEANINGS["dies"], MEANINGS["crash"]]


def _forms(table: OperatorTable) -> Iterator[str]:
    yield from ("", "## Where values and shapes decide", "")
    yield f"What gave another word on {DEFAULT_SOC} than its cell says: inputs by range or shape,"
    yield "ExecuTorch's tests, and the operator in a chain; `alone` where the chain decides."
    operators: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for operator, chips in table.cells.items():
        schemes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for scheme, cell in chips.get(DEFAULT_SOC, {}).items():
            for form, case in cell.others.items():
                if case.result != "bad_test":
                    schemes[form, str(case)].append(scheme)
        for (form, words), names in schemes.items():
            # Failures are read by the operator, and places by the shape.
            failing = form == ALONE or words.startswith(tuple(name for name, _ in FAILURES))
            operators[operator if failing else "", form, ", ".join(names), words].append(operator)
    yield from ("", "| operators | form | schemes | result |", "| --- | --- | --- | --- |")
    for (_, form, schemes_of, words), rows in sorted(operators.items()):
        yield f"| {', '.join(rows)} | {form} | {schemes_of} | {words} |"


def _other_chips(table: OperatorTable) -> Iterator[str]:
    others = [soc for soc in sorted(table.measured) if soc != DEFAULT_SOC]
    if not others:
        return
    yield from ("", "## Other chips", "")
    yield "Plain cases, chains, Qualcomm's newer tests, and where the plain case does not show a fault of"
    yield f"{DEFAULT_SOC}, a case that does; {DEFAULT_SOC} has more. Shown where the word is another one."
    yield ""
    rows = []
    for operator, chips in table.cells.items():
        for scheme in MEASURED_SCHEMES:
            usual = chips.get(DEFAULT_SOC, {}).get(scheme)
            cells = [chips.get(soc, {}).get(scheme) for soc in others]
            if usual and any(cell and cell.result != usual.result for cell in cells):
                texts = " | ".join(str(cell or "") for cell in (usual, *cells))
                rows.append(f"| {operator} | {scheme} | {texts} |")
    for soc in others:
        cells_of_chip = sum(len(chips.get(soc, {})) for chips in table.cells.values())
        yield f"- {soc} (V{load_socs()[soc].arch}): {cells_of_chip} cells; {table.measured[soc]}"
    if rows:
        yield from ("", f"| operator | scheme | {DEFAULT_SOC} | {' | '.join(others)} |")
        yield f"| --- | --- | --- |{' --- |' * len(others)}"
        yield from rows
