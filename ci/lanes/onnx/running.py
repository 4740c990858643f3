"""`run` of ONNX models. Work is done by one worker process."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ci.artifacts.compiled_onnx import CONTEXT_OPERATOR
from ci.artifacts.refusals import record_path
from ci.lanes.onnx.compile import WORKER, home_of, require_installed
from ci.lanes.onnx.context import nodes_beside_context, read_context, soc_of
from ci.lanes.onnx.graph import fix_dimensions, is_context, load_graph, open_inputs, signature_of
from ci.lanes.onnx.options import NO_SETTINGS, Settings, parse_assignments, settings_of
from ci.lanes.onnx.records import OnnxRunRequest, RunReply
from ci.lanes.onnx.user_program import dimensions_of
from ci.models.arrays import Sample, save, saved
from ci.models.inputs import GraphSignature, drawn, read_inputs
from ci.one_model.model import OneModel
from ci.one_model.output import Ran, require_program
from ci.plain import as_json, read
from ci.work import asking
from provisioning.base.command_line import Parser
from provisioning.base.commands import Fix, joined, leave_out, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.progress import at_work
from provisioning.base.rendering.text import plural
from provisioning.manifest import soc_named


def ran(model: OneModel, files: Sequence[str], repeat: int) -> Ran:
    """A compiled .onnx on the emulator, with what is beside its contexts on the CPU; another one there."""
    path = Parser.user_folder() / model.typed
    require_program(path, model.typed)
    require_installed()
    graph, sizes = load_graph(path), dimensions_of(model.dimensions)
    if not is_context(graph):
        fix_dimensions(graph, sizes)
        if not files and (problems := list(open_inputs(graph))):
            message = f"{path}: no {problems[0].subject} can be drawn, as not all of its sizes are known"
            fix = joined(problem.fix for problem in problems)
            raise CheckFailed(message, fix=Fix("{}; or --input FILE.npy", fix))
        inputs, outputs, reply = _asked(model, files, signature_of(graph), repeat)
        makes = session("compile", model.typed, "-o", "out")
        where = f"all of it on this machine's CPU: it is no program, {makes} makes one"
        return Ran(inputs, outputs, reply.milliseconds, where)
    if sizes:
        message = f"--dimension: the sizes of {model.typed} were fixed when it was compiled"
        raise UsageError(message, fix=leave_out("--dimension"))
    context, beside = read_context(path), nodes_beside_context(path)
    soc = next(iter(model.selection.named_socs), "") or soc_of(context)
    settings = settings_of(parse_assignments(model.options), soc=soc_named(soc), embed=not context.beside)
    if context.record is None:
        sys.stderr.write(f"{record_path(path)} is missing, so a changed file cannot be detected\n")
    inputs, outputs, reply = _asked(model, files, context.signature, repeat, soc, settings)
    parts = plural(sum(node.op_type == CONTEXT_OPERATOR for node in graph.graph.node), "part")
    where = f"{parts} on the emulator (HTP, {soc}, QNN {reply.build_id})"
    on_cpu = f"on the CPU: {', '.join(beside)}" if beside else "nothing on the CPU"
    return Ran(inputs, outputs, reply.milliseconds, f"{where}; {on_cpu}")


def _asked(
    model: OneModel,
    files: Sequence[str],
    signature: GraphSignature,
    repeat: int,
    soc: str = "",
    settings: Settings = NO_SETTINGS,
) -> tuple[Sample, Sample, RunReply]:
    """Inputs, outputs, and what it took. Without `soc`, on the CPU."""
    given = read_inputs(files, signature) if files else drawn(signature)
    path, logs = Parser.user_folder() / model.typed, model.selection.reports.absolute() / "onnx"
    with (
        tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as scratch,
        asking(home_of(logs), f"{WORKER}:ran", logs / "run.log", model.work.timeout) as ask,
        at_work(f"running {model.typed}"),
    ):
        inputs, outputs = (Path(scratch, name) for name in ("inputs.npz", "outputs.npz"))
        save(inputs, [given])
        places = (str(path.absolute()), str(inputs), str(outputs), str(Parser.user_folder()))
        request = OnnxRunRequest(*places, repeat, soc, settings, model.as_it_is)
        reply = read(RunReply, ask(**as_json(request)))
        return given, saved(outputs)[0], reply
