"""A checkpoint of a command line, compiled for Genie or as a program of ExecuTorch."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np

from ci.jobs import available_memory
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.beginning import load_tokenizer
from ci.lanes.llm.check_verb import HELD_OUT, PREFIXES, TOKENS
from ci.lanes.llm.commands import EMULATOR_BYTES, compile_order, record_of, sizes_of
from ci.lanes.llm.genie import CONFIG, RECORD, ROUNDING
from ci.lanes.llm.prompts import hashed_runs, require_tokenizer, windows
from ci.lanes.llm.stage import LanguageModels
from ci.lanes.llm.suite import LlmCase, LlmProgram, LlmRun
from ci.lanes.llm.work import (
    CompileCheckpoint,
    LlmPlan,
    MeasureRounding,
    digests_of,
    float_of,
    require_installed,
)
from ci.outcome import Result
from ci.suite.cached_steps import require_done, run_cached_step
from ci.suite.installed import ready_environment
from ci.suite.lane import Mine, Results
from ci.suite.lane_model import LaneModel, Product, not_taken
from ci.suite.options import LANGUAGE_TIMEOUT, Compiling, OneModel
from ci.suite.output import SCRATCH
from ci.suite.precision import written_name
from ci.suite.programs import NO_SUITE
from provisioning.base.command_line import TIMEOUT, Parser
from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.rendering.text import plural
from provisioning.base.units import seconds, size

COMPILED = "llm-compile"
ROUNDED = ("model", "adapter", "precision", "parts", "context", "prefill", "calibrate")
"""What rounding depends on of the order to compile."""
KEPT = ("judged", "read", "tie", "parts", "ranges", "cpu_seconds", "peak")
FLOAT, FLOAT_LEAST = 4.5, 1.6e9
"""Bytes of memory for each weight while float reads, and beside them: 6.8 GB for the 1.24 billion of 1B."""
LATER = "what rounding alone costs is left to check"


SORTED, SORTED_SECONDS = 1 << 20, 0.0566
"""So long it took to sort so many numbers where the figures of CompileNeeds were measured."""


@dataclass(frozen=True, slots=True)
class CompileNeeds:
    """What compiling for Genie takes on this machine, from what 1B's true shape took: seconds and bytes for
    each weight, by two layers at 16a8w and a context of 1024, and by all 16 layers at 128."""

    seconds: float
    """Of one core."""
    memory: float
    disk: float

    @classmethod
    def of(cls, shape: Architecture, order: Mapping[str, Any], calibrated: int, pace: float) -> CompileNeeds:
        """With so many tokens to calibrate by, on a machine that takes `pace` times as long."""
        parts = shape.weights(order["parts"])
        weights, largest = sum(parts), max(parts)
        # What rounding alone costs is measured by float.
        per_weight = 2.8e-11 * (calibrated + 2 * (3 * TOKENS + order["context"]))
        # The files are in the store and in the output.
        if order["precision"] == "fp16":
            files, memory = 4 * weights, 16.0 * largest
            per_weight += 1.5e-7
        else:
            # A word of the embedding has 16 bits.
            files, memory = 4 * (weights + shape.weights_of_words), 28 * largest + 8e8
            per_weight += 5e-7 + 2.6e-11 * calibrated
        return cls(per_weight * weights * pace, memory, 2 * files + 10 * largest)

    def lines(self, output: Path) -> Iterator[str]:
        folder = next(path for path in (output.absolute(), *output.absolute().parents) if path.is_dir())
        free = {"memory": available_memory(), "disk": disk_usage(folder).free}
        needed = {"memory": self.memory, "disk": self.disk}
        amounts = [
            f"{size(bytes_)} of {name}" + (f" ({size(free[name] or 0)} free)" if free[name] else "")
            for name, bytes_ in needed.items()
        ]
        yield f"about {seconds(self.seconds)} of one core, {', '.join(amounts)}"
        for name, bytes_ in needed.items():
            if (there := free[name]) is not None and bytes_ > there:
                help_ = "; more --parts take less" if name == "memory" else ""
                yield f"warning: {size(bytes_)} of {name} is more than the {size(there)} that are free{help_}"


def _pace() -> float:
    """How often longer this machine takes than the measured one."""
    numbers, times = np.random.default_rng(1).standard_normal(SORTED), []
    for _ in range(3):
        began = time.thread_time()
        np.exp(np.sort(numbers))
        times.append(time.thread_time() - began)
    return min(times) / SORTED_SECONDS


@dataclass(frozen=True)
class Checkpoint(LaneModel[LlmProgram, LlmPlan]):
    lane = LanguageModels()

    shape: Architecture
    order: Mapping[str, Any]
    calibration: Sequence[Sequence[int]] = field(default=())

    @classmethod
    def of(cls, model: OneModel, how: Compiling) -> Checkpoint:
        if how.language is None:
            raise not_taken(model)
        folder = Parser.user_folder() / model.typed
        shape, order = compile_order(model, how.language, folder)
        require_installed()
        require_tokenizer(folder, shape)
        calibration: list[list[int]] = []
        if order["calibrate"]:
            # Before anything starts: a text that is too short is refused.
            calibration = windows(folder, shape, Path(order["calibrate"]), order["context"])
        if (other := record_of(how.output / CONFIG).get("checkpoint", order["model"])) != order["model"]:
            raise UsageError(
                f"{how.output} has what was compiled of {other}",
                fix="name another folder with -o, or remove it",
            )
        names = {path.name for path in how.output.iterdir()} if how.output.exists() else set()
        if RECORD not in names and any(not name.startswith(SCRATCH) for name in names):
            # No compile of ours wrote what is there.
            raise UsageError(f"{how.output} is not empty", fix="name another folder with -o, or remove it")
        return cls(model, how, shape, order, calibration)

    def program(self, soc: str, suite: Path | None = None) -> LlmProgram:
        folder = Path(self.order["model"])
        words: dict[str, Any] = {"through": self._through, "precision": self._precision}
        run = LlmRun.model_construct(**words, socs=(soc,))
        case = LlmCase.model_construct(perplexity=math.inf, runs=(run,))
        return LlmProgram(folder / NO_SUITE, folder.name, case, run, soc)

    def plan(self, programs: Sequence[LlmProgram]) -> LlmPlan:
        selection, work = self.model.selection, self.model.work
        lowers = self.order["do"] == "compile program"
        qnn_environment = ready_environment(selection, os.environ) if lowers else None
        work = replace(work, timeout=LANGUAGE_TIMEOUT if work.timeout == TIMEOUT else work.timeout, jobs=1)
        logs = selection.reports.absolute() / "llm"
        return LlmPlan(tuple(programs), selection, work, logs, {}, qnn_environment)

    def do(self, plan: LlmPlan) -> Results:
        order, shape = self.order, self.shape
        layers = plural(shape.num_layers, "layer")
        layers += f" in {order['parts']} parts" if order["parts"] > 1 else ""
        sys.stderr.write(f"{layers} for {order['soc']}, {self._precision}\n")
        if order["do"] == "compile":
            tokens = sum(map(len, self.calibration))
            for line in CompileNeeds.of(shape, order, tokens, _pace()).lines(self.how.output):
                sys.stderr.write(f"{line}\n")
        results = run_cached_step(CompileCheckpoint(plan, order), plan.programs)
        compiled = {name: require_done(result) for name, result in results.items()}
        # What shares its weights cannot be checked.
        rounding = {} if order["shared"] else self._rounding(plan, compiled)
        return {COMPILED: compiled, ROUNDING: rounding}

    def _rounding(self, plan: LlmPlan, compiled: Mapping[str, Result]) -> dict[str, Result]:
        """What `check` will hold it to, if it reads our own text. Of a text that a user names it measures
        this itself, and so where this does not work."""
        # It imports what may lack until require_installed() has said so.
        from ci.lanes.llm.check import judged_text

        order, shape, free = self.order, self.shape, available_memory()
        folder = Path(order["model"])
        logits = 8 * shape.vocab_size * (3 * TOKENS + order["context"])
        if free and (needed := FLOAT * sum(shape.weights(1)) + FLOAT_LEAST + logits) > free:
            sys.stderr.write(f"{LATER}: float takes {size(needed)} of memory, and {size(free)} are free\n")
            return {}
        try:
            read = judged_text(
                folder,
                load_tokenizer(folder),
                shape,
                HELD_OUT,
                order,
                tokens=TOKENS,
                prefixes=PREFIXES,
                whole=all(result.facts["bytes"] <= EMULATOR_BYTES for result in compiled.values()),
                calibrated_by=self._runs,
            )
        except UsageError as error:
            sys.stderr.write(f"{LATER}: {error.message}\n")
            return {}
        genie = self._through == "genie"
        request = {
            **{name: order[name] for name in ROUNDED},
            "rows": read.rows,
            "few": read.few,
            "do": "rounding",
            "through": self._through,
            "texts": read.texts if genie else [],
        }
        sys.stderr.write("then what rounding alone costs, by float\n")
        results = run_cached_step(MeasureRounding(plan, request), plan.programs)
        for failure in (result.failure for result in results.values() if result.failure):
            sys.stderr.write(f"{LATER}: {failure.message}\n")
        return {
            name: replace(result, facts={**result.facts, "judged": read.digest(genie=genie)})
            for name, result in results.items()
            if not result.failure
        }

    @property
    def _through(self) -> str:
        return {"compile": "genie", "compile program": "executorch"}[self.order["do"]]

    @property
    def _precision(self) -> str:
        """As suites name it, and the user typed it."""
        return str(written_name(self.order["precision"]))

    @property
    def _runs(self) -> list[str]:
        """Hashes of the text that it is quantized by."""
        beginning = len(self.shape.beginning)
        return hashed_runs(row[beginning:] for row in self.calibration)

    def product(self, plan: LlmPlan, program: LlmProgram, mine: Mine) -> Product:
        result, order, output = mine[COMPILED], self.order, self.how.output
        assert result.folder is not None
        store = self.model.selection.store
        files = {path.name: path for path in sorted(result.folder.iterdir())}
        shown = {name: order[name] for name in ("soc", "precision", "context", "prefill", "parts", "shared")}
        costs = {name: result.facts[name] for name in ("bytes", "cpu_seconds", "peak")}
        rounding = {}
        if ROUNDING in mine:
            rounding[ROUNDING] = {name: mine[ROUNDING].facts[name] for name in KEPT}
        record = {
            "checkpoint": order["model"],
            "adapter": order["adapter"],
            "through": self._through,
            **shown,
            **costs,
            "calibrated by": self._runs,
            "float": float_of(Path(order["model"]), order["adapter"], store),
            **rounding,
            "files": digests_of(store, files) | {RECORD: ""},
        }
        # Of an earlier compile, in more parts or for another runtime.
        earlier = record_of(output / CONFIG).get("files", {})
        known = output.absolute().iterdir()
        stale = [path for path in known if path.is_file() and path.name in earlier]
        genie = order["do"] == "compile"
        what = f"{result.facts['binaries']} binaries" if genie else "a program"
        bytes_, spent, peak = costs.values()
        words = [
            f"{output}: {what}, {size(bytes_)}, {seconds(spent)} of a core and {size(peak)} of memory;"
            " see its README.md"
        ]
        if genie and not order["shared"] and sizes_of(result.folder / CONFIG)["decode"] <= EMULATOR_BYTES:
            words.append(f"try it: {session('run', output, 'The answer is')}")
        written: dict[str, Path | str] = {**files, RECORD: json.dumps(record, indent=2) + "\n"}
        return Product(written, words, stale=stale)
