"""What is said of a program: by its own figures, by its baseline, and beside the other lane's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ci.explain.losses import beyond_in_words
from ci.forecast import Forecasted, QnnEstimates, forecast, load_fit, load_forecasts
from ci.lanes.onnx import BESIDE
from ci.lanes.onnx.graph import RECIPROCAL, RECIPROCAL_FIX
from ci.lanes.onnx.records import Accuracy, CompiledContext, NotCompiled, ProgramFacts, facts_in
from ci.lanes.onnx.suite import SUITES, OnnxProgram, command_for_one
from ci.outcome import Result, first_line, words_of
from ci.plain import as_json, read
from ci.suite.accepted import COSTS, Baseline, Recorded, Tolerances, beside, growth, load_baseline
from ci.suite.accuracy import against_nearest, computed_otherwise, in_words, missed, rounded
from ci.suite.costs import cost_rule
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
from ci.suite.precision import PRECISIONS, written_name
from ci.suite.programs import HELD_QUANTIZED
from ci.suite.suite_file import read_suite
from provisioning.base.commands import Fix, joined, session
from provisioning.base.findings import Finding, Metric, Report, Severity
from provisioning.base.units import bound_in_decibels, in_decibels

DDR = ("ddr_read", "ddr_written")
STAGES = ("test_lowering", "test_emulator")
LANE = "executorch"
NAMED_OTHERWISE = {"label", "qat", "backend"}
AGAIN = joined(map(session, ("provision", "test_lowering", "test_emulator", "test_onnx")), " && ")


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """One lane's figures of a program; None if unknown."""

    cosine: float | None
    sqnr_db: float | None
    size: int | None
    ddr_read: int | None
    ddr_written: int | None
    build_id: str
    agreed: bool = False
    """Whether they are from the baseline, not measured in this run."""

    @classmethod
    def of(
        cls,
        costs: Mapping[str, float | None],
        figures: Mapping[str, float | None],
        build_id: str,
        *,
        agreed: bool = False,
    ) -> LaneFigures:
        values = (costs.get("pte_bytes") or costs.get("context_bytes"), *map(costs.get, DDR))
        size, read, written = (None if value is None else int(value) for value in values)
        near = figures.get("cosine"), figures.get("sqnr_db")
        return cls(*near, size, read, written, build_id, agreed)


@dataclass(frozen=True, slots=True)
class ReportedProgram:
    """What the other lane's report says of a program, as far as it is compared. A figure that is no number is
    None there."""

    suite: str = ""
    costs: Mapping[str, float | None] = field(default_factory=dict)
    figures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportedPrograms:
    build_id: str = ""
    programs: Mapping[str, ReportedProgram] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, profile: str, run: str) -> ReportedPrograms:
        """None of another profile or run, which may be about other models."""
        try:
            report = Report.read(path)
            ours = run and report.profile == profile and report.run == run
            return read(cls, report.metrics) if ours else cls()
        except (OSError, ValueError):
            return cls()

    def of(self, suite: Path, name: str) -> ReportedProgram:
        program = self.programs.get(name, ReportedProgram())
        return program if program.suite == str(suite) else ReportedProgram()


@dataclass(frozen=True, slots=True)
class CrossChecked:
    name: str
    onnx: LaneFigures
    executorch: LaneFigures

    @property
    def difference_db(self) -> float | None:
        """How much more accurate ONNX Runtime's program is."""
        ours, theirs = self.onnx.sqnr_db, self.executorch.sqnr_db
        return None if ours is None or theirs is None else ours - theirs


def counterpart(program: OnnxProgram) -> str:
    """The other lane's name for a run that computes the same; empty with a label: it has other settings."""
    if program.run.label:
        return ""
    return f"{program.case_name}/{PRECISIONS[program.run.precision].executorch}/{program.soc}"


def pairs_of(
    programs: Sequence[OnnxProgram],
    lanes: Mapping[str, LaneFigures],
    others: Mapping[tuple[Path, str], LaneFigures],
) -> list[CrossChecked]:
    """The programs that both lanes have; `lanes` has ours by name, `others` theirs by suite and name."""
    return [
        CrossChecked(program.name, lanes[program.name], other)
        for program in programs
        if program.name in lanes and (other := others.get((program.suite, counterpart(program))))
    ]


def executorch_lane(
    programs: Sequence[OnnxProgram], reports: Path, profile: str, run: str
) -> dict[tuple[Path, str], LaneFigures]:
    """By suite and name, the counterparts with figures of this run, else of their baseline."""
    lowering, emulator = (ReportedPrograms.read(reports / f"{stage}.json", profile, run) for stage in STAGES)
    lanes: dict[tuple[Path, str], LaneFigures] = {}
    for suite in dict.fromkeys(program.suite for program in programs if program.suite.is_file()):
        names = _names(suite) & {counterpart(program) for program in programs if program.suite == suite}
        baseline = load_baseline(suite, profile, LANE)
        for name in names:
            costs, figures = lowering.of(suite, name).costs, emulator.of(suite, name).figures
            if costs or figures:
                build_id = lowering.build_id or emulator.build_id
                lanes[suite, name] = LaneFigures.of(costs, figures, build_id)
            elif agreed := baseline.of(name):
                accepted = {cost: getattr(agreed, cost) for cost in ("pte_bytes", *DDR)}
                known = LaneFigures.of(accepted, agreed.accuracy, agreed.build_id, agreed=True)
                lanes[suite, name] = known
    return lanes


def _names(suite: Path) -> set[str]:
    """The other lane's programs without a setting beside their precision."""
    cases = read_suite(suite).raw.get(LANE, {})
    return {
        f"{name}/{written_name(run.get('precision'))}/{soc}"
        for name, case in cases.items()
        for run in case["run"]
        if not run.keys() & NAMED_OTHERWISE
        for soc in run.get("socs") or ()
    }


def verdicts(pairs: Sequence[CrossChecked], tolerance_db: float, stage: str) -> Iterator[Finding]:
    """An error for a program that is much worse in one lane; a warning if compared with a baseline only."""
    if not pairs:
        message = "no case here has a run through ExecuTorch at the same precision for the same chip"
        yield Finding("onnx-cross-check", Severity.NOTE, stage, f"{message}: nothing was compared", AGAIN)
        return
    if agreed := sum(pair.executorch.agreed for pair in pairs):
        message = f"for {agreed} of {len(pairs)} programs ExecuTorch's figures are not of this run"
        yield Finding("onnx-cross-check", Severity.NOTE, stage, message, AGAIN)
    for pair in pairs:
        difference, ours, theirs = pair.difference_db, pair.onnx, pair.executorch
        if difference is None or abs(difference) <= tolerance_db:
            continue
        whose = "ExecuTorch's baseline" if theirs.agreed else "ExecuTorch"
        severity = Severity.WARNING if theirs.agreed else Severity.ERROR
        reached = [in_decibels(row.sqnr_db or 0.0) for row in (ours, theirs)]
        message = (
            f"ONNX Runtime reaches {reached[0]} and {whose} {reached[1]}: expected at most"
            f" {bound_in_decibels(tolerance_db)} between them, found {in_decibels(abs(difference))}"
        )
        fix = f"look for what {'ONNX Runtime' if difference < 0 else whose} quantizes or computes otherwise"
        yield Finding("onnx-cross-check", severity, pair.name, message, fix)


MOST_SHOWN = 6
"""How many operators a message about a slower program names."""
ROUNDED = 1e-6
"""How far a share may be from the one that the baseline has rounded."""


def identity_of(context: CompiledContext) -> str:
    """What tells a context from others: what it was made of, for what, and what that gave."""
    record = context.record
    origin = [record.source, record.soc, record.precision, record.build_id]
    return hashlib.sha256(json.dumps([*origin, dict(context.near.figures)]).encode()).hexdigest()


def causes_of(near: Accuracy, choices: Sequence[str] = ()) -> Causes:
    return Causes(
        slices=near.slices,
        beyond=beyond_in_words(near.beyond),
        chosen=" and ".join(choices),
    )


def findings_of(program: OnnxProgram, result: Result) -> Iterator[Finding]:
    """Findings that need no baseline."""
    again = SUITES.repeat(program)
    error = errors_of(program.name, again)
    if failure := result.failure:
        yield error(f"onnx-{failure.rule}", failure.message, failure.fix)
        return
    facts = facts_in(result)
    if ended := facts.ended:
        message = ended.message if program.case.recorded else ""
        message = message or f"not compiled: QNN refuses {', '.join(ended.refused)}, as the suite says"
        rule = "onnx-fails" if ended.failed else "onnx-refuses"
        fix = Fix("{} asks it again", again.plus("--no-cache"))
        yield Finding(rule, Severity.NOTE, program.name, message, fix)
        return
    contexts, context = facts.contexts_made, facts.compiled
    if crash := contexts.trace_crash:
        message = f"done without the provider's trace of refused operators: with it, {crash}"
        fix = Fix("`compile` and `audit` trace, and may end so; {} tries it again", again.plus("--no-cache"))
        yield Finding("onnx-trace", Severity.NOTE, program.name, message, fix)
    near, every = context.near.figures, SUITES.repeat(program, every_chip=True)
    if not program.case.recorded:
        yield from placeholder(program, near, every.plus("--accept"))
        yield from constant_outputs(program, near, context.near.slices, again)
    yield from factory_notes(program, facts.prepared.notes, again)
    for form, made in contexts.forms.items():
        if not made.reload_equal:
            how = "beside its .onnx" if form == BESIDE else form
            message = f"the reloaded context ({how}) gives other outputs than the session that compiled it"
            yield error("onnx-reload", message)
    # All forms report the same node.
    for message in dict.fromkeys(
        str(node) for made in contexts.forms.values() for node in made.audit.unsupported
    ):
        yield error("onnx-cpu-node", message)
    if not contexts.forms_equal:
        yield error("onnx-forms", "the embedded context gives other outputs than the context in a file")
    if program.case.recorded and computed_otherwise(near):
        message = f"its outputs are wrong: {in_words(near, against_nearest(near))}"
        yield Finding("onnx-wrong", Severity.NOTE, program.name, message, again.plus("--no-cache", "--keep"))
    used, causes = facts.used, causes_of(context.near, context.choices)
    divergence = _command(program, "divergence")
    # The figures of a recorded case are held by the baseline.
    misses = [] if program.case.recorded else missed(program.thresholds, near, program.run.kind)
    if misses:
        where = _command(program, "quantize", "--where")
        otherwise = "raise the precision or calibrate with more samples"
        cure = accuracy_fix(misses, near, divergence, where, otherwise, causes)
        fixes = [cure, accepting(program, misses, every)]
        message = accuracy_message(misses, near, causes, context.each_db)
        agreed = program.thresholds and program.thresholds.model_dump(exclude_none=True)
        if not agreed and Evidence(program.run.kind, used).provisional(near):
            words = PROVISIONAL + message
            yield Finding("onnx-accuracy", Severity.WARNING, program.name, words, _samples_for(program))
        else:
            yield error("onnx-accuracy", message, joined(fixes))
    yield from below_usual_of(program, near, lambda: causes, divergence)
    for node in context.reciprocals:
        message = f"{node}: {RECIPROCAL}"
        yield Finding("onnx-reciprocal", Severity.WARNING, program.name, message, RECIPROCAL_FIX)
    if program.run.precision == "fp16" and context.half_floats is False:
        yield error("onnx-precision", not_in_fp16(program.soc), "choose a chip that has it, or quantize")
    if used.noise:
        message = "compared on random inputs: the case names no samples"
        yield Finding("onnx-samples", Severity.WARNING, program.name, message, _samples_for(program))
    yield from over_budget(program, facts.estimate)


def _samples_for(program: OnnxProgram) -> str:
    return f'samples = "DIR" for {program.case_name} in {program.suite}: inputs that the model is made for'


def _command(program: OnnxProgram, verb: str, *more: str) -> str:
    return command_for_one(verb, program.case, program.run, program.soc, program.search_path, *more)


def was_compiled(result: Result) -> bool:
    """Neither failed nor refused by QNN as the suite says."""
    return isinstance(result.record, ProgramFacts) and result.record.contexts is not None


def build_id_of(result: Result) -> str:
    facts = facts_in(result)
    return facts.ended.build_id if facts.ended else facts.compiled.record.build_id


def changed(program: OnnxProgram, result: Result, baseline: Baseline, margin_db: float) -> Iterator[Finding]:
    """Of a case whose every result is recorded: one that is not as the baseline says."""
    if not program.case.recorded or result.failure:
        return
    again = SUITES.repeat(program).plus("--accept")
    agreed = baseline.of(program.name)
    if agreed is None:
        message = f"{baseline.path.name} has no result of it"
        yield Finding("cost-no-baseline", Severity.WARNING, program.name, message, again)
        return
    now = agreed.model_copy(update=outcome_of(result))
    before, found = _outcome(agreed), _outcome(now)
    worse = [] if before == found else [f"expected {before}, found {found}"]
    better: list[str] = []
    if before == found and agreed.message and words_of(agreed.message) != words_of(now.message):
        worse = [f"expected {before} of `{agreed.message}`, found `{now.message}`"]
    if before == found and was_compiled(result):
        lower, better = _other_figures(agreed.accuracy, facts_in(result).compiled.near.figures, margin_db)
        worse += lower
    words = "; ".join([*worse, *better])
    if worse:
        yield Finding("onnx-changed", Severity.ERROR, program.name, words, Fix("if you intend it, {}", again))
    elif better:
        yield Finding("onnx-better", Severity.NOTE, program.name, words, again)


def _outcome(recorded: Recorded) -> str:
    if recorded.failed:
        return recorded.failed
    if not recorded.refused:
        return "it is compiled and not quantized" if recorded.in_float else "it is compiled"
    takes = f" and takes {', '.join(recorded.taken)}" if recorded.taken else ""
    return f"QNN refuses {', '.join(recorded.refused)}{takes}"


def _other_figures(
    agreed: Mapping[str, float], now: Mapping[str, float], margin_db: float
) -> tuple[list[str], list[str]]:
    """The figures that are worse than agreed, or missing, and those that are better."""
    worse, better = [], []
    for name, figure in agreed.items():
        if name not in HELD_QUANTIZED:
            continue
        value, margin = now.get(name), margin_db if name.endswith("_db") else ROUNDED
        if value is None:
            worse.append(f"{name} {_shown(name, figure)} is missing now")
        elif value > figure + margin:
            better.append(f"{name} {_shown(name, value)} instead of {_shown(name, figure)}")
        elif not value >= figure - margin:
            worse.append(f"{name} {_shown(name, value)} instead of {_shown(name, figure)}")
    return worse, better


def _shown(name: str, value: float) -> str:
    return in_decibels(value) if name.endswith("_db") else f"{value:g}"


def outcome_of(result: Result) -> dict[str, object]:
    """By the fields of a baseline, what becomes of a program beside its costs and figures."""
    facts, draws = facts_in(result), tuple[dict[str, float], ...]()
    ended = facts.ended or NotCompiled(failed="", build_id="")
    if facts.contexts:
        draws = tuple(map(rounded, facts.compiled.draws))
    return {
        "refused": ended.refused,
        "taken": ended.taken,
        "failed": ended.failed,
        "message": first_line(ended.message) if ended.failed else "",
        "in_float": facts.contexts is not None and facts.quantized_model.in_float,
        "draws": draws,
        "estimated": estimated_of(facts.estimate),
    }


def cost(
    program: OnnxProgram, result: Result, baseline: Baseline, tolerances: Tolerances
) -> Iterator[Finding]:
    if not was_compiled(result):
        return
    if facts_in(result).compiled.ddr is None:
        message = "the compiler gave no summary of its traffic with DDR"
        reads = Fix("read what it prints: {}", SUITES.repeat(program).plus("--no-cache", "--keep"))
        yield Finding("cost-unknown", Severity.ERROR, program.name, message, reads)
    again = SUITES.repeat(program).plus("--accept")
    agreed = baseline.of(program.name)
    for finding in growth(program.name, costs_of(result), build_id_of(result), baseline, tolerances, again):
        if finding.rule == cost_rule("estimate_us") and agreed:
            differs = difference_of(agreed.estimated, estimated_of(facts_in(result).estimate))
            yield replace(finding, message=f"{finding.message}; {differs}")
        else:
            yield finding


def estimated_of(estimates: QnnEstimates | None) -> tuple[str, ...]:
    """The nodes that QNN was asked of, as a baseline lists them."""
    shapes = sorted(estimates.shapes.items()) if estimates else ()
    return tuple(f"{count} {what}" for what, count in shapes)


def difference_of(before: Collection[str], now: Collection[str]) -> str:
    """What a slower program has that it had not; that is the difference, which need not be the cause."""
    more = [f"+{what}" for what in now if what not in before]
    less = [f"-{what}" for what in before if what not in now]
    if not more and not less:
        return "its operators and shapes are those that were accepted"
    shown = ", ".join([*more, *less][:MOST_SHOWN])
    rest = len(more) + len(less) - MOST_SHOWN
    return f"its graph differs, which need not be the cause: {shown}{f' and {rest} more' if rest > 0 else ''}"


def costs_of(result: Result) -> dict[str, float]:
    """Costs of the measured context, by the names of the baseline."""
    facts = facts_in(result)
    traffic = as_json(facts.compiled.ddr) if facts.compiled.ddr else {}
    costs = {f"ddr_{name}": value for name, value in traffic.items()}
    costs |= {"context_bytes": facts.compiled.bytes, "cpu_seconds": facts.contexts_made.cpu_seconds}
    if facts.estimate and (of_chips := [*facts.estimate.estimates.values()]):
        costs["estimate_us"] = of_chips[0].us
    return {name: costs[name] for name in COSTS if name in costs}


def lane_of(result: Result) -> LaneFigures:
    return LaneFigures.of(costs_of(result), facts_in(result).compiled.near.figures, build_id_of(result))


def row(
    program: OnnxProgram, result: Result, baseline: Baseline, other: LaneFigures | None
) -> dict[str, Metric]:
    compiled = facts_in(result).compiled if was_compiled(result) else None
    shown: dict[str, Metric] = {
        "precision": program.run.kind,
        "thresholds": shown_thresholds(program, compiled.near.figures if compiled else {}),
    }
    if not compiled:
        return shown
    lanes: dict[str, Metric] = {"onnx": as_json(lane_of(result))}
    if other is not None:
        lanes["executorch"] = as_json(other)
    costs, facts = costs_of(result), facts_in(result)
    if program.run.forecast:
        found = forecast_of(program, facts.estimate)
        phones: list[Metric] = [forecast.as_dict() for forecast in found.forecasts]
        shown["forecast"] = {"phones": phones, "withheld": found.withheld}
    return shown | {
        "cached": result.cached,
        "export_seconds": result.export_seconds,
        "figures": dict(compiled.near.figures),
        "slices": list(compiled.near.slices),
        "calibrated_by": facts.used.calibrating,
        "nodes": compiled.audit.nodes,
        "graphs": compiled.audit.graphs,
        "costs": dict(costs),
        **beside(costs, build_id_of(result), baseline.of(program.name)),
        "lanes": lanes,
    }


def forecast_of(program: OnnxProgram, estimates: QnnEstimates | None) -> Forecasted:
    return forecast(program.run.kind, estimates, load_fit(), load_forecasts())


def over_budget(program: OnnxProgram, estimates: QnnEstimates | None) -> Iterator[Finding]:
    """An error where even the least that is forecast is above the budget, a warning where the most is."""
    if not program.run.budget:
        return
    again, found = SUITES.repeat(program), forecast_of(program, estimates)
    for phone, limit in program.run.budget.items():
        of_phone, most = found.of([phone]), float(limit.removesuffix(" ms"))
        if of_phone.withheld:
            message = f"its budget cannot be held: no forecast, {of_phone.withheld}"
            fix = found.fix or "measure it on a phone, and leave budget out"
            yield Finding("forecast-withheld", Severity.WARNING, program.name, message, fix)
        for row in of_phone.forecasts:
            if row.most_ms <= most:
                continue
            severity = Severity.ERROR if row.least_ms > most else Severity.WARNING
            message = f"expected at most {limit} on a {row.phone}, forecast {row.ms:.3g} ms"
            message += f" ({row.least_ms:.3g} to {row.most_ms:.3g})"
            fix = Fix("make it smaller, or if you intend it, change budget in its run; then {}", again)
            yield Finding("forecast-budget", severity, program.name, message, fix)
