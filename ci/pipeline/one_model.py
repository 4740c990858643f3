"""Commands for one model: the pipeline over a suite of one. What a lane says of the user's model, and what is
made of it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ci.pipeline.accuracy import in_words
from ci.pipeline.compile_flags import CHECKPOINT, LANES
from ci.pipeline.into_suite import Extension, require_place
from ci.pipeline.lane import Lane, Mine, Results, mine_of, update
from ci.pipeline.model_report import ModelReport, reported
from ci.pipeline.options import Accept, Choice, Compiling, OneModel, StageOptions
from ci.pipeline.output import Publish, document_of, origin_of, require_own, writing_into
from ci.pipeline.precision import written_name
from ci.pipeline.stage import AnyPlan
from ci.pipeline.steps import require_done
from ci.pipeline.suite import AnyProgram
from ci.pipeline.trial import Outcome
from provisioning.base import answer
from provisioning.base.command_line import Parser, show_error
from provisioning.base.commands import session
from provisioning.base.disk import disk_errors
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from provisioning.base.findings import Finding
from provisioning.base.settings import DEFAULT_SOC, Selection
from provisioning.base.units import aligned
from provisioning.environment import without_android
from provisioning.manifest import soc_named

P = TypeVar("P", bound=AnyProgram[Any, Any])
L = TypeVar("L", bound=AnyPlan[Any])


NOT_TRIED = Outcome()


@dataclass(frozen=True, slots=True)
class Product:
    """What is written of a program, and what is said of it."""

    files: Mapping[str, Path | str]
    """By their names in the output: where each lies, or its text."""
    words: Sequence[str] = ()
    warnings: Sequence[str] = ()
    outcome: Outcome = NOT_TRIED
    """Its `wrong` makes the command end with exit code 1. The files are written all the same."""
    findings: Sequence[Finding] = ()
    """What an answer says of it (--json)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What an answer has beside its record."""
    chips: str = ""
    """For a table of several precisions; without them it has no row there."""
    stale: Sequence[Path] = ()
    """Of an earlier product: they go, unless they are written again."""


@dataclass(frozen=True)
class LaneModel(ABC, Generic[P, L]):
    """The user's model as its lane takes it."""

    model: OneModel
    how: Compiling
    given: P | None = field(default=None, kw_only=True)
    """A suite's program, in place of MODEL."""

    lane: ClassVar[Lane[Any, Any]]
    """Its stage, which will hold what `compile --suite` writes."""
    fields: ClassVar[tuple[str, ...]] = ("precision",)
    """What `compile --suite` writes of a run."""

    @classmethod
    def of(cls, model: OneModel, how: Compiling) -> LaneModel[P, L]:
        return cls(model, how)

    @staticmethod
    def same(precision: str) -> str:
        """The written name of a precision, by which a run of a suite is known again."""
        return str(written_name(precision))

    @abstractmethod
    def program(self, soc: str, suite: Path | None = None) -> P:
        """The program of a suite of one, or of the suite that will have it. Refuses what cannot be compiled;
        imports nothing heavy."""

    @abstractmethod
    def product(self, plan: L, program: P, mine: Mine) -> Product: ...

    @property
    def measured(self) -> bool:
        """Whether there will be figures, which give a suite its thresholds."""
        return self.how.verify

    @property
    def name(self) -> str:
        return self.given.name if self.given else self.model.typed

    @property
    def programs(self) -> Sequence[P]:
        return [self.program(soc) for soc in self.model.selection.socs]

    def exported(self, scratch: Path, publish: Publish) -> LaneModel[P, L]:
        """The model as it is compiled, where another Python exports it."""
        return self

    def command(self, verb: str, soc: str, *more: str) -> str:
        """That does something else with the same model; quantizing knows no settings of the provider."""
        model = replace(self.model, options=()) if verb == "quantize" else self.model
        return session(verb, *model.words(soc), *more)

    def plan(self, programs: Sequence[P]) -> L:
        model = self.model
        options = StageOptions(model.selection, Choice(), model.work, Accept(), False)
        plan: L = self.lane.plan(programs, options)
        return plan

    def do(self, plan: L) -> Results:
        """The results of all steps. Raises the error of what failed."""
        results = self.lane.do(plan, new_baseline=True)
        for step in results.values():
            for result in step.values():
                require_done(result)
        return results

    def for_suite(self, plan: L, results: Results) -> Mapping[str, Any]:
        """What a run of a suite gets from the results. Raises the error of what no suite may have."""
        return {}


def lane_model(model: OneModel, how: Compiling = Compiling()) -> LaneModel[Any, Any]:  # noqa: B008
    """The model in its lane."""
    module, _, name = LANES[model.lane].place.partition(":")
    taken: type[LaneModel[Any, Any]] = getattr(importlib.import_module(module), name)
    return taken.of(model, how)


def of_lane(model: OneModel, verb: str) -> Any:
    """The module of the model's lane that does this verb for one model: what is asked of it, the verb's own
    module says. Refuses a lane that has none."""
    name = f"{LANES[model.lane].place.partition(':')[0].rpartition('.')[0]}.{verb}"
    if importlib.util.find_spec(name) is None:
        raise not_taken(model)
    return importlib.import_module(name)


def not_taken(model: OneModel) -> UsageError:
    """For what a lane does not offer."""
    return UsageError(
        f"{model.typed}: this command takes PyTorch and ONNX models",
        fix="name a .pt2, file.py:function or an .onnx; compile takes this one",
    )


def _say_without_android(selection: Selection, said: set[str] | None) -> None:
    """Before an hour of work for a phone that would refuse the program."""
    lacking = None if soc_named(selection.soc).windows else without_android(selection, os.environ)
    if lacking and lacking.message not in (said or ()):
        sys.stderr.write(f"note: {lacking.message}\n  try: {lacking.fix}\n")
        if said is not None:
            said.add(lacking.message)


def compile_model(
    taken: LaneModel[P, L], suite: Path | None, report: ModelReport, said: set[str] | None = None
) -> int:
    """Write a program for each chip; with `suite`, write the model to that suite too. What is in `said` was
    said of this model before."""
    if suite:
        require_place(suite, measured=taken.measured)
    _say_without_android(taken.model.selection, said)
    # What cannot be compiled is refused before a folder is made.
    for program in taken.programs:
        require_fp16(program)
    programs, output, store = taken.programs, taken.how.output, taken.model.selection.store
    with disk_errors(ELSEWHERE), writing_into(output.absolute(), store) as (new, publish):
        exported = _exported(taken, new, publish, report)
        extension = _extension(exported, suite) if suite else None
        if extension or exported is not taken:
            programs = extension.programs if extension else exported.programs
        plan = exported.plan(programs)
        results = exported.do(plan)
        products = [exported.product(plan, program, mine_of(program, results)) for program in plan.programs]
        _write(products, output, new, publish, taken.model.typed, report, set() if said is None else said)
        if extension:
            more = exported.for_suite(plan, results)
            figures = [exported.lane.figures(program, mine_of(program, results)) for program in plan.programs]
            extension.write([figure for figure in figures if figure is not None], more)
            update(exported.lane, plan, results)
    return _shown(products, report)


def _exported(
    taken: LaneModel[P, L], scratch: Path, publish: Publish, report: ModelReport
) -> LaneModel[P, L]:
    exported = taken.exported(scratch, publish)
    report.exported = exported.model
    return exported


def require_fp16(program: AnyProgram[Any, Any]) -> None:
    """Refuse floats for a chip that has none of 16 bits."""
    if program.run.kind == "fp16" and not soc_named(program.soc).fp16:
        raise UsageError(
            f"{program.soc} has no fp16: QNN refuses it, or computes it in float32",
            fix=f"--precision 8a8w or 16a8w; or a chip that has fp16: --soc {DEFAULT_SOC}",
        )


def compile_precisions(model: OneModel, how: Compiling, precisions: Sequence[str], suite: Path | None) -> int:
    """Compile for each precision, whatever becomes of the others, and say all in a table."""
    if model.lane == CHECKPOINT:
        raise UsageError(
            "a checkpoint is compiled for one precision at a time",
            fix="one --precision, and a folder of its own",
        )
    every = [lane_model(replace(model, precision=precision), how) for precision in precisions]
    for taken in every:
        # What cannot be meant is refused before the first is compiled.
        assert taken.programs
    rows: list[Mapping[str, str]] = []
    errors: list[str] = []
    said: set[str] = set()
    code = 0
    for precision, taken in zip(precisions, every, strict=True):
        asked = taken.model

        def work(report: ModelReport, taken: LaneModel[Any, Any] = taken, named: str = precision) -> int:
            done = compile_model(taken, suite, report, said)
            rows.extend({"precision": named, **cells} for cells in report.cells)
            return done

        try:
            code = max(code, reported("compile", asked, asked.named, work))
        except ToolkitError as error:
            show_error(error)
            code = max(code, error.exit_code)
            errors.append(f"{precision}: {error.message.splitlines()[0]}")
    if rows:
        print("\n".join(aligned([tuple(rows[0]), *(tuple(row.values()) for row in rows)])))
    print("\n".join(errors), end="\n" * bool(errors))
    return code


def cells_of(outcome: Outcome) -> dict[str, str]:
    """By column, what a table of several programs says of one."""
    figures = outcome.figures
    cells = {
        "against float": in_words(figures) or "not run",
        "against the quantized model": in_words(figures, "reference_") or "-",
        "on the CPU": str(len(outcome.on_cpu)),
    }
    titles = {"size": "bytes", "ddr": "bytes of DDR"}
    return cells | {titles[name]: f"{figures[name]:,.0f}" for name in titles if name in figures}


def quantize_model(
    taken: LaneModel[P, L], quantized: Callable[[LaneModel[P, L]], Sequence[Product]], report: ModelReport
) -> int:
    output, store = taken.how.output, taken.model.selection.store
    with disk_errors(ELSEWHERE), writing_into(output.absolute(), store) as (new, publish):
        products = quantized(_exported(taken, new, publish, report))
        _write(products, output, new, publish, taken.model.typed, report, set())
    return _shown(products, report)


def _shown(products: Sequence[Product], report: ModelReport) -> int:
    """The exit code, after what is wrong."""
    wrong = [finding for product in products for finding in product.outcome.wrong]
    answer.add_findings(wrong)
    for finding in wrong:
        error = CheckFailed(f"{finding.subject}: {finding.message}", fix=finding.fix)
        report.fail(error.message, error.fix, finding.rule)
        show_error(error)
    return CheckFailed.exit_code if wrong else 0


ELSEWHERE = "name another folder with -o"


def _write(
    products: Sequence[Product],
    output: Path,
    scratch: Path,
    publish: Publish,
    typed: str,
    report: ModelReport,
    said: set[str],
) -> None:
    """Put the files of all into the output at once, and say what they are. Their records name the model's
    origin, and no other model's file is overwritten."""
    require_own([output / name for product in products for name in product.files], typed)
    for product in products:
        for name, content in product.files.items():
            if isinstance(content, Path):
                shutil.copyfile(content, scratch / name)
            else:
                (scratch / name).write_text(content, encoding="utf-8")
            if name.endswith(".json") and "schema" in (record := document_of(scratch / name)):
                (scratch / name).write_text(
                    json.dumps({**record, "origin": origin_of(typed, output)}, indent=2) + "\n"
                )
    written = publish([scratch / name for product in products for name in product.files])
    report.wrote(path for path in written if path.suffix != ".json")
    for product in products:
        report.warn(product.warnings)
        if product.chips:
            report.cells.append({"chip": product.chips, **cells_of(product.outcome)})
        for path in {*product.stale} - {*written}:
            path.unlink(missing_ok=True)
        new = [warning for warning in product.warnings if warning not in said]
        sys.stderr.writelines(f"warning: {warning}\n" for warning in new)
        said.update(new)
        for path in written:
            if path.name in product.files:
                sys.stdout.write(f"{path.stat().st_size:>12,}  {output / path.name}\n")
        sys.stdout.writelines(f"{word}\n" for word in product.words)
        answer.add_findings(product.findings)
    folder = Parser.user_folder() / output
    answer.add(programs=[_answered(folder, product) for product in products])


def _answered(folder: Path, product: Product) -> dict[str, Any]:
    """A product's record, with its files and what is said of it."""
    found = (document_of(folder / name) for name in product.files if name.endswith(".json"))
    record = next((document for document in found if "soc" in document), {})
    files = [str(folder / name) for name in product.files]
    return {
        **record,
        **product.facts,
        "files": files,
        "words": [*product.words],
        "warnings": [*product.warnings],
    }


def _extension(taken: LaneModel[P, L], suite: Path) -> Extension[P]:
    """The run that the suite is to have."""
    model = taken.model
    program = taken.program(model.selection.soc, suite)
    case = program.case.model_dump(mode="json", exclude_defaults=True, exclude={"runs"})
    values = program.run.model_dump(mode="json", exclude_defaults=True)
    run = {name: values.get(name) for name in taken.fields}
    if "precision" in run:
        run["precision"] = written_name(run["precision"])
    socs, profile = model.selection.socs, model.selection.profile
    return Extension(taken.lane.suites, suite, program.case_name, case, taken.same, run, socs, profile)
