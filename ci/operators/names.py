"""The names of operators: of our table, of ExecuTorch's files, of its suites."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, tuple[str, ...]] = {
    **{f"{kind}{n}d": ("convolution",) for kind in ("conv", "convtranspose") for n in (1, 2, 3)},
    "batchnorm2d": ("batchnorm", "nativebatchnormlegitnotraining"),
    "bitwiseand": ("and",),
    "bitwiseor": ("or",),
    "bitwisexor": ("xor",),
    "cat": ("concat",),
    "clone": ("clonedimorder",),
    "conv2d1x1": ("conv2d", "convolution"),
    "div": ("divide",),
    "fold": ("col2im",),
    "gridsampler2d": ("gridsampler",),
    "gridsampler3d": ("gridsampler",),
    "groupnorm": ("nativegroupnorm",),
    "hadamard": ("hadamardtransform",),
    "instancenorm2d": ("instancenorm",),
    "layernorm": ("nativelayernorm",),
    "linear32": ("linear",),
    "matmul": ("mm",),
    "maxpool2d": ("maxpool2dwithindices",),
    "maxpool2ddefaultstride": ("maxpool2d",),
    "maxpool3d": ("maxpool3dwithindices",),
    "pad": ("constantpadnd",),
    "softmax": ("safesoftmax",),
    "split": ("splitwithsizes",),
    "sub": ("rsub",),
    "to": ("todimorder",),
    "unfold": ("im2col",),
    "view": ("unsafeview",),
}
"""Other keys of what a row of the table has: how aten calls it, or what it becomes when it is exported."""

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


INDEX_COPY = "index_copy"
"""No copy of what `index` gives."""


def key_of(operator: str) -> str:
    """The same for `aten.adaptive_avg_pool2d.default` and `adaptive_avgpool2d`, `view` and `view_copy`."""
    name = operator.removeprefix("aten.").removeprefix("dim_order_ops.").partition(".")[0]
    if name != INDEX_COPY:
        name = name.removesuffix("_copy")
    return name.replace("_", "")


def names_of(operator: str) -> tuple[str, ...]:
    """The keys of a row of the table."""
    key = key_of(operator)
    return (key, *ALIASES.get(key, ()))
