"""Explain an error of torch or ExecuTorch: name the compiler's step that failed, the operator that it failed
at, and the line of the model with that operator."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from ci.diagnose.logs import Explanation, failure_of_model
from ci.models.model_lines import (
    INSTALLED,
    fix_inside,
    is_of_library,
    is_users,
    place_in_words,
    relative_path,
    source_of,
    users_line,
)
from provisioning.base.commands import Fix, session
from provisioning.known_faults import NO_FIX

if TYPE_CHECKING:
    # Imported late: commands that read records need no torch.
    from torch.fx import Node

NAMED_FRAME = re.compile(r'File "([^"]+)", line (\d+), in')
NODE_AND_SCHEMA = re.compile(r"^Node \S+ with op .* -> .*(?=was not )")
"""ExecuTorch begins a message about a node so; our own message names the node already."""
ONE_WEIGHT = Fix(
    "where its weight is computed, as by weight[:, :, None], compute it once, in __init__, and keep it:"
    ' self.register_buffer("kernel", kernel, persistent=False); {} writes the model so',
    session("repair", "MODEL", "-o", "DIR"),
)
"""This is the fix for a layer quantized per channel whose weight is computed: a computed weight has one scale
as a whole."""
PASS = re.compile(r"An error occurred when running the '\w+' pass")
EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)
STEPS_OF = ("executorch/", "torchao/")
"""Functions of these packages are steps of the compiler."""


def describe_exception(error: BaseException) -> str:
    """Return the exception and the line of the user's code that raised it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return f"{text}{users_line(traceback.extract_tb(error.__traceback__))}"


@dataclass(frozen=True, slots=True)
class CompilerStep:
    """A step is a function of the compiler, such as a pass of ExecuTorch."""

    name: str
    source: str
    """It is FILE:LINE, relative to the folder of installed packages."""

    def __str__(self) -> str:
        return f"{self.name} ({self.source})"

    @property
    def traceback_line(self) -> str:
        """Give the end of the line that a traceback has of the step."""
        path, _, line = self.source.rpartition(":")
        return f'{path}", line {line},'


def compiler_step(function: Callable[..., object], name: str = "") -> CompilerStep:
    """Describe a function of the compiler as a step."""
    code = inspect.unwrap(function).__code__
    return CompilerStep(name or function.__name__, _below_packages(code.co_filename, code.co_firstlineno))


def failed_step(error: BaseException) -> CompilerStep | None:
    """Return the step that raised the exception, at the innermost line of the compiler; None if no function
    of the compiler was running."""
    frames = [*traceback.walk_tb(_causes(error)[-1].__traceback__)]
    frames = [(frame, line) for frame, line in frames if _is_of_compiler(frame)]
    if not frames:
        return None
    frame, line = frames[-1]
    name = _pass_at_work(frames) or _name_of(frame)
    return CompilerStep(name, _below_packages(frame.f_code.co_filename, line))


def _is_of_compiler(frame: FrameType) -> bool:
    return INSTALLED.sub("", frame.f_code.co_filename).startswith(STEPS_OF)


def _pass_at_work(frames: Sequence[tuple[FrameType, int]]) -> str:
    """Return the class of the innermost pass; empty if there is none."""
    from torch.fx.passes.infra.pass_base import PassBase

    for frame, _ in reversed(frames):
        owner = frame.f_locals.get("self")
        if isinstance(owner, PassBase):
            return type(owner).__name__
    return ""


def _name_of(frame: FrameType) -> str:
    owner = frame.f_locals.get("self")
    return f"{type(owner).__name__}.{frame.f_code.co_name}" if owner is not None else frame.f_code.co_name


def _below_packages(path: str, line: int) -> str:
    return f"{INSTALLED.sub('', path)}:{line}"


def explain_error(error: BaseException) -> tuple[str, str]:
    """Return the cause, with the compiler's step and the user's line, and a fix if one is known. The full
    text belongs in the log."""
    node = node_at_hand(error)
    place = _place_of(error, node)
    if rule := known_of(error):
        return f"{rule.cause_and_text}{place}", rule.fix
    root, step = _causes(error)[-1], failed_step(error)
    if node is not None:
        why = NODE_AND_SCHEMA.sub("it ", next(iter(str(root).splitlines()), ""))
        operator = getattr(node.target, "__name__", node.target)
        message = f"{step or 'the compiler'} fails at {operator}{place}: {type(root).__name__}: {why}"
        return message, fix_inside(node) or (ONE_WEIGHT if root.args == ("scale",) else NO_FIX)
    is_pass = bool(PASS.match(str(error)))
    if is_pass:
        # The list of the passes before it says nothing, and the error itself does.
        error = root
    text = "\n".join(str(cause).strip() for cause in _causes(error))
    words = next(iter(text.splitlines()), "").strip()
    if explanation := EXPLANATION.search(text):
        words += f": {explanation[1].strip()}"
    message = f"{type(error).__name__}: {words}{place}" if words else f"{type(error).__name__}{place}"
    return (f"{step} fails: {message}", NO_FIX) if is_pass and step else (message, "")


def node_at_hand(error: BaseException) -> Node | None:
    """Return the operator that the compiler was working on; None if the error itself names a line of the
    user's code."""
    if _named_line(error):
        return None
    frames = [*traceback.walk_tb(_causes(error)[-1].__traceback__)][::-1]
    nodes_of_lines = (_node_of_line(*frame) for frame in frames)
    return next(filter(None, nodes_of_lines), None) or _node_of_frames(frames)


def _place_of(error: BaseException, node: Node | None) -> str:
    """Return the user's line, in brackets; empty if it is not known."""
    if line := _named_line(error):
        return f" ({line})"
    if node is not None:
        return f" ({place_in_words(node)})"
    return users_line(traceback.extract_tb(error.__traceback__))


def _named_line(error: BaseException) -> str:
    """Return the last line of the user's code, or of a library of models, that an error names; empty if it
    names none."""
    named = ""
    for file, line in NAMED_FRAME.findall("\n".join(map(str, _causes(error)))):
        if is_users(file) or is_of_library(file):
            named = f"{relative_path(file)}:{line}"
    return named


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error and its chain of causes, the root cause last."""
    errors = [error]
    while errors[-1].__cause__ is not None:
        errors.append(errors[-1].__cause__)
    return errors


def known_of(error: BaseException) -> Explanation | None:
    """Return the rule that matches an error of torch or ExecuTorch, or one of its causes; None if there is
    none."""
    return failure_of_model(
        "".join("".join(traceback.format_exception_only(cause)) for cause in _causes(error))
    )


def _node_of_frames(frames: Iterable[tuple[FrameType, int]]) -> Node | None:
    """Return the operator that a pass of the compiler was working on when it failed, if it has a line of the
    model."""
    from torch.fx import Node

    for frame, _ in frames:
        for node in frame.f_locals.values():
            if isinstance(node, Node) and source_of(node)[0]:
                return node
    return None


def _node_of_line(frame: FrameType, line: int) -> Node | None:
    """Return the operator at a line of the code that torch generates for a graph, if it has a line of the
    model."""
    from torch.fx import GraphModule

    module = frame.f_locals.get("self")
    if not isinstance(module, GraphModule):
        return None
    name = linecache.getline(frame.f_code.co_filename, line).partition(" = ")[0].strip()
    return next((node for node in module.graph.nodes if node.name == name and source_of(node)[0]), None)
