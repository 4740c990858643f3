"""Find an operator's line in the user's code, in the stack trace that torch keeps with a node.

Frames of compilers and libraries are passed over; the innermost one of the user's model counts."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provisioning.base.findings import Place
from provisioning.base.settings import ROOT

if TYPE_CHECKING:
    from torch.fx import Node

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*(?!File ")([^\n]+))?')
INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
COMPILERS = ("torch/", "torchao/", "executorch/", "onnxscript/", "onnx/")
"""Lines of these packages do not count as a model's. Lines of a library of models do."""
TORCH_LAYER = re.compile(r"/torch/nn/modules/(?!module\.py)")

clones = [ROOT]
"""Source lines are shown relative to these folders, because clones share results."""


@dataclass(frozen=True, slots=True)
class OperatorAt:
    """It holds an operator of a model, and the module and line that wrote it, as far as they are known."""

    operator: str
    module: str
    source: str
    code: str

    @property
    def line(self) -> Place | None:
        return Place.read(self.source)

    @property
    def place(self) -> str:
        """Give the operator with its line."""
        return self.operator + (f" at {self.source} `{self.code}`" if self.source else "")


@dataclass(frozen=True, slots=True)
class Frame:
    path: str
    line: int
    code: str


def user_frame(trace: str) -> Frame | None:
    """Return the innermost frame of a model, else of a layer of torch; its path omits the packages'
    folder."""
    frames = FRAME.findall(trace)
    candidates = [frame for frame in frames if is_model(frame[0])]
    candidates = candidates or [frame for frame in frames if TORCH_LAYER.search(frame[0])]
    if not candidates:
        return None
    path, line, _, code = candidates[-1]
    return Frame(INSTALLED.sub("", path), int(line), code.strip())


ATTENTION = "torch.nn.modules.activation.MultiheadAttention"
ONE_SAMPLE = (
    "torch.nn.MultiheadAttention does not compile with a batch of one: replace it by the Attention of"
    " docs/model.md, which takes its weights, or pass a batch of two, torch.cat([x, x]), and use [:1]"
)

GRU_CELL = (
    "write the cell with linear, sigmoid and tanh, where cell is the torch.nn.GRUCell, x its input and h its"
    " state:"
    " ir, iz, xn = linear(x, cell.weight_ih, cell.bias_ih).chunk(3, -1);"
    " hr, hz, hn = linear(h, cell.weight_hh, cell.bias_hh).chunk(3, -1);"
    " z = torch.sigmoid(iz + hz); h = (1 - z) * torch.tanh(xn + torch.sigmoid(ir + hr) * hn) + z * h"
)
FIXES_INSIDE = {ATTENTION: ONE_SAMPLE, "torch.nn.modules.rnn.GRUCell": GRU_CELL}
"""Maps a module of torch in which a compiler fails to the fix."""


def is_inside(node: Node, kind: str) -> bool:
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return any(kind in str(of_module) for _, of_module in stack)


def fix_inside(node: Node) -> str:
    """Return what to write in place of torch's module around a node at which a compiler fails; empty if that
    is not known."""
    # What quantization inserts has no module of its own.
    around = [node]
    for member in around:
        if not any(path for path, _ in (member.meta.get("nn_module_stack") or {}).values()):
            around += [near for near in (*member.all_input_nodes, *member.users) if near not in around]
    for kind, fix in FIXES_INSIDE.items():
        if any(is_inside(member, kind) for member in around):
            return fix
    return ""


def is_of_library(path: str) -> bool:
    """Whether a file belongs to a library of models, such as transformers."""
    return bool(INSTALLED.match(path)) and is_model(path)


def relative_path(path: str) -> str:
    """Return a file's path relative to its clone, or to the folder of installed packages."""
    path = INSTALLED.sub("", path)
    for folder in clones:
        path = path.removeprefix(f"{folder}/")
    return path


def source_of(node: Node) -> tuple[str, str]:
    """Return `file:line` and the code of the innermost frame outside libraries; ("", "") if there is none."""
    if not (frame := user_frame(node.meta.get("stack_trace") or "")):
        return "", ""
    return f"{relative_path(frame.path)}:{frame.line}", frame.code


def place_in_words(node: Node) -> str:
    """Return ``file:line `code` `` of the node; empty if it has none."""
    source, code = source_of(node)
    return f"{source} `{code}`" if code else source


def is_model(path: str) -> bool:
    """Whether a file belongs to no compiler, in whichever environment that is installed."""
    package = INSTALLED.sub("", path)
    return path[:1] != "<" and (package == path or not package.startswith(COMPILERS))


LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))

OURS, MODELS = f"{ROOT}/ci/", f"{ROOT}/ci/models/shipped/"


def is_users(file: str) -> bool:
    """Whether a file is neither a library's nor ours. The shipped models count as a user's."""
    ours = file.startswith(OURS) and not file.startswith(MODELS)
    return is_model(file) and not file.startswith(LIBRARIES) and not ours


def users_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return ` (file:line)` of the innermost frame of the user's code; empty if there is none."""
    for frame in reversed(frames):
        if is_users(frame.filename):
            return f" ({relative_path(frame.filename)}:{frame.lineno})"
    return ""
