"""The process that exports the model that `reduce` takes pieces of, and saves inputs beside it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from ci.lanes.executorch.suite import chosen_for, parse_request
from ci.pipeline.models.factory import copied, make
from ci.pipeline.models.samples import inputs_named

CALIBRATING = 4
"""Of the samples to calibrate by, those that the pieces of a model are calibrated by."""


def _export(order: dict[str, object], into: Path) -> None:
    case, run, _, place = parse_request(order)
    loaded = make(case.factory, case.arguments, place, inputs_named(case.samples, case.inputs, place))
    compared, calibrating, _ = chosen_for(loaded, case, run)
    samples = [*compared, *calibrating[:CALIBRATING]]
    torch.set_grad_enabled(False)
    loaded.model.requires_grad_(False)
    torch.save(samples, into / "samples.pt")
    torch.export.save(torch.export.export(loaded.model, copied(samples[0]), strict=True), into / "model.pt2")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
    os.chdir(order["working_folder"])
    _export(order, folder)
