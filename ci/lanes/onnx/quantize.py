"""`quantize` of an .onnx: the quantized model, and where it loses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ci.explain.losses import Loss
from ci.lanes.onnx.findings import causes_of
from ci.lanes.onnx.product import drawn
from ci.lanes.onnx.records import FileName, Losses, Nothing
from ci.lanes.onnx.user_program import (
    answered,
    command_step,
    constant_inputs,
    plan_of_model,
    program_of,
)
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome, Product
from ci.suite.accuracy import in_words
from ci.suite.findings import HowJudged, verdict_of_one_model
from ci.suite.options import Choice
from ci.suite.precision import refuse_floats
from provisioning.base.files import hash_file


def quantized(model: OneModel) -> Sequence[Product]:
    """One, as it is the same for all chips."""
    program = program_of(model)
    kind = program.run.kind
    refuse_floats(program.run.quantizes, kind)
    stem = f"{Path(program.case.model).stem}-{program.run.name}"
    step = command_step(
        plan_of_model(model, program),
        "onnx-quantize",
        "quantized_file",
        asked=FileName(stem),
        keeps_files=True,
    )
    facts = answered(step, Nothing)
    assert facts.folder
    files, near, prepared = sorted(facts.folder.iterdir()), facts.quantized_model.near, facts.prepared
    record = {
        "schema": 1,
        "model": Path(program.case.model).name,
        "files": {path.name: hash_file(path) for path in files},
        "precision": kind,
        "stack": facts.quantized_model.packages,
        "inputs": prepared.inputs,
        "accuracy": near.figures,
        "slices": near.slices,
    }
    words = f"{program.run.name}: {in_words(near.figures)} against float {facts.used}"
    words += ", both by ONNX Runtime on the CPU"
    written = {path.name: path for path in files} | {f"{stem}.json": json.dumps(record, indent=2) + "\n"}
    where, judged = model.command("quantize", program.soc, "--where"), HowJudged(kind, facts.used)
    wrong, low = verdict_of_one_model(stem, near.figures, near.slices, "", where, causes_of(near), judged)
    warnings = [*drawn(program), *constant_inputs(prepared.constant), *low]
    lines = [words, *(f"  {line}" for line in near.slices)]
    return [Product(written, lines, (), warnings, Outcome(wrong=wrong))]


def losses(model: OneModel, _: Choice) -> tuple[str, Sequence[Loss]]:
    """What quantizing the whole model loses, in words, and what each operator adds to it, the worst first."""
    program = program_of(model)
    refuse_floats(program.run.quantizes, program.run.kind)
    plan = plan_of_model(model, program)
    found = answered(command_step(plan, "onnx-losses", "losses"), Losses)
    words = f"{program.name}: {in_words(found.quantized_model.near.figures)} against float {found.used}"
    return f"{words}, both by ONNX Runtime on the CPU", found.answer.losses
