"""`quantize` of an .onnx: the quantized model, and where it loses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.lanes.onnx.findings import causes_of
from ci.lanes.onnx.product import OnnxModel
from ci.lanes.onnx.user_program import LossesOfOne, QuantizeOne, constant_inputs, plan_of_model, program_of
from ci.models.inputs import inputs_used
from ci.suite.accuracy import in_words
from ci.suite.cached_steps import require_done, run_cached_step
from ci.suite.findings import HowJudged, verdict_of_one_model
from ci.suite.lane_model import Product
from ci.suite.one_model import OneModel
from ci.suite.options import Choice
from ci.suite.precision import refuse_floats
from ci.suite.trial import Outcome
from provisioning.base.files import hash_file


def quantized(taken: OnnxModel) -> Sequence[Product]:
    """One, as it is the same for all chips."""
    program = program_of(taken.model)
    kind = program.run.kind
    refuse_floats(program.run.quantizes, kind)
    stem = f"{Path(program.case.model).stem}-{program.run.name}"
    step = QuantizeOne(plan_of_model(taken.model, program), stem=stem)
    result = require_done(run_cached_step(step, [program])[program.name])
    assert result.folder is not None
    facts, files = result.facts, sorted(result.folder.iterdir())
    record = {
        "schema": 1,
        "model": Path(program.case.model).name,
        "files": {path.name: hash_file(path) for path in files},
        "precision": kind,
        "stack": facts["packages"],
        "inputs": facts["inputs"],
        "accuracy": facts["near"],
        "slices": facts["slices"],
    }
    words = f"{program.run.name}: {in_words(facts['near'])} against float {inputs_used(facts)}"
    words += ", both by ONNX Runtime on the CPU"
    written = {path.name: path for path in files} | {f"{stem}.json": json.dumps(record, indent=2) + "\n"}
    where = taken.command("quantize", program.soc, "--where")
    judged = HowJudged(kind, inputs_used(facts))
    near, slices = facts["near"], facts["slices"]
    wrong, low = verdict_of_one_model(stem, near, slices, "", where, causes_of(facts), judged)
    warnings = [*taken.drawn(program), *constant_inputs(facts), *low]
    lines = [words, *(f"  {line}" for line in slices)]
    return [Product(written, lines, (), warnings, Outcome(wrong=wrong))]


def losses(model: OneModel, _: Choice) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """What quantizing the whole model loses, in words, and what each operator adds to it, the worst first."""
    program = program_of(model)
    refuse_floats(program.run.quantizes, program.run.kind)
    step = LossesOfOne(plan_of_model(model, program))
    facts = require_done(run_cached_step(step, [program])[program.name]).facts
    words = f"{program.name}: {in_words(facts['near'])} against float {inputs_used(facts)}"
    return f"{words}, both by ONNX Runtime on the CPU", facts["losses"]
