"""The names of operators: of our table, of ExecuTorch's files, of its suites."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, tuple[str, ...]] = {
    "batchnorm2d": ("batchnorm", "nativebatchnormlegitnotraining"),
    "bitwiseand": ("and",),
    "bitwiseor": ("or",),
    "bitwisexor": ("xor",),
    "cat": ("concat",),
    "clone": ("clonedimorder",),
    "conv1d": ("convolution",),
    "conv2d": ("convolution",),
    "conv2d1x1": ("conv2d", "convolution"),
    "conv3d": ("convolution",),
    "convtranspose1d": ("convolution",),
    "convtranspose2d": ("convolution",),
    "convtranspose3d": ("convolution",),
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

REWORK: Mapping[str, str] = {
    "adaptive_max_pool_2d_with_indices": "adaptive_maxpool2d",
    "arange_dtype_float": "arange",
    "arange_dtype_int": "arange",
    "bitwise_and_bool": "bitwise_and",
    "bitwise_and_numeric": "bitwise_and",
    "bitwise_or_bool": "bitwise_or",
    "bitwise_or_numeric": "bitwise_or",
    "bitwise_xor_bool": "bitwise_xor",
    "bitwise_xor_numeric": "bitwise_xor",
    "cast": "to",
    "conv1d_transpose": "convtranspose1d",
    "conv2d_linear_like": "conv2d_1x1",
    "conv2d_transpose": "convtranspose2d",
    "conv3d_transpose": "convtranspose3d",
    "div_with_rounding_mode": "div",
    "equal": "eq",
    "greater": "gt",
    "greater_equal": "ge",
    "grid_sample_4d": "grid_sampler_2d",
    "grid_sample_5d": "grid_sampler_3d",
    "interpolate_bicubic": "upsample_bicubic2d",
    "interpolate_bilinear": "upsample_bilinear2d",
    "interpolate_nearest": "upsample_nearest2d",
    "less_equal": "le",
    "less_than": "lt",
    "linear_block_quant": "linear",
    "linear_general": "linear",
    "linear_non_constant_weight": "linear",
    "linear_shared_weights": "linear",
    "max_dim": "max",
    "min_dim": "min",
    "not_equal": "ne",
    "pad_constant": "pad",
    "pad_reflect": "pad",
    "pow_scalar": "pow",
    "pow_tensor_scalar": "pow",
    "reshape_2d_to_4d_flatten_last_two_dims": "reshape",
    "reshape_2d_to_4d_random_reshape": "reshape",
    "reshape_5d_flatten_last_two_dims": "reshape",
    "reshape_5d_random_reshape": "reshape",
    "scatter_reduce_prod": "scatter_reduce",
    "scatter_reduce_sum": "scatter_reduce",
    "scatter_src": "scatter",
    "scatter_value": "scatter",
    "sdpa": "scaled_dot_product_attention",
    "sum_int_list": "sum",
    "triu_constant": "triu",
    "view_2d_to_4d_flatten_last_two_dims": "view",
    "view_2d_to_4d_random_reshape": "view",
    "view_5d_flatten_last_two_dims": "view",
    "view_5d_random_reshape": "view",
}
"""Operators by the tests of the suite rework-op, where these have another name."""


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
