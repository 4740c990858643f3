"""The page of repairs: ten common models before and after, what tune makes of some, and what of the shipped
suites is not green."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.pipeline.suite_file import accepted_path
from ci.pipeline.tuning import number_in_words
from provisioning.base.accepted import Values, load_accepted
from provisioning.base.settings import DEFAULT_PROFILE, MANIFESTS
from provisioning.fixes import fix_for, load_fixes
from provisioning.known_faults import Fault, load_faults

SUITES = MANIFESTS / "suites"
COMMON, TRAINED = SUITES / "common.toml", SUITES / "trained.toml"
OTHERS = SUITES / "models.toml", SUITES / "onnx_operators.toml"
SHOWN = [suite.stem for suite in (COMMON, TRAINED, *OTHERS)]
"""The suites that the page names."""
GREEN = "green"
LOSSY_DB = 20.0
"""Less is told on the page."""
NO_FIX = "no rewrite of it is known: other operators must be written, or it stays on the CPU"


@dataclass(frozen=True, slots=True)
class State:
    """Of a program, before or after its repair."""

    verdict: str
    says: str
    sqnr_db: float | None
    ddr: int | None


@dataclass(frozen=True, slots=True)
class RepairRow:
    model: str
    precision: str
    soc: str
    before: State
    after: State
    rewrites: Sequence[str]
    """By name."""
    tuned: TunedRow | None = None
    """What makes it green where no rewrite does."""


@dataclass(frozen=True, slots=True)
class Lossy:
    """Programs of a case that are not green, of one reason."""

    lane: str
    case: str
    precisions: str
    state: str
    answer: str
    """What repairs it, or why nothing does."""
    fault: str = ""
    measured: Sequence[str] = ()
    """What its programs became, where that was accepted."""


def rows() -> list[RepairRow]:
    return rows_of(_of_suites((COMMON, TRAINED), "repaired"), tuned())


def _of_suites(suites: Sequence[Path], kind: str) -> dict[str, Values]:
    """What was accepted, by program."""
    paths = [accepted_path(suite, kind) for suite in suites]
    return {name: values for path in paths for name, values in load_accepted(path).subjects.items()}


def rows_of(accepted: Mapping[str, Values], tuned: Sequence[TunedRow] = ()) -> list[RepairRow]:
    found = []
    by_model = {(row.lane, row.model, row.soc): row for row in tuned if row.chosen}
    for subject, values in accepted.items():
        lane, model, precision, soc = subject.split("/")
        before, after = (_state(values, f"{when}.") for when in ("before", "after"))
        mixture = by_model.get((lane, model, soc)) if after.verdict != GREEN else None
        rewrites = str(values["rewrites"]).split()
        found.append(RepairRow(model, precision, soc, before, after, rewrites, mixture))
    return found


def _state(values: Values, when: str) -> State:
    sqnr_db, ddr = values.get(f"{when}sqnr_db"), values.get(f"{when}ddr")
    return State(
        str(values[f"{when}verdict"]),
        str(values.get(f"{when}says", "")),
        float(str(sqnr_db)) if sqnr_db is not None else None,
        int(str(ddr)) if ddr is not None else None,
    )


@dataclass(frozen=True, slots=True)
class MeasuredAt:
    """A model at one precision, or with some operators at another."""

    accuracy: str
    """By the figures of its floor."""
    costs: str
    """Bytes of DDR traffic, and of the program."""


@dataclass(frozen=True, slots=True)
class TunedRow:
    lane: str
    model: str
    soc: str
    floor: str
    precisions: Sequence[str]
    """The cheap one, the exact one."""
    cheap: MeasuredAt
    exact: MeasuredAt
    chosen: MeasuredAt | None
    """None: no program holds the floor."""
    groups: str
    """How many of how many are exact."""
    programs: int
    minutes: float
    """Of the CPU, to compile them."""


def tuned() -> list[TunedRow]:
    return tuned_of(_of_suites((COMMON, TRAINED, *OTHERS), "tuned"))


def tuned_of(accepted: Mapping[str, Values]) -> list[TunedRow]:
    return [_tuned(subject, values) for subject, values in accepted.items()]


def _tuned(subject: str, values: Values) -> TunedRow:
    lane, model, soc = subject.split("/")
    floors = [name.removeprefix("floor.") for name in values if name.startswith("floor.")]

    def at(when: str) -> MeasuredAt:
        numbers = {
            name: float(str(values[f"{when}.{name}"])) for name in floors if f"{when}.{name}" in values
        }
        costs = [values.get(f"{when}.{name}") for name in ("ddr", "bytes")]
        accuracy = ", ".join(number_in_words(name, value) for name, value in numbers.items())
        return MeasuredAt(accuracy, ", ".join(f"{cost:,}" for cost in costs if isinstance(cost, int)))

    return TunedRow(
        lane,
        model,
        soc,
        ", ".join(number_in_words(name, float(str(values[f"floor.{name}"]))) for name in floors),
        str(values["precisions"]).split(),
        at("cheap"),
        at("exact"),
        at("chosen") if "chosen.groups" in values else None,
        f"{values.get('chosen.groups', '-')} of {values['groups']}",
        int(str(values["programs"])),
        float(str(values["cpu_seconds"])) / 60,
    )


def words_of_rewrites() -> dict[str, str]:
    """What each rewrite says to write."""
    return {fix.rewrite: fix.words for fix in reversed(load_fixes()) if fix.rewrite}


def others() -> list[Lossy]:
    return lossy_of(_of_suites(OTHERS, DEFAULT_PROFILE), _of_suites(OTHERS, "repaired"), tuned())


def lossy_of(
    accepted: Mapping[str, Values], repaired: Mapping[str, Values], tuned: Sequence[TunedRow]
) -> list[Lossy]:
    """Each case once for each of its reasons."""
    programs: dict[tuple[str, ...], dict[str, str]] = {}
    for subject, values in accepted.items():
        lane, case, *rest = subject.split("/")
        if len(rest) == 2:
            for reason in _reasons(lane, case, rest[0], values, accepted):
                programs.setdefault((lane, case, *reason), {})[rest[0]] = subject
    return [
        Lossy(lane, case, ", ".join(names), state, answer, fault, measured)
        for (lane, case, state, answer, fault), names in programs.items()
        for measured in [[*_repaired(names, repaired), *_mixed(lane, case, tuned)]]
    ]


def _repaired(subjects: Mapping[str, str], repaired: Mapping[str, Values]) -> Iterator[str]:
    """What became of programs, by precision, that a rewrite reached."""
    for precision, subject in subjects.items():
        values = repaired.get(subject)
        if values and values["rewrites"]:
            after = _state(values, "after.")
            decibels = f", {after.sqnr_db:.0f} dB" if after.sqnr_db is not None else ""
            yield f"{precision} repaired: {after.verdict}{decibels}"


def _mixed(lane: str, case: str, tuned: Sequence[TunedRow]) -> Iterator[str]:
    for row in tuned:
        if (row.lane, row.model) == (lane, case) and row.chosen:
            yield f"tuned: {row.chosen.accuracy}, {row.groups} groups at {row.precisions[1]}"


def _reasons(
    lane: str, case: str, precision: str, values: Values, accepted: Mapping[str, Values]
) -> Iterator[tuple[str, str, str]]:
    """The state, the answer and the known fault of a program that is not green."""
    fault = next((fault for fault in load_faults() if _meets(fault, case, precision)), None)
    known = (fault.fix, fault.id) if fault else None
    refused, sqnr_db = values.get("refused"), values.get("sqnr_db")
    if isinstance(refused, list):
        names = ", ".join(map(str, refused))
        answer = str(fix_for(str(refused[0]), "")) or f"the provider refuses {names}: {NO_FIX}"
        yield "refused", *(known or (answer, ""))
    elif values.get("failed"):
        yield str(values["failed"]), *(known or (f"{values['message']}: {NO_FIX}", ""))
    elif isinstance(sqnr_db, int | float) and sqnr_db < LOSSY_DB:
        computed = float(str(values.get("reference_sqnr_db", 0.0)))
        exact = _most_exact(lane, case, accepted)
        if computed >= LOSSY_DB:
            why = f"quantizing loses it, and HTP computes what the quantized model says ({computed:.0f} dB)"
        else:
            why = f"HTP is {computed:.0f} dB from the quantized model: divergence says where"
        more = f"tune takes what it needs of {exact}" if exact else "no precision that was measured is better"
        yield f"{sqnr_db:.0f} dB", *(known or (f"{why}; {more}", ""))


def _meets(fault: Fault, case: str, precision: str) -> bool:
    return case in fault.operators and (not fault.schemes or precision in fault.schemes)


def _most_exact(lane: str, case: str, accepted: Mapping[str, Values]) -> str:
    """The precision at which the case is most exact, with its figure."""
    figures = {
        subject.split("/")[2]: float(str(values["sqnr_db"]))
        for subject, values in accepted.items()
        if subject.startswith(f"{lane}/{case}/") and "sqnr_db" in values
    }
    best = max(figures, key=lambda precision: figures[precision])
    return f"{best} ({figures[best]:.0f} dB)" if figures[best] >= LOSSY_DB else ""
