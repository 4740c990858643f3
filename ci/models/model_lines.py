"""Where in the user's code an operator is: its line in the stack trace that torch keeps with a node. And what
an error of torch or ExecuTorch says of it."""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from ci.diagnose.logs import Explanation, of_model
from provisioning.base.commands import Fix, session
from provisioning.base.findings import Place
from provisioning.base.settings import ROOT
from provisioning.known_faults import NO_FIX

if TYPE_CHECKING:
    # Imported late: commands that read records need no torch.
    from torch.fx import Node

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*(?!File ")([^\n]+))?')
INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
COMPILERS = ("torch/", "torchao/", "executorch/", "onnxscript/", "onnx/")
"""Packages whose lines are no model's. Those of a library of models are."""
TORCH_LAYER = re.compile(r"/torch/nn/modules/(?!module\.py)")

clones = [ROOT]
"""The folders that source lines are relative to: clones share results."""


@dataclass(frozen=True, slots=True)
class OperatorAt:
    """An operator of a model, and the module and line that wrote it, as far as they are known."""

    operator: str
    module: str
    source: str
    code: str

    @property
    def line(self) -> Place | None:
        return Place.read(self.source)

    @property
    def place(self) -> str:
        """The operator with its line."""
        return self.operator + (f" at {self.source} `{self.code}`" if self.source else "")


@dataclass(frozen=True, slots=True)
class Frame:
    path: str
    line: int
    code: str


def user_frame(trace: str) -> Frame | None:
    """The innermost frame of a model, else of a layer of torch; its path without the packages' folder."""
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
"""By the module of torch in which a compiler fails."""


def is_inside(node: Any, kind: str) -> bool:
    """Whether a node of a graph is inside a module of torch of this kind."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return any(kind in str(of_module) for _, of_module in stack)


def fix_inside(node: Any) -> str:
    """What to write in place of torch's module around a node at which a compiler fails, if that is known."""
    # What quantization inserts has no module of its own.
    around = [node]
    for member in around:
        if not any(path for path, _ in (member.meta.get("nn_module_stack") or {}).values()):
            around += [near for near in (*member.all_input_nodes, *member.users) if near not in around]
    inside = (fix for kind, fix in FIXES_INSIDE.items() if any(is_inside(member, kind) for member in around))
    return next(inside, "")


def is_of_library(path: str) -> bool:
    """Whether it is a file of a library of models, such as transformers."""
    return bool(INSTALLED.match(path)) and is_model(path)


def relative_path(path: str) -> str:
    """A file of the model, relative to the clone that it is in, or to the folder of installed packages."""
    path = INSTALLED.sub("", path)
    for folder in clones:
        path = path.removeprefix(f"{folder}/")
    return path


def source_of(node: Any) -> tuple[str, str]:
    """`file:line` and the code of the innermost frame outside libraries; ("", "") if there is none."""
    if not (frame := user_frame(node.meta.get("stack_trace") or "")):
        return "", ""
    return f"{relative_path(frame.path)}:{frame.line}", frame.code


def place_in_words(node: Any) -> str:
    """``file:line `code` `` of the node; empty if it has none."""
    source, code = source_of(node)
    return f"{source} `{code}`" if code else source


def is_model(path: str) -> bool:
    """Whether it is no file of a compiler, in whichever environment that is installed."""
    package = INSTALLED.sub("", path)
    return path[:1] != "<" and (package == path or not package.startswith(COMPILERS))


LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))

OURS, MODELS = f"{ROOT}/ci/", f"{ROOT}/ci/models/shipped/"

NAMED_FRAME = re.compile(r'File "([^"]+)", line (\d+), in')
MOST_OF_MESSAGE = 600
NODE_AND_SCHEMA = re.compile(r"^Node \S+ with op .* -> .*(?=was not )")
"""How ExecuTorch begins a message about a node, which ours names already."""
ONE_WEIGHT = Fix(
    "where its weight is computed, as by weight[:, :, None], compute it once, in __init__, and keep it:"
    ' self.register_buffer("kernel", kernel, persistent=False); {} writes the model so',
    session("repair", "MODEL", "-o", "DIR"),
)
"""Of a layer quantized per channel: what is computed in the graph has one scale for the whole."""
PASS = re.compile(r"An error occurred when running the '\w+' pass")
EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)


def described(error: BaseException) -> str:
    """The exception and the line of the user's code that raised it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return f"{text[:MOST_OF_MESSAGE]}{users_line(traceback.extract_tb(error.__traceback__))}"


def explained(error: BaseException) -> tuple[str, str]:
    """The cause, with the user's line, and a fix if known. The full text belongs in the log."""
    errors = _causes(error)
    text = "\n".join(str(error).strip() for error in errors)
    places = [
        f" ({relative_path(file)}:{line})"
        for file, line in NAMED_FRAME.findall(text)
        if _is_users(file) or is_of_library(file)
    ]
    frames = [*traceback.walk_tb(errors[-1].__traceback__)][::-1]
    of_lines = (_node_of_line(*frame) for frame in frames)
    node = None if places else next(filter(None, of_lines), None) or _node_at_hand(frames)
    place = places[-1] if places else users_line(traceback.extract_tb(error.__traceback__))
    if node:
        place = f" ({place_in_words(node)})"
    if rule := known_of(error):
        return f"{rule.with_text}{place}", rule.fix
    if node:
        operator = getattr(node.target, "__name__", node.target)
        words, fix = f"{operator} ({place_in_words(node)})", fix_inside(node)
        is_scale = errors[-1].args == ("scale",)
        why = NODE_AND_SCHEMA.sub("it ", next(iter(str(errors[-1]).splitlines()), ""))[:MOST_OF_MESSAGE]
        message = f"the compiler fails at {words}: {type(errors[-1]).__name__}: {why}"
        return message, fix or (ONE_WEIGHT if is_scale else NO_FIX)
    if PASS.match(text):
        # The list of the passes before it says nothing, and the error itself does.
        error, text = errors[-1], str(errors[-1])
    cause = text.splitlines()[0].strip()[:MOST_OF_MESSAGE] if text else ""
    if explanation := EXPLANATION.search(text):
        cause += f": {explanation[1].strip()}"
    return f"{type(error).__name__}: {cause}{place}" if cause else f"{type(error).__name__}{place}", ""


def _causes(error: BaseException) -> list[BaseException]:
    """The error, and those that it was raised from."""
    errors = [error]
    while errors[-1].__cause__ is not None:
        errors.append(errors[-1].__cause__)
    return errors


def known_of(error: BaseException) -> Explanation | None:
    """What the rules know of an error of torch or ExecuTorch, and of those that it was raised from."""
    return of_model("".join("".join(traceback.format_exception_only(cause)) for cause in _causes(error)))


def _node_at_hand(frames: Iterable[tuple[FrameType, int]]) -> Node | None:
    """The operator with a line of the model's that a pass of the compiler had at hand when it failed."""
    from torch.fx import Node

    for frame, _ in frames:
        for node in frame.f_locals.values():
            if isinstance(node, Node) and source_of(node)[0]:
                return node
    return None


def _node_of_line(frame: FrameType, line: int) -> Node | None:
    """Of the code that torch writes for a graph: the operator there, if it has a line of the model's."""
    from torch.fx import GraphModule

    module = frame.f_locals.get("self")
    if not isinstance(module, GraphModule):
        return None
    name = linecache.getline(frame.f_code.co_filename, line).partition(" = ")[0].strip()
    return next((node for node in module.graph.nodes if node.name == name and source_of(node)[0]), None)


def _is_users(file: str) -> bool:
    """Whether a file is neither a library's nor ours. The shipped models count as a user's."""
    ours = file.startswith(OURS) and not file.startswith(MODELS)
    return is_model(file) and not file.startswith(LIBRARIES) and not ours


def users_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """` (file:line)` of the innermost frame of the user's code; empty without one."""
    for frame in reversed(frames):
        if _is_users(frame.filename):
            return f" ({relative_path(frame.filename)}:{frame.lineno})"
    return ""
