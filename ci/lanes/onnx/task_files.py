"""Name the files that the work on one ONNX model leaves in its folders: the model, its samples and its
outputs.

One task writes them and a later one reads them, so both find their names here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.models.inputs import (
    load_samples,
)
from ci.suite.judged_samples import SUFFIX

if TYPE_CHECKING:
    from ci.models.inputs import Sample


SAMPLES, CALIBRATION = "samples.npz", "calibration.npz"
EXPECTED, REFERENCE = "expected.npz", "reference.npz"
OUTPUTS = "outputs.npz"
"""A result keeps this file if a metric is computed of it: what the program gave for its samples."""
JUDGED = f"judged{SUFFIX}"
"""A result has this file if a device is to be judged."""


@dataclass(frozen=True)
class ModelFiles:
    """Says where a model lies, as it was prepared and as its run has it, and where the samples of both
    are."""

    prepared: Path
    """This folder holds the samples and the float model's outputs."""
    source: Path
    """The model as the user gave it, prepared."""
    model: Path
    """The model as the run has it, perhaps quantized."""
    quantized: Path
    """This folder holds what the run made of the model."""

    def samples(self) -> list[Sample]:
        return arrays_in(self.prepared / SAMPLES)

    def calibration(self) -> list[Sample]:
        return arrays_in(self.prepared / CALIBRATION)

    def float_outputs(self) -> list[Sample]:
        return arrays_in(self.prepared / EXPECTED)

    def reference(self) -> list[Sample]:
        """Return the quantized model's outputs; none in float."""
        return arrays_in(self.quantized / REFERENCE)


def arrays_in(file: Path) -> list[Sample]:
    return load_samples(file) if file.is_file() else []
