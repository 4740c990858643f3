"""Compile the models that phones measured, fit constants, judge each model left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.lanes.onnx.product import answer_in, estimating
from ci.lanes.onnx.steps import plan_of, require_installed
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.one_model.forecast import ACCEPTED, PRECISIONS, Forecasts, QnnEstimates, load_forecasts
from ci.one_model.phones import MANIFEST
from ci.suite.options import matcher
from ci.suite.running import run_cached_step
from ci.work import Failure, WorkOptions, to_json
from lab.forecast import hub
from lab.forecast.fitting import WAYS, FittedProgram, JudgedPhone, judge, limits_of, quantile
from lab.stage import stage_run
from provisioning.accepted_file import Accepted, Values, accept
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Severity
from provisioning.base.settings import Selection
from provisioning.store import Store

Measured = Mapping[tuple[str, str, str], float]
"""By phone, model and precision, microseconds."""

FLOAT = "fp16"
OURS = {hub_name: ours for ours, hub_name in PRECISIONS.items()}


def fit_forecasts(selection: Selection, work: WorkOptions, words: Sequence[str], *, accepts: bool) -> int:
    """Returns the exit code. `words` choose programs by name."""
    table = load_forecasts()
    stage = stage_run("forecast", selection)
    with stage.reported(selection.reports, "forecast-not-fitted"):
        measured = _measured(table, selection.store)
        programs, build = list[FittedProgram](), ""
        chosen = programs_of(table, measured, words)
        for (model, precision), asked in _estimated(chosen, table, selection, work).items():
            name, chips = f"{model}/{precision}", table.chips(OURS[precision], table.phones)
            if isinstance(asked, Failure):
                stage.add("forecast-not-compiled", Severity.WARNING, name, asked.message, asked.fix)
            elif reason := asked.unsound(chips):
                stage.add("forecast-withheld", Severity.NOTE, name, reason, "")
            else:
                build = asked.build_id
                figures = asked.lower, asked.operators
                programs.append(FittedProgram(model, precision, *figures, **to_json(asked.size)))
        judged = judge(programs, measured, table)
        if not judged and not words:
            raise CheckFailed("no precision has the models that a fit needs")
        stage.metrics |= {f"{row.phone} {row.precision}": dict(errors_of(row)) for row in judged}
        if accepts:
            values = accepted_of(build, programs, judged, table)
            accept(ACCEPTED, lambda before: Accepted(before.path, values))
    return stage.close(selection.reports)


def _measured(table: Forecasts, store: Path) -> dict[tuple[str, str, str], float]:
    root = hub.tables(table, Store(store))
    phones = {phone.device: name for name, phone in table.phones.items()}
    return {
        (phones[row.device], row.name, row.precision): row.milliseconds * 1000
        for model in dict.fromkeys(name.partition(" ")[0] for name in hub.fitted_models())
        for row in hub.measurements(root, model)
        if row.runtime == table.runtime and row.device in phones and not row.off_npu
    }


def programs_of(
    table: Forecasts, measured: Measured, words: Sequence[str]
) -> dict[tuple[str, str], OnnxProgram]:
    """By model and AI Hub's precision, what phones measured of them."""
    chosen, known, programs = matcher(words), {key[1:] for key in measured}, {}
    for ours, precision in PRECISIONS.items():
        for model, row in hub.fitted_models().items():
            name = model.replace(" ", ".")
            if (model, precision) in known and (not words or chosen(f"{name}/{precision}")):
                kept = {FLOAT: row.in_float} if row.in_float and ours != FLOAT else {}
                run = OnnxRun(precision=ours, calibration=1, socs=(table.chip,), label=precision, nodes=kept)
                case = OnnxCase(
                    factory="lab.forecast.models:export_to_onnx",
                    arguments={"row": row.model_dump_json()},
                    inferences=1,
                    run=(run,),
                )
                programs[model, precision] = OnnxProgram(MANIFEST, name, case, run, table.chip)
    return programs


def _estimated(
    programs: Mapping[tuple[str, str], OnnxProgram],
    table: Forecasts,
    selection: Selection,
    work: WorkOptions,
) -> dict[tuple[str, str], QnnEstimates | Failure]:
    """A compile for each chip that a phone's forecast rests on."""
    require_installed()
    found = dict[tuple[str, str], QnnEstimates | Failure]()
    for ours, precision in PRECISIONS.items():
        if mine := {key: program for key, program in programs.items() if key[1] == precision}:
            plan = plan_of([*mine.values()], selection, work)
            step = estimating(plan, table.chips(ours, table.phones))
            for key, result in zip(mine, run_cached_step(step, plan.programs).values(), strict=True):
                found[key] = result.failure or answer_in(result, QnnEstimates).answer
    return found


def errors_of(judged: JudgedPhone) -> dict[str, float]:
    """Median and 80th percentile of each way's errors."""
    return {
        f"{way.replace(' ', '_')}.{name}": round(quantile(judged.errors(way), part), 3)
        for way in WAYS
        for name, part in (("median", 0.5), ("p80", 0.8))
    }


def accepted_of(
    build: str, programs: Sequence[FittedProgram], judged: Sequence[JudgedPhone], table: Forecasts
) -> dict[str, Values]:
    limits = limits_of(programs, table)
    values: dict[str, Values] = {
        "fit": {
            "qnn": build,
            "wheel": f"{table.wheel.version} {table.wheel.sha256}",
            "least_us": round(limits.least_us, 1),
            "most_us": round(limits.most_us, 1),
            "operators": " ".join(sorted(limits.operators)),
        }
    }
    for found in judged:
        scale, around = found.constants
        values[f"phones/{found.phone}/{found.precision}"] = {
            "scale": float(f"{scale:.5g}"),
            "around_us": round(float(around), 1),
            "p80": round(quantile(found.errors(), 0.8), 3),
            "programs": len(found.errors()),
            "left_out": len(found.rows) - len(found.errors()),
            **errors_of(found),
        }
        for row in found.rows:
            guess = row.guesses.get("forecast")
            values[f"measured/{found.phone}/{row.program.model}/{row.program.precision}"] = {
                "measured_us": round(row.measured),
                **({"forecast_us": round(guess)} if guess else {}),
            }
    for program in programs:
        values[f"programs/{program.model}/{program.precision}"] = {
            **{chip: round(us) for chip, us in program.estimates.items()},
            "macs": program.macs,
            "weights": program.weights,
            "values": program.values,
            "operators": " ".join(f"{name}={count}" for name, count in sorted(program.operators.items())),
        }
    return values
