"""The metric of a task, computed anew each time: the user's function may read what no key knows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ci.engine.memo import Memo
from ci.engine.progress import Line, failed
from ci.engine.work import Result
from ci.pipeline.accuracy import in_words
from ci.pipeline.models.metric import METRIC
from ci.pipeline.steps import Ask, Step
from ci.pipeline.suite import AnyProgram
from provisioning.base.findings import Metric

P = TypeVar("P", bound=AnyProgram[Any, Any])


@dataclass(frozen=True)
class TaskScore(Step[P]):
    kind = METRIC
    title = "metrics of tasks"
    is_cached = False

    outputs: Mapping[str, Path]
    """The folder of what each program gave, which may be a cached one."""

    @abstractmethod
    def request(self, program: P) -> Mapping[str, Any]:
        """What its worker gets beside the function and the folder; the reply has the figures."""

    def key(self, program: P, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        return {}

    def folder(self, program: P) -> Path:
        return self.plan.logs / METRIC / program.name

    def log(self, program: P) -> Path:
        return self.plan.logs / METRIC / f"{program.name}.log"

    def line(self, program: P, result: Result) -> Line:
        if result.failure:
            return failed(f"{result.failure.kind}: {result.failure.message}")
        return Line("measured", in_words(result.facts["figures"]))

    def work(self, program: P, ask: Ask) -> Mapping[str, Any]:
        function = program.search_path / program.case.metric.function
        common = {"function": str(function), "outputs": str(self.outputs[program.name])}
        return ask(do=METRIC, working_folder=str(program.working_folder), **common, **self.request(program))
