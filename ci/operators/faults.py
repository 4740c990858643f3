"""Find the known faults of a program's operators, which manifests/known_faults.toml lists.

A row names one of the conditions here as its `when`: the fault appears only with such arguments, shapes or
values. A condition reads the traits of a node, and is not met if it needs a trait that is not known."""

from __future__ import annotations

import importlib.metadata
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from ci.operators import TensorEnds, Traits
from ci.operators.table import key_of, name_in_table
from provisioning.base.units import EXACT_DB
from provisioning.build_ids import version_in
from provisioning.known_faults import Fault, Product, load_faults
from provisioning.manifest import soc_named

CONVOLUTIONS = ("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d")
POOLS = ("max_pool2d", "max_pool2d_with_indices", "avg_pool2d")
USUAL_EPSILON_DB = 38.0
"""A norm's SQNR may fall to this by the loss of its epsilon."""
HTP_EPSILON = 1e-9
HTP_ROW, HTP_BLOCK = 32, 8
"""HTP lays images out in blocks of this many rows and columns, with this many values in a row."""
LARGE_EPSILON = 1e-4
"""From this epsilon on, a norm whose variance is not known counts as losing it."""


def _argument(node: Traits, name: str, default: object = None) -> Any:
    value = node.arguments.get(name)
    return default if value is None else value


def _tensor(node: Traits, name: str) -> TensorEnds:
    value = node.arguments.get(name)
    return value if isinstance(value, TensorEnds) else TensorEnds()


def _sizes(node: Traits) -> tuple[Sequence[int], Sequence[int]]:
    """Return the shapes of the first operand and of the output; both are empty if one is not known."""
    return (node.input, node.output) if node.input and node.output else ((), ())


def _window(value: Any, count: int) -> list[int]:
    """Return the size of a window for each dimension."""
    values = [value] if isinstance(value, int) else [*(value or ())]
    return values * count if len(values) == 1 else values


def _range(node: Traits) -> tuple[float, float]:
    """Return the range of the first operand's values; NaN if it is not known."""
    return node.range or (math.nan, math.nan)


def _largest(node: Traits) -> float:
    return max(map(abs, _range(node)))


def has_argument(name: str) -> Callable[[Traits], bool]:
    return lambda node: _argument(node, name) is not None


def above_one(name: str) -> Callable[[Traits], bool]:
    """Make a condition on an argument that has one number, or one for each dimension: it is met if the
    largest is above one."""
    return lambda node: max(_window(_argument(node, name, 1), 1), default=1) > 1


def pads_a_negative_begin(node: Traits) -> bool:
    """Whether a begin is negative, or an end is negative in a dimension with a positive begin; a negative end
    alone is computed correctly."""
    pads = _argument(node, "pad", ())
    return any(begin < 0 or begin > 0 > end for begin, end in zip(pads[::2], pads[1::2], strict=False))


def pads_two_ends(node: Traits) -> bool:
    """Whether two dimensions are padded at their ends and none at its beginning, unless only convolutions and
    pools read the result."""
    pads, readers = _argument(node, "pad", ()), node.readers
    ends = [(begin, end) for begin, end in zip(pads[::2], pads[1::2], strict=False) if begin or end]
    windows = readers and all(_name(reader) in (*CONVOLUTIONS, *POOLS) for reader in readers)
    return len(ends) > 1 and all(begin == 0 < end for begin, end in ends) and not windows


def pads_beyond_its_range(node: Traits) -> bool:
    value, (low, high) = _argument(node, "value", 0.0), _range(node)
    return bool(value < low or value > high)


def resizes_to_no_multiple(node: Traits) -> bool:
    in_shape, out_shape = _sizes(node)
    return any(new % old for old, new in zip(in_shape[2:], out_shape[2:], strict=True))


def resizes_aligned_to_an_even_multiple(node: Traits) -> bool:
    in_shape, out_shape = _sizes(node)
    multiple = any(new % (2 * old) == 0 for old, new in zip(in_shape[2:], out_shape[2:], strict=True))
    return bool(_argument(node, "align_corners", False)) and multiple


def pools_over_the_edge(node: Traits) -> bool:
    """Whether a pool with padding, or with windows beyond the edge, is computed wrongly. Windows that move by
    one are right, unless padding is left out of the count."""
    in_shape, out_shape = _sizes(node)
    count = len(_window(_argument(node, "kernel_size", ()), 1))
    kernel = _window(_argument(node, "kernel_size", ()), len(in_shape[2:]))
    if not in_shape or count == 0:
        return False
    stride = _window(_argument(node, "stride"), len(kernel)) or kernel
    padding = _window(_argument(node, "padding", 0), len(kernel))
    rows = zip(out_shape[-len(kernel) :], stride, kernel, in_shape[-len(kernel) :], padding, strict=True)
    beyond = any((new - 1) * step + wide - old - pad > 0 for new, step, wide, old, pad in rows)
    counts = _argument(node, "count_include_pad", True)
    return (max(stride) > 1 or not counts) and (any(padding) or beyond)


def pools_by_four(node: Traits) -> bool:
    """Whether the kernel and stride are four; for an adaptive pool, whether the sizes shrink by four."""
    in_shape, out_shape = _sizes(node)
    if kernel := _window(_argument(node, "kernel_size", ()), 2):
        stride = _window(_argument(node, "stride"), 2) or kernel
        return {*kernel, *stride} == {4}
    return bool(in_shape) and all(
        old == 4 * new for old, new in zip(in_shape[-2:], out_shape[-2:], strict=True)
    )


def pools_pairs_with_padding(node: Traits) -> bool:
    kernel, padding = _argument(node, "kernel_size", ()), _argument(node, "padding", 0)
    return any(size % 2 == 0 for size in _window(kernel, 2)) and any(_window(padding, 2))


def pools_to_no_root(node: Traits) -> bool:
    in_shape, out_shape = _sizes(node)
    return any(new * new != old for old, new in zip(in_shape[-3:], out_shape[-3:], strict=True))


def has_a_parameter_for_each_channel(node: Traits) -> bool:
    """Whether the weight has several values, except after a convolution, where the layout differs."""
    return math.prod(_tensor(node, "weight").shape) > 1 and _name(node.maker) not in CONVOLUTIONS


def has_a_wide_kernel(node: Traits) -> bool:
    return any(size > 1 for size in _tensor(node, "weight").shape[2:])


def gives_integers(node: Traits) -> bool:
    return "int" in str(_argument(node, "dtype", ""))


def loses_its_epsilon(node: Traits) -> bool:
    """Whether the norm's scale changes too much without its epsilon; if the variance is not known, whether
    the epsilon is large."""
    epsilon, variance = _argument(node, "eps", 0.0), _tensor(node, "running_var").least
    if variance is None:
        return bool(epsilon >= LARGE_EPSILON)
    ratio = math.sqrt((variance + epsilon) / (variance + HTP_EPSILON)) - 1
    return ratio > 10 ** (-USUAL_EPSILON_DB / 20)


def has_a_positive_largest_bias(node: Traits) -> bool:
    bias = _tensor(node, "bias")
    return bias.least is not None and bias.largest is not None and bias.largest > -bias.least


def runs_along_no_last_dimension(node: Traits) -> bool:
    shape, dimension = node.input or (), _argument(node, "dim", -1)
    return bool(shape) and dimension % len(shape) != len(shape) - 1


def squares(node: Traits) -> bool:
    exponent = _argument(node, "exponent")
    if isinstance(exponent, TensorEnds):
        return exponent.least == exponent.largest == 2
    return bool(exponent == 2)


def ends_with_one_number(node: Traits) -> bool:
    last = (_argument(node, "tensors", ()) or (None,))[-1]
    return isinstance(last, TensorEnds) and last.least is not None and last.least == last.largest


def _name(operator: str) -> str:
    return operator.removeprefix("aten.").partition(".")[0]


def normalizes_small_rows_of_an_image(node: Traits) -> bool:
    """Whether the image has more than one block of HTP's, which holds 8 x 8 rows of 32 values."""
    height, width, values = (*(1, 1, 1), *(node.input or ()))[-3:]
    return values <= HTP_ROW and height > 1 and max(height, width) > HTP_BLOCK


CONDITIONS: Mapping[str, Callable[[Traits], bool]] = {
    function.__name__: function
    for function in (
        ends_with_one_number,
        gives_integers,
        has_a_parameter_for_each_channel,
        has_a_positive_largest_bias,
        normalizes_small_rows_of_an_image,
        has_a_wide_kernel,
        loses_its_epsilon,
        pads_a_negative_begin,
        pads_beyond_its_range,
        pads_two_ends,
        pools_by_four,
        pools_over_the_edge,
        pools_pairs_with_padding,
        pools_to_no_root,
        resizes_aligned_to_an_even_multiple,
        resizes_to_no_multiple,
        runs_along_no_last_dimension,
        squares,
    )
} | {
    "gives_two_rows": lambda node: (node.output or ())[:1] == (2,),
    "has_bias": has_argument("bias"),
    "has_bias_and_is_called_again": lambda node: node.again and has_argument("bias")(node),
    "has_five_dimensions": lambda node: any(len(shape) == 5 for shape in node.shapes),
    "has_dilation": above_one("dilation"),
    "has_groups": above_one("groups"),
    # pow.Tensor_Tensor is `2 ** x` or `x ** 2`.
    "is_of_a_number": lambda node: node.of_number,
    "of_values_within_0.1": lambda node: _largest(node) < 0.1,
    "of_values_within_1": lambda node: _largest(node) <= 1,
    "of_a_range_below_0.4": lambda node: _range(node)[1] - _range(node)[0] < 0.4,
    "of_values_beyond_11_or_-80": lambda node: _range(node)[1] > 11 or _range(node)[0] < -80,
    "of_values_below_-88": lambda node: _range(node)[0] < -88,
    "of_values_down_to_-1": lambda node: _range(node)[0] <= -0.999,
}
"""Maps the name that a row gives to the condition."""

DECIBELS = re.compile(r"(-?\d+(?:\.\d+)?)(?: to -?\d+(?:\.\d+)?)? dB")


class Met(NamedTuple):
    fault: Fault
    line: str
    operator: str
    """The node's operator, as the graph names it."""

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        return f"known of {self.operator}{at}: {self.fault.title} ({self.fault.id})"


@cache
def versions_of(build_id: str = "") -> Mapping[Product, str]:
    """Return the versions of what is installed here, and of a build of QNN unless its id is empty."""
    versions: dict[Product, str] = {"executorch": importlib.metadata.version("executorch")}
    return {**versions, **({"qnn": version_in(build_id)} if build_id else {})}


def faults_in(
    nodes: Mapping[str, Traits],
    scheme: str,
    soc: str,
    versions: Mapping[Product, str],
    *,
    dies: bool = False,
    least: float | None = None,
    seen_db: float | None = None,
) -> list[Met]:
    """Return the emulator's faults that programs of ExecuTorch with these nodes (`delegated_nodes`) can have:
    faults that give wrong numbers, or with `dies`, faults that give no program. `least` is the least value of
    their inputs, if known. With `seen_db`, the fault whose measured SQNR is nearest comes first."""
    arch = soc_named(soc).arch
    rows = []
    for fault in load_faults():
        if (
            fault.met
            and fault.dies is dies
            and fault.where == "emulator"
            and fault.lane in ("executorch", "any")
            and (not fault.schemes or scheme in fault.schemes)
            and (not fault.arches or arch in fault.arches)
            and (fault.least is None or least is None or least <= fault.least)
            and any(fault.concerns(product, version) for product, version in versions.items())
        ):
            node = next(_nodes_of(fault, nodes), None)
            rows += [Met(fault, node.line, node.operator)] if node else []
    return sorted(rows, key=lambda met: abs(effect_db(met.fault) - seen_db)) if seen_db is not None else rows


def effect_db(fault: Fault) -> float:
    """Return the SQNR that the fault's script printed first; that of equal outputs if it printed none."""
    match = DECIBELS.search(fault.figure or fault.effect)
    return float(match[1]) if match else EXACT_DB


def _nodes_of(fault: Fault, nodes: Mapping[str, Traits]) -> Iterator[Traits]:
    keys = {key_of(name) for name in fault.operators}
    for node in nodes.values():
        if (
            not _names_of(node.operator).isdisjoint(keys)
            and not node.added
            and (not fault.overloads or node.operator.rpartition(".")[2] in fault.overloads)
            and (not fault.kinds or not {*fault.kinds}.isdisjoint(node.kinds))
            and (not fault.when or CONDITIONS[fault.when](node))
        ):
            yield node


@cache
def _names_of(operator: str) -> frozenset[str]:
    return frozenset((key_of(operator), key_of(name_in_table(operator))))
