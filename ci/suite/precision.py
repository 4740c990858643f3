"""Name the precisions: the number format of a model is fp16, or quantized with 8-bit or 16-bit activations
and weights.

Users write names such as `8a8w`, or ONNX Runtime's, such as `u16u8`; both name one precision, which each lane
spells in its own way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, get_args

from provisioning.base.commands import Fix, add_flags, repeat_flag
from provisioning.base.errors import UnknownName, UsageError


@dataclass(frozen=True, slots=True)
class Precision:
    """`activations` and `weights` are names of onnxruntime.quantization.QuantType; empty means not
    quantized."""

    name: str
    activations: str
    weights: str
    symmetric_weights: bool | None
    executorch: str
    """The lowering suite's scheme that computes the same; empty if there is none."""

    @property
    def quantized(self) -> bool:
        return bool(self.activations)

    @property
    def suite_name(self) -> str:
        """The name that suites use: ExecuTorch's, if its scheme of that name is this precision."""
        first = next(
            precision for precision in PRECISIONS.values() if precision.executorch == self.executorch
        )
        return self.executorch if first is self else self.name


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp16", "", "", None, "fp16"),
        Precision("u8u8", "QUInt8", "QUInt8", None, "8a8w"),
        Precision("u8s8", "QUInt8", "QInt8", None, "8a8w"),
        Precision("s8s8", "QInt8", "QInt8", None, "8a8w"),
        Precision("u16u8", "QUInt16", "QUInt8", None, "16a8w"),
        Precision("u16s8", "QUInt16", "QInt8", None, "16a8w"),
        Precision("s16s8", "QInt16", "QInt8", None, "16a8w"),
        Precision("u16u16", "QUInt16", "QUInt16", True, "16a16w"),
        Precision("u16s16", "QUInt16", "QInt16", None, "16a16w"),
        Precision("qdq", "", "", None, "qdq"),
    )
}


ExecutorchScheme = Literal[
    "fp16", "8a8w", "8a4w", "16a16w", "16a8w", "16a4w", "16a4w_block", "16a2w", "fp16a8w", "qdq"
]
"""`qdq` takes a model that is already quantized, unchanged."""
SCHEMES: tuple[str, ...] = get_args(ExecutorchScheme)

OnnxPrecision = Literal["fp16", "8a8w", "16a8w"]
"""The precisions in the table of ONNX's operators."""
ONNX_PRECISIONS: tuple[OnnxPrecision, ...] = get_args(OnnxPrecision)

ALIASES = {"half": "fp16", "float16": "fp16", "int8": "8a8w", "8bit": "8a8w", "int16": "16a16w"}
"""Other spellings that are accepted, beside `w8a16` and `a16w8` for `16a8w`."""

MEANT = {
    **dict.fromkeys(
        ("int4", "uint4", "4bit", "q4"),
        ("weights of 4 bits go with activations of 16 or 8 bits", ("16a4w", "8a4w")),
    ),
    **dict.fromkeys(("bf16", "bfloat16", "fp32", "float32"), ("floats are computed in fp16", ("fp16",))),
    **dict.fromkeys(("fp8", "float8"), ("8 bits are integers", ("8a8w",))),
}
"""Formats of others: what is computed here in place of them, and at which precisions."""

MORE_EXACT = {"8a8w": "16a8w", "8a4w": "16a4w", "16a8w": "fp16"}
"""For each precision, the one that `tune` gives an operator that loses too much."""

WIDE = re.compile(r"[us]?16|fp16a")

WEIGHTS_FIRST = re.compile(r"w(\d+)a(\d+)")
ACTIVATIONS_FIRST = re.compile(r"a(\d+)w(\d+)")


def _scheme(name: str) -> str:
    """ExecuTorch's name of a scheme; any other name stays unchanged."""
    plain = name.strip().lower()
    plain = ALIASES.get(plain, plain)
    if match := WEIGHTS_FIRST.match(plain):
        plain = f"{match[2]}a{match[1]}w{plain[match.end() :]}"
    elif match := ACTIVATIONS_FIRST.match(plain):
        plain = f"{match[1]}a{match[2]}w{plain[match.end() :]}"
    return plain


def _onnx_name(name: str) -> str:
    return name.replace("/", "").replace("_", "").replace("int", "")


def _refuse_format(name: str, precisions: Sequence[str]) -> None:
    """Refuse a format that is none of QNN's, where these precisions are taken."""
    words, meant = MEANT.get(_scheme(name), ("", ()))
    if taken := [("--precision", precision) for precision in meant if precision in precisions]:
        fix = Fix(" or ".join(["{}"] * len(taken)), *taken)
        raise UsageError(f"there is no precision {name!r}: {words}", fix=fix)


def scheme_named(name: str) -> str:
    """ExecuTorch's scheme of this name: `16a8w` for `16a8w`, `w8a16`, `u16u8` and similar spellings."""
    plain = _scheme(name)
    if plain in SCHEMES:
        return plain
    precision = PRECISIONS.get(_onnx_name(plain))
    if precision and precision.executorch:
        return precision.executorch
    _refuse_format(name, SCHEMES)
    refuse_several(name)
    raise UnknownName(f"there is no precision {name!r} for ExecuTorch", plain, SCHEMES)


def precision_named(name: str) -> Precision:
    """ONNX Runtime's precision of this name: `u16u8` for `u16u8`, `u16/u8`, `16a8w`, `w8a16`."""
    scheme = _scheme(name)
    plain = _onnx_name(scheme)
    if plain in PRECISIONS:
        return PRECISIONS[plain]
    for precision in PRECISIONS.values():
        if precision.executorch == scheme:
            return precision
    _refuse_format(name, ONNX_PRECISIONS)
    if scheme in SCHEMES or scheme in MEANT:
        raise UsageError(
            f"precision {name}: ONNX Runtime's provider takes weights and activations of 8 or 16 bits",
            fix="use 8a8w or 16a8w, or compile the PyTorch model (a .pt2), whose lane has this one",
        )
    refuse_several(name)
    names = {name for precision in PRECISIONS.values() for name in (precision.suite_name, precision.name)}
    raise UnknownName(f"there is no precision {name!r}", plain, names)


def refuse_several(text: str) -> None:
    """Refuse a list in place of one precision."""
    names = re.findall(r"[^\s,;+]+", text)
    if len(names) > 1:
        raise UsageError(
            f"{text!r} names {len(names)} precisions",
            fix=Fix(
                "write each by itself: {}; in a suite, a run for each", repeat_flag("--precision", names)
            ),
        )


def written_name(name: str) -> str:
    """The one name that suites use for a precision: `16a8w` for `16a8w`, `w8a16`, `u16u8`. A name that is no
    precision stays unchanged."""
    for name_of in (lambda text: precision_named(text).suite_name, scheme_named):
        with suppress(UsageError):
            return name_of(name)
    return name


TWO_PRECISIONS = add_flags("--precision", "8a8w", "--precision", "16a8w")


def has_16_bit_activations(kind: str) -> bool:
    """Whether a quantized run of this kind has 16-bit activations. The kind is spelled as in suites: `16a8w`,
    `u16u8`, `fp16a8w`."""
    return WIDE.match(kind) is not None


def refuse_floats(quantizes: bool, precision: object) -> None:
    """Refuse a precision that quantizes nothing for a command that quantizes."""
    if not quantizes:
        raise UsageError(f"{precision} quantizes nothing", fix=Fix("{}, 16a8w …", ("--precision", "8a8w")))
