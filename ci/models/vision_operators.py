"""Let torchvision be imported where its compiled operators cannot be loaded: an index may have its CUDA build
alone, and torch here is for the CPU."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_libraries: list[torch.library.Library] = []
"""What is defined lasts as long as its library."""


@cache
def define_vision_operators() -> None:
    """Define the operators that torchvision names when it is imported, where it cannot load its own.

    Most models need none of them. One that computes with one of them fails, as no kernel is there."""
    if (spec := importlib.util.find_spec("torchvision")) is None or spec.origin is None:
        return
    import torch

    try:
        for library in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(library)
    except OSError:
        _libraries.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _libraries[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
