"""The operator table made again, and its pages: docs/operators.md."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ci.operators.table import FAILING, TABLE, WORDS, Cell, OperatorTable, Result, key_of, read
from ci.suite.lost_parts import WRONG_DB
from ci.suite.precision import ONNX_PRECISIONS
from lab.onnx_operators.cells import measured_table
from lab.onnx_operators.node_tests import NodeTests, node_tests
from lab.operators import MEASURED_SCHEMES
from lab.operators.cells import LOSES_DB, table_of
from lab.operators.records import FOLDER, PartsRecord, load_record, record_of_run
from lab.operators.suites import NEWER
from lab.operators.table_file import to_json, updated
from lab.operators.table_judge import rows_by_key
from lab.operators.tried import TABLED
from lab.operators.value_cases import DRAWS, PROGRAMS, cases, chains
from provisioning.accepted_file import lock
from provisioning.base.errors import UsageError
from provisioning.base.files import replace_text
from provisioning.base.settings import DEFAULT_SOC, ROOT
from provisioning.base.units import bound_in_decibels

PAGE = ROOT / "docs" / "operators.md"

HEAD = """\
<!-- Generated from manifests/upstream/operators.json and the ONNX baseline: `nox -s generate` renews it. -->
# Operators

Does an operator run on the NPU at your precision, and how exactly? These are measurements on the HTP
emulator, each against the quantized model on the CPU. `diagnose` prints the measurements of one
operator, with the inputs that give wrong results:

```console
$ qnn-ci diagnose log@16a4w
```

To measure again, in a clone:

```console
$ nox -s lab -- operator_tests operators values -k 'test_log. or *-log-*' --flow 16a8w
$ nox -s lab -- operator_tests chains -k '*-clone-chain] or *-erf-chain]' --flow 8a8w
$ qnn-ci test_onnx --suite manifests/suites/onnx_operators.toml -k Softmax/
```

In a clone, `nox -s lab -- operators reports/` puts the results of such runs into the table and this page.
"""

MEANINGS: Mapping[Result, str] = {
    "whole": "all of it is one delegate on HTP",
    "float": "on HTP, but not quantized: it runs in fp16 there",
    "part": "some operators stay on the CPU",
    "cpu": "all of it stays on the CPU",
    "no_kernel": "on the CPU, but ExecuTorch has no kernel for it: it does not run",
    "bad_test": "ExecuTorch's test does not test the operator",
    "lost": f"HTP agrees with the quantized model, but that is below {bound_in_decibels(WRONG_DB)} of float; "
    "the figure compares with float",
    "wrong": f"it lowers and runs, but HTP is below {bound_in_decibels(WRONG_DB)} of the quantized model, or "
    "an output's shape differs from the float model's",
    "dies": "the partitioner takes it, but quantizing, lowering or running it fails",
    "crash": "the process that lowers or runs it ends with a signal",
}

HOW_TO_READ = f"""\
## How to read a cell

A cell has the most frequent result of ExecuTorch's tests and our own plain case (if tied, the worst),
and the lowest SQNR with that result, with its inputs or test. `whole 56 dB: small [0.0001, 0.01]; WRONG
-6 dB: across [0.5, 2.5]` means: the operator is correct, with at least 56 dB, but wrong for the
inputs after the semicolon. Integers must be equal. There is no figure if shapes differ, NaN
appears, or booleans or integers differ.

- A plain case has {DRAWS} draws of inputs, calibrates with all of them and is compiled once. A norm is
  compiled {PROGRAMS} times with different weights, because
  [some give correct results](findings.md). So is
  everything at 16 bits on V68 and V69, because accuracy there depends on the scales. Other cases have one
  draw. [values.toml](../manifests/upstream/values.toml) has all ranges and shapes.
- An operator is also tried in a chain, between two linear layers or 1x1 convolutions. If it is not
  `whole` alone, the chain decides.
- Qualcomm's newer tests (`{NEWER}`) count only if no other test measures the operator. They compare with
  the float model, so quantizing may be the cause of WRONG.
- `loses`: the NPU is at least {LOSES_DB:g} dB farther from float than the quantized model on the CPU.
- SM8350 has no fp16, so it has no cells there, and `float` operators do not run on it.
- Each ONNX operator has one node test, with {DRAWS} draws, on one chip. An operator that only moves
  values is quantized although it is alone.
"""


def _newer_records(folder: Path) -> dict[str, PartsRecord]:
    """By chip."""
    paths = sorted(folder.rglob(record_of_run(Path(), NEWER, "*").name))
    return {path.stem.rpartition("-")[2]: load_record(path) for path in paths}


def _add_newer(records: dict[str, dict[str, PartsRecord]]) -> OperatorTable:
    """With what is recorded of the newer tests on the same chips. Of an operator that has cases of ours they
    count only beside these, which a run of a part leaves out."""
    chips, now = {soc for rows in records.values() for soc in rows}, rows_by_key(table_of(records))
    newer = {soc: record for soc, record in _newer_records(FOLDER).items() if soc in chips}
    every = table_of({**records, NEWER: newer})
    ours = {key_of(case.operator) for case in (*cases(), *chains())}
    kept: dict[str, dict[str, dict[str, Cell]]] = {}
    for name, rows in every.cells.items():
        measured = now.get(key_of(name), {})
        for soc, row in rows.items():
            for scheme, cell in row.items():
                if key_of(name) not in ours or scheme in measured.get(soc, {}):
                    kept.setdefault(name, {}).setdefault(soc, {})[scheme] = cell
    return every.model_copy(update={"cells": kept})


def accept_table(folder: Path) -> None:
    """Write the table of the records below a folder, which may be of several runs, chips and shards, and its
    page. A cell that has more cases stays."""
    records: dict[str, dict[str, PartsRecord]] = defaultdict(dict)
    for suite in TABLED:
        for path in sorted(folder.rglob(record_of_run(Path(), suite, "*").name)):
            soc, record = path.stem.rpartition("-")[2], load_record(path)
            before = records[suite].get(soc, PartsRecord(record.measured))
            records[suite][soc] = PartsRecord(record.measured, {**before.tests, **record.tests})
    if not records:
        raise UsageError(
            f"{folder} has no record of {', '.join(TABLED)}: it needs operators/SUITE-CHIP.json",
            fix="name the reports of a run of operator_tests, or the artifacts of a nightly one",
        )
    with lock(TABLE.parent):
        for soc, record in _newer_records(folder).items():
            path = FOLDER / f"{NEWER}-{soc}.json"
            before = load_record(path)
            replace_text(path, PartsRecord(record.measured, {**before.tests, **record.tests}).to_json())
        table, fewer = updated(read(TABLE), _add_newer(records))
        replace_text(TABLE, to_json(table))
        replace_text(PAGE, markdown(table))
    left = f"; {fewer} cells stay as they were: they have more cases than these records" if fewer else ""
    sys.stderr.write(f"wrote {TABLE} and {PAGE}{left}\n")


def markdown(
    table: OperatorTable | None = None,
    onnx: OperatorTable | None = None,
    tests: NodeTests | None = None,
) -> str:
    """docs/operators.md, of the committed tables or of others."""
    lines = _markdown(table or read(), onnx or measured_table(), tests or node_tests())
    return "\n".join(lines) + "\n"


def _markdown(table: OperatorTable, onnx: OperatorTable, tests: NodeTests) -> Iterator[str]:
    yield HEAD
    yield from ("| word | meaning |", "| --- | --- |")
    yield from (f"| {WORDS[result]} | {meaning} |" for result, meaning in MEANINGS.items())
    yield from _summary("Through ExecuTorch", table.measured, table.cells, MEASURED_SCHEMES)
    yield from _summary(
        f"Through ONNX Runtime, opset {tests.opset}", onnx.measured, onnx.cells, ONNX_PRECISIONS
    )
    reasons: dict[str, list[str]] = defaultdict(list)
    for operator, reason in tests.left_out.items():
        reasons[reason].append(operator)
    yield from ("", "Not measured:", "")
    yield from (f"- {reason}: {', '.join(names)}" for reason, names in sorted(reasons.items()))
    yield from ("", HOW_TO_READ.rstrip("\n"))


OFF_HTP = ("part", "cpu", "no_kernel")
USUAL = ("fp16", "8a8w", "16a8w")
"""The precisions whose operators the page names."""


def _summary(
    title: str,
    measured: Mapping[str, str],
    cells: Mapping[str, Mapping[str, Mapping[str, Cell]]],
    schemes: Sequence[str],
) -> Iterator[str]:
    results: dict[str, dict[str, list[str]]] = {scheme: defaultdict(list) for scheme in schemes}
    for operator, chips in cells.items():
        for scheme, cell in chips.get(DEFAULT_SOC, {}).items():
            if scheme in results:
                results[scheme][cell.result].append(operator)
    yield from ("", f"## {title}", "")
    versions = measured.get(DEFAULT_SOC, "nothing yet")
    yield f"{len(cells)} operators on {DEFAULT_SOC}, measured with {versions}:"
    yield from ("", f"| result | {' | '.join(schemes)} |", f"| --- |{' ---: |' * len(schemes)}")
    for result, word in WORDS.items():
        if any(counts := [len(results[scheme][result]) for scheme in schemes]):
            yield f"| {word} | {' | '.join(map(str, counts))} |"
    yield from ("", "| precision | fails | stays on the CPU, all or in part |", "| --- | --- | --- |")
    for scheme in (scheme for scheme in USUAL if scheme in results):
        fails, stays = (
            ", ".join(sorted(name for result in group for name in results[scheme][result]))
            for group in (FAILING, OFF_HTP)
        )
        yield f"| {scheme} | {fails} | {stays} |"
