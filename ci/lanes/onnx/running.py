"""`run` of ONNX models. Work is done by one worker process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.artifacts.compiled_onnx import CONTEXT_OPERATOR
from ci.artifacts.record import record_path
from ci.lanes.onnx.compile import WORKER, cwd, home_of, require_installed
from ci.lanes.onnx.context import nodes_beside_context, read_context, soc_of
from ci.lanes.onnx.graph import fix_dimensions, is_context, load_graph, open_inputs, signature_of
from ci.lanes.onnx.options import parse_assignments, settings_of
from ci.lanes.onnx.orders import dimensions_of, logs_folder, say, search_path, step
from ci.models.arrays import Sample, save, saved
from ci.models.inputs import drawn, read_inputs
from ci.suite.one_model import OneModel
from ci.suite.ran import Ran, require_program
from ci.work import asking
from provisioning.base.commands import Fix, joined, leave_out, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.rendering.text import plural
from provisioning.manifest import soc_named


def ran(model: OneModel, files: Sequence[str], repeat: int) -> Ran:
    """A compiled .onnx on the emulator, with what is beside its contexts on the CPU; another one there."""
    path, named = search_path() / model.typed, model.selection.named_socs
    require_program(path, model.typed)
    require_installed()
    graph, timeout, sizes = load_graph(path), model.work.timeout, dimensions_of(model.dimensions)
    if not is_context(graph):
        fix_dimensions(graph, sizes)
        if not files and (problems := list(open_inputs(graph))):
            message = f"{path}: no {problems[0].subject} can be drawn, as not all of its sizes are known"
            fix = joined(problem.fix for problem in problems)
            raise CheckFailed(message, fix=Fix("{}; or --input FILE.npy", fix))
        signature = signature_of(graph)
        inputs = read_inputs(files, signature) if files else drawn(signature)
        with step(f"running {model.typed} on the CPU"):
            outputs, facts = asked(path, inputs, timeout, do="run_on_cpu", repeat=repeat)
        makes = session("compile", model.typed, "-o", "out")
        where = f"all of it on this machine's CPU: it is no program, {makes} makes one"
        return Ran(inputs, outputs, facts["milliseconds"], where)
    if sizes:
        message = f"--dimension: the sizes of {model.typed} were fixed when it was compiled"
        raise UsageError(message, fix=leave_out("--dimension"))
    context = read_context(path)
    soc = named[0] if named else soc_of(context)
    settings = settings_of(parse_assignments(model.options), soc=soc_named(soc), embed=not context.beside)
    inputs = read_inputs(files, context.signature) if files else drawn(context.signature)
    if context.record is None:
        say(f"{record_path(path)} is missing, so a changed file cannot be detected")
    more = {"soc": soc, "settings": settings.as_dict(), "cpu": True, "repeat": repeat}
    more["as_it_is"] = model.as_it_is
    with step(f"running {model.typed} on {soc}"):
        outputs, facts = asked(path, inputs, timeout, do="run", **more)
    beside = nodes_beside_context(path)
    parts = plural(sum(node.op_type == CONTEXT_OPERATOR for node in graph.graph.node), "part")
    where = f"{parts} on the emulator (HTP, {soc}, QNN {facts['build_id']})"
    on_cpu = f"on the CPU: {', '.join(beside)}" if beside else "nothing on the CPU"
    return Ran(inputs, outputs, facts["milliseconds"], f"{where}; {on_cpu}")


def asked(model: Path, inputs: Sample, timeout: float, **order: Any) -> tuple[Sample, Mapping[str, Any]]:
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch,
        logs_folder() as logs,
        asking(home_of(logs), f"{WORKER}:answer", logs / "run.log", timeout) as ask,
    ):
        given, outputs = (Path(scratch, name) for name in ("inputs.npz", "outputs.npz"))
        save(given, [inputs])
        files = {"model": str(model.absolute()), "inputs": str(given), "outputs": str(outputs)}
        facts = ask(cwd=cwd(), **files, **order)
        return saved(outputs)[0], facts
