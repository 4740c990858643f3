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
