"""The model's line in the stack trace that torch keeps with a node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from provisioning.base.settings import ROOT

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*(?!File ")([^\n]+))?')
INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
COMPILERS = ("torch/", "torchao/", "executorch/", "onnxscript/", "onnx/")
"""Packages whose lines are no model's. Those of a library of models are."""
TORCH_LAYER = re.compile(r"/torch/nn/modules/(?!module\.py)")

clones = [ROOT]
"""The folders that source lines are relative to: clones share results."""


@dataclass(frozen=True, slots=True)
class Frame:
    path: str
    line: int
    code: str


def user_frame(trace: str) -> Frame | None:
    """The innermost frame of a model, else of a layer of torch; its path without the folder of installed
    packages."""
    frames = FRAME.findall(trace)
    candidates = [frame for frame in frames if _is_model(frame[0])]
    candidates = candidates or [frame for frame in frames if TORCH_LAYER.search(frame[0])]
    if not candidates:
        return None
    path, line, _, code = candidates[-1]
    return Frame(INSTALLED.sub("", path), int(line), code.strip())


def relative_path(path: str) -> str:
    """A file of the model, relative to the clone that it is in."""
    for folder in clones:
        path = path.removeprefix(f"{folder}/")
    return path


def source_of(node: Any) -> tuple[str, str]:
    """`file:line` and the code of the innermost frame outside libraries; ("", "") if there is none."""
    if not (frame := user_frame(node.meta.get("stack_trace") or "")):
        return "", ""
    return f"{relative_path(frame.path)}:{frame.line}", frame.code


def _is_model(path: str) -> bool:
    package = INSTALLED.sub("", path)
    return path[:1] != "<" and (package == path or not package.startswith(COMPILERS))
