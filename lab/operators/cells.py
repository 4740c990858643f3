"""The cells of the operator table, from what the tests of its suites gave."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ci.operators import table
from ci.operators.table import key_of
from lab.operators import PLAIN
from lab.operators.records import PartsRecord
from lab.operators.suites import NEWER
from lab.operators.tried import NO_OPERATOR, TABLED, Tried, badness, tried_of
from lab.operators.value_cases import SAME_WITHOUT_WEIGHTS
from provisioning.manifest import load_socs

ALONE = "alone"
"""The form without a chain, where the chain decides."""

LOSES_DB = 20.0
"""HTP loses accuracy if it is so much farther from the float model than the quantized model on the CPU."""

NOT_COMPILED = ("dies", "crash")

OPERATORS = (*TABLED, NEWER)
"""The suites that the table is made from."""


def table_of(records: Mapping[str, Mapping[str, PartsRecord]]) -> table.OperatorTable:
    """From records by suite and chip."""
    rows: dict[tuple[str, str, str], list[Tried]] = defaultdict(list)
    names: dict[str, str] = {}
    measured: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    # The emulator computes it in float32 for them, which says nothing of the chip (fp16-on-v68).
    without_fp16 = {name for name, soc in load_socs().items() if not soc.fp16}
    for suite in sorted(records, key=(*OPERATORS, *records).index):
        for soc, record in records[suite].items():
            for test, recorded in record.tests.items():
                for row in tried_of(suite, test, recorded.parts):
                    if not (row.scheme == "fp16" and soc in without_fp16):
                        name = names.setdefault(key_of(row.operator), row.operator)
                        rows[name, soc, row.scheme].append(row)
            if record.tests:
                measured[soc][record.versions()].append(suite)
    cells: dict[str, dict[str, dict[str, table.Cell]]] = {}
    for (operator, soc, scheme), every in sorted(rows.items()):
        # Layers that do not compile themselves, as weights of 16 bits on V68, say nothing of an operator.
        around = rows.get((NO_OPERATOR, soc, scheme), ())
        silent = any(row.form == table.IN_CHAIN and row.result in NOT_COMPILED for row in around)
        own = [row for row in every if not (silent and row.chain)]
        if own:
            similar = rows.get((operator, soc, SAME_WITHOUT_WEIGHTS.get(scheme, "")), [])
            counted = _counted([*own, *_from_similar_scheme(own, similar)])
            cells.setdefault(operator, {}).setdefault(soc, {})[scheme] = cell_of(counted)
    return table.OperatorTable(
        measured={soc: _describe_versions(versions) for soc, versions in measured.items()}, cells=cells
    )


def _describe_versions(versions: Mapping[str, Sequence[str]]) -> str:
    """With the suites if they were measured with different ones."""
    if len(versions) == 1:
        return next(iter(versions))
    return "; ".join(f"{', '.join(suites)}: {name}" for name, suites in versions.items())


def _from_similar_scheme(own: Sequence[Tried], others: Sequence[Tried]) -> list[Tried]:
    """What counts of the scheme that differs in the weights alone, if the plain case gave the same figure
    in both and no other of our own cases was tried."""
    plain, same = ([row.part for row in rows if row.form.startswith(f"{PLAIN} ")] for rows in (own, others))
    tried_others = any(not (row.usual or row.chain) for row in own)
    if not plain or plain != same or plain[0].sqnr_db is None or tried_others:
        return []
    return [row for row in others if not (row.usual or row.chain)]


def _counted(rows: Sequence[Tried]) -> Sequence[Tried]:
    """Without the newer tests where the others measure anything."""
    first = [row for row in rows if row.suite != NEWER]
    measured = [row for row in first if not row.chain and row.result != "bad_test"]
    newer = [row for row in rows if row.suite == NEWER]
    return first if measured or not newer else [*newer, *first]


NOT_ON_HTP = ("cpu", "part", "float", "no_kernel", "bad_test")


def cell_of(rows: Sequence[Tried]) -> table.Cell:
    """Of the cases alone, and of the chain, which decides where an operator runs that alone is not whole."""
    alone, chain = ([row for row in rows if row.chain is chained] for chained in (False, True))
    in_chain = [row for row in chain if row.form == table.IN_CHAIN and row.result != "bad_test"]
    usual_alone, deciding = _most(alone), _most(alone)
    others: dict[str, table.Case] = {}
    if in_chain and (deciding is None or deciding in NOT_ON_HTP):
        deciding, judged = _most(in_chain), in_chain
        if usual_alone and usual_alone != deciding:
            others[ALONE] = table.Case(usual_alone)
    else:
        judged = alone or chain
        deciding = deciding or _most(judged)
    assert deciding is not None
    for form, case in _worst_of(alone).items():
        if case.result != usual_alone:
            others[form] = case
    of_chain = _worst_of(chain)
    usual_chain = of_chain.get(table.IN_CHAIN, table.Case(deciding))
    if in_chain and usual_chain.result != deciding:
        others[table.IN_CHAIN] = usual_chain
    others |= {
        form: case
        for form, case in of_chain.items()
        if form != table.IN_CHAIN and case.result not in (usual_chain.result, "bad_test")
    }
    figures = [
        (case.db, "" if row.form == table.IN_CHAIN or row.form.startswith(f"{PLAIN} ") else row.form)
        for row in judged
        for case in row.draws
        if case.result == deciding and case.db is not None and case.db < table.EXACT
    ]
    exact = any(case.db is not None for row in judged for case in row.draws if case.result == deciding)
    figure, form = min(figures, default=(table.EXACT if exact else None, ""))
    form = form or next((row.form for row in judged if row.suite == NEWER), "")
    return table.Cell(deciding, figure, form, len(rows), others, _loses(judged, deciding))


def _most(rows: Sequence[Tried]) -> table.Result | None:
    """What most of ExecuTorch's tests and the plain case gave: one unusual case that dies does not make an
    operator one that dies."""
    judged = [row for row in rows if row.result != "bad_test"] or rows
    counts = Counter(row.result for row in ([row for row in judged if row.usual] or judged))
    return max(counts, key=lambda name: (counts[name], -table.WORST_FIRST.index(name)), default=None)


def _worst_of(rows: Iterable[Tried]) -> dict[str, table.Case]:
    """By form."""
    found: dict[str, table.Case] = {}
    for row in rows:
        found[row.form] = min(found.get(row.form, row.worst), row.worst, key=badness)
    return found


def result_of_form(cell: table.Cell, form: str) -> table.Result:
    """What the cell says of a form."""
    chained = form.startswith(table.IN_CHAIN)
    usual = cell.others.get(table.IN_CHAIN if chained else ALONE, table.Case(cell.result))
    return cell.others.get(form, usual).result


MOST_DB = 100.0
"""Rounding to 16 bits leaves no more; what is nearer to the float model has lost nothing."""


def _loses(rows: Sequence[Tried], result: table.Result) -> float | None:
    if result not in ("whole", "part") or any(row.chain for row in rows):
        return None
    losses = [
        min(row.part.quantized_db, MOST_DB) - row.part.float_db
        for row in rows
        if row.result == result and row.part.quantized_db is not None and row.part.float_db is not None
    ]
    most = max(losses, default=0.0)
    return round(most, 1) if most >= LOSES_DB else None
