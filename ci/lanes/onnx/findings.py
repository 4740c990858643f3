"""What is said of a compiled ONNX program: findings, costs and its row in the report.

`findings_of` judges a program by its own figures; `changes_of` and `cost` compare it with the accepted result
(the baseline). A *recorded* case, of the table of operators, is measured and not judged: how it fails is a
result, too, and only a change is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ci.explain.losses import beyond_in_words
from ci.lanes.onnx.orders import Accuracy, ProgramFacts, facts_in
from ci.lanes.onnx.suite import SUITES, OnnxProgram, command_for_one
from ci.suite.accepted import COSTS, Failed, Recorded, Tolerances, accepted_costs, growth
from ci.suite.figures import against_nearest, describe_figures, round_figures
from ci.suite.findings import (
    PROVISIONAL,
    Causes,
    Evidence,
    accepting,
    accuracy_fix,
    accuracy_message,
    below_usual_of,
    constant_outputs,
    errors_of,
    factory_notes,
    not_in_fp16,
    placeholder,
    shown_thresholds,
)
from ci.suite.limits import computed_otherwise, missed_thresholds
from ci.suite.programs import HELD_QUANTIZED
from ci.work import UNFORESEEN, Result, first_line, to_json, words_of
from provisioning.base.commands import Fix, join_fixes
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.units import format_decibels

ROUNDED = 1e-6
"""A share of equal elements may be this much lower than the baseline's, which is rounded."""


def causes_of(near: Accuracy, choices: Sequence[str] = ()) -> Causes:
    return Causes(
        slices=near.slices,
        beyond=beyond_in_words(near.beyond),
        choices=" and ".join(choices),
    )


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """How a recorded case failed."""

    failed: Failed
    """Empty if QNN refuses operators."""
    message: str
    refused: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    """QNN accepts these other operators of a model that it refuses."""


NO_FAILURE = RecordedFailure("", "")


def recorded_failure(program: OnnxProgram, result: Result) -> RecordedFailure | None:
    """Return how the program failed. None if it was compiled, or if the failure is no result: the machine's,
    a time limit, or a mistake in the suite."""
    failure = result.failure
    if not program.case.recorded or failure is None or failure.blame == "machine":
        return None
    if failure.kind == "crash":
        return RecordedFailure("crash", failure.message) if failure.is_own_crash else None
    if operators := failure.details.get("operators"):
        refused, taken = map(tuple, operators)
        return RecordedFailure("", failure.message, refused, taken)
    if failure.kind not in ("refused", UNFORESEEN):
        return None
    unusable = failure.details.get("unusable", "")
    if unusable:
        return RecordedFailure("bad_test" if unusable.startswith("reference") else "wrong", failure.message)
    return RecordedFailure("dies", failure.message)


def findings_of(program: OnnxProgram, result: Result) -> Iterator[Finding]:
    """Return the findings that need no baseline."""
    again = SUITES.repeat(program)
    error = errors_of(program.name, again)
    if outcome := recorded_failure(program, result):
        rule = "onnx-fails" if outcome.failed else "onnx-refuses"
        fix = Fix("{} asks it again", again)
        yield Finding(rule, Severity.NOTE, program.name, outcome.message, fix)
        return
    if failure := result.failure:
        yield error(f"onnx-{failure.rule}", failure.message, failure.fix)
        return
    facts = facts_in(result)
    if not program.case.recorded:
        yield from _suspect_outputs(program, facts)
    yield from factory_notes(program, facts.prepared.notes, again)
    yield from _wrong_outputs(program, facts) if program.case.recorded else _missed_accuracy(program, facts)
    causes = causes_of(facts.context.near, facts.context.choices)
    yield from below_usual_of(
        program, facts.context.near.figures, lambda: causes, _command(program, "divergence")
    )
    if program.run.precision == "fp16" and facts.context.half_floats is False:
        yield error("onnx-precision", not_in_fp16(program.soc), "choose a chip that has it, or quantize")
    if facts.used.noise:
        message = "compared on random inputs: the case names no samples"
        yield Finding("onnx-samples", Severity.WARNING, program.name, message, _samples_for(program))


def _wrong_outputs(program: OnnxProgram, facts: ProgramFacts) -> Iterator[Finding]:
    """Note wrong outputs of a recorded case, whose figures the baseline holds."""
    figures = facts.context.near.figures
    if computed_otherwise(figures):
        message = f"its outputs are wrong: {describe_figures(figures, against_nearest(figures))}"
        fix = SUITES.repeat(program).plus("--no-cache", "--keep")
        yield Finding("onnx-wrong", Severity.NOTE, program.name, message, fix)


def _suspect_outputs(program: OnnxProgram, facts: ProgramFacts) -> Iterator[Finding]:
    """Report outputs whose figures mean little: thresholds that nobody measured, and constant outputs."""
    near, accept = facts.context.near, SUITES.repeat(program, every_chip=True).plus("--accept")
    yield from placeholder(program, near.figures, accept)
    yield from constant_outputs(program, near.figures, near.slices, SUITES.repeat(program))


def _missed_accuracy(program: OnnxProgram, facts: ProgramFacts) -> Iterator[Finding]:
    """Report the figures that miss their thresholds. It is a warning while nobody agreed to thresholds and
    the figures rest on little evidence."""
    near, figures = facts.context.near, facts.context.near.figures
    misses = missed_thresholds(program.thresholds, figures, program.run.kind)
    if not misses:
        return
    causes = causes_of(near, facts.context.choices)
    message = accuracy_message(misses, figures, causes, facts.context.each_db)
    agreed = program.thresholds and program.thresholds.model_dump(exclude_none=True)
    if not agreed and Evidence(program.run.kind, facts.used).provisional(figures):
        words = PROVISIONAL + message
        yield Finding("onnx-accuracy", Severity.WARNING, program.name, words, _samples_for(program))
        return
    where = _command(program, "quantize", "--where")
    otherwise = "raise the precision or calibrate with more samples"
    cure = accuracy_fix(misses, figures, _command(program, "divergence"), where, otherwise, causes)
    error = errors_of(program.name, SUITES.repeat(program))
    yield error("onnx-accuracy", message, join_fixes([cure, accepting(program, misses)]))


def _samples_for(program: OnnxProgram) -> str:
    return f'samples = "DIR" for {program.case_name} in {program.suite}: inputs that the model is made for'


def _command(program: OnnxProgram, verb: str, *more: str) -> str:
    return command_for_one(verb, program.case, program.run, program.soc, program.search_path, *more)


def build_id_of(result: Result) -> str:
    """Return the id of QNN's build; empty if the process that knew it died."""
    if result.failure:
        return str(result.failure.details.get("build_id", ""))
    return facts_in(result).context.record.build_id


def changes_of(program: OnnxProgram, result: Result, margin_db: float) -> Iterator[Finding]:
    """Report what differs from the baseline in a case whose every result is recorded."""
    if not program.case.recorded or (result.failure and not recorded_failure(program, result)):
        return
    again = SUITES.repeat(program).plus("--accept")
    agreed = program.recorded
    if agreed is None:
        message = "no accepted result of it to compare with"
        yield Finding("cost-no-baseline", Severity.WARNING, program.name, message, again)
        return
    now = agreed.model_copy(update=outcome_of(program, result))
    before, after = _outcome(agreed), _outcome(now)
    worse = [] if before == after else [f"expected {before}, found {after}"]
    if before == after and agreed.message and words_of(agreed.message) != words_of(now.message):
        worse = [f"expected {before} of `{agreed.message}`, found `{now.message}`"]
    if before == after and not result.failure:
        worse += _lower_figures(agreed.accuracy, facts_in(result).context.near.figures, margin_db)
    if worse:
        words = "; ".join(worse)
        yield Finding("onnx-changed", Severity.ERROR, program.name, words, Fix("if you intend it, {}", again))


def _outcome(recorded: Recorded) -> str:
    if recorded.failed:
        return recorded.failed
    if not recorded.refused:
        return "it is compiled and not quantized" if recorded.in_float else "it is compiled"
    takes = f" and takes {', '.join(recorded.taken)}" if recorded.taken else ""
    return f"QNN refuses {', '.join(recorded.refused)}{takes}"


def _lower_figures(agreed: Mapping[str, float], now: Mapping[str, float], margin_db: float) -> Iterator[str]:
    """Return the figures that are lower than agreed, or missing."""
    for name, figure in agreed.items():
        if name not in HELD_QUANTIZED:
            continue
        value, margin = now.get(name), margin_db if name.endswith("_db") else ROUNDED
        if value is None:
            yield f"{name} {_value_in_words(name, figure)} is missing now"
        elif not value >= figure - margin:
            yield f"{name} {_value_in_words(name, value)} instead of {_value_in_words(name, figure)}"


def _value_in_words(name: str, value: float) -> str:
    return format_decibels(value) if name.endswith("_db") else f"{value:g}"


def outcome_of(program: OnnxProgram, result: Result) -> dict[str, object]:
    """Return what the baseline records of a program beside its costs and figures."""
    outcome = recorded_failure(program, result) or NO_FAILURE
    facts = None if result.failure else facts_in(result)
    return {
        "refused": outcome.refused,
        "taken": outcome.taken,
        "failed": outcome.failed,
        "message": first_line(outcome.message) if outcome.failed else "",
        "in_float": facts is not None and facts.quantized_model.in_float,
        "draws": tuple(map(round_figures, facts.context.draws)) if facts else (),
    }


def cost(program: OnnxProgram, result: Result, tolerances: Tolerances) -> Iterator[Finding]:
    if result.failure:
        return
    if facts_in(result).context.ddr is None:
        message = "the compiler gave no summary of its traffic with DDR"
        reads = Fix("read what it prints: {}", SUITES.repeat(program).plus("--no-cache", "--keep"))
        yield Finding("cost-unknown", Severity.ERROR, program.name, message, reads)
    again = SUITES.repeat(program).plus("--accept")
    yield from growth(
        program.name, costs_of(result), build_id_of(result), program.recorded, tolerances, again
    )


def costs_of(result: Result) -> dict[str, float]:
    """Return the costs of the measured context, by the names of the baseline."""
    facts = facts_in(result)
    context = facts.context
    traffic = to_json(context.ddr) if context.ddr else {}
    costs = {f"ddr_{name}": value for name, value in traffic.items()}
    costs |= {"context_bytes": context.bytes, "cpu_seconds": context.cpu_seconds}
    return {name: costs[name] for name in COSTS if name in costs}


def row(program: OnnxProgram, result: Result) -> dict[str, Metric]:
    context = None if result.failure else facts_in(result).context
    metrics: dict[str, Metric] = {
        "precision": program.run.kind,
        "thresholds": shown_thresholds(program, context.near.figures if context else {}),
    }
    if not context:
        return metrics
    costs, facts = costs_of(result), facts_in(result)
    return metrics | {
        "cached": result.cached,
        "figures": dict(context.near.figures),
        "slices": list(context.near.slices),
        "calibrated_by": facts.used.calibrating,
        "costs": dict(costs),
        **accepted_costs(costs, build_id_of(result), program.recorded),
    }
