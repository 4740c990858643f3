"""`onnx run` and `onnx options`. Work is done by one worker process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.artifacts.compiled_onnx import CONTEXT_OPERATOR
from ci.artifacts.record import record_path
from ci.lanes.onnx.compile import cwd, require_installed, setup_of
from ci.lanes.onnx.context import nodes_beside_context, read_context, soc_of
from ci.lanes.onnx.events import slowest
from ci.lanes.onnx.graph import is_context, load_graph, signature_of
from ci.lanes.onnx.options import described, parse_assignments, settings_of
from ci.lanes.onnx.orders import logs_folder, require_file, say, search_path, step
from ci.pipeline.models.arrays import Sample
from ci.pipeline.models.inputs import drawn, read_inputs
from ci.pipeline.options import OneModel
from ci.pipeline.output import keep_origins, require_own
from ci.pipeline.precision import PRECISIONS
from ci.pipeline.ran import Ran, require_program
from ci.pipeline.steps import asking
from provisioning.base.chips import chip_named
from provisioning.base.commands import session
from provisioning.base.errors import UsageError
from provisioning.base.rendering.text import plural
from provisioning.manifest import soc_named


@dataclass(frozen=True, slots=True)
class RunModel:
    """`onnx run`."""

    model: Path
    inputs: Sequence[str]
    soc: str | None
    options: Sequence[str]
    output: Path | None
    profile_run: Path | None
    as_it_is: bool
    timeout: float


def run_model(options: RunModel) -> int:
    for flag, path in (("--output", options.output), ("--profile-run", options.profile_run)):
        if path and (path.is_dir() or not path.parent.is_dir()):
            problem = "it is a directory" if path.is_dir() else "its directory is not there"
            raise UsageError(f"{flag} {path}: {problem}", fix="name a file in a directory that is there")
    written = [options.output] if options.output else []
    require_own(written, str(options.model))
    outputs = _run(options)
    for name, array in outputs.items():
        shown = ", ".join(f"{value:.5g}" for value in array.ravel()[:4])
        shape = ", ".join(map(str, array.shape))
        print(f"{name}: {array.dtype}[{shape}]  {shown}{', …' if array.size > 4 else ''}")
    if options.output:
        from ci.pipeline.models.arrays import save_one

        part = options.output.with_name(f".{options.output.name}.{os.getpid()}.npz")
        try:
            save_one(part, outputs)
            part.replace(options.output)
            keep_origins(written, str(options.model))
        finally:
            part.unlink(missing_ok=True)
    for cost in slowest(options.profile_run) if options.profile_run else []:
        print(f"  {cost}")
    return 0


def _run(options: RunModel) -> Mapping[str, Any]:
    """The outputs of a compiled model."""
    require_installed()
    require_file(options.model)
    context = read_context(options.model)
    soc = chip_named(options.soc) if options.soc else soc_of(context)
    settings = settings_of(parse_assignments(options.options), soc=soc_named(soc), embed=not context.beside)
    inputs = read_inputs(options.inputs, context.signature)
    if context.record is None:
        say(f"{record_path(options.model)} is missing, so a changed file cannot be detected")
    more = {
        "soc": soc,
        "settings": settings.as_dict(),
        "profile": str(options.profile_run.absolute()) if options.profile_run else "",
        "as_it_is": options.as_it_is,
    }
    return _asked(
        options.model, f"running {options.model} on {soc}", inputs, options.timeout, do="run", **more
    )[0]


def ran(model: OneModel, files: Sequence[str], repeat: int) -> Ran:
    """A compiled .onnx on the emulator, with what is beside its contexts on the CPU; another one there."""
    path, named = search_path() / model.typed, model.selection.named_socs
    require_program(path, model.typed)
    require_installed()
    graph, timeout = load_graph(path), model.work.timeout
    if not is_context(graph):
        signature = signature_of(graph)
        inputs = read_inputs(files, signature) if files else drawn(signature)
        what = f"running {model.typed} on the CPU"
        outputs, facts = _asked(path, what, inputs, timeout, do="run_on_cpu", repeat=repeat)
        makes = session("compile", model.typed, "-o", "out")
        where = f"all of it on this machine's CPU: it is no program, {makes} makes one"
        return Ran(inputs, outputs, facts["milliseconds"], where)
    context = read_context(path)
    soc = named[0] if named else soc_of(context)
    settings = settings_of(parse_assignments(model.options), soc=soc_named(soc), embed=not context.beside)
    inputs = read_inputs(files, context.signature) if files else drawn(context.signature)
    more = {"soc": soc, "settings": settings.as_dict(), "profile": "", "cpu": True, "repeat": repeat}
    outputs, facts = _asked(path, f"running {model.typed} on {soc}", inputs, timeout, do="run", **more)
    beside = nodes_beside_context(path)
    parts = plural(sum(node.op_type == CONTEXT_OPERATOR for node in graph.graph.node), "part")
    where = f"{parts} on the emulator (HTP, {soc}, QNN {facts['build_id']})"
    on_cpu = f"on the CPU: {', '.join(beside)}" if beside else "nothing on the CPU"
    return Ran(inputs, outputs, facts["milliseconds"], f"{where}; {on_cpu}")


def _asked(
    model: Path, what: str, inputs: Sample, timeout: float, **order: Any
) -> tuple[Sample, Mapping[str, Any]]:
    """The outputs that a worker gives for these inputs, and its facts."""
    from ci.pipeline.models.arrays import save, saved

    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        scratch = Path(temporary)
        save(scratch / "inputs.npz", [inputs])
        with (
            logs_folder() as logs,
            asking(setup_of(logs, timeout=timeout), logs / "run.log") as ask,
            step(what),
        ):
            facts = ask(
                cwd=cwd(),
                model=str(model.absolute()),
                inputs=str(scratch / "inputs.npz"),
                outputs=str(scratch / "outputs.npz"),
                **order,
            )
        return saved(scratch / "outputs.npz")[0], facts


def list_options() -> int:
    print(described())
    print("precisions")
    for precision in PRECISIONS.values():
        print(f"  {precision.name}  {precision.summary}")
    return 0
