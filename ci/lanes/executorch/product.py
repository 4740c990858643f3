"""One PyTorch model of a command line becomes a program like those of a suite: compiled, quantized and
run."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from ci.artifacts.against_sdk import against
from ci.artifacts.program import CompiledProgram, ContextStrings, Method, TensorInfo, read, refuse_torch_file
from ci.lanes.executorch import PROGRAM, QUANTIZED
from ci.lanes.executorch.findings import (
    artifact,
    causes_of,
    costs_of,
    delegation,
    failure_in_words,
    findings_of,
    missing_kernels,
    suspected_of,
    suspected_on_cpu,
)
from ci.lanes.executorch.model_options import ExecutorchOptions
from ci.lanes.executorch.orders import (
    ChipProgram,
    EmulatorRun,
    ModelFacts,
    Quantized,
    compiled_in,
    ran,
    ran_in,
)
from ci.lanes.executorch.steps import (
    COMPILED,
    LIBRARY_MISSING,
    RAN,
    WORKER,
    ExecutorchPlan,
    home_of,
    plan_of,
    quantizing,
    run_step,
)
from ci.lanes.executorch.suite import AS_IT_IS, SUITES, ExecutorchCase, ExecutorchProgram, ExecutorchRun
from ci.models.inputs import Array, GraphSignature, Sample, Tensor, draw_sample, read_inputs
from ci.models.user_model import UserModel
from ci.one_model.into_suite import factory_in
from ci.one_model.model import OneModel
from ci.one_model.named_files import require_program
from ci.one_model.output import Ran
from ci.one_model.packages import needs_of_model
from ci.one_model.product import NoGraph, Outcome, Product, require_fp16
from ci.operators import CpuOperator
from ci.suite.accuracy import Inferences, against_in_words, describe_figures
from ci.suite.findings import BEYOND_FIX, Evidence, not_passed, verdict_of_one_model
from ci.suite.precision import refuse_floats, scheme_named
from ci.suite.programs import NO_SUITE
from ci.suite.runner import call_runner, ready_runner
from ci.suite.stage import ready_environment, use_executorch
from ci.suite.suite_file import precision_file_of
from ci.work import Refused, Result, asking, closed_environment, to_json
from provisioning.base import answer
from provisioning.base.command_line import Parser
from provisioning.base.commands import Fix, leave_out, session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError, UsageError
from provisioning.base.files import hash_file, replacing
from provisioning.base.findings import Finding, Severity
from provisioning.base.option_fields import suite_values
from provisioning.base.progress import show_working
from provisioning.base.rendering import plural
from provisioning.base.settings import Selection
from provisioning.base.stage_run import Places
from provisioning.components import QNN_SDK
from provisioning.environment import resolve
from provisioning.known_faults import NO_FIX, Suggestion, SuspectedFault
from provisioning.manifest import load_socs

NOT_RUN = ("--verify", "none")


def programs_of(model: OneModel, suite: Path | None = None) -> list[ExecutorchProgram]:
    programs = [program_of(model, soc, suite) for soc in model.selection.socs]
    require_fp16(programs)
    return programs


def plan_to_compile(model: OneModel, programs: Sequence[ExecutorchProgram]) -> ExecutorchPlan:
    """Return a plan; it has a runner if something is to run."""
    plan = plan_of_model(model, "compile", programs)
    if not model.options.is_verified or all(program.backend != "htp" for program in plan.programs):
        return plan
    try:
        # Before the compile, which may take minutes.
        runner = ready_runner(os.environ, plan.selection.reports, plan.executorch)
    except EnvironmentLacking as error:
        fix = Fix("{}; or add {}, to write the program without running it", error.fix, NOT_RUN)
        raise EnvironmentLacking(error.message, fix=fix) from error
    return replace(plan, runner=runner)


def product_of(
    model: OneModel, plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Product:
    compiled, run = _compiled_program(program, plan, results), results.get(RAN)
    assert compiled.folder is not None
    if run and not ran(run):
        (finding,) = findings_of(program, run, compiled_in(compiled))
        suspected, fix = suspected_on_cpu(compiled_in(compiled).left)
        message = "; ".join(filter(None, (finding.message, suspected)))
        raise CheckFailed(message, fix=BEYOND_FIX if compiled_in(compiled).beyond else fix)
    path, facts, stem = compiled.folder / PROGRAM, compiled_in(compiled), stem_of(model, program)
    emulation = ran_in(run) if run else EmulatorRun()
    figures, costs = dict(emulation.figures), costs_of(compiled)
    record: dict[str, object] = {
        "schema": 1,
        "program": f"{stem}.pte",
        "sha256": hash_file(path),
        "model": program.case.factory,
        "soc": program.soc,
        "backend": program.backend,
        "scheme": program.run.precision,
        "stack": stack_of(plan.build_id),
        "inputs": tensors_of(facts.inputs),
        "delegates": facts.delegates,
        "on_cpu": [
            {
                "operator": row.operator,
                **({"source": row.source} if row.source else {}),
                "reason": row.reason,
            }
            for row in facts.left
        ],
        "accuracy": figures,
        "slices": emulation.slices,
        "samples_db": emulation.each_db,
        "costs": costs,
    }
    more = [f"QNN {plan.build_id}, {plural(facts.delegates, 'delegate')}", *emulation.slices]
    if quantized := describe_figures(figures, "reference_"):
        more += [f"{quantized} against the quantized model"]
    more += [f"{facts.ddr.read:,} bytes read from DDR in a run, {facts.ddr.written:,} written"]
    divergence = model.command("divergence", program.soc)
    slices = emulation.slices
    causes = causes_of(program, facts, slices, figures, plan.build_id)
    suspects = suspected_of(program, facts, figures, plan.build_id)
    if model.options.search:
        # What is likely is said where nothing is measured.
        causes = replace(causes, losses="", faults=())
    where = model.command("quantize", program.soc, "--where")
    evidence = Evidence(program.run.kind, facts.used, bool(suspects))
    accuracy = verdict_of_one_model(stem, figures, slices, divergence, where, causes, evidence)
    warnings = [*notes_of(facts), *accuracy.warnings]
    outcome = replace(outcome_of(compiled, run), wrong=accuracy.wrong, of_chip=accuracy.of_chip)
    # A message that several operators share is said once.
    cpu_operators = {operator.message: operator for operator in facts.left}.values()
    findings = [_finding_about_cpu_operator(stem, operator, Severity.WARNING) for operator in cpu_operators]
    findings += [Finding("compile-warning", Severity.NOTE, stem, warning, "") for warning in warnings]
    return Product(
        files_of(path, stem, record),
        [_line(program, facts, figures, emulation.each_db), *describe_cpu_operators(facts)],
        more,
        warnings,
        outcome,
        findings=findings,
        suspects=[SuspectedFault.of(met.fault, met.line) for met in suspects],
        facts={"accuracy": figures, "ddr": to_json(facts.ddr)},
        chips=program.soc,
        run_fields=run_fields_of(program, facts),
    )


def stem_of(model: OneModel, program: ExecutorchProgram) -> str:
    return f"{model.file.name}-{program.soc}-{program.run.name}"


def run_fields_of(program: ExecutorchProgram, facts: ChipProgram) -> dict[str, object]:
    """Return the fields of a suite's run that allow what this program does: operators on the CPU, and
    delegates."""
    return {
        "cpu_nodes": list(program.run.cpu_nodes),
        "delegates": None if facts.delegates == program.case.delegates else facts.delegates,
        "cpu_budget": len(facts.left) or None,
    }


def outcome_of(compiled: Result, run: Result | None) -> Outcome:
    """Return the costs and figures of a compiled program; the figures are empty if no run gave something to
    compare."""
    emulation = ran_in(run) if run else EmulatorRun()
    amounts, record = costs_of(compiled), compiled_in(compiled)
    costs = {"ddr": amounts["ddr_read"] + amounts["ddr_written"], "size": amounts["pte_bytes"]}
    costs["cpu_seconds"] = amounts["cpu_seconds"]
    on_cpu = tuple(row.operator for row in record.left)
    return Outcome(
        figures=emulation.figures,
        costs=costs,
        worst_db=min(emulation.each_db, default=None),
        on_cpu=on_cpu,
    )


def _compiled_program(
    program: ExecutorchProgram, plan: ExecutorchPlan, results: Mapping[str, Result]
) -> Result:
    """Return the compiled program. Raises the error if there is none, or if it cannot run."""
    result = require_done(program, plan, {program.name: results[COMPILED]} if COMPILED in results else {})
    if errors := _errors(artifact(program, result, plan.build_id)):
        raise CheckFailed(errors[0].message, fix=Fix("{} compiles it again", ("--no-cache",)))
    if operators := missing_kernels(compiled_in(result).left):
        finding = _finding_about_cpu_operator(program.name, operators[0], Severity.ERROR)
        finding = replace(finding, fix=finding.fix or NO_FIX)
        answer.add_findings([Places.of().located(finding)])
        raise CheckFailed(finding.message, fix=finding.fix)
    # An HTP program may leave operators on the CPU; an LPAI program is one partition.
    if program.backend == "lpai" and (errors := _errors(delegation(program, compiled_in(result)))):
        message = errors[0].message
        raise CheckFailed(message, fix="run that part of the model before or after, in a program of its own")
    return result


def _finding_about_cpu_operator(subject: str, operator: CpuOperator, severity: Severity) -> Finding:
    fix = operator.fix
    return Finding(
        "compile-cpu-operator", severity, subject, operator.message, str(fix), operator.line, fix.edit
    )


def _errors(findings: Iterator[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def files_of(path: Path, stem: str, record: Mapping[str, object]) -> dict[str, Path | str]:
    return {f"{stem}{path.suffix}": path, f"{stem}.json": json.dumps(record, indent=2) + "\n"}


def tensors_of(inputs: Inferences) -> list[dict[str, object]]:
    return [{"dtype": tensor.dtype, "shape": tensor.shape} for tensor in inputs[0]]


def notes_of(facts: ModelFacts) -> Iterator[str]:
    for _rule, message in facts.notes:
        yield message


def _line(
    program: ExecutorchProgram,
    facts: ChipProgram,
    figures: Mapping[str, float],
    each_db: Sequence[float],
) -> str:
    count = len(facts.left)
    on_cpu = f"{plural(count, 'operator')} on the CPU" if count else "nothing on the CPU"
    ran = "not run"
    if figures:
        reference = "the quantized model" if program.run.precision == "qdq" else "float"
        ran = against_in_words(figures, each_db, reference, facts.used)
    elif program.backend != "htp":
        ran = f"not run: the emulator has no {program.backend}"
    return f"{program.soc} {program.run.name}: {ran}; {on_cpu}"


def describe_cpu_operators(facts: ChipProgram) -> Iterator[str]:
    """Say which operators run on the CPU and why. Operators with the same fix are followed by that fix."""
    messages: dict[Suggestion, list[str]] = {}
    for (message, fix), count in Counter((row.message, row.fix) for row in facts.left).items():
        messages.setdefault(fix, []).append(f"  {f'{count} times ' if count > 1 else ''}{message}")
    for fix, lines in messages.items():
        yield from lines
        if fix:
            yield f"    → {fix}"


def scheme_of(model: UserModel, precision: str | None) -> str:
    """Return the run's scheme; a model that is quantized already keeps its own."""
    if precision is None:
        return "qdq" if model.quantized else "fp16"
    scheme = scheme_named(precision)
    if model.quantized and scheme != "qdq":
        message = f"{model.file} is quantized already, and {scheme} would do it again"
        raise UsageError(message, fix=leave_out("--precision", ", or give the float model"))
    return scheme


def program_of(model: OneModel, soc: str = "", suite: Path | None = None) -> ExecutorchProgram:
    """Return a program for `soc`, or for the first chip. Its model is in no suite; with `suite`, it will be
    in that one."""
    options = model.options
    user_model, samples, soc = model.file, model.samples_folder, soc or model.selection.soc
    file = precision_file_of(options.precision_file, "executorch")
    scheme = scheme_of(user_model, file.precision if file else model.precision)
    factory, in_suite = factory_in(user_model, suite) if suite else user_model.factory, suite
    suite = suite or user_model.search_path / NO_SUITE
    request = suite_values(options, "run") | {"precision": scheme, "socs": (soc,)}
    # What the file says takes its place: the content, and not the name, decides what is compiled.
    request.pop("precision_file", None)
    request |= {"nodes": file.nodes} if file else {}
    if scheme in AS_IT_IS:
        request.pop("calibration", None)
    try:
        run = ExecutorchRun.model_validate(request)
        place = os.path.relpath(samples, suite.parent) if samples else ""
        case = ExecutorchCase.model_validate(
            suite_values(options, "case") | {"factory": factory, "samples": place, "run": (run,)}
        )
    except ValidationError as error:
        words = error.errors()[0]["msg"].removeprefix("Value error, ")
        message = f"{user_model.name}, {scheme}: expected {words}"
        raise UsageError(message, fix="correct that field of the run") from error
    profile, needs = model.selection.profile, needs_of_model(model, SUITES, in_suite)
    return passing(ExecutorchProgram(suite, user_model.name, case, run, soc, profile, needs), model)


def passing(program: ExecutorchProgram, model: OneModel) -> ExecutorchProgram:
    own = model.own(ExecutorchOptions)
    names = dict.fromkeys((*program.needs.variables, *own.variables))
    return replace(program, needs=replace(program.needs, variables=tuple(names)))


def plan_of_model(model: OneModel, name: str, programs: Sequence[ExecutorchProgram]) -> ExecutorchPlan:
    programs = [passing(program, model) for program in programs]
    return plan_of(programs, model.selection, model.work, name)


def require_done(program: ExecutorchProgram, plan: ExecutorchPlan, compiled: Mapping[str, Result]) -> Result:
    if (refused := plan.refused.get(program.name)) is not None:
        kind = EnvironmentLacking if refused.rule == LIBRARY_MISSING else CheckFailed
        raise kind(refused.message, fix=refused.fix)
    result = compiled[program.name]
    for finding in not_passed([program], compiled):
        sys.stderr.write(f"warning: {finding.message}: {finding.fix}\n")
    if failure := result.failure:
        message, fix = failure_in_words(program, failure)
        if failure.kind == "suite" and program.suite.name == NO_SUITE:
            raise UsageError(message, fix="correct --keep-on-cpu (cpu_nodes) or --precision-file (nodes)")
        if not failure.exported:
            raise NoGraph(message, fix=fix, exit_code=failure.exit_code)
        raise ToolkitError(message, fix=fix, exit_code=failure.exit_code)
    return result


def stack_of(build_id: str = "") -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in ("executorch", "torch")}
    return {**packages, **({"qnn": build_id} if build_id else {})}


def quantize_model(model: OneModel) -> Sequence[Product]:
    programs = programs_of(model)
    refuse_floats(programs[0].run.quantizes, programs[0].run.precision)
    plan = plan_of_model(model, "quantize", programs)
    results, products = run_step(quantizing(plan)), []
    for program in plan.programs:
        result = require_done(program, plan, results)
        assert result.folder is not None
        path, facts, stem = result.folder / QUANTIZED, result.read(Quantized), stem_of(model, program)
        record = {
            "schema": 1,
            "model": program.case.factory,
            "quantized": f"{stem}.pt2",
            "sha256": hash_file(path),
            "soc": program.soc,
            "scheme": program.run.precision,
            "stack": stack_of(),
            "inputs": tensors_of(facts.inputs),
            "accuracy": facts.in_torch.figures,
            "slices": facts.in_torch.slices,
        }
        figures, slices = facts.in_torch.figures, facts.in_torch.slices
        words = f"{program.soc} {program.run.name}: {describe_figures(figures)} against float {facts.used}"
        words += ", both in PyTorch"
        where, causes = (
            model.command("quantize", program.soc, "--where"),
            causes_of(program, facts, slices, {}),
        )
        evidence = Evidence(program.run.kind, facts.used)
        accuracy = verdict_of_one_model(stem, figures, slices, "", where, causes, evidence)
        warnings = [*notes_of(facts), *accuracy.warnings]
        lines = [words, *(f"  {line}" for line in slices)]
        products.append(
            Product(files_of(path, stem, record), lines, (), warnings, Outcome(wrong=accuracy.wrong))
        )
    return products


def wrap(context: Path, contents: ContextStrings, selection: Selection, output: Path, timeout: float) -> str:
    """Write the program, and return the chip that it is for."""
    environment = resolve(selection, os.environ, needs=(QNN_SDK,))
    use_executorch(environment)
    loading = against(contents, environment.root(QNN_SDK).path)
    if any("error 5000" in line for line in loading.says):
        message = f"{context}: {'; '.join(loading.says)}"
        raise CheckFailed(message, fix="compile it with this QNN, or another --profile")
    socs = load_socs()
    soc = next((name for name in contents.socs if name in socs), selection.soc)
    log = Path(selection.reports).absolute() / "wrap" / f"{context.name}.log"
    with replacing(output.absolute()) as part:
        environ = closed_environment(environment.merged(os.environ))
        home = home_of(environ, log.parent)
        order = {"context": str(context.absolute()), "soc": soc, "path": str(part)}
        try:
            with (
                show_working(f"working on {context}"),
                asking(home, f"{WORKER}:wrapped", log, timeout) as ask,
            ):
                ask(**order)
        except Refused as refused:
            message = f"{context}: ExecuTorch cannot take it: {refused.message}"
            raise CheckFailed(message, fix=session("diagnose", log)) from refused
    return soc


def run_program(model: OneModel, files: Sequence[str]) -> Ran:
    path, selection = Parser.user_folder() / model.typed, model.selection
    require_program(path, model.typed)
    refuse_torch_file(path)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-run-") as scratch:
        folder = Path(scratch)
        program, contents = path, read(path)
        if isinstance(contents, ContextStrings):
            program = folder / "wrapped.pte"
            wrap(path, contents, selection, program, model.work.timeout)
            contents = read(program)
        assert isinstance(contents, CompiledProgram)
        inputs = inputs_of_program(program, files)
        qnn_environment = ready_environment(selection, os.environ)
        runner = ready_runner(os.environ, selection.reports, qnn_environment.executorch)
        environment = closed_environment(qnn_environment.merged(os.environ))
        input_list = runner.write_inputs(folder / "inputs.txt", [write_raw(inputs, folder)])
        outputs, figures = folder / "outputs", folder / "figures"
        outputs.mkdir()
        command = runner.command(program, input_list, outputs, figures=figures)
        with show_working(f"running {model.typed}"):
            error = call_runner(command, folder / "run.log", environment, model.work.timeout)
        if error:
            raise CheckFailed(f"{path}: {error}", fix=session("inspect", path))
        where = f"{_where(contents)}; by {runner.described}"
        values = dict(_outputs(outputs, _method(program, contents), runner.shapes_in(figures)))
        return Ran(inputs, values, where)


def inputs_of_program(program: Path, files: Sequence[str]) -> Sample:
    """Return the user's inputs in the order of the .pte's, which have no names; without any, draw them by the
    program's own shapes."""
    contents = read(program)
    if isinstance(contents, ContextStrings):
        raise UsageError(f"{program} is a context binary", fix=session("run", program))
    signature = GraphSignature(tuple(_inputs(program, _method(program, contents))), ())
    if not files:
        return draw_sample(signature)
    if len(files) == 1 and files[0].endswith(".npz"):
        return read_inputs(files, signature)
    paths = [text.partition("=")[2] or text for text in files]
    if len(paths) != len(signature.inputs):
        message = f"expected --input {len(signature.inputs)} times, found {len(paths)}"
        raise UsageError(message, fix="one for each input")
    pairs = zip(signature.inputs, paths, strict=True)
    return read_inputs([f"{tensor.name}={file}" for tensor, file in pairs], signature)


def write_raw(inputs: Sample, folder: Path) -> Iterator[Path]:
    for name, array in inputs.items():
        path = folder / f"{name}.raw"
        array.tofile(path)
        yield path


def _method(program: Path, contents: CompiledProgram) -> Method:
    for method in contents.methods:
        if method.name == "forward" or len(contents.methods) == 1:
            return method
    raise CheckFailed(f"{program}: it has no method forward", fix=session("inspect", program))


def _inputs(program: Path, method: Method) -> Iterator[Tensor]:
    for index, input_ in enumerate(method.inputs):
        if not isinstance(input_, TensorInfo):
            message = f"{program}: input {index} is no tensor: {input_}"
            raise CheckFailed(message, fix="export it with tensors only")
        yield Tensor(f"input_{index}", input_.dtype, input_.shape)


def _outputs(
    folder: Path, method: Method, shapes: Sequence[Sequence[int]] | None
) -> Iterator[tuple[str, Array]]:
    import numpy

    for index, tensor in enumerate(method.outputs):
        dtype, planned = (tensor.dtype, tensor.shape) if isinstance(tensor, TensorInfo) else ("float64", ())
        values = numpy.fromfile(folder / f"output_0_{index}.raw", dtype=dtype)
        yield f"output_{index}", values.reshape(shapes[index] if shapes else planned)


def _where(contents: CompiledProgram) -> str:
    """Say which part runs on the emulator, and which on the CPU."""
    parts = Counter[str]()
    for delegate in contents.delegates:
        context = delegate.context
        build = f", {' and '.join(context.socs)}, QNN {' and '.join(context.build_ids)}" if context else ""
        parts[f"{delegate.options.processor.upper() if delegate.options else delegate.backend}{build}"] += 1
    kernels = sum((Counter(method.kernels) for method in contents.methods), Counter[str]())
    on_cpu = ", ".join(f"{count} {name}" for name, count in kernels.items())
    delegated = [f"{plural(count, 'part')} on the emulator ({name})" for name, count in parts.items()]
    return "; ".join([*delegated, f"on the CPU: {on_cpu}" if on_cpu else "nothing on the CPU"])
