"""The page of models with trained weights: the metric of each one's task in float, quantized, and on HTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.pipeline.lost_parts import LEAST_DB
from ci.pipeline.models.wheels import PREFIX, PinnedWheel
from ci.pipeline.suite_file import SuiteFile, accepted_path, read_suite
from provisioning.base.accepted import Values, load_accepted
from provisioning.base.settings import DEFAULT_PROFILE, MANIFESTS
from provisioning.base.units import in_decibels

SUITE = MANIFESTS / "suites" / "trained.toml"


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A program, as it was measured last."""

    lane: str
    name: str
    soc: str
    values: Values

    def share(self, name: str) -> str:
        value = self.values.get(name)
        return f"{100 * float(str(value)):.1f} %" if value is not None else ""

    def decibels(self, name: str) -> str:
        value = self.values.get(name)
        return in_decibels(float(str(value))) if value is not None else ""

    @property
    def word(self) -> str:
        """As in the operator table: WRONG where HTP differs from the quantized model, LOST where that one
        differs from float; why nothing was measured; else empty."""
        if not self.values:
            return "not measured"
        if "metric" not in self.values:
            return str(self.values.get("message") or "not compiled")
        if float(str(self.values.get("reference_sqnr_db", LEAST_DB))) < LEAST_DB:
            return "WRONG"
        return "LOST" if float(str(self.values.get("sqnr_db", LEAST_DB))) < LEAST_DB else ""

    @property
    def build(self) -> str:
        return str(self.values.get("build_id", ""))


@dataclass(frozen=True, slots=True)
class TrainedModel:
    name: str
    metric: str
    file: str
    """In its wheel."""
    wheel: PinnedWheel
    runs: tuple[TrainedRun, ...]


def models(path: Path = SUITE) -> list[TrainedModel]:
    return list(models_of(read_suite(path), load_accepted(accepted_path(path, DEFAULT_PROFILE)).subjects))


def models_of(suite: SuiteFile, accepted: Mapping[str, Values]) -> Iterator[TrainedModel]:
    """Cases of two lanes have the rows of both."""
    runs: dict[str, list[TrainedRun]] = {}
    cases: dict[str, Mapping[str, Any]] = {}
    for lane, of_lane in suite.raw.items():
        for name, case in of_lane.items():
            cases[name] = case
            runs.setdefault(name, []).extend(
                TrainedRun(lane, of_run, soc, accepted.get(f"{lane}/{name}/{of_run}/{soc}", {}))
                for run in case["run"]
                for of_run in [
                    run.get("label") or run["precision"] + "-repaired" * run.get("repaired", False)
                ]
                for soc in run["socs"]
            )
    for name, case in cases.items():
        weights = case.get("model") or case.get("arguments", {}).get("weights", "")
        wheel, _, file = weights.removeprefix(PREFIX).partition("/")
        yield TrainedModel(name, case["metric"]["name"], file, suite.head.wheels[wheel], tuple(runs[name]))
