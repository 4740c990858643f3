"""A checkpoint of a command line, compiled for Genie or as a program of ExecuTorch."""

from __future__ import annotations

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

from ci.cached_steps import require_done
from ci.jobs import available_memory
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.check_verb import HELD_OUT, PREFIXES, TOKENS
from ci.lanes.llm.commands import EMULATOR_BYTES, compile_order, sizes_of
from ci.lanes.llm.genie import CONFIG
from ci.lanes.llm.orders import (
    EXECUTORCH,
    GENIE,
    RECORD,
    CompileOrder,
    JudgedText,
    Record,
    Rounded,
    Written,
    record_in,
)
from ci.lanes.llm.prompts import hashed_runs, judged_text, require_tokenizer, windows
from ci.lanes.llm.suite import SUITES, LlmCase, LlmProgram, LlmRun
from ci.lanes.llm.work import (
    CompileCheckpoint,
    LlmPlan,
    MeasureRounding,
    digests_of,
    float_of,
    require_installed,
)
from ci.outcome import Result
from ci.plain import read
from ci.suite.installed import ready_environment
from ci.suite.lane_model import LaneModel, Product, not_taken
from ci.suite.one_model import LANGUAGE_TIMEOUT, Compiling, OneModel
from ci.suite.output import SCRATCH
from ci.suite.program_steps import run_cached_step
from ci.suite.programs import NO_SUITE
from ci.suite.stage import Results
from provisioning.base.command_line import TIMEOUT, Parser
from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.rendering.text import plural
from provisioning.base.units import seconds, size

COMPILED, ROUNDING = "llm-compile", "llm-rounding"
FLOAT, FLOAT_LEAST = 4.5, 1.6e9
"""Bytes of memory for each weight while float reads, and beside them: 6.8 GB for the 1.24 billion of 1B."""
LATER = "what rounding alone costs is left to check"


PART_SECONDS = 5.0
"""What exporting and compiling a part takes, however small it is."""
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
    def of(cls, shape: Architecture, order: CompileOrder, calibrated: int, pace: float) -> CompileNeeds:
        """With so many tokens to calibrate by, on a machine that takes `pace` times as long."""
        parts = shape.weights(order.parts)
        weights, largest = sum(parts), max(parts)
        # What rounding alone costs is measured by float.
        per_weight = 2.8e-11 * (calibrated + 2 * (3 * TOKENS + order.context))
        # The files are in the store and in the output.
        if not order.quantized:
            files, memory = 4 * weights, 16.0 * largest
            per_weight += 1.5e-7
        else:
            # A word of the embedding has 16 bits.
            files, memory = 4 * (weights + shape.weights_of_words), 28 * largest + 8e8
            per_weight += 5e-7 + 2.6e-11 * calibrated
        seconds_ = (PART_SECONDS * order.parts + per_weight * weights) * pace
        return cls(seconds_, memory, 2 * files + 10 * largest)

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
class Checkpoint(LaneModel):
    suites = SUITES

    shape: Architecture
    order: CompileOrder
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
        if order.calibrate:
            # Before anything starts: a text that is too short is refused.
            calibration = windows(folder, shape, Path(order.calibrate), order.context)
        if (earlier := record_in(how.output)) and earlier.order.model != order.model:
            raise UsageError(
                f"{how.output} has what was compiled of {earlier.order.model}",
                fix="name another folder with -o, or remove it",
            )
        names = {path.name for path in how.output.iterdir()} if how.output.exists() else set()
        if RECORD not in names and any(not name.startswith(SCRATCH) for name in names):
            # No compile of ours wrote what is there.
            raise UsageError(f"{how.output} is not empty", fix="name another folder with -o, or remove it")
        return cls(model, how, shape, order, calibration)

    def program(self, soc: str, suite: Path | None = None) -> LlmProgram:
        folder = Path(self.order.model)
        words: dict[str, Any] = {"through": self.order.through, "precision": self.order.precision}
        run = LlmRun.model_construct(**words, socs=(soc,))
        case = LlmCase.model_construct(perplexity=math.inf, runs=(run,))
        return LlmProgram(folder / NO_SUITE, folder.name, case, run, soc)

    def plan(self, programs: Sequence[LlmProgram]) -> LlmPlan:
        selection, work = self.model.selection, self.model.work
        lowers = self.order.through == EXECUTORCH
        qnn_environment = ready_environment(selection, os.environ) if lowers else None
        work = replace(work, timeout=LANGUAGE_TIMEOUT if work.timeout == TIMEOUT else work.timeout, jobs=1)
        logs = selection.reports.absolute() / "llm"
        return LlmPlan(tuple(programs), selection, work, logs, {}, qnn_environment)

    def do(self, plan: LlmPlan) -> Results:
        order, shape = self.order, self.shape
        layers = plural(shape.num_layers, "layer")
        layers += f" in {order.parts} parts" if order.parts > 1 else ""
        sys.stderr.write(f"{layers} for {order.soc}, {order.precision}\n")
        if order.through == GENIE:
            tokens = sum(map(len, self.calibration))
            for line in CompileNeeds.of(shape, order, tokens, _pace()).lines(self.how.output):
                sys.stderr.write(f"{line}\n")
        results = run_cached_step(CompileCheckpoint(plan, order), plan.programs)
        compiled = {name: require_done(result) for name, result in results.items()}
        # What shares its weights cannot be checked.
        text = None if order.shared else self._judged_text(compiled)
        return {COMPILED: compiled, ROUNDING: self._rounding(plan, text) if text else {}}

    def _judged_text(self, compiled: Mapping[str, Result]) -> JudgedText | None:
        """Ours, by which `check` judges unless its user names another one; None where that cannot be."""
        order, free = self.order, available_memory()
        logits = 8 * self.shape.vocab_size * (3 * TOKENS + order.context)
        if free and (needed := FLOAT * sum(self.shape.weights(1)) + FLOAT_LEAST + logits) > free:
            sys.stderr.write(f"{LATER}: float takes {size(needed)} of memory, and {size(free)} are free\n")
            return None
        whole = all(result.facts["size"] <= EMULATOR_BYTES for result in compiled.values())
        try:
            return judged_text(
                order, self.shape, HELD_OUT, TOKENS, PREFIXES, whole=whole, calibrated_by=self._runs
            )
        except UsageError as error:
            sys.stderr.write(f"{LATER}: {error.message}\n")
            return None

    def _rounding(self, plan: LlmPlan, text: JudgedText) -> dict[str, Result]:
        """What `check` will hold it to. Where this does not work, it measures that itself."""
        sys.stderr.write("then what rounding alone costs, by float\n")
        results = run_cached_step(MeasureRounding(plan, self.order, text), plan.programs)
        for failure in (result.failure for result in results.values() if result.failure):
            sys.stderr.write(f"{LATER}: {failure.message}\n")
        return {
            name: replace(result, facts={**result.facts, "judged": text.digest})
            for name, result in results.items()
            if not result.failure
        }

    @property
    def _runs(self) -> list[str]:
        """Hashes of the text that it is quantized by."""
        beginning = len(self.shape.beginning)
        return hashed_runs(row[beginning:] for row in self.calibration)

    def product(self, plan: LlmPlan, program: LlmProgram, mine: Mapping[str, Result]) -> Product:
        result, order, output = mine[COMPILED], self.order, self.how.output
        assert result.folder is not None
        store, written = self.model.selection.store, read(Written, result.facts)
        files = {path.name: path for path in sorted(result.folder.iterdir())}
        rounding = mine[ROUNDING].facts if ROUNDING in mine else None
        record = Record(
            order=order,
            size=written.size,
            cpu_seconds=result.facts["cpu_seconds"],
            peak=result.facts["peak"],
            calibrated_by=self._runs,
            source=float_of(Path(order.model), order.adapter, store),
            files={**digests_of(store, files), RECORD: ""},
            rounded=read(Rounded, rounding) if rounding else None,
            judged=rounding["judged"] if rounding else "",
        )
        # Of an earlier compile, in more parts or for another runtime.
        earlier = record_in(output)
        there = output.absolute().iterdir() if earlier else ()
        stale = [path for path in there if earlier and path.is_file() and path.name in earlier.files]
        genie = order.through == GENIE
        what = f"{written.binaries} binaries" if genie else "a program"
        costs = f"{seconds(record.cpu_seconds)} of a core and {size(record.peak)} of memory"
        words = [f"{output}: {what}, {size(written.size)}, {costs}; see its README.md"]
        if genie and not order.shared and sizes_of(result.folder / CONFIG)["decode"] <= EMULATOR_BYTES:
            words.append(f"try it: {session('run', output, 'The answer is')}")
        return Product({**files, RECORD: record.as_text()}, words, stale=stale)
