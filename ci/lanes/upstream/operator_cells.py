"""The cells of the operator table, from the records of suites."""

from __future__ import annotations

import importlib.util
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from ci.lanes.upstream.ledger import SuiteRecord, records_of
from ci.lanes.upstream.value_cases import CHAIN, SAME_WITHOUT_WEIGHTS, ValueCase, cases, chains
from ci.lanes.upstream.verdict import Draw, RecordedPart
from ci.operators import onnx_page
from ci.operators.names import REWORK, key_of
from ci.operators.table import (
    EXACT,
    FAILING,
    LOSES_DB,
    MEANINGS,
    NOT_COMPILED,
    PLAIN,
    CaseResult,
    Cell,
    ChainResult,
    OnnxOperators,
    OperatorTable,
    Result,
    read,
)
from ci.pipeline.precision import MEASURED_SCHEMES, MeasuredScheme
from ci.pipeline.slices import LEAST_DB
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC
from provisioning.manifest import load_socs

NEWER = "rework-op"
"""Qualcomm's newer tests. They count where the other suites measure nothing."""

OPERATORS = ("operators", "values", "chains", NEWER)
"""The suites that the table is made from."""


@dataclass(frozen=True)
class OperatorCase:
    """What one case of an operator gave."""

    suite: str
    test: str
    part: RecordedPart
    own: str = ""
    """The name of our own case."""
    case: str = ""
    """The test of ExecuTorch's."""
    float_db: float | None = None
    tried_in: MeasuredScheme | None = None
    """The scheme that it was measured in, if it counts for another one."""

    @cached_property
    def result(self) -> Result:
        return _result(self.part)

    @cached_property
    def draw_results(self) -> Counter[Result]:
        """Of a case that runs somewhere, by draw: one that is wrong in most says nothing of where it runs."""
        if self.result == "cpu":
            return Counter()
        part = replace(self.part, result="whole") if self.part.result == "wrong" else self.part
        return Counter[Result](["wrong" if draw.refused else _result(part, draw) for draw in part.draws])

    @property
    def sqnr_db(self) -> float | None:
        """None if HTP and the quantized model agree on outputs that are not to be compared with the float
        model's, and if it is that of the layers around an operator on the CPU."""
        unlike = self.result == "wrong" and _is_unlike_float(self.part)
        return None if unlike or self.result == "cpu" else self.part.sqnr_db

    @property
    def lost_db(self) -> float | None:
        """Of the quantized model against the float model, if it is LOST."""
        return self.part.quantized_db if self.result == "lost" else None

    @property
    def usual(self) -> bool:
        return self.own in ("", PLAIN)

    @property
    def chain(self) -> bool:
        return self.own.partition("-")[0] == CHAIN


def table_of(
    records: Mapping[str, Mapping[str, SuiteRecord]],
    upstream: Mapping[str, Sequence[str]],
    onnx: OnnxOperators | None = None,
) -> OperatorTable:
    """From records by suite and chip, with what ONNX Runtime compiled."""
    rows: dict[tuple[str, str], dict[str, list[OperatorCase]]] = defaultdict(lambda: defaultdict(list))
    names: dict[str, str] = {}
    measured: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    # The emulator computes it in float32 for them, which says nothing of the chip (fp16-on-v68).
    without_fp16 = {name for name, soc in load_socs().items() if not soc.fp16}
    for suite in sorted(records, key=(*OPERATORS, *records).index):
        for soc, record in records[suite].items():
            for test, parts in record.tests.items():
                for operator, scheme, row in _rows(suite, test, parts.parts):
                    if scheme == "fp16" and soc in without_fp16:
                        continue
                    name = names.setdefault(key_of(operator), operator)
                    rows[name, scheme][soc].append(row)
            if record.tests:
                measured[soc][record.versions()].append(suite)
    cells: dict[str, dict[str, dict[str, Cell]]] = {}
    silent = _without_layers(rows)
    for (operator, scheme), chips in sorted(rows.items()):
        results_of_default: dict[tuple[str, ...], Result] = {}
        """By the tests that a chip has: most have the same."""
        for soc, here in chips.items():
            own = [row for row in here if not (row.chain and (scheme, soc) in silent)]
            if not own:
                continue
            every = own
            if other := SAME_WITHOUT_WEIGHTS.get(scheme):
                others = rows.get((operator, other), {}).get(soc, [])
                every = [*own, *_from_similar_scheme(own, others, other)]
            same = {row.test for row in _counted(every)}
            usual = [row for row in chips.get(DEFAULT_SOC, ()) if row.test in same]
            cell = _cell(operator, _counted(every))
            if soc != DEFAULT_SOC and usual:
                tests = tuple(row.test for row in usual)
                if tests not in results_of_default:
                    results_of_default[tests] = _cell(operator, usual).result
                if results_of_default[tests] != cell.result:
                    cell = cell.model_copy(update={"default": results_of_default[tests]})
            cells.setdefault(operator, {}).setdefault(soc, {})[scheme] = cell
    files = {name: tuple(words) for name, words in upstream.items()}
    return OperatorTable.model_validate(
        {
            "schema": 1,
            "measured": {soc: _in_words(versions) for soc, versions in measured.items()},
            "upstream": files,
            "cells": dict(sorted(cells.items())),
            **({"onnx": onnx} if onnx else {}),
        }
    )


NO_OPERATOR = "clone"
"""What is nothing between two layers, once it is lowered."""


def _without_layers(
    rows: Mapping[tuple[str, str], Mapping[str, Sequence[OperatorCase]]],
) -> set[tuple[str, str]]:
    """The schemes and chips at which the layers of a chain do not compile themselves, such as weights of 16
    bits on V68: it says nothing of an operator there."""
    return {
        (scheme, soc)
        for (operator, scheme), chips in rows.items()
        if operator == NO_OPERATOR
        for soc, own in chips.items()
        if any(row.own == CHAIN and row.result in NOT_COMPILED for row in own)
    }


def _in_words(versions: Mapping[str, Sequence[str]]) -> str:
    """With the suites if they were measured with different ones."""
    if len(versions) == 1:
        return next(iter(versions))
    return "; ".join(f"{', '.join(suites)}: {name}" for name, suites in versions.items())


def _from_similar_scheme(
    own: Sequence[OperatorCase], others: Sequence[OperatorCase], scheme: MeasuredScheme
) -> list[OperatorCase]:
    """What counts of the scheme that differs in the weights alone, if the plain case gave the same figure
    in both and no other of our own cases was tried."""
    plain, same = ([row.part for row in rows if row.own == PLAIN] for rows in (own, others))
    if not plain or plain != same or plain[0].sqnr_db is None:
        return []
    if any(not (row.usual or row.chain) for row in own):
        return []
    return [replace(row, tried_in=scheme) for row in others if not (row.usual or row.chain)]


def _rows(suite: str, test: str, parts: Sequence[RecordedPart]) -> Iterator[tuple[str, str, OperatorCase]]:
    """Each part with its operator and scheme: abs, 8a8w, with the test shapes for
    `test_abs.test_abs_shapes[qnn_8a8w-…]`, and log, 8a8w, with our case small for
    `test_values[qnn_8a8w-log-small]`, or chain for `test_chains[qnn_8a8w-log-chain]`."""
    head, _, identifier = test.partition("[")
    flow, _, rest = identifier.rstrip("]").partition("-")
    if suite == NEWER:
        yield from _newer_rows(head, flow, test, parts)
        return
    scheme = flow.removeprefix("qnn_") if flow != "qnn" else "fp16"
    if scheme not in MEASURED_SCHEMES:
        return
    own, case = "", ""
    if head in ("test_values", "test_chains"):
        operator, _, own = rest.partition("-")
    else:
        file, _, function = head.partition(".")
        operator = file.removeprefix("test_")
        case = function.removeprefix(f"{file}_").removeprefix("test_")
    layers_lose = head == "test_chains" and scheme.endswith(LAYERS_LOSE)
    for part in [_pooled(parts)] if own == PLAIN and parts else parts:
        tested = _without_loss(part) if layers_lose else part
        yield operator, scheme, OperatorCase(suite, test, tested, own, case)


def _pooled(programs: Sequence[RecordedPart]) -> RecordedPart:
    """Programs of one case, where most of them ran (of places that are as frequent, the worst): word and
    figures are those of their draws together. One that does not compile has no draw that would tell of it,
    and decides."""
    if len(programs) == 1:
        return programs[0]
    by_place: dict[Result, list[RecordedPart]] = defaultdict(list)
    for part in programs:
        # Wrong outputs say nothing of the place.
        ran = _result(replace(part, result="whole") if part.result == "wrong" else part)
        place: Result = "whole" if ran in ("wrong", "lost") else ran
        by_place[place].append(part)
    if len(by_place) > 1:
        by_place.pop("bad_test", None)

    def deciding(place: Result) -> tuple[bool, int, int]:
        return place in NOT_COMPILED, len(by_place[place]), -WORST_FIRST.index(place)

    alike = by_place[max(by_place, key=deciding)]
    draws = tuple(draw for part in alike for draw in part.draws)
    if not draws:
        return min(alike, key=lambda part: WORST_FIRST.index(_result(part)))
    refused = any(draw.refused for draw in draws)
    return replace(
        alike[0],
        result="wrong" if refused else "whole" if alike[0].result == "wrong" else alike[0].result,
        sqnr_db=_median(draw.sqnr_db for draw in draws),
        float_db=_median(draw.float_db for draw in draws),
        quantized_db=_median(draw.quantized_db for draw in draws),
        draws=draws,
    )


def _median(figures: Iterable[float | None]) -> float | None:
    """None if one is missing."""
    known = [*figures]
    every = [figure for figure in known if figure is not None]
    return statistics.median(every) if len(every) == len(known) else None


LAYERS_LOSE = ("4w", "4w_block")
"""Schemes in which the layers of a chain lose much themselves, by weights of four bits."""


def _without_loss(part: RecordedPart) -> RecordedPart:
    draws = tuple(draw._replace(quantized_db=None) for draw in part.draws)
    return replace(part, quantized_db=None, draws=draws)


NEWER_SCHEMES = {"fp": "fp16", "8a": "8a8w", "16a": "16a8w"}


def _newer_rows(
    function: str, identifier: str, test: str, parts: Sequence[RecordedPart]
) -> Iterator[tuple[str, str, OperatorCase]]:
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
        tested, float_db = part, None
        if part.result in ("passed", "wrong", "bad_test") and part.sqnr_db is not None:
            # Below -EXACT there is no signal, and no ratio.
            figure = part.sqnr_db if part.sqnr_db > -EXACT else None
            if scheme == "fp16":
                tested = RecordedPart("wrong" if part.result == "wrong" else "whole", figure)
            else:
                refused = part.result == "wrong" and (figure is None or figure < LEAST_DB)
                far = figure is not None and figure < LEAST_DB
                tested = RecordedPart("wrong" if refused else "bad_test" if far else "whole")
                float_db = figure
        elif part.result not in ("dies", "crash", "memory", "timeout"):
            continue
        yield (
            REWORK.get(operator, operator),
            scheme,
            OperatorCase(NEWER, test, tested, case=function, float_db=float_db),
        )


def _counted(rows: Sequence[OperatorCase]) -> Sequence[OperatorCase]:
    """Without the newer tests where the others measure anything, and without tests that test nothing."""
    first = [row for row in rows if row.suite != NEWER and row.result != "bad_test"]
    newer = [row for row in rows if row.suite == NEWER]
    alone = [row for row in first if not row.chain]
    return first if alone else [*newer, *first] or rows


def _cell(operator: str, rows: Sequence[OperatorCase]) -> Cell:
    """Of the cases alone, and of the chain, which decides where an operator runs that alone is not whole."""
    alone, chain = ([row for row in rows if row.chain is chained] for chained in (False, True))
    cell = _cell_alone(operator, alone) if alone else None
    inputs = _inputs(chains).get(operator, {})
    usual = next((row for row in chain if row.own == CHAIN and row.result != "bad_test"), None)
    if usual is None:
        return cell or _cell_alone(operator, rows)
    forms = {
        row.own.partition("-")[2]: case_of(row)
        for row in chain
        if row.result not in (usual.result, "bad_test")
    }
    found = ChainResult(**dict(case_of(usual)), forms=forms)
    failing = {inputs.get(row.own, row.own): case_of(row) for row in chain if row.result in FAILING}
    bad = {**(cell.bad if cell else {}), **failing}
    if cell and cell.result not in NOT_ON_HTP:
        return cell.model_copy(update={"chain": found, "bad": bad, "models": cell.models + len(chain)})
    return _cell_alone(operator, [replace(usual, own=PLAIN)]).model_copy(
        update={
            "alone": cell.result if cell and cell.result != usual.result else None,
            "loses_db": None,
            "chain": found,
            "of_chain": True,
            "bad": bad,
            "others": cell.others if cell else {},
            "elsewhere": cell.elsewhere if cell else {},
            "models": len(rows),
        }
    )


@cache
def _inputs(own: Callable[[], tuple[ValueCase, ...]]) -> dict[str, dict[str, str]]:
    """What our own cases are given, by operator and by name."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for case in own():
        found[case.operator][case.name] = case.inputs
    return found


NOT_ON_HTP = ("cpu", "part", "float", "no_kernel", "bad_test")


def case_of(row: OperatorCase) -> CaseResult:
    draws = [draw.sqnr_db for draw in row.part.draws if draw.sqnr_db is not None]
    figures = [] if row.sqnr_db is None else draws
    return CaseResult(
        result=row.result,
        sqnr_db=statistics.median(figures) if figures else row.sqnr_db,
        range_db=(min(figures), max(figures)) if figures else None,
        float_db=row.lost_db,
        draws=counts if len(counts := row.draw_results) > 1 else {},
    )


def _cell_alone(operator: str, rows: Sequence[OperatorCase]) -> Cell:
    """Most of the suite's own models and of the plain case decide. What is otherwise is named beside it: one
    unusual case that dies does not make an operator one that dies."""
    inputs = _inputs(cases).get(operator, {})
    judged = [row for row in rows if row.result != "bad_test" or row.float_db is not None] or rows
    usual = [row for row in judged if row.usual] or judged
    counts = Counter(row.result for row in usual)
    result = max(counts, key=lambda name: (counts[name], -WORST_FIRST.index(name)))
    alike = [row for row in judged if row.result == result]
    exactness = [(figure, row) for row in alike if (figure := _exactness(row)) is not None]
    least = min(exactness, key=lambda pair: pair[0], default=None)
    plain = next((row for row in judged if row.own == PLAIN), None)
    drawn = plain if plain and plain.result == result and plain.part.draws else None
    below = drawn is not None and least is not None and least[0] < min(_of_draws(drawn), MOST_DB) - WELL_DB
    shown = case_of(drawn) if drawn else _least_of(result, alike)
    others: dict[str, Result] = {}
    for row in usual:
        if row.usual and row.result != result:
            name = row.case or row.own
            others[name] = min(row.result, others.get(name, row.result), key=WORST_FIRST.index)
    own = [(inputs.get(row.own, row.own), row) for row in judged if row.own]
    losses = [
        min(row.part.quantized_db, MOST_DB) - row.part.float_db
        for row in alike
        if row.part.quantized_db is not None and row.part.float_db is not None
    ]
    loses = max(losses, default=0.0)
    in_float = {name for row in usual if row.result == result for name in row.part.in_float or ()}
    return Cell(
        **{**dict(shown), "draws": case_of(plain).draws if plain else {}},
        one_draw=drawn is None and (shown.sqnr_db, shown.float_db) != (None, None),
        least_db=least[0] if least and below else None,
        deciding=(counts[result], len(usual)) if len(counts) > 1 else None,
        worst=inputs.get(least[1].own, least[1].case) if least and (below or not drawn) else "",
        loses_db=round(loses, 1) if result in QUANTIZED and loses >= LOSES_DB else None,
        in_float=tuple(sorted(map(_short, in_float))) if result in QUANTIZED else (),
        tried_in=next((row.tried_in for row in judged if row.tried_in), None),
        models=len(judged),
        cpu=tuple(sorted({name for row in usual if row.result == result for name in row.part.cpu})),
        others=others,
        elsewhere={
            name: row.result
            for name, row in own
            if not row.usual and row.result != result and row.result not in (*FAILING, "bad_test")
        },
        bad={name: case_of(row) for name, row in own if _fails(row)},
        newer=tuple(sorted({row.case for row in judged if row.suite == NEWER})),
    )


WELL_DB = 1.0
"""A case is worse than the draws if it is so far below the least of them."""


def _exactness(row: OperatorCase) -> float | None:
    """Below EXACT, or None: there is nothing worse to be found."""
    figure = row.sqnr_db if row.lost_db is None else row.lost_db
    return figure if figure is not None and figure < EXACT else None


def _of_draws(row: OperatorCase) -> float:
    """The least of a case's draws, as `_exactness` has it of a case."""
    figures = [draw.sqnr_db if row.lost_db is None else draw.quantized_db for draw in row.part.draws]
    return min((figure for figure in figures if figure is not None), default=EXACT)


def _least_of(result: Result, rows: Sequence[OperatorCase]) -> CaseResult:
    """What cases of one draw each gave."""
    figures = [row.sqnr_db for row in rows if row.sqnr_db is not None]
    to_float = [row.float_db if row.lost_db is None else row.lost_db for row in rows]
    return CaseResult(
        result=result,
        sqnr_db=min(figures, default=None),
        float_db=min((figure for figure in to_float if figure is not None), default=None),
    )


QUANTIZED = ("whole", "part")

RAN = (*QUANTIZED, "float")

WORST_FIRST: tuple[Result, ...] = tuple(reversed(list(MEANINGS)))  # type: ignore[arg-type]

MOST_DB = 100.0
"""Rounding to 16 bits leaves no more; what is nearer to the float model has lost nothing."""


def _short(name: str) -> str:
    """`mul.Tensor` for aten.mul.Tensor, `sin` for aten.sin.default."""
    return name.removeprefix("aten.").removesuffix(".default")


def _fails(row: OperatorCase) -> bool:
    """Of our own cases. Where values are large, ExecuTorch's tolerances refuse good outputs too."""
    good = row.sqnr_db is not None and row.sqnr_db >= LEAST_DB
    return row.result in FAILING and (row.result != "wrong" or not good)


def _result(part: RecordedPart, draw: Draw | None = None) -> Result:
    """With the figures of one draw."""
    figures = draw or part
    if part.result in ("failed", "memory", "timeout"):
        return "dies"
    if part.result not in MEANINGS:
        return "bad_test"
    low = figures.sqnr_db is not None and figures.sqnr_db < LEAST_DB
    if low and part.result not in ("crash", "dies", "bad_test"):
        return "wrong"
    if part.in_float is not None and part.result in RAN:
        if _is_unlike_float(part, draw):
            return "wrong"
        if figures.quantized_db is not None and -EXACT < figures.quantized_db < LEAST_DB:
            return "lost"
    return part.result  # type: ignore[return-value]


def _is_unlike_float(part: RecordedPart, draw: Draw | None = None) -> bool:
    """Whether outputs have another shape than the float model's, or are not finite where these are: compared
    with these, neither HTP's nor the quantized model's have a figure."""
    figures = draw or part
    return part.in_float is not None and figures.float_db is None and figures.quantized_db is None


def committed() -> OperatorTable:
    onnx = onnx_page.committed(DEFAULT_PROFILE)
    return table_of(committed_records(DEFAULT_PROFILE), upstream_files() or read().upstream, onnx)


def committed_records(profile: str) -> dict[str, dict[str, SuiteRecord]]:
    return {suite: records_of(suite, profile) for suite in OPERATORS}


BUILT = r'"(?:(?:aten|dim_order_ops|qnn_custom)\.)?([a-z_]\w+)\.\w+"'
"""The name of an operator in the file of its builder; those of quantize and dequantize have one part more."""


def upstream_files() -> dict[str, list[str]]:
    """What the installed ExecuTorch has for each operator; empty if it is not installed."""
    spec = importlib.util.find_spec("executorch")
    roots = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    by_operator: dict[str, list[str]] = defaultdict(list)
    for root in roots:
        backend = root / "backends" / "qualcomm"
        for word, pattern, files in (
            ("lowers", BUILT, backend.glob("builders/op_*.py")),
            ("quantizes", r"torch\.ops\.(aten\.\w+)\.", backend.glob("quantizer/annotators/htp_rules.py")),
        ):
            text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(files))
            for name in sorted({key_of(match) for match in re.findall(pattern, text)}):
                by_operator[name].append(word)
    return dict(by_operator)
