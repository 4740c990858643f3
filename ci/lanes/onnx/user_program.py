"""MODEL of a command line as a program like those of a suite, and the steps of its commands."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.engine.memo import Memo
from ci.engine.progress import Line, failed
from ci.engine.work import Result, line_of
from ci.engine.workers.parent import Refused
from ci.lanes.onnx.compile import FORMS, CompileOnnx, OnnxPlan, cwd, plan_of, require_installed
from ci.lanes.onnx.options import Value, files_of, parse_assignments, settings_of
from ci.lanes.onnx.orders import dimensions_of, precision_of, say, search_path
from ci.lanes.onnx.samples import OUTPUTS
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.pipeline.models.user_model import user_model
from ci.pipeline.options import OneModel
from ci.pipeline.precision import precision_named
from ci.pipeline.precision_file import precision_file_of
from ci.pipeline.rewriting import RewriteChoice
from ci.pipeline.steps import Ask, Asker, run_step
from ci.pipeline.suite import NO_SUITE
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed
from provisioning.base.files import empty_folder
from provisioning.base.findings import Metric
from provisioning.manifest import soc_named

SAMPLES, CALIBRATION, CONTEXT = "samples.npz", "calibration.npz", "model_ctx.onnx"
EXPORTED, EXPORTED_SAMPLES = "model.onnx", "samples"


def program_of(model: OneModel, suite: Path | None = None, *, with_options: bool = True) -> OnnxProgram:
    """For the first chip, with or without the command line's --option; in `suite`, if one is to have it."""
    options, selection = parse_assignments(model.options) if with_options else {}, model.selection
    for chip in selection.socs:
        # Before the suite's own check, whose message would name a field.
        settings_of(options, soc=soc_named(chip), embed=True)
    named = user_model(model.typed, search_path())
    assert named.file is not None
    dimensions = dimensions_of(model.dimensions)
    require_installed()
    file = precision_file_of(model, "onnx")
    precision = precision_of(named.file, file.precision if file else model.precision)
    samples, place = model.calibrate or "", str(named.file)
    if suite:
        place, folder = os.path.relpath(place, suite.parent), search_path() / samples
        samples = os.path.relpath(folder, suite.parent) if samples and folder.is_dir() else samples
    run = OnnxRun(
        precision=precision,
        socs=(selection.soc,),
        per_channel=model.per_channel,
        options=dict(options),
        nodes=file.nodes if file else {},
        calibration=model.calibration if precision_named(precision).quantized else None,
    )
    case = OnnxCase(
        model=place, dimensions=dimensions, samples=samples, inferences=model.inferences, run=(run,)
    )
    return OnnxProgram(suite or search_path() / NO_SUITE, named.name, case, run, selection.soc)


@dataclass(frozen=True)
class OneModelStep(CompileOnnx):
    """A step of a command for one model, as the suites' own step is done."""

    keeps_files = True
    shows_cached = False

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        return True

    def line(self, program: OnnxProgram, result: Result) -> Line:
        # The command shows the error itself.
        return failed(result.failure.kind) if result.failure else line_of(result)


def prepared(
    program: OnnxProgram, ask: Asker, scratch: Path, *, name: str = "", **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Have the model checked and quantized. Returns what further requests about it have, and the facts.

    `more` is for the first request; with `name`, the quantized model is a file of the user's."""
    folders = {part: str(empty_folder(scratch / part)) for part in ("prepared", "quantized")}
    common = {**program.order, "cwd": cwd(), **folders}
    facts = ask(do="prepare", **common, into=folders["prepared"], **more)
    common["source"] = common["model"] = facts["model"]
    facts |= ask(do="quantize", **common, into=folders["quantized"], name=name)
    facts["used"] |= {"calibrating": facts["calibrated_by"]}
    return {**common, "model": facts["model"]}, facts


def constant_inputs(facts: Mapping[str, Any]) -> Iterator[str]:
    for constant in facts["constant"]:
        yield f"{constant} has one value throughout the samples, which gives no range for it"


def warn_of(facts: Mapping[str, Any]) -> None:
    for warning in constant_inputs(facts):
        say(f"warning: {warning}")


def plan_of_model(model: OneModel, program: OnnxProgram) -> OnnxPlan:
    """For all chips of the command line."""
    programs = [replace(program, soc=soc) for soc in model.selection.socs]
    return plan_of(programs, model.selection, model.work)


@dataclass(frozen=True)
class CompileMixed(OneModelStep):
    """Compiling for HTP what it takes; the other nodes are beside the contexts."""

    kind = "onnx-mixed"

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        scratch = ask.scratch / program.soc
        common, facts = prepared(program, ask, scratch, drawn=True)
        mixed = ask(do="mixed", **common)
        shutil.copyfile(scratch / "prepared" / SAMPLES, ask.into / SAMPLES)
        return {**mixed, "constant": facts["constant"]}


def mixed(model: OneModel, program: OnnxProgram) -> Result:
    """Facts, and the folder of the contexts; or why there are none."""
    plan = plan_of_model(model, program)
    result = run_step(CompileMixed(plan), plan.programs[:1])[plan.programs[0].name]
    if not result.failure:
        warn_of(result.facts)
    return result


@dataclass(frozen=True, kw_only=True)
class CompileOne(OneModelStep):
    """The contexts as files. For a suite it is that suite's own step, and one result serves both."""

    embed: bool
    verify: bool
    several_precisions: bool
    and_socs: tuple[str, ...]
    options: Mapping[str, Value]
    """Of the command line. A suite has them in the run."""

    @property
    def suite(self) -> bool:
        return self.plan.programs[0].suite.name != NO_SUITE

    def chips(self, program: OnnxProgram) -> tuple[str, ...]:
        """Those of one flexible context."""
        return tuple(dict.fromkeys([program.soc, *self.and_socs]))

    @property
    def form(self) -> str:
        return FORMS[self.embed]

    def stem(self, program: OnnxProgram) -> str:
        kind = f"-{program.run.kind}" if self.several_precisions else ""
        soc = f"-{program.soc}" if len({other.soc for other in self.plan.programs}) > 1 else ""
        return f"{Path(program.case.model).stem}{kind}{soc}_ctx"

    def files(self, program: OnnxProgram, folder: Path) -> list[Path]:
        """What the user gets of a result."""
        return sorted((folder / self.form).glob(f"{self.stem(program)}*"))

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        common = super().key(program, memo, environ)
        if self.suite:
            return common
        files: list[Metric] = [memo.roots.name(str(path.absolute())) for path in files_of(self.options)]
        return {
            **common,
            "name": self.stem(program),
            "chips": list(self.chips(program)),
            "options": dict(self.options),
            "files of options": files,
            "embed": self.embed,
            "verify": self.verify,
        }

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        """A stage's own result has no files of these names."""
        kinds = {path.suffix for path in self.files(program, result.folder)} if result.folder else set()
        whole = ".onnx" in kinds
        if program.case.metric and result.folder:
            whole = whole and (result.folder / OUTPUTS).is_file()
        return whole and (not self.suite or CompileOnnx.accepts(self, program, result))

    def asked(self, program: OnnxProgram) -> Mapping[str, Any]:
        common = {"stem": self.stem(program), "verify": self.verify}
        common["keeps_outputs"] = program.case.metric is not None
        if self.suite:
            return common
        settings = settings_of(self.options, soc=soc_named(program.soc), embed=self.embed).as_dict()
        return {**common, "drawn": True, "forms": [self.form], "settings": settings}

    def contexts(self, program: OnnxProgram, ask: Ask, **of_run: Any) -> Mapping[str, Any]:
        reply = super().contexts(program, ask, **of_run)
        if not all(reply[form]["reload_equal"] for form in FORMS if form in reply):
            words = "the reloaded context gives other outputs than the session that compiled it"
            fix = Fix("{}, then report it to the maker of the provider", session("diagnose", ask.log))
            error = {"kind": "reload", "message": f"{program.case.model}: {words}", "fix": fix}
            raise Refused({**error, "exit_code": CheckFailed.exit_code})
        if not self.suite:
            reply = {**reply, "estimate": self.estimate(program, ask, of_run)}
        chips = self.chips(program)
        if len(chips) == 1:
            return reply
        folder = ask.into / self.form
        for path in list(folder.iterdir()):
            path.unlink()
        more = {**of_run, **self.asked(program), "path": str(folder / f"{self.stem(program)}.onnx")}
        into = str(empty_folder(ask.scratch / program.soc / "flexible"))
        flexible = ask(do="flexible", **program.order, **more, embed=self.embed, into=into, chips=list(chips))
        return {**reply, "for each": flexible["near"]}


@dataclass(frozen=True, kw_only=True)
class QuantizeOne(OneModelStep):
    """The quantized model; `stem` is that of its file."""

    kind = "onnx-quantize"

    stem: str

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        _, facts = prepared(program, ask, ask.scratch, name=self.stem, drawn=True)
        for path in (ask.scratch / "quantized").glob(f"{self.stem}*"):
            path.replace(ask.into / path.name)
        told = ("constant", "inputs", "near", "packages", "slices", "used")
        return {name: facts[name] for name in told}


@dataclass(frozen=True, kw_only=True)
class LossesOfOne(OneModelStep):
    kind = "onnx-losses"
    keeps_files = False

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        common, facts = prepared(program, ask, ask.scratch, name="model_qdq", drawn=True)
        return {**ask(do="losses", **common), **{name: facts[name] for name in ("near", "used")}}


@dataclass(frozen=True, kw_only=True)
class RewriteOne(OneModelStep):
    kind = "onnx-rewrite"

    wanted: RewriteChoice

    def key(self, program: OnnxProgram, memo: Memo, environ: Mapping[str, str]) -> Mapping[str, Metric]:
        return {**super().key(program, memo, environ), **self._asked}

    @property
    def _asked(self) -> dict[str, Metric]:
        rules = self.wanted.rules
        return {"rules": None if rules is None else list(rules), "interface": self.wanted.interface}

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        return ask(do="rewrite", **program.order, cwd=cwd(), **self._asked)


@dataclass(frozen=True, kw_only=True)
class ExportOne(OneModelStep):
    """A suite's model and the samples that its code makes, as a user would have them."""

    kind = "onnx-exported"

    def work(self, program: OnnxProgram, ask: Ask) -> Mapping[str, Any]:
        from ci.pipeline.models.arrays import save_one, saved

        prepared, samples = empty_folder(ask.scratch / program.name), ask.into / EXPORTED_SAMPLES
        facts = ask(do="prepare", **program.order, cwd=cwd(), into=str(prepared))
        shutil.copyfile(facts["model"], ask.into / EXPORTED)
        samples.mkdir()
        given = [sample for name in (SAMPLES, CALIBRATION) for sample in saved(prepared / name)]
        for number, sample in enumerate(given):
            save_one(samples / f"{number:04}.npz", sample)
        return {"samples": len(given)}
