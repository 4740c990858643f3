"""What is said of a PyTorch program: findings about its compile, where its operators run, what it costs, and
how it ran.

`findings_about_compiled_program` is what `test_lowering` says, `findings_about_run` what `test_emulator`
does. A model's known faults are named where its operators meet them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ci.artifacts.compiler_log import CRASHES, NATIVE_ERROR, reword_error
from ci.artifacts.program import CompiledProgram, ContextStrings, Delegate, read
from ci.diagnose.logs import nearest
from ci.explain.inner_choices import unexplained_flips
from ci.explain.losses import BeyondHalf, beyond_in_words
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.orders import (
    ChipProgram,
    Quantized,
    compiled_in,
    figures_of,
    ran_in,
)
from ci.lanes.executorch.steps import (
    COMPILED,
    EMULATION,
    LIBRARY_MISSING,
    LOWERING,
    RAN,
    ExecutorchPlan,
    has_all_costs,
)
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.models.model_lines import OperatorAt
from ci.operators import CpuOperator, Traits
from ci.operators.faults import Met, faults_in, versions_of
from ci.suite.accepted import Tolerances, growth, load_tolerances
from ci.suite.figures import against_nearest
from ci.suite.findings import (
    BEYOND_FIX,
    Causes,
    accepting,
    accuracy_fix,
    accuracy_message,
    below_usual_of,
    constant_outputs,
    factory_notes,
    not_in_fp16,
    placeholder,
)
from ci.suite.limits import missed_thresholds
from ci.work import Failure, Result
from provisioning.base.commands import Fix, join_fixes
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Edit, Finding, Place, Severity
from provisioning.known_faults import NO_FIX
from provisioning.manifest import soc_named

PAGE = 4096

OPERATOR = re.compile(r"\baten\.\w+\.\w+")

FIXES = {
    "factory": "correct the factory: it returns the model, or the model and its inputs",
    "suite": "correct the case in {suite}",
}


def failure_finding(program: ExecutorchProgram, failure: Failure, stage: str) -> Finding:
    message, fix = failure_in_words(program, failure)
    fix = Fix("{}; then {}", fix, SUITES.repeat(program, stage))
    place = Place.read(str(failure.details.get("source", "")))
    return Finding(f"lowering-{failure.rule}", Severity.ERROR, program.name, message, fix, place)


def failure_in_words(program: ExecutorchProgram, failure: Failure) -> tuple[str, str]:
    """Return the message and the fix."""
    message, log = failure.message, failure.log
    general = FIXES.get(failure.kind, "").format(suite=program.suite)
    fix = failure.fix or general or Fix("read {}, or {}", str(log), ("diagnose", str(log)))
    text = log.read_text(encoding="utf-8", errors="replace") if log and log.is_file() else ""
    if failure.blame != "machine" and failure.kind in ("crash", "timeout") and (search := _search_in(text)):
        message = f"{search}; with that on the CPU {message}"
        fix = "write it in another way, or keep more around it on the CPU (cpu_nodes)"
    elif failure.kind == "compile" and not failure.fix:
        if errors := NATIVE_ERROR.findall(text):
            message = f"{message.rstrip('.')}: {reword_error(errors[0].strip())}"
        if explanation := nearest(text):
            message, fix = f"{message.rstrip('.')}. {explanation}", explanation.fix
    # What is known of a crash sends its reader to the frames.
    if log and (fix == NO_FIX or (fix and failure.kind == "crash" and str(log) not in fix)):
        message = f"{message.rstrip('.')}: {log} has the rest"
    if failure.kind in ("compile", "crash"):
        return _add_known_faults(program, message, fix)
    return message, fix


def _search_in(text: str) -> str:
    """Return what a search for the operator that crashes the compiler had found before the compiler
    crashed."""
    return next((line for line in reversed(text.splitlines()) if line.startswith(CRASHES)), "")


def _add_known_faults(program: ExecutorchProgram, message: str, fix: str) -> tuple[str, str]:
    """Add their known faults to a message that names operators."""
    scheme, soc = program.run.precision, program.soc
    operators = dict.fromkeys(OPERATOR.findall(message))
    met = faults_in({name: Traits(name) for name in operators}, scheme, soc, versions_of(), dies=True)
    fixes = [*(fault.fault.fix for fault in met), *([] if met and fix == NO_FIX else [fix])]
    return "; ".join([message, *map(str, met)]), join_fixes(dict.fromkeys(fixes), "; or ")


def delegation(program: ExecutorchProgram, compiled: ChipProgram) -> Iterator[Finding]:
    """Report each operator on the CPU: an error if there are more than the budget allows, otherwise a
    note."""
    operators: Sequence[CpuOperator] = compiled.left
    if program.backend == "lpai":
        # ExecuTorch's CPU kernels quantize inputs and dequantize outputs, because they do it more exactly.
        operators = [operator for operator in operators if "quantize_per" not in operator.operator]
    over = len(operators) > program.cpu_budget
    causes: dict[tuple[object, ...], list[CpuOperator]] = {}
    for operator in operators:
        cause = operator.operator, operator.reason, operator.kernel, operator.fix.words
        causes.setdefault(cause, []).append(operator)
    budget = f"{len(operators)} of at most {program.cpu_budget} operators on the CPU"
    for first, *rest in causes.values():
        places = [row.source or "a place without a line" for row in rest]
        more = f"; also at {', '.join(dict.fromkeys(places))}" if places else ""
        yield Finding(
            "lowering-cpu-operator",
            Severity.ERROR if over else Severity.NOTE,
            program.name,
            f"{first.message} ({budget}){more}",
            str(first.fix) or SUITES.repeat(program, "test_lowering"),
            first.line,
            first.fix.edit,
        )
    if compiled.delegates != program.delegates:
        yield Finding(
            "lowering-delegates",
            Severity.ERROR,
            program.name,
            f"expected {program.delegates} delegates, found {compiled.delegates}",
            f"see what is on the CPU, or set delegates in {program.suite}",
        )


def missing_kernels(operators: Iterable[CpuOperator]) -> list[CpuOperator]:
    """Return the operators on the CPU that ExecuTorch cannot run there."""
    return [operator for operator in operators if not operator.kernel]


def suspected_on_cpu(operators: Iterable[CpuOperator]) -> tuple[str, str]:
    """If a program fails while it runs, suspect the first operator on the CPU that has a fix. Returns message
    and fix."""
    for operator in operators:
        if operator.fix:
            return f"suspected: {operator.message}", str(operator.fix)
    return "", NO_FIX


def artifact(program: ExecutorchProgram, compiled: Result, build_id: str) -> Iterator[Finding]:
    """Compare the bytes of the .pte with the request."""

    def unlike(rule: str, message: str, fix: str) -> Finding:
        return Finding(f"artifact-{rule}", Severity.ERROR, program.name, message, fix)

    again = SUITES.repeat(program, "test_lowering").plus("--no-cache")
    try:
        inside = read(program_file(compiled))
    except CheckFailed as error:
        yield unlike("readable", error.message, again)
        return
    assert isinstance(inside, CompiledProgram)
    for index, delegate in enumerate(inside.delegates):
        if delegate.context is not None:
            for rule, message in mismatches_of(delegate, program.soc, build_id, program.backend):
                yield unlike(rule, f"delegate {index}: {message}", again)


def mismatches_of(
    delegate: Delegate, soc_name: str, build_id: str, backend: str = "htp"
) -> Iterator[tuple[str, str]]:
    soc = soc_named(soc_name)
    context, options = delegate.context or ContextStrings(0, (), (), (), ()), delegate.options
    if delegate.segment is None:
        yield "segment", "expected its data in a separate segment, found it inside the flatbuffer"
    elif delegate.offset % PAGE:
        yield "segment", f"expected its segment at a multiple of {PAGE}, found it at {delegate.offset}"
    if options is None:
        yield "options", "it has no options for the QNN backend"
    else:
        if options.online_prepare:
            yield (
                "online-prepare",
                "expected a graph compiled ahead of time, found one for the device to compile",
            )
        if options.processor != backend:
            yield "backend", f"expected options for the {backend}, found some for the {options.processor}"
        if (options.soc_id, options.arch) != (soc.id, soc.arch):
            yield (
                "soc",
                f"expected options for SoC id {soc.id}, v{soc.arch} ({soc_name}), "
                f"found {options.soc_id}, v{options.arch}",
            )
        if options.precision == "fp16" and context.half_floats is False:
            yield "precision", not_in_fp16(soc_name)
        if options.vtcm_mb != soc.vtcm_mb:
            yield "vtcm", f"expected options for {soc.vtcm_mb} MB of VTCM, found {options.vtcm_mb}"
    facts: list[tuple[str, str, object, tuple[object, ...]]] = [
        ("build-id", "QNN build", build_id, context.build_ids)
    ]
    if backend == "htp":
        # Only the compiler for the HTP writes these into its graph.
        facts += [
            ("soc", "SoC", soc_name, context.socs),
            ("arch", "HTP arch", soc.arch, context.arches),
            ("vtcm", "bytes of VTCM", soc.vtcm_mb << 20, context.vtcm_bytes),
        ]
    for rule, name, expected, actual in facts:
        if actual != (expected,):
            words = ", ".join(map(str, actual)) or "none"
            yield rule, f"expected {name} {expected} in the compiled graph, found {words}"


def program_file(compiled: Result) -> Path:
    assert compiled.folder is not None
    return compiled.folder / PROGRAM


def costs_of(compiled: Result) -> dict[str, float]:
    record = compiled_in(compiled)
    return {
        "ddr_read": record.ddr.read,
        "ddr_written": record.ddr.written,
        "ddr_spilled": record.ddr.spilled,
        "ddr_filled": record.ddr.filled,
        "pte_bytes": program_file(compiled).stat().st_size,
        "cpu_seconds": record.cpu_seconds,
    }


def cost(
    program: ExecutorchProgram, compiled: Result, build_id: str, tolerances: Tolerances, log: Path
) -> Iterator[Finding]:
    record = compiled_in(compiled)
    if not has_all_costs(program, compiled):
        yield Finding(
            "cost-unknown",
            Severity.ERROR,
            program.name,
            f"expected the compiler's summary of each of {record.delegates} graphs, found {record.graphs}",
            f"read {log}",
        )
    again = SUITES.repeat(program, "test_lowering").plus("--accept")
    yield from growth(program.name, costs_of(compiled), build_id, program.recorded, tolerances, again)


def accuracy_in_torch(program: ExecutorchProgram, figures: Mapping[str, float]) -> Iterator[Finding]:
    """Judge a program quantized for the LPAI by PyTorch's figures: few have the library that computes it."""
    if misses := missed_thresholds(program.thresholds, figures):
        message = f"quantized for the LPAI, in PyTorch: {accuracy_message(misses, figures)}"
        again = SUITES.repeat(program, "test_lowering")
        yield Finding("lpai-accuracy", Severity.ERROR, program.name, message, again)


def only_library_missing(findings: Sequence[Finding]) -> bool:
    """Whether only the LPAI's library is missing, which another SDK has."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return bool(errors) and all(finding.rule == LIBRARY_MISSING for finding in errors)


def findings_about_compiled_program(
    plan: ExecutorchPlan, program: ExecutorchProgram, result: Result | None
) -> Iterator[Finding]:
    build_id = plan.build_id
    if result is None:
        yield plan.refused[program.name]
        return
    if result.failure:
        yield failure_finding(program, result.failure, LOWERING)
        return
    record = compiled_in(result)
    if record.in_torch:
        yield from accuracy_in_torch(program, record.in_torch.figures)
    yield from delegation(program, record)
    yield from factory_notes(program, record.notes, SUITES.repeat(program, LOWERING))
    yield from artifact(program, result, build_id)
    log = plan.logs / f"{program.name}.log"
    yield from cost(program, result, build_id, load_tolerances(), log)


def findings_about_run(
    plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Iterator[Finding]:
    again, result = SUITES.repeat(program, EMULATION), results.get(COMPILED)
    if result is None:
        yield plan.refused[program.name]
    elif result.failure:
        yield failure_finding(program, result.failure, EMULATION)
    else:
        record = compiled_in(result)
        yield from findings_of(program, results[RAN], record, plan.build_id)
        if (figures := figures_of(results[RAN])) is not None:
            on_all_chips = SUITES.repeat(program, EMULATION, every_chip=True)
            yield from placeholder(program, figures, on_all_chips.plus("--accept"))
            slices = ran_in(results[RAN]).slices
            yield from constant_outputs(program, figures, slices, again)
            causes = partial(causes_of, program, record, slices, figures, plan.build_id)
            yield from below_usual_of(program, figures, causes, SUITES.repeat(program, "divergence"))
            if outside := ran_in(results[RAN]).outside:
                fix = Fix("calibrate with inputs like it (calibration, samples); then {}", again)
                subject, place = program.name, outside.line
                yield Finding("accuracy-range", Severity.WARNING, subject, outside.describe(), fix, place)


def findings_of(
    program: ExecutorchProgram, result: Result, compiled: ChipProgram, build_id: str = ""
) -> list[Finding]:
    """Return what is wrong with a run. Given the id of QNN's build, the findings also name the build's known
    faults."""
    again = SUITES.repeat(program, "test_emulator")
    where = f"; inputs, outputs and log are in {result.folder}" if result.folder else ""

    def wrong(
        rule: str, message: str, fix: str = again, place: Place | None = None, edit: Edit | None = None
    ) -> Finding:
        return Finding(f"emulator-{rule}", Severity.ERROR, program.name, message + where, fix, place, edit)

    if result.failure:
        failure = result.failure
        fix = Fix("{}; then {}", failure.fix, again) if failure.fix else again
        return [wrong(failure.rule, failure.message, fix)]
    record = ran_in(result)
    if record.rule == "run" and (operators := missing_kernels(compiled.left)):
        return [
            wrong("run", f"{row.message} ({record.message})", str(row.fix) or again, row.line, row.fix.edit)
            for row in operators
        ]
    if record.rule:
        beyond = beyond_in_words(compiled.beyond)
        fix = Fix("{}; then {}", BEYOND_FIX, again) if beyond else again
        return [wrong(record.rule, "; ".join(filter(None, [record.message, beyond])), fix)]
    figures = record.figures
    misses = missed_thresholds(program.thresholds, figures, program.run.kind)
    if not misses:
        return []
    commands = (SUITES.repeat(program, "divergence"), SUITES.repeat(program, "quantize").plus("--where"))
    causes = causes_of(program, compiled, record.slices, figures, build_id)
    causes = replace(causes, flips=unexplained_flips(record.flips))
    cure = accuracy_fix(misses, figures, *commands, causes=causes)
    fixes = [Fix("{}; then {}", cure, again), accepting(program, misses)]
    message = accuracy_message(misses, figures, causes, record.each_db)
    return [wrong("accuracy", message, join_fixes(fixes), causes.place)]


def suspected_of(
    program: ExecutorchProgram, compiled: ChipProgram, figures: Mapping[str, float], build_id: str
) -> list[Met]:
    """Return the known faults that a node of the user's code meets, judged by the facts of its compile. QNN's
    own faults count only if the id of its build is given."""
    # Without a line it is of no code of the user's.
    nodes = {name: node for name, node in compiled.nodes.items() if node.line}
    seen_db = figures.get(f"{against_nearest(figures)}sqnr_db")
    versions = versions_of(build_id)
    scheme, soc = program.run.precision, program.soc
    return faults_in(nodes, scheme, soc, versions, least=compiled.least, seen_db=seen_db)


def causes_of(
    program: ExecutorchProgram,
    compiled: ChipProgram | Quantized,
    slices: Sequence[str],
    figures: Mapping[str, float],
    build_id: str = "",
) -> Causes:
    """Return what may explain the lost accuracy, judged by the facts of the compile. QNN's own faults count
    only if the id of its build is given."""
    losses = compiled.losses
    met: list[Met] = []
    beyond, choices = tuple[BeyondHalf, ...](), tuple[OperatorAt, ...]()
    if isinstance(compiled, ChipProgram):
        met = suspected_of(program, compiled, figures, build_id)
        beyond, choices = compiled.beyond, compiled.choices
    lines = [*(fault.line for fault in met), *(loss.source for loss in losses[:1])]
    return Causes(
        place=next(filter(None, map(Place.read, lines)), None),
        losses=f"quantizing loses most in {losses[0].describe()}" if losses else "",
        slices=slices,
        beyond=beyond_in_words(beyond),
        choices=" and ".join(dict.fromkeys(row.place for row in choices)),
        faults=[*map(str, met)],
    )
