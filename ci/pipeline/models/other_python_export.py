"""Exports a model in the user's own Python, which runs this file's text, so it imports nothing of ours."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch


def export(modules: str, target: str, seed: str, sample: str, file: str) -> None:
    sys.path.insert(0, modules)
    torch.manual_seed(int(seed))
    module, _, function = target.partition(":")
    product = getattr(importlib.import_module(module), function)()
    model, inputs = product if isinstance(product, tuple) and len(product) == 2 else (product, None)
    if sample:
        inputs = _read(sample)
    elif callable(inputs):
        inputs = inputs(torch.Generator().manual_seed(int(seed)))
    if inputs is None:
        sys.exit("the function gives no inputs: return (model, inputs), or give samples with --calibrate")
    with torch.no_grad():
        torch.export.save(torch.export.export(model.eval(), tuple(inputs)), file)


def _read(sample: str) -> tuple[Any, ...]:
    if sample.endswith(".pt"):
        loaded = torch.load(sample, weights_only=True)
        return tuple(loaded) if isinstance(loaded, (tuple, list)) else (loaded,)
    import numpy

    loaded = numpy.load(sample)
    arrays = [loaded[name] for name in loaded.files] if sample.endswith(".npz") else [loaded]
    return tuple(map(torch.from_numpy, arrays))


if __name__ == "__main__":
    export(*sys.argv[1:])
