"""MODEL of a command line as a program like those of a suite, and the steps of its commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ci.explain.rewriting import RewriteChoice
from ci.lanes.onnx import FORMS
from ci.lanes.onnx.compile import PROGRAM, CompileOnnx, OnnxPlan, OnnxStep, plan_of, require_installed
from ci.lanes.onnx.options import Value, files_of, parse_assignments, settings_of
from ci.lanes.onnx.orders import dimensions_of, precision_of, say, search_path
from ci.lanes.onnx.samples import OUTPUTS
from ci.lanes.onnx.suite import OnnxCase, OnnxProgram, OnnxRun
from ci.models.user_model import user_model
from ci.outcome import Result, error_follows, line_of
from ci.progress import Line
from ci.results import CachedResults, Key
from ci.suite.cached_steps import run_cached_step
from ci.suite.one_model import OneModel
from ci.suite.precision import precision_named
from ci.suite.precision_file import precision_file_of
from ci.suite.programs import NO_SUITE
from provisioning.base.findings import Metric
from provisioning.manifest import soc_named

SAMPLES, CONTEXT = "samples.npz", "model_ctx.onnx"


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
class OneModelStep(OnnxStep):
    """A step of a command for one model, as the suites' own step is done."""

    keeps_files = True
    title = "programs"

    def line(self, program: OnnxProgram, result: Result) -> Line:
        # The command shows the error itself.
        return error_follows(result.failure) if result.failure else line_of(result)


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
    function = f"{PROGRAM}:mixed"


def mixed(model: OneModel, program: OnnxProgram) -> Result:
    """Facts, and the folder of the contexts; or why there are none."""
    plan = plan_of_model(model, program)
    result = run_cached_step(CompileMixed(plan), plan.programs[:1])[plan.programs[0].name]
    if not result.failure:
        warn_of(result.facts)
    return result


@dataclass(frozen=True, kw_only=True)
class CompileOne(CompileOnnx):
    """The contexts as files. For a suite it is that suite's own step, and one result serves both."""

    keeps_files = True

    embed: bool
    verify: bool
    several_precisions: bool
    and_socs: tuple[str, ...]
    users_options: Mapping[str, Value]
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

    def preparing(self, program: OnnxProgram) -> dict[str, Any]:
        if self.suite:
            return super().preparing(program)
        return {"drawn": True, "verify": self.verify}

    def accepts(self, program: OnnxProgram, result: Result) -> bool:
        """A stage's own result has no files of these names."""
        kinds = {path.suffix for path in self.files(program, result.folder)} if result.folder else set()
        whole = ".onnx" in kinds
        if program.case.metric and result.folder:
            whole = whole and (result.folder / OUTPUTS).is_file()
        return whole and (not self.suite or CompileOnnx.accepts(self, program, result))

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        common = {
            **super().options(program),
            "stem": self.stem(program),
            "keeps_outputs": program.case.metric is not None,
        }
        if self.suite:
            return {**common, "flexible": [program.soc]}
        settings = settings_of(self.users_options, soc=soc_named(program.soc), embed=self.embed).as_dict()
        return {
            **common,
            "forms": [self.form],
            "settings": settings,
            "flexible": list(self.chips(program)),
            "chips to estimate": self.chips_to_estimate(program),
        }

    def key(self, program: OnnxProgram, results: CachedResults) -> Key:
        files: list[Metric] = [results.digest(path) for path in files_of(self.users_options)]
        return {**super().key(program, results), "files of the command's options": files}

    def line(self, program: OnnxProgram, result: Result) -> Line:
        # The command shows the error itself.
        return error_follows(result.failure) if result.failure else line_of(result)


@dataclass(frozen=True, kw_only=True)
class QuantizeOne(OneModelStep):
    """The quantized model; `stem` is that of its file."""

    kind = "onnx-quantize"

    stem: str

    function = f"{PROGRAM}:quantized_file"

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        return {"name": self.stem}


@dataclass(frozen=True, kw_only=True)
class LossesOfOne(OneModelStep):
    kind = "onnx-losses"
    keeps_files = False

    function = f"{PROGRAM}:losses"

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        return {"name": "model_qdq"}


@dataclass(frozen=True, kw_only=True)
class RewriteOne(OneModelStep):
    kind = "onnx-rewrite"

    wanted: RewriteChoice

    function = f"{PROGRAM}:rewritten"

    def options(self, program: OnnxProgram) -> dict[str, Any]:
        rules = self.wanted.rules
        return {"rules": None if rules is None else list(rules), "interface": self.wanted.interface}


@dataclass(frozen=True, kw_only=True)
class ExportOne(OneModelStep):
    """A suite's model and the samples that its code makes, as a user would have them."""

    kind = "onnx-exported"

    function = f"{PROGRAM}:exported_files"

    def preparing(self, program: OnnxProgram) -> dict[str, Any]:
        return {}
