"""Findings that all lanes share, whatever compiled a program.

The largest part explains missed accuracy: whether quantization or the chip causes it, what may explain it
(`Causes`), and what to do (`accuracy_fix`). `verdict` says whether findings fail a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ci.models.inputs import InputsUsed
from ci.suite.accepted import accepted_path
from ci.suite.figures import CLEARLY_DB, add_samples, against_nearest, describe_figures
from ci.suite.limits import (
    Missed,
    below_floor,
    bounds_of,
    computed_otherwise,
    is_mostly_mean,
    missed_thresholds,
    required_of,
    usual_of,
)
from ci.suite.programs import NO_SUITE, Program
from ci.suite.suite_file import Thresholds
from ci.work import Result, field_of
from provisioning.base.commands import Fix, join_fixes
from provisioning.base.findings import Finding, Metric, Place, Severity
from provisioning.base.units import bound_in_decibels, format_decibels
from provisioning.build_ids import version_in
from provisioning.known_faults import Lane, faults_of_build


def errors_of(subject: str, again: str) -> Callable[..., Finding]:
    """Return a function that makes errors about a program from a rule, a message and a fix, with the command
    that runs it again."""

    def error(rule: str, message: str, fix: str = "") -> Finding:
        return Finding(
            rule, Severity.ERROR, subject, message, Fix("{}; then {}", fix, again) if fix else again
        )

    return error


def placeholder(program: Program, figures: Mapping[str, float], again: str) -> Iterator[Finding]:
    """Warn about thresholds that say little; the command `again` writes measured ones."""
    thresholds, least = program.thresholds, required_of(program.run.kind)["sqnr_db"]
    if thresholds is None:
        return
    if thresholds.placeholder:
        message = "its thresholds are a placeholder: outputs that are all zero would pass"
    elif thresholds == Thresholds() and figures.get("sqnr_db", -math.inf) >= least:
        words = describe_figures(figures)
        message = f"it has no thresholds: {words}, and anything from {bound_in_decibels(least)} on would pass"
    else:
        return
    alone = f"take its thresholds out of {program.suite}; then " if program.demanded else ""
    fix = Fix("when the model is as you want it, {}{}", alone, again)
    yield Finding("threshold-placeholder", Severity.WARNING, program.name, message, fix)


def factory_notes(program: Program, notes: Iterable[Sequence[str]], again: str) -> Iterator[Finding]:
    """Yield a warning to the author of a factory for each of `ModelWithInputs.notes`, which has a rule and a
    message."""
    for rule, message in notes:
        fix = Fix("change what the factory returns; then {}", again)
        yield Finding(f"factory-{rule}", Severity.WARNING, program.name, message, fix)


def not_passed(programs: Iterable[Program], results: Mapping[str, Result]) -> Iterator[Finding]:
    """Warn once for each suite about variables that its models read and that are set, but not passed to
    them."""
    readers: dict[tuple[str, str], str] = {}
    for program in programs:
        for name in results[program.name].variables if program.name in results else ():
            readers.setdefault((str(program.suite), name), program.name)
    for (suite, name), program_name in readers.items():
        alone = suite.endswith(f"/{NO_SUITE}")
        message = f"{program_name} reads the variable {name}, which is set but not passed to models"
        fix = f"--variable {name}" if alone else f'{field_of(name)} = ["{name}"] at the top of {suite}'
        subject = program_name if alone else suite
        yield Finding("variable-not-passed", Severity.WARNING, subject, message, fix)


def known_faults(findings: Sequence[Finding], build_id: str, lane: Lane) -> Iterator[Finding]:
    """Yield the known faults of the build, if a program missed a threshold."""
    if not any(finding.rule.endswith("-accuracy") for finding in findings):
        return
    for fault in faults_of_build(build_id, lane):
        if fault.where == "emulator":
            build, message = f"QNN {version_in(build_id)}", f"{fault.title} ({fault.id})"
            yield Finding("known-fault", Severity.NOTE, build, message, fault.fix)


FOLLOWS = {
    "lowering-delegates": ("lowering-cpu-operator",),
    "accuracy-constant": ("emulator-accuracy", "onnx-accuracy"),
    "threshold-placeholder": ("emulator-accuracy", "onnx-accuracy"),
}
"""For each rule, the rules whose error in the same program causes its finding."""


def one_a_cause(findings: Sequence[Finding]) -> list[Finding]:
    """Drop the findings of a program that another error of it causes: that error covers them."""
    roots: list[Finding] = []
    messages: dict[str, list[str]] = {}
    errors = {finding.rule for finding in findings if finding.severity is Severity.ERROR}
    for finding in findings:
        cause = next((name for name in FOLLOWS.get(finding.rule, ()) if name in errors), "")
        if cause:
            messages.setdefault(cause, []).append(finding.message)
        else:
            roots.append(finding)
    # Of several errors of one rule the first says it.
    return [
        replace(finding, message="; ".join([finding.message, *messages.pop(finding.rule)]))
        if finding.rule in messages
        else finding
        for finding in roots
    ]


def verdict(findings: Sequence[Finding]) -> str:
    return "fail" if any(finding.severity is Severity.ERROR for finding in findings) else "pass"


def shown_thresholds(program: Program, figures: Mapping[str, float]) -> dict[str, Metric]:
    return dict(bounds_of(program.thresholds, figures, program.run.kind))


def accepting(program: Program, misses: Sequence[Missed]) -> str:
    """Say how to accept misses that a better program does not fix; empty if there is nothing to say."""
    if names := [miss.figure for miss in misses if miss.figure in program.demanded]:
        return f"or change {', '.join(names)} of its thresholds in {program.suite}, by hand"
    if absent := [miss.figure for miss in misses if miss.value is None]:
        place = accepted_path(program.suite, program.profile)
        return f"remove the threshold of {', '.join(absent)} from {place}"
    if below_floor({miss.figure: miss.value for miss in misses if miss.value is not None}, program.run.kind):
        return f"if it cannot be better, write its thresholds into {program.suite}, by hand"
    return ""


def not_in_fp16(soc: str) -> str:
    return f"expected 16-bit floats, but QNN computes everything in float32: {soc} has no fp16"


@dataclass(frozen=True)
class Causes:
    """Measurements of a program, and known faults of its operators, that may explain a miss."""

    losses: str = ""
    """The operators where quantizing loses most."""
    slices: Sequence[str] = ()
    """The lost parts of the outputs."""
    beyond: str = ""
    """The operators whose values exceed the range of fp16."""
    choices: str = ""
    """The operators whose indices are outputs."""
    flips: str = ""
    """The operators that choose otherwise inside the model, which rounding does not explain."""
    faults: Sequence[str] = ()
    """The faults of the build that its operators can have."""
    place: Place | None = None
    """The place of the first of these operators that has a line of the model."""

    def suspected(self, misses: Sequence[Missed], figures: Mapping[str, float]) -> Sequence[str]:
        """The causes that were not proved on this program: known faults of the chip, which the quantized
        model on the CPU does not have, and where single operators' outputs show that quantizing loses
        most."""
        of_chip = chip_differs(misses, figures) or not against_nearest(figures)
        if self.beyond:
            return []
        likely = self.faults if of_chip else filter(None, [self.losses])
        return [f"suspected: {words}" for words in likely]


BEYOND_FIX = (
    "make these values smaller, or those before that line, such as by x * 0.01 (a norm gives the same result)"
)


def accuracy_message(
    misses: Sequence[Missed],
    figures: Mapping[str, float],
    causes: Causes = Causes(),
    each_db: Sequence[float] = (),
) -> str:
    """Describe the missed thresholds, how the samples differ, and whether quantization or the chip causes
    it."""
    message = "; ".join(map(str, misses))
    if any(miss.figure == SLICE for miss in misses):
        message = "; ".join([message, *causes.slices])
    if all(miss.figure == SLICE for miss in misses):
        # An operator's output as a whole says nothing of it.
        return message
    parts = [add_samples(message, each_db)]
    if chip_differs(misses, figures):
        parts.append("the program computes something else than the quantized model")
    parts += [causes.beyond, causes.flips]
    return "; ".join([*filter(None, parts), *causes.suspected(misses, figures)])


SLICE = "slice_sqnr_db"


def accuracy_fix(
    misses: Sequence[Missed],
    figures: Mapping[str, float],
    divergence: str,
    where: str,
    otherwise: str = "",
    causes: Causes = Causes(),
) -> str:
    """What to do about misses. `divergence` and `where` are commands: the first names the operators that the
    chip computes differently, the second those where quantizing loses accuracy. Either is empty if there is
    no such command."""
    if all(miss.figure == SLICE for miss in misses):
        alone = "let the model return the lost part as its own output"
        return join_fixes([alone, _naming(misses, figures, "", where, "")], "; or ")
    if causes.beyond:
        return BEYOND_FIX
    if causes.choices and all(miss.figure.endswith("agreement") for miss in misses):
        return f"take {causes.choices} out of the model: let it return the values, and choose on the CPU"
    return _naming(misses, figures, divergence, where, otherwise)


def _naming(
    misses: Sequence[Missed],
    figures: Mapping[str, float],
    divergence: str,
    where: str,
    otherwise: str,
) -> str:
    if chip_differs(misses, figures) or not against_nearest(figures):
        return Fix("{} names the operator that differs", divergence) if divergence else otherwise
    return Fix("{} names the operators where quantizing loses", where) if where else otherwise


@dataclass(frozen=True, slots=True)
class AccuracyOfModel:
    """The verdict that the figures of one model's program give."""

    wrong: Sequence[Finding]
    warnings: Sequence[str]
    of_chip: bool | None
    """The result of `is_of_chip`."""


def verdict_of_one_model(
    subject: str,
    figures: Mapping[str, float],
    slices: Sequence[str],
    divergence: str,
    where: str,
    causes: Causes,
    evidence: Evidence,
) -> AccuracyOfModel:
    """Judge a program like a suite's program that has no thresholds of its own. An empty `divergence`, which
    is a command, means that the program is the quantized model itself."""
    all_figures = figures if divergence else {**figures, "reference_sqnr_db": math.inf}
    low = missed_thresholds(Thresholds(), all_figures, evidence.kind)
    misses = low or below_usual(evidence.kind, all_figures)
    wrong, warnings = list[Finding](), [*filter(None, [nearly_constant(figures, slices)])]
    if evidence.suspected and chip_differs(misses, all_figures):
        # With 8 bits right programs may be as far from the quantized model: not those with a fault.
        low = misses
    message = accuracy_message(misses, all_figures, causes)
    fix = accuracy_fix(misses, all_figures, divergence, where, causes=causes)
    if low and evidence.provisional(all_figures):
        warnings.append(f"{PROVISIONAL}{message}; {REAL_SAMPLES}")
    elif low:
        wrong.append(Finding("compile-accuracy", Severity.ERROR, subject, message, fix, causes.place))
    elif misses:
        warnings.append(f"{message}; {fix}")
    return AccuracyOfModel(wrong, warnings, is_of_chip(figures, evidence.kind))


def is_of_chip(figures: Mapping[str, float], kind: str) -> bool | None:
    """Whether the chip computes something else, rather than quantizing losing accuracy. None if the figures
    are healthy, if there are no floats, or if only a slice is lost: an operator's whole output says nothing
    about a slice."""
    misses = missed_thresholds(Thresholds(), figures, kind) or below_usual(kind, figures)
    misses = [miss for miss in misses if miss.figure != SLICE]
    if "sqnr_db" not in figures or not misses:
        return None
    return chip_differs(misses, figures) or not against_nearest(figures)


PROVISIONAL = "provisional, on random inputs: "
REAL_SAMPLES = "--calibrate DIR, a folder with a file for each real input (.npy, .npz)"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The inputs and the kind of run that a program was measured with."""

    kind: str
    inputs: InputsUsed
    suspected: bool = False
    """Whether a node of the program can have a known fault."""

    def provisional(self, figures: Mapping[str, float]) -> bool:
        """Whether random inputs may be the only problem: the chip computes the model that it was given."""
        return self.inputs.noise and not computed_otherwise(figures, self.kind)


def below_usual(kind: str, figures: Mapping[str, float]) -> list[Missed]:
    """The figures that lose more than rounding usually costs, in float or on the chip. They deserve a
    warning."""
    return [
        Missed(name, bound, figures[name])
        for name, bound in usual_of(kind).items()
        if figures.get(name, math.inf) < bound
    ]


def nearly_constant(figures: Mapping[str, float], slices: Sequence[str]) -> str:
    """Explain a good figure that only shows that the mean of the outputs is exact; empty otherwise."""
    sqnr_db, variation_db = figures.get("sqnr_db", -math.inf), figures.get("variation_sqnr_db", math.inf)
    if not is_mostly_mean(sqnr_db, variation_db):
        return ""
    message = (
        f"{format_decibels(sqnr_db)} SQNR, and {format_decibels(variation_db)} without the mean over the"
        " compared inputs: the outputs hardly depend on the input, and that part is lost"
    )
    return "; ".join([message, *slices])


def below_usual_of(
    program: Program,
    figures: Mapping[str, float],
    causes_of: Callable[[], Causes],
    divergence: str,
) -> Iterator[Finding]:
    """Warn about figures below the usual ones, unless the suite accepts them or they miss a threshold too."""
    thresholds, misses = program.thresholds, below_usual(program.run.kind, figures)
    agreed = thresholds is None or thresholds.sqnr_db is not None
    if misses and not agreed and not missed_thresholds(thresholds, figures, program.run.kind):
        causes = causes_of()
        message = accuracy_message(misses, figures, causes)
        fix = accuracy_fix(misses, figures, divergence, "", causes=causes)
        yield Finding("accuracy-usual", Severity.WARNING, program.name, message, fix)


def constant_outputs(
    program: Program, figures: Mapping[str, float], slices: Sequence[str], again: str
) -> Iterator[Finding]:
    if message := nearly_constant(figures, slices):
        yield Finding("accuracy-constant", Severity.WARNING, program.name, message, again)


def chip_differs(misses: Sequence[Missed], figures: Mapping[str, float]) -> bool:
    """Whether the program on the chip, rather than quantization, causes a miss."""
    reference = figures.get("reference_sqnr_db", math.inf)
    from_quantized = [miss.figure.startswith("reference") for miss in misses]
    # Nearer to the quantized model than to the float one: quantization is the cause.
    follows = reference > figures.get("sqnr_db", math.inf) + CLEARLY_DB
    if any(from_quantized):
        return all(from_quantized) or not follows
    return not follows and any(
        figures.get(f"reference_{miss.figure}", math.inf) < miss.bound
        for miss in misses
        if miss.figure in ("sqnr_db", "agreement", "choice_agreement")
    )
