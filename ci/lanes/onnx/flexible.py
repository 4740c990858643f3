"""One compiled model for several chips: a flexible context, which is a DLC with a context of each chip.

The emulator refuses the whole file (`No runnable cache selected`), and its parts too, because the chips share
the weights beside them. So each chip's own context is run and compared, and the content of the file is
checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ci.artifacts.compiled_onnx import context_binaries
from ci.artifacts.dlc import contexts_by_chip
from ci.artifacts.program import SOC
from ci.lanes.onnx import provider
from ci.lanes.onnx.options import Settings
from ci.suite.precision import Precision
from ci.suite.qnn_provider import installed_build
from provisioning.base.errors import CheckFailed
from provisioning.build_id import BUILD_ID
from provisioning.manifest import soc_named


def write_flexible(
    model: Path, precision: Precision, chips: Sequence[str], settings: Settings, path: Path, *, embed: bool
) -> list[Path]:
    """Compile to `path` and compare its content with the chips and this QNN build; returns its files."""
    before = {*path.parent.iterdir()}
    provider.compiled_for_all(model, precision, list(map(soc_named, chips)), settings, path, embed=embed)
    require_chips(path.name, context_binaries(path), chips, installed_build())
    return sorted({*path.parent.iterdir()} - before)


def require_chips(name: str, contexts: Sequence[bytes], chips: Sequence[str], build: str) -> None:
    """Raises CheckFailed if the file's contexts lack a chip, or another QNN build made them."""
    for chip in chips:
        if not contexts or any(not _holds(data, chip, build) for data in contexts):
            message = f"{name} has no context of QNN {build} for {chip}, which was requested"
            fix = "use onnxruntime-qnn 2.5 (QNN 2.49) or later, or compile for each chip by itself"
            raise CheckFailed(message, fix=fix)


def _holds(data: bytes, chip: str, build: str) -> bool:
    part = contexts_by_chip(data).get(chip.lower(), b"")
    return {*SOC.findall(part)} == {chip.encode()} and {*BUILD_ID.findall(part)} <= {build.encode()}
