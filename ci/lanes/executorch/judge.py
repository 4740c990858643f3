"""Findings about compiled programs: delegation, the content of the artifact, and costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ci.artifacts.compiler_log import CRASHES, NATIVE_ERROR, in_plain_words
from ci.artifacts.program import CompiledProgram, ContextStrings, Delegate, read
from ci.diagnose.explain import nearest
from ci.lanes.executorch import PROGRAM
from ci.lanes.executorch.compile import LOG
from ci.lanes.executorch.records import ChipProgram, compiled_in
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.operators.conditions import Traits
from ci.operators.faults import faults_in, versions_of
from ci.operators.partition import CpuOperator
from ci.outcome import Failure, Result
from ci.suite.accepted import Baseline, Tolerances, growth
from ci.suite.findings import not_in_fp16
from provisioning.base.commands import Fix, joined
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Finding, Place, Severity
from provisioning.fixes import NO_FIX, Suggestion, fix_for
from provisioning.manifest import soc_named

PAGE = 4096
OPERATOR = re.compile(r"\baten\.\w+\.\w+")
FIXES = {
    "factory": "correct the factory: it returns the model, or the model and its inputs",
    "suite": "correct the case in {suite}",
    "timeout": "give it longer with --timeout, or read {log}",
}


def failure_finding(program: ExecutorchProgram, failure: Failure, stage: str) -> Finding:
    message, fix = failure_in_words(program, failure)
    fix = Fix("{}; then {}", fix, SUITES.repeat(program, stage))
    place = Place.read(str(failure.details.get("source", "")))
    return Finding(f"lowering-{failure.rule}", Severity.ERROR, program.name, message, fix, place)


def failure_in_words(program: ExecutorchProgram, failure: Failure) -> tuple[str, str]:
    """The message and the fix."""
    message, log = failure.message, failure.log
    general = FIXES.get(failure.kind, "").format(suite=program.suite, log=log)
    fix = failure.fix or general or Fix("read {}, or {}", str(log), ("diagnose", str(log)))
    explained = bool(failure.fix)
    if failure.kind in ("compile", "crash") and not explained and log and log.is_file():
        text = log.read_text(encoding="utf-8", errors="replace")
        if errors := NATIVE_ERROR.findall(text):
            message = f"{message.rstrip('.')}: {in_plain_words(errors[0].strip())}"
        if known := nearest(text):
            message, fix = f"{message.rstrip('.')}. {known}", known.fix
    if fix == NO_FIX and log:
        message = f"{message.rstrip('.')}: {log} has the rest"
    if CRASHES in message:
        message, fix = _with_what_is_known(program, message, fix)
    return message, fix


def _with_what_is_known(program: ExecutorchProgram, message: str, fix: str) -> tuple[str, str]:
    """A message that names operators, with their known faults, and a precision at which the chip has them."""
    scheme, soc = program.run.precision, program.soc
    operators = dict.fromkeys(OPERATOR.findall(message))
    met = faults_in({name: Traits(name) for name in operators}, scheme, soc, versions_of(), dies=True)
    fixes = [*(fault.fault.fix for fault in met), fix]
    return "; ".join([message, *map(str, met)]), joined(dict.fromkeys(fixes), "; or ")


def delegation(program: ExecutorchProgram, compiled: ChipProgram) -> Iterator[Finding]:
    """An operator over the budget is an error; one within the budget is a note."""
    operators: Sequence[CpuOperator] = compiled.left
    if program.backend == "lpai":
        # ExecuTorch's CPU kernels quantize inputs and dequantize outputs, because they do it more exactly.
        operators = [operator for operator in operators if "quantize_per" not in operator.operator]
    over = len(operators) > program.cpu_budget
    causes: dict[tuple[object, ...], list[CpuOperator]] = {}
    for operator in operators:
        cause = (
            operator.operator,
            operator.reason,
            operator.kernel,
            fix_for(operator.operator, operator.code, reason=operator.reason),
        )
        causes.setdefault(cause, []).append(operator)
    allowed = f"{len(operators)} of at most {program.cpu_budget} operators on the CPU"
    for first, *others in causes.values():
        places = [other.source or "a place without a line" for other in others]
        more = f"; also at {', '.join(dict.fromkeys(places))}" if places else ""
        fix = fix_for(first.operator, first.code, first.source, reason=first.reason)
        yield Finding(
            "lowering-cpu-operator",
            Severity.ERROR if over else Severity.NOTE,
            program.name,
            f"{_on_cpu(first)} ({allowed}){more}",
            str(fix) or SUITES.repeat(program, "test_lowering"),
            Place.read(first.source),
            fix.edit,
        )
    if compiled.delegates != program.delegates:
        yield Finding(
            "lowering-delegates",
            Severity.ERROR,
            program.name,
            f"expected {program.delegates} delegates, found {compiled.delegates}",
            f"see what is on the CPU, or set delegates in {program.suite}",
        )


def kept_on_cpu(program: ExecutorchProgram, compiled: ChipProgram) -> Iterator[Finding]:
    """What --keep-going left on the CPU, and what it cost."""
    if kept := compiled.kept_on_cpu:
        nodes = ", ".join(f'"{name}"' for name in kept.nodes)
        ddr = compiled.ddr.read + compiled.ddr.written
        yield Finding(
            "lowering-kept-on-cpu",
            Severity.WARNING,
            program.name,
            f"{kept.because}; kept on the CPU, which leaves {compiled.delegates} delegates,"
            f" {len(compiled.left)} operators on the CPU and {ddr:,} bytes of DDR traffic in one inference",
            f"cpu_nodes = [{nodes}] in {program.suite} keeps it there for good",
        )


def missing_kernels(operators: Iterable[CpuOperator]) -> Iterator[tuple[str, Suggestion, Place | None]]:
    """Operators on the CPU that ExecuTorch cannot run there, each with what to write instead."""
    return left_on_cpu(operator for operator in operators if not operator.kernel)


def left_on_cpu(operators: Iterable[CpuOperator]) -> Iterator[tuple[str, Suggestion, Place | None]]:
    """Operators on the CPU, each with what to write instead, and its line of the model."""
    for operator in operators:
        fix = fix_for(operator.operator, operator.code, operator.source, reason=operator.reason)
        yield _on_cpu(operator), fix, Place.read(operator.source)


def suspected_on_cpu(operators: Iterable[CpuOperator]) -> tuple[str, str]:
    """Of a program that breaks as it runs: the first operator on the CPU that has a fix."""
    for message, fix, _ in left_on_cpu(operators):
        if fix:
            return f"suspected: {message}", str(fix)
    return "", NO_FIX


def _on_cpu(operator: CpuOperator) -> str:
    source = f" at {operator.source}" if operator.source else ""
    code = f" `{operator.code}`" if operator.code else ""
    lacks = "" if operator.kernel else ", but ExecuTorch has no CPU kernel for it: the program will not run"
    return f"{operator.operator}{source}{code} stays on the CPU{lacks}: {operator.reason}"


def artifact(program: ExecutorchProgram, compiled: Result, build_id: str) -> Iterator[Finding]:
    """Compare the bytes of the .pte with the request."""

    def wrong(rule: str, message: str, fix: str) -> Finding:
        return Finding(f"artifact-{rule}", Severity.ERROR, program.name, message, fix)

    again = SUITES.repeat(program, "test_lowering").plus("--no-cache")
    try:
        inside = read(program_file(compiled))
    except CheckFailed as error:
        yield wrong("readable", error.message, again)
        return
    assert isinstance(inside, CompiledProgram)
    if refusal := compiled_in(compiled).loads:
        yield wrong("loads", f"ExecuTorch's runtime refuses the program: {refusal}", again)
    for index, delegate in enumerate(inside.delegates):
        if delegate.context is not None:
            for rule, message in faults_of(delegate, program.soc, build_id, program.backend):
                yield wrong(rule, f"delegate {index}: {message}", again)


def faults_of(
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
    for rule, what, expected, actual in facts:
        if actual != (expected,):
            named = ", ".join(map(str, actual)) or "none"
            yield rule, f"expected {what} {expected} in the compiled graph, found {named}"


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
    program: ExecutorchProgram, compiled: Result, build_id: str, baseline: Baseline, tolerances: Tolerances
) -> Iterator[Finding]:
    record = compiled_in(compiled)
    if program.backend == "htp" and record.graphs < record.delegates:
        yield Finding(
            "cost-unknown",
            Severity.ERROR,
            program.name,
            f"expected the compiler's summary of each of {record.delegates} graphs, found {record.graphs}",
            f"read {program_file(compiled).with_name(LOG)}",
        )
    again = SUITES.repeat(program, "test_lowering").plus("--accept")
    yield from growth(program.name, costs_of(compiled), build_id, baseline, tolerances, again)
