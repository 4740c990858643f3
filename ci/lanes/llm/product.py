"""A checkpoint of a command line, compiled for Genie or as a program of ExecuTorch."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import disk_usage

import numpy as np

from ci.cached_steps import require_done
from ci.jobs import available_memory
from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.commands import EMULATOR_BYTES, calibrate_of, compile_order, sizes_of
from ci.lanes.llm.genie import CONFIG
from ci.lanes.llm.orders import (
    GENIE,
    RECORD,
    CompileOrder,
    Record,
    Written,
    record_in,
)
from ci.lanes.llm.prompts import require_tokenizer, windows
from ci.lanes.llm.suite import LlmProgram
from ci.lanes.llm.work import (
    LlmPlan,
    compiling,
    digests_of,
    program_of,
    require_installed,
    source_of,
)
from ci.one_model.model import LANGUAGE_TIMEOUT, OneModel, not_taken
from ci.one_model.output import SCRATCH
from ci.one_model.product import Product, require_fp16
from ci.outcome import Result
from ci.plain import read
from ci.suite.stage import run_cached_step
from provisioning.base.command_line import TIMEOUT, Parser
from provisioning.base.commands import session
from provisioning.base.errors import ToolkitError, UsageError
from provisioning.base.rendering import plural
from provisioning.base.units import seconds, size

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
    def of(cls, shape: Architecture, order: CompileOrder, pace: float) -> CompileNeeds:
        """On a machine that takes `pace` times as long."""
        parts = shape.weights(order.parts)
        weights, largest = sum(parts), max(parts)
        # The files are in the store and in the output.
        if not order.quantized:
            files, memory, per_weight = 4 * weights, 16.0 * largest, 1.5e-7
        else:
            # A word of the embedding has 16 bits.
            files, memory = 4 * (weights + shape.weights_of_words), 28 * largest + 8e8
            per_weight = 5e-7 + 2.6e-11 * sum(map(len, order.calibration))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(LlmProgram):
    """A checkpoint of a command line as a program."""

    shape: Architecture
    compiled: CompileOrder


def programs_of(model: OneModel, suite: Path | None = None) -> list[Checkpoint]:
    if model.language is None:
        raise not_taken(model)
    folder, output = Parser.user_folder() / model.typed, model.output
    shape, order = compile_order(model, model.language, folder)
    require_installed()
    require_tokenizer(folder, shape)
    if order.quantized and (text := calibrate_of(model)):
        # Before anything starts: a text that is too short is refused.
        order = replace(order, calibration=windows(folder, shape, text, order.context))
    if (earlier := record_in(output)) and earlier.order.model != order.model:
        raise UsageError(
            f"{output} has what was compiled of {earlier.order.model}",
            fix="name another folder with -o, or remove it",
        )
    names = {path.name for path in output.iterdir()} if output.exists() else set()
    if RECORD not in names and any(not name.startswith(SCRATCH) for name in names):
        # No compile of ours wrote what is there.
        raise UsageError(f"{output} is not empty", fix="name another folder with -o, or remove it")
    program = program_of(order)
    require_fp16([program])
    return [
        Checkpoint(
            program.suite,
            program.case_name,
            program.case,
            program.run,
            program.soc,
            shape=shape,
            compiled=order,
        )
    ]


def products_of(model: OneModel, programs: Sequence[Checkpoint]) -> list[Product | ToolkitError]:
    work = model.work
    work = replace(work, timeout=LANGUAGE_TIMEOUT if work.timeout == TIMEOUT else work.timeout, jobs=1)
    plan = LlmPlan.of(programs, model.selection, work)
    (program,) = programs
    order, shape = program.compiled, program.shape
    layers = plural(shape.num_layers, "layer")
    layers += f" in {order.parts} parts" if order.parts > 1 else ""
    sys.stderr.write(f"{layers} for {order.soc}, {order.precision}\n")
    if order.through == GENIE:
        for line in CompileNeeds.of(shape, order, _pace()).lines(model.output):
            sys.stderr.write(f"{line}\n")
    results = run_cached_step(compiling(plan, order), plan.programs)
    return [_product(model, program, require_done(results[program.name]))]


def _product(model: OneModel, program: Checkpoint, result: Result) -> Product:
    order, output = program.compiled, model.output
    assert result.folder is not None
    store, written = model.selection.store, read(Written, result.facts)
    files = {path.name: path for path in sorted(result.folder.iterdir())}
    record = Record(
        order=order,
        size=written.size,
        cpu_seconds=result.facts["cpu_seconds"],
        peak=result.facts["peak"],
        source=source_of(order, store),
        files={**digests_of(store, files), RECORD: ""},
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
