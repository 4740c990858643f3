"""What the commands for one model did in this folder, by the rows that each keeps in its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ci.pipeline.model_report import MODELS
from ci.report.programs import offers_in
from ci.report.values import entries, rows_of, word
from provisioning.base.findings import Report


@dataclass(frozen=True, slots=True)
class ModelView:
    verb: str
    model: str
    verdict: str
    when: str
    command: str
    said: Sequence[str]
    offers: Sequence[tuple[str, str]]

    @property
    def brief(self) -> str:
        """The first line with a figure in dB, as people ask for it first; else the first line."""
        return next((line for line in self.said if " dB" in line), next(iter(self.said), "nothing"))


def of_one_model(report: Report) -> bool:
    """Whether a report holds what was done of several models, one command after the other."""
    return MODELS in report.metrics


def models_of(reports: Sequence[Report]) -> list[ModelView]:
    """The latest first."""
    return sorted(_models(reports), key=lambda model: model.when, reverse=True)


def _models(reports: Sequence[Report]) -> Iterator[ModelView]:
    for report in filter(of_one_model, reports):
        for name, row in rows_of(report, MODELS).items():
            verdict, when, command = (word(row, key) for key in ("verdict", "when", "command"))
            lines = [line for line in entries(row.get("said")) if isinstance(line, str)]
            passed, offers = "pass" if verdict == "pass" else "fail", offers_in(row)
            yield ModelView(report.stage, name, passed, when, command, lines, offers)
