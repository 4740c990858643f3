"""All lanes. Each is imported when its work is asked for: a list of commands must not wait for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ci.lanes import executorch, llm, onnx, upstream
from ci.suite.lane_head import LaneHead, LaneStage
from provisioning.base.errors import UsageError

if TYPE_CHECKING:
    from ci.explain.lane import AnyModelLane
    from ci.one_model.options import ModelOptions
    from ci.suite.lane import AnyLane
    from ci.suite.programs import AnySuites


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registered:
    """Names a lane, and says how it is imported."""

    head: LaneHead
    load: Callable[[], AnyLane] | None = None
    """Imports the lane; None if its work belongs to no suite."""
    load_suites: Callable[[], AnySuites] | None = None
    """Imports the lane's suites, without the packages that its work needs."""
    load_model_lane: Callable[[], AnyModelLane] | None = None
    """Imports the lane for single models; None if it takes none."""
    load_options: Callable[[], type[ModelOptions]] | None = None
    """Imports the options that its models' commands have."""

    @property
    def lane(self) -> AnyLane:
        return self._having(self.load, "suites")()

    @property
    def suites(self) -> AnySuites:
        return self._having(self.load_suites, "suites")()

    @property
    def model_lane(self) -> AnyModelLane:
        return self._having(self.load_model_lane, "commands for single models")()

    @property
    def options(self) -> type[ModelOptions]:
        return self._having(self.load_options, "commands for single models")()

    def _having(self, part: Callable[[], T] | None, what: str) -> Callable[[], T]:
        """Return what imports a part of the lane. If the lane lacks it, the error names lanes that do not."""
        if part is None:
            having = ", ".join(row.head.name for row in lanes_with_suites())
            raise UsageError(f"lane {self.head.name} has no {what}", fix=f"take one of the lanes {having}")
        return part


def _executorch() -> AnyModelLane:
    from ci.lanes.executorch.lane import LANE

    return LANE


def _executorch_options() -> type[ModelOptions]:
    from ci.lanes.executorch.model_options import OPTIONS

    return OPTIONS


def _executorch_suites() -> AnySuites:
    from ci.lanes.executorch.suite import SUITES

    return SUITES


def _onnx() -> AnyModelLane:
    from ci.lanes.onnx.lane import LANE

    return LANE


def _onnx_options() -> type[ModelOptions]:
    from ci.lanes.onnx.model_options import OPTIONS

    return OPTIONS


def _onnx_suites() -> AnySuites:
    from ci.lanes.onnx.suite import SUITES

    return SUITES


def _llm() -> AnyModelLane:
    from ci.lanes.llm.lane import LANE

    return LANE


def _llm_options() -> type[ModelOptions]:
    from ci.lanes.llm.model_options import OPTIONS

    return OPTIONS


def _llm_suites() -> AnySuites:
    from ci.lanes.llm.suite import SUITES

    return SUITES


LANES: list[Registered] = [
    Registered(executorch.HEAD, _executorch, _executorch_suites, _executorch, _executorch_options),
    Registered(onnx.HEAD, _onnx, _onnx_suites, _onnx, _onnx_options),
    Registered(llm.HEAD, _llm, _llm_suites, _llm, _llm_options),
    Registered(upstream.HEAD),
]
"""A suite's mistakes are reported in this order."""


def lane_named(name: str) -> Registered:
    return next(row for row in LANES if row.head.name == name)


def lanes_with_suites() -> list[Registered]:
    """The lanes whose programs come from suites: the gate, the page and comparisons show these."""
    return [row for row in LANES if row.load_suites]


def stages() -> Iterator[tuple[LaneHead, LaneStage]]:
    """Return every stage of every lane, with its lane."""
    for row in LANES:
        for stage in row.head.stages:
            yield row.head, stage


def lanes_by_gate_stage() -> dict[str, LaneHead]:
    """Map the name of each stage that a gate starts to its lane."""
    return {name: row.head for row in lanes_with_suites() for name in row.head.gate_stages}


def lanes_by_stage() -> dict[str, LaneHead]:
    """Map the name of each stage to the lane whose programs are in the stage's report."""
    return {stage.name: row.head for row in lanes_with_suites() for stage in row.head.stages}
