"""The programs of a test of an operator, as the operator table names them, and what each gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from ci.operators import table
from ci.suite.lost_parts import WRONG_DB
from lab.operators import MEASURED_SCHEMES, PLAIN
from lab.operators.records import Draw, RecordedPart
from lab.operators.suites import NEWER
from lab.operators.value_cases import CHAIN, cases, chains

OTHER_TESTS: Mapping[str, tuple[str, ...]] = {
    "adaptive_maxpool2d": ("adaptive_max_pool_2d_with_indices",),
    "arange": ("arange_dtype_float", "arange_dtype_int"),
    "bitwise_and": ("bitwise_and_bool", "bitwise_and_numeric"),
    "bitwise_or": ("bitwise_or_bool", "bitwise_or_numeric"),
    "bitwise_xor": ("bitwise_xor_bool", "bitwise_xor_numeric"),
    "conv2d_1x1": ("conv2d_linear_like",),
    "convtranspose1d": ("conv1d_transpose",),
    "convtranspose2d": ("conv2d_transpose",),
    "convtranspose3d": ("conv3d_transpose",),
    "div": ("div_with_rounding_mode",),
    "eq": ("equal",),
    "ge": ("greater_equal",),
    "grid_sampler_2d": ("grid_sample_4d",),
    "grid_sampler_3d": ("grid_sample_5d",),
    "gt": ("greater",),
    "le": ("less_equal",),
    "linear": ("linear_block_quant", "linear_general", "linear_non_constant_weight", "linear_shared_weights"),
    "lt": ("less_than",),
    "max": ("max_dim",),
    "min": ("min_dim",),
    "ne": ("not_equal",),
    "pad": ("pad_constant", "pad_reflect"),
    "pow": ("pow_scalar", "pow_tensor_scalar"),
    "reshape": (
        *("reshape_2d_to_4d_flatten_last_two_dims", "reshape_2d_to_4d_random_reshape"),
        *("reshape_5d_flatten_last_two_dims", "reshape_5d_random_reshape"),
    ),
    "scaled_dot_product_attention": ("sdpa",),
    "scatter": ("scatter_src", "scatter_value"),
    "scatter_reduce": ("scatter_reduce_prod", "scatter_reduce_sum"),
    "sum": ("sum_int_list",),
    "to": ("cast",),
    "triu": ("triu_constant",),
    "upsample_bicubic2d": ("interpolate_bicubic",),
    "upsample_bilinear2d": ("interpolate_bilinear",),
    "upsample_nearest2d": ("interpolate_nearest",),
    "view": (
        *("view_2d_to_4d_flatten_last_two_dims", "view_2d_to_4d_random_reshape"),
        *("view_5d_flatten_last_two_dims", "view_5d_random_reshape"),
    ),
}
"""By operator, its tests of the suite rework-op that have another name."""

REWORK = {test: name for name, tests in OTHER_TESTS.items() for test in tests}

TABLED = ("operators", "values", "chains")
"""The suites that are compared with the table."""


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
        return " " not in self.form or self.form.startswith(f"{PLAIN} ")

    @property
    def chain(self) -> bool:
        return self.form.startswith(table.IN_CHAIN)


def badness(case: table.Case) -> tuple[int, float]:
    return table.WORST_FIRST.index(case.result), table.EXACT if case.db is None else case.db


NO_OPERATOR = "clone"
"""What is nothing between two layers, once it is lowered."""


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
            far = figure is not None and figure < WRONG_DB
            refused = part.result == "wrong" and (scheme == "fp16" or figure is None or far)
            word = "wrong" if refused else "bad_test" if far and scheme != "fp16" else "whole"
            # A quantized model's figure has in it what quantizing loses.
            tested = RecordedPart(word, figure if scheme == "fp16" else None)
        elif part.result not in ("dies", "crash", "memory", "timeout"):
            continue
        yield Tried(REWORK.get(operator, operator), scheme, NEWER, test, function, tested)


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
    if part.result not in table.WORDS:
        return "bad_test"
    if part.result in ("crash", "dies", "bad_test"):
        return part.result  # type: ignore[return-value]
    if figures.sqnr_db is not None and figures.sqnr_db < WRONG_DB:
        return "wrong"
    if part.in_float is not None and part.result in ("whole", "part", "float"):
        if _is_unlike_float(part, draw):
            return "wrong"
        if figures.quantized_db is not None and -table.EXACT < figures.quantized_db < WRONG_DB:
            return "lost"
    return part.result  # type: ignore[return-value]


def _is_unlike_float(part: RecordedPart, draw: Draw | None = None) -> bool:
    """Whether outputs have another shape than the float model's, or are not finite where these are: compared
    with these, neither HTP's nor the quantized model's have a figure."""
    figures = draw or part
    return part.in_float is not None and figures.float_db is None and figures.quantized_db is None
