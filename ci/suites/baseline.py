"""What programs cost when it was last agreed on, and how much worse they may become unasked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from provisioning.base.documents import Model, load, parse
from provisioning.base.errors import ManifestError
from provisioning.base.files import replace_text
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import MANIFESTS

DIRECTORY = MANIFESTS / "baselines"

COSTS = {
    "ddr_read": "bytes read from DDR",
    "ddr_written": "bytes written to DDR",
    "ddr_spilled": "bytes spilled to DDR",
    "ddr_filled": "bytes filled from DDR",
    "pte_bytes": "bytes of the .pte",
    "context_bytes": "bytes of the context and its .onnx",
    "cpu_seconds": "seconds of compiling",
}


CostName = Literal[
    "ddr_read", "ddr_written", "ddr_spilled", "ddr_filled", "pte_bytes", "context_bytes", "cpu_seconds"
]


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
    """Thresholds are what was measured less this."""


class Recorded(Model):
    """Of one program. Costs that were never measured are None."""

    ddr_read: int | None = None
    ddr_written: int | None = None
    ddr_spilled: int | None = None
    ddr_filled: int | None = None
    pte_bytes: int | None = None
    context_bytes: int | None = None
    cpu_seconds: float | None = None
    peak_mb: int | None = None
    run_seconds: float | None = None
    accuracy: dict[str, float] = Field(default_factory=dict)

    def cost(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value


class _File(Model):
    schema_: Literal[1] = Field(alias="schema")
    build_id: str
    programs: dict[str, Recorded]


@dataclass(frozen=True, slots=True)
class Baseline:
    path: Path
    build_id: str = ""
    programs: Mapping[str, Recorded] = field(default_factory=dict)

    def of(self, program: str) -> Recorded | None:
        return self.programs.get(program)

    def with_values(self, build_id: str, values: Mapping[str, Mapping[str, object]]) -> Baseline:
        """With these fields of these programs replaced; everything else stays."""
        programs = dict(self.programs)
        for name, fields in values.items():
            programs[name] = programs.get(name, Recorded()).model_copy(update=dict(fields))
        return replace(self, build_id=build_id, programs=programs)

    def rewritten(
        self, build_id: str, values: Mapping[str, Mapping[str, object]], known: Iterable[str]
    ) -> Baseline:
        """On disk too: with these values, and without programs that the suite does not have any more."""
        new = self.with_values(build_id, values)
        wanted = {*known, *values}
        new = replace(new, programs={n: each for n, each in new.programs.items() if n in wanted})
        new.write()
        sys.stderr.write(f"wrote {new.path}\n")
        return new

    def write(self) -> None:
        programs = {
            name: {key: value for key, value in each.model_dump().items() if value not in (None, {})}
            for name, each in sorted(self.programs.items())
        }
        lines = ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(each, sort_keys=True)}" for name, each in programs.items()
        )
        head = f'{{\n  "schema": 1,\n  "build_id": {json.dumps(self.build_id)},\n  "programs": {{\n'
        text = f"{head}{lines}\n  }}\n}}\n"
        replace_text(self.path, text)


def baseline_path(suite: Path, profile: str) -> Path:
    """Of a shipped suite in manifests/baselines/; of a user's own beside it."""
    if suite.parent == MANIFESTS / "suites":
        return DIRECTORY / f"{suite.stem}-{profile}.json"
    return suite.with_name(f"{suite.stem}.baseline-{profile}.json")


def load_baseline(path: Path) -> Baseline:
    """Empty where there is none yet."""
    if not path.is_file():
        return Baseline(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ManifestError(
            path, "(syntax)", expected="JSON", found=str(error), remedy="remove it, then --update-baseline"
        ) from error
    read = parse(data, _File, path)
    return Baseline(path, read.build_id, read.programs)


def load_tolerances() -> Tolerances:
    return load(DIRECTORY / "tolerances.toml", Tolerances)


def growth(
    program: str, costs: Mapping[str, float], baseline: Baseline, tolerances: Tolerances, again: str
) -> Iterator[Finding]:
    """Costs that are more than the baseline and its tolerances allow; `again` agrees on them."""
    agreed = baseline.of(program)
    if agreed is None:
        yield Finding(
            "cost-no-baseline",
            Severity.WARNING,
            program,
            f"{baseline.path.name} has nothing to compare with",
            again,
        )
        return
    for name, value in costs.items():
        tolerance, before = tolerances.costs.get(name), agreed.cost(name)  # type: ignore[call-overload]
        if tolerance is None or before is None or value <= tolerance.most(before):
            continue
        yield Finding(
            f"cost-{name.replace('_', '-')}",
            Severity(tolerance.severity),
            program,
            f"expected at most {tolerance.most(before):,.0f} {COSTS[name]} "
            f"({before:,.0f} in the baseline), found {value:,.0f}",
            f"see what changed in the graph; if it is meant, {again}",
        )
