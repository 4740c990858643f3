"""MODEL of a command line as a program like those of a suite: prepared by one worker, and remembered."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ci.engine.inputs import roots_of
from ci.engine.memo import Entry, Memo
from ci.lanes.onnx.compile import Refused, environment, key, require_installed
from ci.lanes.onnx.options import parse_assignments, settings_of
from ci.lanes.onnx.orders import Steps, dimensions_of, logs_folder, precision_of, say, search_path, step
from ci.lanes.onnx.samples import MOST
from ci.lanes.onnx.suite import Case, Program, Run
from ci.pipeline.models.user_model import user_model
from ci.pipeline.options import OneModel, Work
from ci.pipeline.precision import precision_named
from ci.pipeline.suite import NO_SUITE
from provisioning.manifest import soc_named

SAMPLES, CONTEXT = "samples.npz", "model_ctx.onnx"
Order = Callable[..., dict[str, Any]]


def program_of(model: OneModel, *, with_options: bool = True) -> Program:
    """The program for the first chip, with or without the command line's --option."""
    options, selection = parse_assignments(model.options) if with_options else {}, model.selection
    for chip in selection.socs:
        # Before the suite's own check, whose message would name a field.
        settings_of(options, soc=soc_named(chip), embed=True)
    named = user_model(model.typed, search_path())
    assert named.file is not None
    dimensions = dimensions_of(model.dimensions)
    require_installed()
    run = Run(
        precision=precision_of(named.file, model.precision),
        socs=(selection.soc,),
        per_channel=model.per_channel,
        calibration=MOST,
        options=dict(options),
    )
    case = Case(model=str(named.file), dimensions=dimensions, calibrate=model.calibrate or "", run=(run,))
    return Program(search_path() / NO_SUITE, named.name, case, run, selection.soc)


def prepared(
    program: Program, steps_of: Steps, log: Path, scratch: Path, *, name: str = "", **more: Any
) -> tuple[Order, dict[str, Any]]:
    """Have the model checked and quantized. Returns what takes further orders about it, and the facts.

    `more` is for the first step; with `name`, the quantized model is a file of the user's."""
    precision = program.run.precision
    common = {
        **program.order,
        "prepared": str(scratch / "prepared"),
        "quantized": str(scratch / "quantized"),
    }

    def order(what: str, folder: Path, **more: Any) -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        return steps_of(what, log, into=str(folder), **common, **more)

    with step(f"checking {Path(program.case.model).name}"):
        facts = order("prepare", scratch / "prepared", **more)
    for constant in facts["constant"]:
        say(f"warning: {constant} has one value throughout the samples, which gives no range for it")
    common["source"] = common["model"] = facts["model"]
    quantizing = step(f"quantizing to {precision} by {facts['samples'] or 'drawn'} samples")
    with quantizing if precision_named(precision).quantized else nullcontext():
        facts |= order("quantize", scratch / "quantized", name=name)
    common["model"] = facts["model"]
    return order, facts


@contextmanager
def memory(file: Path, store: Path, kind: str, *, reuse: bool) -> Iterator[Memo]:
    memo = Memo(store, kind, roots_of(file, store), environ=environment(), reuse=reuse)
    try:
        yield memo
    finally:
        memo.close()


def remembered(
    how: Work,
    memo: Memo,
    subject: str,
    key: Mapping[str, Any],
    work: Callable[[Steps, Path, Path], dict[str, Any]],
    own: Path,
) -> tuple[Mapping[str, Any], Path]:
    """The facts and the folder of a result, remembered or of `work` done now."""
    answer = memo.find(subject, key)
    if isinstance(answer, Entry):
        assert answer.folder is not None
        say(f"{subject} is cached")
        return answer.result, answer.folder
    if how.why:
        say(f"{subject}: {answer.why}")
    folder = memo.scratch()
    with logs_folder() as logs, Steps(logs, how.timeout, forks=True) as step_of:
        try:
            facts = work(step_of, logs / "compile.log", folder)
        except Refused:
            memo.forget(key)
            raise
        done = memo.remember(subject, key, facts, step_of.touched, folder, step_of.common, (own, logs))
    if done.not_remembered:
        say(f"{subject} is not remembered: {done.not_remembered}")
    assert done.folder is not None
    return done.result, done.folder


def mixed(model: OneModel, program: Program) -> tuple[Mapping[str, Any], Path]:
    """Compile for HTP what it takes: facts, and the folder of the contexts with the other nodes beside."""
    file, store = Path(program.case.model), model.selection.store
    subject = f"{model.typed} in {program.run.precision} for {program.soc}"
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary,
        memory(file, store, "onnx-mixed", reuse=model.work.cache) as memo,
    ):
        scratch = Path(temporary)

        def work(steps_of: Steps, log: Path, folder: Path) -> dict[str, Any]:
            order, _ = prepared(program, steps_of, log, scratch, drawn=True)
            with step(f"compiling {subject}"):
                facts = order("mixed", folder)
            shutil.copyfile(scratch / "prepared" / SAMPLES, folder / SAMPLES)
            return facts

        return remembered(model.work, memo, subject, key(program, memo.roots, environment()), work, scratch)
