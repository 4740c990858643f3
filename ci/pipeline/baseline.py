"""What programs cost and how accurate they were when somebody last accepted the figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ci.pipeline.accuracy import at_worst, rounded
from ci.pipeline.costs import TITLES, cost_rule
from ci.pipeline.suite import AnyProgram
from provisioning.base.commands import session
from provisioning.base.documents import Model, load, parse
from provisioning.base.errors import CheckFailed, ManifestError
from provisioning.base.files import replace_text
from provisioning.base.findings import Finding, Severity
from provisioning.base.rendering.text import plural
from provisioning.base.settings import MANIFESTS

DIRECTORY = MANIFESTS / "baselines"


class Costs(Model):
    """One program's costs; None if not measured. Titles are for tables, descriptions for messages."""

    ddr_read: int | None = Field(None, title=TITLES["ddr_read"], description="bytes read from DDR")
    ddr_written: int | None = Field(None, title=TITLES["ddr_written"], description="bytes written to DDR")
    ddr_spilled: int | None = Field(None, title=TITLES["ddr_spilled"], description="bytes spilled to DDR")
    ddr_filled: int | None = Field(None, title=TITLES["ddr_filled"], description="bytes filled from DDR")
    pte_bytes: int | None = Field(None, title=TITLES["pte_bytes"], description="bytes of the .pte")
    context_bytes: int | None = Field(
        None, title=TITLES["context_bytes"], description="bytes of the context and its .onnx"
    )
    cpu_seconds: float | None = Field(None, title=TITLES["cpu_seconds"], description="seconds of compiling")


COSTS = Costs.model_fields
"""The only list of costs: tolerances, baselines, findings and the page use these names."""


def _is_cost(name: str) -> str:
    if name not in COSTS:
        raise ValueError(f"one of {', '.join(COSTS)}")
    return name


CostName = Annotated[str, AfterValidator(_is_cost), Field(json_schema_extra={"enum": list(COSTS)})]


class Tolerance(Model):
    """A cost may grow by the part `relative` and by `absolute` on top."""

    relative: Annotated[float, Field(ge=0)]
    absolute: Annotated[float, Field(ge=0)] = 0
    severity: Literal["error", "warning", "note"] = "error"

    def most(self, agreed: float) -> float:
        return agreed * (1 + self.relative) + self.absolute


class Tolerances(Model):
    schema_: Literal[1] = Field(alias="schema")
    costs: dict[CostName, Tolerance]
    sqnr_margin_db: Annotated[float, Field(gt=0)]
    """Thresholds are the measured figures less this margin."""
    cross_check_db: Annotated[float, Field(gt=0)]
    """How much the SQNR of the same model may differ between the lanes."""


Failed = Literal["", "bad_test", "wrong", "dies", "crash"]


class Recorded(Costs):
    """The accepted figures of one program."""

    build_id: str = ""
    """The QNN that compiled it."""
    accuracy: dict[str, float] = Field(default_factory=dict)
    reason: str = ""
    """Why a lower top-1 agreement was accepted, or a threshold below what is required."""
    peak_mb: int | None = None
    run_seconds: float | None = None
    refused: tuple[str, ...] = ()
    """Operators that QNN does not take, as the suite says of this program."""
    taken: tuple[str, ...] = ()
    """The program's others."""
    failed: Failed = ""
    """How a program went wrong whose failures are results."""
    message: str = ""
    """The first line of that failure, without what differs from run to run."""
    in_float: bool = False
    """Whether nothing of a program with floats was quantized, although its precision says so."""

    def cost(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value

    def updated(self, fields: Mapping[str, object]) -> Recorded:
        """With these fields, among them `build_id`. Fields measured with another build are dropped."""
        same = self.build_id == fields["build_id"]
        kept = self if same else Recorded(**{name: getattr(self, name) for name in KEPT})
        return kept.model_copy(update=dict(fields))


KEPT = ("peak_mb", "run_seconds", "reason")
"""What is kept when another build compiles the program: time estimates, and the reason."""


class _File(Model):
    schema_: Literal[1, 2] = Field(alias="schema")
    build_id: str = ""
    """Of all programs, in older files."""
    programs: dict[str, Recorded]
    """By name; since schema 2, where a suite has several lanes, by lane and name."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one lane has in the file; the programs of the others stay as they are."""

    path: Path
    programs: Mapping[str, Recorded] = field(default_factory=dict)
    lane: str = ""
    """Empty for a suite of an earlier release, which has one lane, and whose baseline does not name it."""
    others: Mapping[str, Recorded] = field(default_factory=dict)
    """By lane and name."""

    def of(self, program: str) -> Recorded | None:
        return self.programs.get(program)

    def with_values(self, values: Mapping[str, Mapping[str, object]]) -> Baseline:
        """With these fields of these programs replaced; other programs stay unchanged."""
        programs = dict(self.programs)
        for name, fields in values.items():
            programs[name] = programs.get(name, Recorded()).updated(fields)
        return replace(self, programs=programs)

    def rewritten(self, values: Mapping[str, Mapping[str, object]], runs: Collection[str]) -> Baseline:
        """With these values, without programs whose run the suite does not have any more; also on disk.

        Chips do not matter, because --soc may name others than the suite."""
        updated = self.with_values(values)
        programs = {n: each for n, each in updated.programs.items() if n.rpartition("/")[0] in runs}
        updated = replace(updated, programs=programs)
        updated.write()
        sys.stderr.write(f"wrote {plural(len(values), 'program')} to {updated.path}\n")
        return updated

    def with_reasons(
        self,
        figures: Mapping[str, Mapping[str, float]],
        reason: str,
        again: str,
        low: Mapping[str, Collection[str]] = {},
    ) -> Baseline:
        """Accept the figures of these programs. A lower top-1 agreement needs a reason, and a figure that is
        in `low`, because its threshold is less than what is required of every program. The baseline keeps the
        reason.

        Raises CheckFailed if there is none; `again` is the command that updates."""
        lost = {
            name: lost
            for name, values in figures.items()
            if (lost := self._lost(name, values, low.get(name, ())))
        }
        if lost and not reason:
            named = "; ".join(
                f"{name} ({', '.join(f'{figure} {value:g}' for figure, value in values.items())})"
                for name, values in lost.items()
            )
            raise CheckFailed(
                f"{plural(len(lost), 'program')} with less than is required, or than was agreed to: {named}",
                fix=f"find out why; if it is meant, {again} --reason TEXT",
            )
        programs = dict(self.programs)
        for name, values in figures.items():
            recorded = programs.get(name, Recorded())
            if name in lost:
                # What is agreed to is known even if only thresholds are written.
                accuracy = {**recorded.accuracy, **rounded(lost[name])}
                programs[name] = recorded.model_copy(update={"reason": reason, "accuracy": accuracy})
            elif not low.get(name) and self._better_top1(name, values):
                programs[name] = recorded.model_copy(update={"reason": ""})
        return replace(self, programs=programs)

    def _lost(self, name: str, figures: Mapping[str, float], low: Collection[str]) -> dict[str, float]:
        recorded = self.programs.get(name, Recorded())
        lost = {}
        for figure, value in figures.items():
            if figure != "top1" and figure not in low:
                continue
            margin = load_tolerances().sqnr_margin_db if figure.endswith("_db") else 0
            unexplained = not recorded.reason and (value == 0 or figure in low)
            if unexplained or round(value + margin, 6) < recorded.accuracy.get(figure, value):
                lost[figure] = value
        return lost

    def _better_top1(self, name: str, figures: Mapping[str, float]) -> bool:
        recorded = self.programs.get(name, Recorded())
        return at_worst("top1", figures.get("top1", 0.0)) > recorded.accuracy.get("top1", 0.0)

    def write(self) -> None:
        begins = f"{self.lane}/" if self.lane else ""
        own = {f"{begins}{name}": each for name, each in self.programs.items()}
        replace_text(self.path, baseline_text({**self.others, **own}, 2 if self.lane else 1))


def baseline_text(programs: Mapping[str, Recorded], schema: int) -> str:
    """One line a program, sorted."""
    lines = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(each.model_dump(exclude_defaults=True), sort_keys=True)}"
        for name, each in sorted(programs.items())
    )
    return f'{{\n  "schema": {schema},\n  "programs": {{\n{lines}\n  }}\n}}\n'


def baseline_path(suite: Path, profile: str) -> Path:
    """In manifests/baselines/ for a shipped suite, else beside the user's suite."""
    if suite.parent == MANIFESTS / "suites":
        return DIRECTORY / f"{suite.stem}-{profile}.json"
    return suite.with_name(f"{suite.stem}.baseline-{profile}.json")


def load_baseline(path: Path, lane: str = "") -> Baseline:
    """What a lane has in the file, empty if there is none yet. A suite of an earlier release has no lane."""
    if not path.is_file():
        return Baseline(path, lane=lane)
    schema, programs = read_baseline(path)
    if (schema == 1) != (not lane):
        release = "an earlier release" if schema == 1 else "this release"
        raise ManifestError(
            path,
            "schema",
            expected="the form of its suite",
            found=f"{schema}, the one of {release}",
            fix=f"{session('accept')} --convert SUITE, which rewrites a suite and its baselines together",
        )
    begins = f"{lane}/" if lane else ""
    own = {name.removeprefix(begins): each for name, each in programs.items() if name.startswith(begins)}
    others = {name: each for name, each in programs.items() if not name.startswith(begins)}
    return Baseline(path, own, lane, others)


def read_baseline(path: Path) -> tuple[int, dict[str, Recorded]]:
    """The file's schema, and its programs by the names there."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ManifestError(
            path, "(syntax)", expected="JSON", found=str(error), fix="remove it, then --accept"
        ) from error
    read = parse(data, _File, path)
    programs = {
        name: each if each.build_id else each.model_copy(update={"build_id": read.build_id})
        for name, each in read.programs.items()
    }
    return read.schema_, programs


def load_tolerances() -> Tolerances:
    return load(DIRECTORY / "tolerances.toml", Tolerances)


def agree(
    baselines: MutableMapping[Path, Baseline],
    programs: Sequence[AnyProgram[Any, Any]],
    figures: Mapping[str, Mapping[str, float]],
    reason: str,
    command: str,
    low: Mapping[str, Collection[str]],
) -> None:
    """Refuse to accept what needs a reason without one; with one, keep it in the baselines."""
    for suite, baseline in list(baselines.items()):
        mine = {each.name for each in programs if each.suite == suite}
        of_suite = {name: values for name, values in figures.items() if name in mine}
        agreed = baseline.with_reasons(of_suite, reason, command, low)
        if agreed.programs != baseline.programs:
            agreed.write()
        baselines[suite] = agreed


def beside(costs: Mapping[str, float], build_id: str, agreed: Recorded | None) -> dict[str, Any]:
    """The accepted costs, for the row of a report, with their build if it is another."""
    if agreed is None:
        return {"baseline": {}}
    other = {} if agreed.build_id == build_id else {"baseline_build_id": agreed.build_id or "unknown"}
    return {"baseline": {name: agreed.cost(name) for name in costs}, **other}


def growth(
    program: str,
    costs: Mapping[str, float],
    build_id: str,
    baseline: Baseline,
    tolerances: Tolerances,
    again: str,
) -> Iterator[Finding]:
    """Costs above the baseline and its tolerances; the command `again` accepts them."""
    agreed = baseline.of(program)
    if agreed is None or all(agreed.cost(name) is None for name in COSTS):
        yield Finding(
            "cost-no-baseline",
            Severity.WARNING,
            program,
            f"{baseline.path.name} has nothing to compare with",
            again,
        )
        return
    other = "" if build_id == agreed.build_id else f", of QNN {agreed.build_id or 'unknown'}"
    for name, value in costs.items():
        tolerance, before = tolerances.costs.get(name), agreed.cost(name)
        if tolerance is None or before is None or value <= tolerance.most(before):
            continue
        now = f" with QNN {build_id}" if other else ""
        yield Finding(
            cost_rule(name),
            Severity(tolerance.severity),
            program,
            f"expected at most {tolerance.most(before):,.0f} {COSTS[name].description} "
            f"({before:,.0f} in the baseline{other}), found {value:,.0f}{now}",
            f"see what changed in the graph; if it is meant, {again}",
        )
