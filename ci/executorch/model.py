"""One model through the suites' engine: compiled, run, compared, and written to the user's folder."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.engine.installed import ready_runner
from ci.engine.work import Result
from ci.executorch.compile import PROGRAM
from ci.executorch.emulate import findings_of, measure, ran
from ci.executorch.judge import failure_finding
from ci.executorch.one_model import program_named
from ci.executorch.stage import Plan, plan_of
from ci.executorch.suite import Program
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import replace_bytes, replace_text
from provisioning.base.settings import selection_of

CALIBRATION = 32
"""The number of samples, as in a suite."""


def compile_model(args: argparse.Namespace) -> int:
    selection = selection_of(args)
    folder = args.output.absolute()
    _require_writable(folder)
    if args.calibrate and not args.calibrate.is_dir():
        raise UsageError(f"--calibrate {args.calibrate} is not a folder", remedy="name a folder of samples")
    programs = [
        program_named(
            args.model,
            args.precision,
            soc,
            selection,
            CALIBRATION,
            samples=str(args.calibrate.absolute()) if args.calibrate else "",
            cpu_nodes=tuple(args.keep_on_cpu),
        )
        for soc in selection.named_socs or (selection.soc,)
    ]
    plan = plan_of(args, selection, os.environ, "compile", programs)
    compiled = plan.compiled(os.environ)
    for program in plan.programs:
        _require_compiled(program, plan, compiled)
    measured: dict[str, Result] = {}
    if args.verify == "emulator":
        measured = measure(args, plan, ready_runner(os.environ, selection.reports), compiled, os.environ)
    for program in plan.programs:
        run = measured.get(program.name)
        if run is not None and not ran(run):
            (finding,) = findings_of(program, run, compiled[program.name].facts)
            raise CheckFailed(finding.message, remedy="--verify none writes the program without running it")
        _write(folder, program, plan, compiled[program.name], run)
    return 0


def _require_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror or error}", remedy="name another folder with -o"
        ) from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} cannot be written", remedy="name another folder with -o")


def _require_compiled(program: Program, plan: Plan, compiled: Mapping[str, Result]) -> None:
    if (refused := plan.refused.get(program.name)) is not None:
        raise CheckFailed(refused.message, remedy=refused.remedy)
    if failure := compiled[program.name].failure:
        finding = failure_finding(program, failure, "test_lowering")
        raise CheckFailed(finding.message, remedy=finding.remedy.partition("; then nox")[0])


def _write(folder: Path, program: Program, plan: Plan, compiled: Result, run: Result | None) -> None:
    assert compiled.folder is not None
    facts = compiled.facts
    stem = f"{program.case_name}-{program.soc}-{program.run.kind}"
    path = folder / f"{stem}.pte"
    data = (compiled.folder / PROGRAM).read_bytes()
    figures = dict(run.facts["figures"]) if run else {}
    left = [
        {name: each[name] for name in ("operator", "module", "source", "reason") if each.get(name)}
        for each in facts["left"]
    ]
    record: dict[str, Any] = {
        "schema": 1,
        "program": path.name,
        "soc": program.soc,
        "scheme": program.run.scheme,
        "qnn": plan.basis.build_id,
        "delegates": facts["delegates"],
        "on_cpu": left,
        "ddr": facts["ddr"],
        "inputs": [{name: each[name] for name in ("dtype", "shape")} for each in facts["inputs"][0]],
        "accuracy": figures,
        "bytes": len(data),
    }
    try:
        replace_bytes(path, data)
        replace_text(folder / f"{stem}.json", json.dumps(record, indent=2) + "\n")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UsageError(
            f"{path}: {error.strerror or error}", remedy="name another folder with -o"
        ) from error
    sys.stdout.write(f"{len(data):>12,}  {path}\n")
    said = f"{program.soc} {program.run.kind}, QNN {plan.basis.build_id}: {facts['delegates']} delegate"
    said += "s" * (facts["delegates"] != 1)
    said += f"; {len(left)} operators on the CPU" if left else "; nothing on the CPU"
    if figures:
        said += f"; {figures['sqnr_db']:.1f} dB SQNR against float"
        if "reference_sqnr_db" in figures:
            said += f", {figures['reference_sqnr_db']:.1f} dB against the quantized model"
    sys.stdout.write(f"{said}\n")
    for each in left:
        where = f" at {each['source']}" if each.get("source") else ""
        sys.stdout.write(f"  on the CPU: {each['operator']}{where}: {each.get('reason', '')}\n")
    if kept := facts.get("kept_on_cpu"):
        sys.stdout.write(f"  kept on the CPU: {', '.join(kept['nodes'])}: {kept['because']}\n")
    if ddr := facts["ddr"]:
        sys.stdout.write(f"  {ddr['read']:,} bytes read from DDR in a run, {ddr['written']:,} written\n")
