"""Exports a model in the user's own Python, which runs this file's text, so it imports nothing of ours."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

import torch


def export(modules: str, target: str, seed: str, sample: str, file: str) -> None:
    sys.path.insert(0, modules)
    torch.manual_seed(int(seed))
    module, _, function = target.partition(":")
    product = getattr(importlib.import_module(module), function)()
    model, inputs = product if isinstance(product, tuple) and len(product) == 2 else (product, None)
    names = [*inspect.signature(model.forward).parameters]
    if sample:
        inputs = _read(sample, names)
    elif callable(inputs):
        inputs = inputs(torch.Generator().manual_seed(int(seed)))
    if inputs is None:
        listed = ", ".join(names)
        sys.exit(f"no inputs: `return model, ({listed},)`, with a tensor for each; or give --calibrate DIR")
    with torch.no_grad():
        torch.export.save(torch.export.export(model.eval(), tuple(inputs)), file)


def _read(sample: str, names: list[str]) -> tuple[Any, ...]:
    if sample.endswith(".pt"):
        loaded = torch.load(sample, weights_only=True)
        return tuple(loaded) if isinstance(loaded, (tuple, list)) else (loaded,)
    import numpy

    loaded = numpy.load(sample)
    if not sample.endswith(".npz"):
        return (torch.from_numpy(loaded),)
    files = loaded.files
    by_name = sorted(names[: len(files)]) == sorted(files)
    return tuple(torch.from_numpy(loaded[name]) for name in (names if by_name else files)[: len(files)])


if __name__ == "__main__":
    export(*sys.argv[1:])
