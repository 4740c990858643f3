"""Say what became of the one PyTorch model of a command line: the files that `compile` and `quantize` write,
what they print, and which findings there are."""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.explain.inner_choices import ChoiceFlips, unexplained_flips
from ci.lanes.executorch import PROGRAM, QUANTIZED
from ci.lanes.executorch.findings import (
    artifact,
    causes_of,
    costs_of,
    delegation,
    findings_of,
    missing_kernels,
    suspected_of,
    suspected_on_cpu,
)
from ci.lanes.executorch.judged import samples_of
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
    RAN,
    ExecutorchPlan,
    quantizing,
    run_step,
)
from ci.lanes.executorch.suite import ExecutorchProgram
from ci.lanes.executorch.typed_program import plan_of_model, programs_of, require_done, stem_of
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome, Product
from ci.operators import CpuOperator
from ci.suite.figures import against_in_words, describe_figures
from ci.suite.findings import BEYOND_FIX, AccuracyOfModel, Evidence, verdict_of_one_model
from ci.suite.judged_samples import SUFFIX, write_samples
from ci.suite.precision import refuse_floats
from ci.suite.tensor_files import Inferences
from ci.work import Result, to_json
from provisioning.base import answer
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed
from provisioning.base.files import hash_file
from provisioning.base.findings import Finding, Severity
from provisioning.base.places import Places
from provisioning.base.rendering import plural
from provisioning.base.units import format_decibels
from provisioning.known_faults import NO_FIX, Suggestion, SuspectedFault


def product_of(
    model: OneModel, plan: ExecutorchPlan, program: ExecutorchProgram, results: Mapping[str, Result]
) -> Product:
    """Return what `compile` writes and says about a program. Raises the reason if there is no program, or if
    it does not run."""
    compiled = _compiled_program(program, plan, results)
    assert compiled.folder is not None
    facts, run = compiled_in(compiled), results.get(RAN)
    if run and not ran(run):
        raise _failure_of_run(program, facts, run)
    emulation = ran_in(run) if run else EmulatorRun()
    suspects = suspected_of(program, facts, emulation.figures, plan.build_id)
    accuracy = _accuracy_of(model, plan, program, facts, emulation, has_suspects=bool(suspects))
    stem = stem_of(model, program)
    warnings = [*notes_of(facts), *accuracy.warnings, *_outside_range(emulation)]
    record = _record_of(stem, plan, program, compiled, emulation)
    return Product(
        files={
            **_files_of(stem, compiled.folder / PROGRAM, record),
            **_kept_samples(stem, plan, program, compiled, run),
        },
        words=[
            _verdict_line(program, facts, emulation),
            *describe_choices(emulation.flips),
            *describe_cpu_operators(facts),
        ],
        more=_further_words(plan, facts, emulation),
        warnings=warnings,
        outcome=replace(outcome_of(compiled, run), wrong=accuracy.wrong, of_chip=accuracy.of_chip),
        findings=_findings_of_compile(stem, facts, warnings),
        suspects=[SuspectedFault.of(met.fault, met.line) for met in suspects],
        facts={"accuracy": dict(emulation.figures), "ddr": to_json(facts.ddr)},
        chips=program.soc,
        run_fields=run_fields_of(program, facts),
    )


def _failure_of_run(program: ExecutorchProgram, facts: ChipProgram, run: Result) -> CheckFailed:
    """Return the error of a program that was compiled, and gave nothing to compare on the emulator."""
    (finding,) = findings_of(program, run, facts)
    suspected, fix = suspected_on_cpu(facts.left)
    message = "; ".join(filter(None, (finding.message, suspected)))
    return CheckFailed(message, fix=BEYOND_FIX if facts.beyond else fix)


def _accuracy_of(
    model: OneModel,
    plan: ExecutorchPlan,
    program: ExecutorchProgram,
    facts: ChipProgram,
    emulation: EmulatorRun,
    *,
    has_suspects: bool,
) -> AccuracyOfModel:
    """Return what no suite would accept of the figures, and what must be said of them."""
    figures, slices = emulation.figures, emulation.slices
    causes = causes_of(program, facts, slices, figures, plan.build_id)
    causes = replace(causes, flips=unexplained_flips(emulation.flips))
    if model.options.search:
        # What is likely is said where nothing is measured.
        causes = replace(causes, losses="", faults=())
    return verdict_of_one_model(
        stem_of(model, program),
        figures,
        slices,
        model.command("divergence", program.soc),
        model.command("quantize", program.soc, "--where"),
        causes,
        Evidence(program.run.kind, facts.used, has_suspects),
    )


def _record_of(
    stem: str,
    plan: ExecutorchPlan,
    program: ExecutorchProgram,
    compiled: Result,
    emulation: EmulatorRun,
) -> dict[str, object]:
    """Return the record that is written beside the program."""
    assert compiled.folder is not None
    facts, on_cpu = compiled_in(compiled), []
    for operator in facts.left:
        source = {"source": operator.source} if operator.source else {}
        on_cpu.append({"operator": operator.operator, **source, "reason": operator.reason})
    return {
        "schema": 1,
        "program": f"{stem}.pte",
        "sha256": hash_file(compiled.folder / PROGRAM),
        "model": program.case.factory,
        "soc": program.soc,
        "backend": program.backend,
        "scheme": program.run.precision,
        "stack": stack_of(plan.build_id),
        "inputs": tensors_of(facts.inputs),
        "delegates": facts.delegates,
        "on_cpu": on_cpu,
        "accuracy": dict(emulation.figures),
        "slices": emulation.slices,
        "samples_db": emulation.each_db,
        "costs": costs_of(compiled),
    }


def _kept_samples(
    stem: str, plan: ExecutorchPlan, program: ExecutorchProgram, compiled: Result, run: Result | None
) -> dict[str, Path | str]:
    """Write the samples that a device is judged with, if the user wants them and the program ran."""
    if not plan.keeps_outputs or run is None:
        return {}
    assert compiled.folder is not None and run.folder is not None
    path = run.folder / f"{stem}{SUFFIX}"
    write_samples(
        path, samples_of(program, compiled_in(compiled), compiled.folder, run.folder, plan.build_id)
    )
    return {path.name: path}


def _further_words(plan: ExecutorchPlan, facts: ChipProgram, emulation: EmulatorRun) -> list[str]:
    words = [f"QNN {plan.build_id}, {plural(facts.delegates, 'delegate')}", *emulation.slices]
    if quantized := describe_figures(emulation.figures, "reference_"):
        words.append(f"{quantized} against the quantized model")
    words.append(f"{facts.ddr.read:,} bytes read from DDR in a run, {facts.ddr.written:,} written")
    return words


def _findings_of_compile(stem: str, facts: ChipProgram, warnings: Sequence[str]) -> list[Finding]:
    # A message that several operators share is said once.
    cpu_operators = {operator.message: operator for operator in facts.left}.values()
    findings = [_finding_about_cpu_operator(stem, operator, Severity.WARNING) for operator in cpu_operators]
    findings += [Finding("compile-warning", Severity.NOTE, stem, warning, "") for warning in warnings]
    return findings


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


def _files_of(stem: str, path: Path, record: Mapping[str, object]) -> dict[str, Path | str]:
    """Name the file that the process wrote, and its record, as the user gets them."""
    return {f"{stem}{path.suffix}": path, f"{stem}.json": json.dumps(record, indent=2) + "\n"}


def tensors_of(inputs: Inferences) -> list[dict[str, object]]:
    return [{"dtype": tensor.dtype, "shape": tensor.shape} for tensor in inputs[0]]


def notes_of(facts: ModelFacts) -> Iterator[str]:
    for _rule, message in facts.notes:
        yield message


def _verdict_line(program: ExecutorchProgram, facts: ChipProgram, emulation: EmulatorRun) -> str:
    """Say in one line how far the program is from its model, and what runs on the CPU."""
    count = len(facts.left)
    on_cpu = f"{plural(count, 'operator')} on the CPU" if count else "nothing on the CPU"
    ran = "not run"
    if emulation.figures:
        reference = "the quantized model" if program.run.precision == "qdq" else "float"
        ran = against_in_words(emulation.figures, emulation.each_db, reference, facts.used)
    elif program.backend != "htp":
        ran = f"not run: the emulator has no {program.backend}"
    return f"{program.soc} {program.run.name}: {ran}; {on_cpu}"


def _outside_range(emulation: EmulatorRun) -> Iterator[str]:
    """Say that one sample is clipped, and is not judged."""
    if emulation.outside:
        least = min(emulation.each_db)
        figure = f"{format_decibels(least)} SQNR, and not judged"
        fix = "calibrate with inputs like it: --calibration 200, or a folder of them (--calibrate DIR)"
        yield f"{emulation.outside.describe()}: {figure}; {fix}"


def describe_choices(flips: Sequence[ChoiceFlips]) -> Iterator[str]:
    """Say where the program chooses otherwise than float, if the figures are against a model that chooses as
    it does."""
    for row in flips:
        if row.flipped and not unexplained_flips(flips):
            yield f"  {row.describe()}: float is compared with the program's choices"


def describe_cpu_operators(facts: ChipProgram) -> Iterator[str]:
    """Say which operators run on the CPU and why. Operators with the same fix are followed by that fix."""
    messages: dict[Suggestion, list[str]] = {}
    for (message, fix), count in Counter((row.message, row.fix) for row in facts.left).items():
        messages.setdefault(fix, []).append(f"  {f'{count} times ' if count > 1 else ''}{message}")
    for fix, lines in messages.items():
        yield from lines
        if fix:
            yield f"    → {fix}"


def stack_of(build_id: str = "") -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in ("executorch", "torch")}
    return {**packages, **({"qnn": build_id} if build_id else {})}


def quantize_model(model: OneModel) -> Sequence[Product]:
    """Quantize the model at each precision, and return what `quantize` writes and says."""
    programs = programs_of(model)
    refuse_floats(programs[0].run.quantizes, programs[0].run.precision)
    plan = plan_of_model(model, "quantize", programs)
    results = run_step(quantizing(plan))
    products = []
    for program in plan.programs:
        products.append(_quantized_product(model, program, require_done(program, plan, results)))
    return products


def _quantized_product(model: OneModel, program: ExecutorchProgram, result: Result) -> Product:
    assert result.folder is not None
    path, facts, stem = result.folder / QUANTIZED, result.read(Quantized), stem_of(model, program)
    figures, slices = facts.in_torch.figures, facts.in_torch.slices
    record = {
        "schema": 1,
        "model": program.case.factory,
        "quantized": f"{stem}.pt2",
        "sha256": hash_file(path),
        "soc": program.soc,
        "scheme": program.run.precision,
        "stack": stack_of(),
        "inputs": tensors_of(facts.inputs),
        "accuracy": figures,
        "slices": slices,
    }
    accuracy = verdict_of_one_model(
        stem,
        figures,
        slices,
        "",
        model.command("quantize", program.soc, "--where"),
        causes_of(program, facts, slices, {}),
        Evidence(program.run.kind, facts.used),
    )
    verdict = f"{describe_figures(figures)} against float {facts.used}, both in PyTorch"
    return Product(
        files=_files_of(stem, path, record),
        words=[f"{program.soc} {program.run.name}: {verdict}", *(f"  {line}" for line in slices)],
        warnings=[*notes_of(facts), *accuracy.warnings],
        outcome=Outcome(wrong=accuracy.wrong),
    )
