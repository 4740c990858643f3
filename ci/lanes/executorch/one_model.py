"""One model through the suites' engine: compiled, run, compared, and written to the user's folder."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.engine.installed import ready_runner
from ci.engine.output import Publish, writing_into
from ci.engine.work import Result
from ci.lanes.executorch import PROGRAM, QUANTIZED
from ci.lanes.executorch.backends import LIBRARY_MISSING, findings_before_compile
from ci.lanes.executorch.compile import COMPILED, ExecutorchPlan, compile_programs
from ci.lanes.executorch.emulate import RAN, Emulation, findings_of, measure, ran
from ci.lanes.executorch.judge import artifact, costs_of, delegation
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.lanes.executorch.user_program import (
    plan_of_model,
    program_of,
    pytorch_model,
    require_done,
    samples_folder,
    scheme_of,
)
from ci.operators.suggestions import suggestion_for
from ci.pipeline.accuracy import in_words
from ci.pipeline.findings import warnings_of
from ci.pipeline.into_suite import Extension, factory_in, require_place
from ci.pipeline.lane import update
from ci.pipeline.models.other_python import export_with
from ci.pipeline.models.user_model import UserModel
from ci.pipeline.options import CompileOptions, OneModel
from ci.pipeline.precision import scheme_named
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Finding, Severity
from provisioning.base.rendering.text import plural


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for, checked before anything heavy is imported."""

    model: OneModel
    named: UserModel
    scheme: str
    samples: Path | None
    cpu_nodes: tuple[str, ...]

    def program(self, soc: str, suite: Path | None = None) -> ExecutorchProgram:
        named = self.named if suite is None else replace(self.named, factory=factory_in(self.named, suite))
        return program_of(
            named,
            self.scheme,
            soc,
            self.model.selection,
            samples=self.samples,
            backend=self.model.backend,
            cpu_nodes=self.cpu_nodes,
            suite=suite,
        )

    @classmethod
    def of(cls, model: OneModel, cpu_nodes: tuple[str, ...] = ()) -> Request:
        named = pytorch_model(model.typed)
        scheme, samples = scheme_of(named, model.precision), samples_folder(model.calibrate)
        return cls(model, named, scheme, samples, cpu_nodes)

    def exported(self, scratch: Path, publish: Publish) -> Request:
        """With --python: the .pt2 that it exports, which then lies in the output."""
        if not (python := self.model.python):
            return self
        timeout = self.model.work.timeout
        (path,) = publish([export_with(python, self.named, self.samples, scratch, 0, timeout)])
        sys.stderr.write(f"{python} exported {path}\n")
        return replace(self, named=pytorch_model(str(path)))


def compile_model(options: CompileOptions) -> int:
    model, output, suite = options.model, options.output, options.suite
    request = Request.of(model, options.keep_on_cpu)
    if suite:
        require_place(suite, measured=options.verify and model.backend in (None, "htp"))
    for soc in model.selection.socs:
        request.program(soc)
    with writing_into(output.absolute(), model.selection.store) as (scratch, publish):
        request = request.exported(scratch, publish)
        extension = extension_of(request, suite) if suite else None
        programs = extension.programs if extension else [request.program(soc) for soc in model.selection.socs]
        plan = plan_of_model(model, "compile", programs)
        compiled = compile_programs(plan)
        for program in plan.programs:
            _require_compiled(program, plan, compiled)
        measured: dict[str, Result] = {}
        runnable = {each.name: compiled[each.name] for each in plan.programs if each.backend == "htp"}
        if options.verify and runnable:
            runner = ready_runner(os.environ, model.selection.reports)
            measured = measure(plan, runner, runnable)
        for program in plan.programs:
            run = measured.get(program.name)
            if run is not None and not ran(run):
                (finding,) = findings_of(program, run, compiled[program.name].facts)
                raise CheckFailed(finding.message, fix="--verify none writes the program without running it")
        records = [
            _written(scratch, program, plan, compiled[program.name], measured.get(program.name))
            for program in plan.programs
        ]
        publish([path for path in scratch.iterdir() if path.is_file()])
        for program, record in zip(plan.programs, records, strict=True):
            _say(output, program, plan, compiled[program.name], record)
        if extension:
            _extend(extension, plan, compiled, measured)
    return 0


def quantize_model(model: OneModel, output: Path) -> int:
    request = Request.of(model)
    with writing_into(output.absolute(), model.selection.store) as (scratch, publish):
        request = request.exported(scratch, publish)
        programs = [request.program(soc) for soc in model.selection.socs]
        if not programs[0].run.quantizes:
            raise UsageError(f"{request.scheme} quantizes nothing", fix="--precision 8a8w, 16a8w, 16a4w …")
        plan = plan_of_model(model, "quantize", programs, quantize_only=True)
        compiled = compile_programs(plan)
        for program in plan.programs:
            _quantized(scratch, program, require_done(program, plan, compiled))
        for path in publish([path for path in scratch.iterdir() if path.is_file()]):
            if path.suffix == ".pt2":
                sys.stdout.write(f"{path.stat().st_size:>12,}  {path}\n")
        for program in plan.programs:
            _warn(compiled[program.name])
            figures = in_words(compiled[program.name].facts["figures"])
            sys.stdout.write(f"{program.soc} {program.run.kind}: {figures} against float, both in PyTorch\n")
    return 0


def _require_compiled(
    program: ExecutorchProgram, plan: ExecutorchPlan, compiled: Mapping[str, Result]
) -> None:
    result = require_done(program, plan, compiled)
    if result.facts.get("lacks"):
        findings = {each.rule: each for each in findings_before_compile(program, result.facts)}
        raise EnvironmentLacking(findings[LIBRARY_MISSING].message, fix=findings[LIBRARY_MISSING].fix)
    if errors := _errors(artifact(program, result, plan.basis.build_id)):
        raise CheckFailed(errors[0].message, fix="--no-cache compiles it again")
    # An HTP program may leave operators on the CPU; an LPAI program is one partition.
    if program.backend == "lpai" and (errors := _errors(delegation(program, result.facts))):
        raise CheckFailed(
            errors[0].message, fix="run that part of the model before or after, in a program of its own"
        )


def _errors(findings: Iterator[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity is Severity.ERROR]


def _stem(program: ExecutorchProgram) -> str:
    return f"{program.case_name}-{program.soc}-{program.run.kind}"


def _tensors(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{name: each[name] for name in ("dtype", "shape")} for each in facts["inputs"][0]]


def _stack(build_id: str = "") -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in ("executorch", "torch")}
    return {**packages, **({"qnn": build_id} if build_id else {})}


def _written(
    scratch: Path, program: ExecutorchProgram, plan: ExecutorchPlan, compiled: Result, run: Result | None
) -> Mapping[str, Any]:
    """Put the program and its record into the scratch folder."""
    assert compiled.folder is not None
    facts, path = compiled.facts, scratch / f"{_stem(program)}.pte"
    _copy(compiled.folder / PROGRAM, path)
    record: dict[str, Any] = {
        "schema": 1,
        "program": path.name,
        "sha256": hash_file(path),
        "model": program.case.factory,
        "soc": program.soc,
        "backend": program.backend,
        "scheme": program.run.precision,
        "stack": _stack(plan.basis.build_id),
        "inputs": _tensors(facts),
        "delegates": facts["delegates"],
        "on_cpu": [
            {name: each[name] for name in ("operator", "module", "source", "reason") if each.get(name)}
            for each in facts["left"]
        ],
        "kept_on_cpu": facts.get("kept_on_cpu"),
        "accuracy": dict(run.facts["figures"]) if run else {},
        "costs": costs_of(compiled),
    }
    replace_text(path.with_suffix(".json"), json.dumps(record, indent=2) + "\n")
    return record


def _quantized(scratch: Path, program: ExecutorchProgram, compiled: Result) -> None:
    assert compiled.folder is not None
    path = scratch / f"{_stem(program)}.pt2"
    _copy(compiled.folder / QUANTIZED, path)
    record = {
        "schema": 1,
        "model": program.case.factory,
        "quantized": path.name,
        "sha256": hash_file(path),
        "soc": program.soc,
        "scheme": program.run.precision,
        "stack": _stack(),
        "inputs": _tensors(compiled.facts),
        "accuracy": compiled.facts["figures"],
    }
    replace_text(path.with_suffix(".json"), json.dumps(record, indent=2) + "\n")


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise UsageError(
            f"{target.parent}: {error.strerror or error}", fix="name another folder with -o"
        ) from error


def _warn(compiled: Result) -> None:
    for _rule, message in compiled.facts.get("notes", ()):
        sys.stderr.write(f"warning: {message}\n")


def _say(
    folder: Path,
    program: ExecutorchProgram,
    plan: ExecutorchPlan,
    compiled: Result,
    record: Mapping[str, Any],
) -> None:
    _warn(compiled)
    on_cpu, figures, ddr = record["on_cpu"], record["accuracy"], compiled.facts["ddr"]
    sys.stdout.write(f"{record['costs']['pte_bytes']:>12,}  {folder / record['program']}\n")
    line = f"{program.soc} {program.run.kind}, QNN {plan.basis.build_id}:"
    line += f" {plural(record['delegates'], 'delegate')}; "
    line += f"{plural(len(on_cpu), 'operator')} on the CPU" if on_cpu else "nothing on the CPU"
    if figures:
        whose = "the quantized model" if program.run.precision == "qdq" else "float"
        line += f"; {in_words(figures)} against {whose}"
        if quantized := in_words(figures, "reference_"):
            line += f", {quantized} against the quantized model"
    elif program.backend != "htp":
        line += f"; not run: the emulator has no {program.backend}"
    else:
        line += "; not run"
    sys.stdout.write(f"{line}\n")
    sys.stderr.writelines(f"warning: {warning}\n" for warning in warnings_of(figures))
    alike = Counter(
        (each["operator"], each.get("source", ""), each["code"], each.get("reason", ""))
        for each in compiled.facts["left"]
    )
    for (name, source, code, reason), count in alike.items():
        times = f"{count} times " if count > 1 else ""
        where = f" at {source} `{code}`" if source else ""
        sys.stdout.write(f"  on the CPU: {times}{name}{where}: {reason}\n")
        if suggestion := suggestion_for(name, code):
            sys.stdout.write(f"    → {suggestion}\n")
    if kept := record["kept_on_cpu"]:
        sys.stdout.write(f"  kept on the CPU: {', '.join(kept['nodes'])}: {kept['because']}\n")
    if ddr:
        sys.stdout.write(f"  {ddr['read']:,} bytes read from DDR in a run, {ddr['written']:,} written\n")


def extension_of(request: Request, path: Path) -> Extension[ExecutorchProgram]:
    program = request.program(request.model.selection.socs[0], path)
    case = {"factory": program.case.factory}
    if program.case.samples:
        case["samples"] = program.case.samples
    run = {"precision": program.run.precision, "cpu_nodes": list(program.run.cpu_nodes)}
    name, socs, profile = program.case_name, request.model.selection.socs, program.profile
    return Extension(SUITES, path, name, case, scheme_named, run, socs, profile)


def _extend(
    extension: Extension[ExecutorchProgram],
    plan: ExecutorchPlan,
    compiled: Mapping[str, Result],
    measured: Mapping[str, Result],
) -> None:
    program, facts = extension.programs[0], [compiled[each.name].facts for each in extension.programs]
    kept = [name for each in facts for name in (each.get("kept_on_cpu") or {}).get("nodes", ())]
    delegates = {each["delegates"] for each in facts}
    if len(delegates) > 1:
        raise UsageError(
            f"{extension.path}: these chips have {' and '.join(map(str, sorted(delegates)))} delegates, and a"
            " run of a suite has one number",
            fix="write chips of one kind into one suite: repeat the command for each kind",
        )
    (number,) = delegates
    fields = {
        "cpu_nodes": list(dict.fromkeys([*program.run.cpu_nodes, *kept])),
        "delegates": None if number == program.case.delegates else number,
        "cpu_budget": max(len(each["left"]) for each in facts) or None,
    }
    extension.write([each.facts["figures"] for each in measured.values()], fields)
    update(Emulation(False, False), plan, {COMPILED: compiled, RAN: measured})
