"""A checkpoint of a command line, compiled for Genie or as a program of ExecuTorch."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.engine.installed import ready_environment
from ci.engine.jobs import available_memory
from ci.engine.output import SCRATCH
from ci.lanes.llm import LONG
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.commands import EMULATOR_BYTES, compile_order, record_of, sizes_of
from ci.lanes.llm.estimate import CompileCost, estimated
from ci.lanes.llm.genie import CONFIG, RECORD
from ci.lanes.llm.prompts import hashed_runs, require_tokenizer
from ci.lanes.llm.stage import LanguageModels
from ci.lanes.llm.suite import LlmCase, LlmProgram, LlmRun
from ci.lanes.llm.work import CompileCheckpoint, LlmPlan, require_installed, weights_of
from ci.pipeline.lane import Mine, Results
from ci.pipeline.one_model import LaneModel, Product
from ci.pipeline.options import Compiling, OneModel
from ci.pipeline.steps import require_done, run_step
from ci.pipeline.suite import NO_SUITE
from provisioning.base.command_line import TIMEOUT, Parser
from provisioning.base.commands import quoted
from provisioning.base.errors import UsageError
from provisioning.base.units import size

COMPILED = "llm-compile"


@dataclass(frozen=True)
class Checkpoint(LaneModel[LlmProgram, LlmPlan]):
    lane = LanguageModels()

    shape: Architecture
    order: Mapping[str, Any]
    calibration: Sequence[Sequence[int]] = field(default=())

    @classmethod
    def of(cls, model: OneModel, how: Compiling) -> Checkpoint:
        if how.language is None:
            raise cls.not_taken(model)
        folder = Parser.user_folder() / model.typed
        shape, order = compile_order(model, how.language, folder)
        require_installed()
        require_tokenizer(folder, shape)
        calibration: list[list[int]] = []
        if order["calibrate"]:
            from ci.lanes.llm.measure import windows

            # Before anything starts: a text that is too short is refused.
            calibration = windows(folder, shape, Path(order["calibrate"]), order["context"])
        if (other := record_of(how.output / CONFIG).get("checkpoint", order["model"])) != order["model"]:
            raise UsageError(
                f"{how.output} has what was compiled of {other}",
                fix="name another folder with -o, or remove it",
            )
        if _taken(how.output):
            raise UsageError(f"{how.output} is not empty", fix="name another folder with -o, or remove it")
        return cls(model, how, shape, order, calibration)

    def program(self, soc: str, suite: Path | None = None) -> LlmProgram:
        folder = Path(self.order["model"])
        run = LlmRun.model_construct(precision=self.order["precision"], socs=(soc,))
        case = LlmCase.model_construct(perplexity=math.inf, runs=(run,))
        return LlmProgram(folder / NO_SUITE, folder.name, case, run, soc)

    def plan(self, programs: Sequence[LlmProgram]) -> LlmPlan:
        selection, work = self.model.selection, self.model.work
        lowers = self.order["do"] == "compile program"
        qnn_environment = ready_environment(selection, os.environ) if lowers else None
        work = replace(work, timeout=LONG if work.timeout == TIMEOUT else work.timeout, jobs=1)
        logs = selection.reports.absolute() / "llm"
        return LlmPlan(tuple(programs), selection, work, logs, {}, qnn_environment)

    def do(self, plan: LlmPlan) -> Results:
        order, shape = self.order, self.shape
        layers = f"{shape.num_layers} layers" + (f" in {order['parts']} parts" if order["parts"] > 1 else "")
        cost = None
        if order["do"] == "compile":
            cost = estimated(shape, *(order[name] for name in ("precision", "parts", "context", "shared")))
        expected = f": about {cost}" if cost else ""
        sys.stderr.write(f"{layers} for {order['soc']}, {order['precision']}{expected}\n")
        free = available_memory()
        if cost and free and cost.memory > free:
            sys.stderr.write(
                f"only {size(free)} of memory are free: more --parts need less, and so does a shorter"
                " --context\n"
            )
        results = run_step(CompileCheckpoint(plan, order), plan.programs)
        return {COMPILED: {name: require_done(result) for name, result in results.items()}}

    def product(self, plan: LlmPlan, program: LlmProgram, mine: Mine) -> Product:
        result, order, output = mine[COMPILED], self.order, self.how.output
        assert result.folder is not None
        files: dict[str, Path | str] = {path.name: path for path in sorted(result.folder.iterdir())}
        shown = {name: order[name] for name in ("soc", "precision", "context", "prefill", "parts", "shared")}
        costs = {name: result.facts[name] for name in ("bytes", "cpu_seconds", "peak")}
        beginning = len(self.shape.beginning)
        record = {
            "checkpoint": order["model"],
            "adapter": order["adapter"],
            "through": {"compile": "genie", "compile program": "executorch"}[order["do"]],
            **shown,
            **costs,
            "calibrated by": hashed_runs(row[beginning:] for row in self.calibration),
            "weights": weights_of(Path(order["model"]), self.model.selection.store),
            "files": sorted([*files, RECORD]),
        }
        files[RECORD] = json.dumps(record, indent=2) + "\n"
        # Of an earlier compile, in more parts or for another runtime.
        earlier = record_of(output / CONFIG).get("files", [])
        stale = [path for path in output.iterdir() if path.is_file() and path.name in earlier]
        genie = order["do"] == "compile"
        what = f"{result.facts['binaries']} binaries" if genie else "a program"
        words = [f"{output}: {what}, {CompileCost(*costs.values())}; see its README.md"]
        if genie and not order["shared"] and sizes_of(result.folder / CONFIG)["decode"] <= EMULATOR_BYTES:
            tried = quoted("python", "-m", "ci", "llm", "run", output, "The answer is")
            words.append(f"try it: {tried}")
        return Product(files, words, stale=stale)


def _taken(output: Path) -> bool:
    """Whether it holds something that no compile of ours wrote."""
    names = {path.name for path in output.iterdir()} if output.exists() else set()
    return RECORD not in names and any(not name.startswith(SCRATCH) for name in names)
