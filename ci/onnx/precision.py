"""What a model is computed in: float in fp16, or quantized to activations and weights of 8 or 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

from provisioning.base.errors import UnknownName, UsageError


@dataclass(frozen=True, slots=True)
class Precision:
    """`activations` and `weights` as onnxruntime.quantization.QuantType names them; empty: not quantized."""

    name: str
    activations: str
    weights: str
    symmetric_weights: bool | None
    executorch: str
    """The scheme of the lowering suite that computes alike; empty where there is none."""
    summary: str

    @property
    def quantized(self) -> bool:
        return bool(self.activations)


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp16", "", "", None, "fp16", "float32 model computed in fp16"),
        Precision("u8u8", "QUInt8", "QUInt8", None, "8a8w", "8-bit activations and weights"),
        Precision("u8s8", "QUInt8", "QInt8", None, "8a8w", "with signed weights, for convolutional nets"),
        Precision("s8s8", "QInt8", "QInt8", None, "8a8w", "signed activations and weights"),
        Precision("u16u8", "QUInt16", "QUInt8", None, "16a8w", "16-bit activations, 8-bit weights"),
        Precision("u16s8", "QUInt16", "QInt8", None, "16a8w", "with signed weights, for convolutional nets"),
        Precision("s16s8", "QInt16", "QInt8", None, "16a8w", "signed throughout, for convolutional nets"),
        Precision("u16u16", "QUInt16", "QUInt16", True, "16a16w", "16-bit throughout, without convolutions"),
        Precision("u16s16", "QUInt16", "QInt16", None, "16a16w", "16-bit throughout, with signed weights"),
        Precision("qdq", "", "", None, "", "model that is quantized already, taken as it is"),
    )
}


NOT_ON_HTP = {"s16s16": "u16s16", "s16u16": "u16s16", "s16u8": "u16u8", "s8u8": "s8s8"}
"""Combinations that the quantizer makes and the provider refuses, each with what to use instead."""


def precision_named(name: str) -> Precision:
    """Takes `u16/u8` for `u16u8`. What the compiler cannot take is said with the nearest that it can."""
    plain = name.lower().replace("/", "").replace("_", "").replace("int", "")
    if plain in PRECISIONS:
        return PRECISIONS[plain]
    if plain in NOT_ON_HTP:
        near = NOT_ON_HTP[plain]
        raise UsageError(
            f"precision {name}: QNN's HTP backend does not take these activations with these weights",
            remedy=f"use {near}",
        )
    raise UnknownName(f"there is no precision {name!r}", plain, PRECISIONS)
