"""The cells of the operator table, from what the tests of its suites gave."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ci.lanes.upstream.ledger import SuiteRecord
from ci.lanes.upstream.value_cases import CHAIN, cases, chains
from ci.lanes.upstream.verdict import Draw, RecordedPart
from ci.operators import table
from ci.operators.names import REWORK, key_of
from ci.pipeline.lost_parts import LEAST_DB
from ci.pipeline.precision import MEASURED_SCHEMES
from provisioning.manifest import load_socs

NEWER = "rework-op"
"""Qualcomm's newer tests. They count where the other suites measure nothing."""

TABLED = ("operators", "values", "chains")
"""The suites that are compared with the table, and not with a ledger."""

OPERATORS = (*TABLED, NEWER)
"""The suites that the table is made from."""


@dataclass(frozen=True)
class Tried:
    """One program of a test of an operator."""

    operator: str
    scheme: str
    suite: str
    test: str
    form: str
    """As the table names it."""
    part: RecordedPart

    @property
    def draws(self) -> list[table.Case]:
        """What each draw gave; of a case without draws, or on the CPU, what it gave."""
        if not self.part.draws or _result(self.part) == "cpu":
            return [_case(self.part)]
        # Wrong outputs say nothing of the place.
        part = replace(self.part, result="whole") if self.part.result == "wrong" else self.part
        return [_case(part, draw) for draw in self.part.draws]

    @property
    def result(self) -> table.Result:
        """What most draws gave; of those that are as frequent, the worst."""
        counts = Counter(case.result for case in self.draws)
        return max(counts, key=lambda name: (counts[name], -table.WORST_FIRST.index(name)))

    @property
    def worst(self) -> table.Case:
        return min(self.draws, key=badness)

    @property
    def usual(self) -> bool:
        return " " not in self.form or self.form.startswith(f"{table.PLAIN} ")

    @property
    def chain(self) -> bool:
        return self.form.startswith(table.IN_CHAIN)


def badness(case: table.Case) -> tuple[int, float]:
    return table.WORST_FIRST.index(case.result), table.EXACT if case.db is None else case.db


def table_of(records: Mapping[str, Mapping[str, SuiteRecord]]) -> table.OperatorTable:
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
        silent = any(row.form == table.IN_CHAIN and row.result in table.NOT_COMPILED for row in around)
        own = [row for row in every if not (silent and row.chain)]
        if own:
            similar = rows.get((operator, soc, table.SAME_WITHOUT_WEIGHTS.get(scheme, "")), [])
            counted = _counted([*own, *_from_similar_scheme(own, similar)])
            cells.setdefault(operator, {}).setdefault(soc, {})[scheme] = cell_of(counted)
    return table.OperatorTable(
        measured={soc: _in_words(versions) for soc, versions in measured.items()}, cells=cells
    )


NO_OPERATOR = "clone"
"""What is nothing between two layers, once it is lowered."""


def _in_words(versions: Mapping[str, Sequence[str]]) -> str:
    """With the suites if they were measured with different ones."""
    if len(versions) == 1:
        return next(iter(versions))
    return "; ".join(f"{', '.join(suites)}: {name}" for name, suites in versions.items())


def _from_similar_scheme(own: Sequence[Tried], others: Sequence[Tried]) -> list[Tried]:
    """What counts of the scheme that differs in the weights alone, if the plain case gave the same figure
    in both and no other of our own cases was tried."""
    plain, same = (
        [row.part for row in rows if row.form.startswith(f"{table.PLAIN} ")] for rows in (own, others)
    )
    tried_others = any(not (row.usual or row.chain) for row in own)
    if not plain or plain != same or plain[0].sqnr_db is None or tried_others:
        return []
    return [row for row in others if not (row.usual or row.chain)]


def tried_of(suite: str, test: str, parts: Iterable[RecordedPart]) -> Iterator[Tried]:
    """Each program with its operator, scheme and form: abs, 8a8w, `shapes` of
    `test_abs.test_abs_shapes[qnn_8a8w-…]`; log, 8a8w, `small [0.0001, 0.01]` of
    `test_values[qnn_8a8w-log-small]`; `in a chain` of `test_chains[qnn_8a8w-log-chain]`."""
    head, _, identifier = test.partition("[")
    flow, _, rest = identifier.rstrip("]").partition("-")
    if suite == NEWER:
        yield from _newer(head, flow, test, parts)
        return
    scheme = flow.removeprefix("qnn_") if flow != "qnn" else "fp16"
    if scheme not in MEASURED_SCHEMES:
        return
    if head in ("test_values", "test_chains"):
        operator, _, own = rest.partition("-")
        form = _inputs(chained=own.partition("-")[0] == CHAIN).get((operator, own), own)
    else:
        file, _, function = head.partition(".")
        operator = file.removeprefix("test_")
        form = function.removeprefix(f"{file}_").removeprefix("test_")
    for part in parts:
        tested = part
        if head == "test_chains" and scheme.endswith(LAYERS_LOSE):
            draws = tuple(draw._replace(quantized_db=None) for draw in part.draws)
            tested = replace(part, quantized_db=None, draws=draws)
        yield Tried(operator, scheme, suite, test, form, tested)


@cache
def _inputs(*, chained: bool) -> dict[tuple[str, str], str]:
    """What our own cases are given, by operator and name."""
    return {(case.operator, case.name): case.inputs for case in (chains() if chained else cases())}


LAYERS_LOSE = ("4w", "4w_block")
"""Schemes in which the layers of a chain lose much themselves, by weights of four bits."""


NEWER_SCHEMES = {"fp": "fp16", "8a": "8a8w", "16a": "16a8w"}


def _newer(function: str, identifier: str, test: str, parts: Iterable[RecordedPart]) -> Iterator[Tried]:
    """gather, 8a8w for `test_gather[8a]`; conv1d, 16a4w for `test_conv1d[16a4w_pcq]`.

    Such a test compares outputs only after it made sure that all is one delegate, so a part with a figure is
    whole. Of quantized outputs that are far from the float model's, one that fails is wrong, and one that
    passes is no test.
    One that passes without a figure expects an exception, and one that fails before it compares says nothing
    of a place, unless lowering fails."""
    name, _, kind = identifier.partition("_")
    scheme = NEWER_SCHEMES.get(name, name) + ("_block" if kind == "lpbq" else "")
    if scheme not in MEASURED_SCHEMES or "_unsupported" in function:
        return
    operator = function.removeprefix("test_")
    for part in parts:
        tested = part
        if part.result in ("passed", "wrong", "bad_test") and part.sqnr_db is not None:
            # Below -EXACT there is no signal, and no ratio.
            figure = part.sqnr_db if part.sqnr_db > -table.EXACT else None
            far = figure is not None and figure < LEAST_DB
            refused = part.result == "wrong" and (scheme == "fp16" or figure is None or far)
            word = "wrong" if refused else "bad_test" if far and scheme != "fp16" else "whole"
            # A quantized model's figure has in it what quantizing loses.
            tested = RecordedPart(word, figure if scheme == "fp16" else None)
        elif part.result not in ("dies", "crash", "memory", "timeout"):
            continue
        yield Tried(REWORK.get(operator, operator), scheme, NEWER, test, function, tested)


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
            others[table.ALONE] = table.Case(usual_alone)
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
        (case.db, "" if row.form == table.IN_CHAIN or row.form.startswith(f"{table.PLAIN} ") else row.form)
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
    return round(most, 1) if most >= table.LOSES_DB else None


def _case(part: RecordedPart, draw: Draw | None = None) -> table.Case:
    """With the figures of one draw. There is none where HTP and the quantized model agree on outputs that are
    not to be compared with the float model's, nor of the layers around an operator on the CPU."""
    figures, result = draw or part, _result(part, draw)
    if draw and draw.refused:
        result = "wrong"
    if result == "lost":
        return table.Case(result, figures.quantized_db)
    if result == "cpu" or (result == "wrong" and _is_unlike_float(part, draw)):
        return table.Case(result)
    return table.Case(result, figures.sqnr_db)


def _result(part: RecordedPart, draw: Draw | None = None) -> table.Result:
    figures = draw or part
    if part.result in ("failed", "memory", "timeout"):
        return "dies"
    if part.result not in table.MEANINGS:
        return "bad_test"
    if part.result in ("crash", "dies", "bad_test"):
        return part.result  # type: ignore[return-value]
    if figures.sqnr_db is not None and figures.sqnr_db < LEAST_DB:
        return "wrong"
    if part.in_float is not None and part.result in ("whole", "part", "float"):
        if _is_unlike_float(part, draw):
            return "wrong"
        if figures.quantized_db is not None and -table.EXACT < figures.quantized_db < LEAST_DB:
            return "lost"
    return part.result  # type: ignore[return-value]


def _is_unlike_float(part: RecordedPart, draw: Draw | None = None) -> bool:
    """Whether outputs have another shape than the float model's, or are not finite where these are: compared
    with these, neither HTP's nor the quantized model's have a figure."""
    figures = draw or part
    return part.in_float is not None and figures.float_db is None and figures.quantized_db is None
