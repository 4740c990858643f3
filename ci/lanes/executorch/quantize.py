"""`quantize` of a PyTorch model: the quantized model as a .pt2, and where it loses."""

from __future__ import annotations

from collections.abc import Sequence

from ci.explain.losses import Loss
from ci.lanes.executorch import QUANTIZED
from ci.lanes.executorch.compile import done, quantizing
from ci.lanes.executorch.explain import chosen_program
from ci.lanes.executorch.findings import causes_of
from ci.lanes.executorch.product import (
    files_of,
    notes_of,
    plan_of_model,
    programs_of,
    require_done,
    stack_of,
    stem_of,
    tensors_of,
)
from ci.lanes.executorch.records import Quantized
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome, Product
from ci.outcome import Result
from ci.suite.accuracy import in_words
from ci.suite.findings import HowJudged, verdict_of_one_model
from ci.suite.options import Choice
from ci.suite.precision import refuse_floats
from provisioning.base.files import hash_file


def quantized(model: OneModel) -> Sequence[Product]:
    programs = programs_of(model)
    refuse_floats(programs[0].run.quantizes, programs[0].run.precision)
    plan = plan_of_model(model, "quantize", programs)
    results, products = done(quantizing(plan)), []
    for program in plan.programs:
        result = require_done(program, plan, results)
        assert result.folder is not None
        path, facts, stem = result.folder / QUANTIZED, _quantized_in(result), stem_of(model, program)
        record = {
            "schema": 1,
            "model": program.case.factory,
            "quantized": f"{stem}.pt2",
            "sha256": hash_file(path),
            "soc": program.soc,
            "scheme": program.run.precision,
            "stack": stack_of(),
            "inputs": tensors_of(facts.inputs),
            "accuracy": facts.in_torch.figures,
            "slices": facts.in_torch.slices,
        }
        figures, slices = facts.in_torch.figures, facts.in_torch.slices
        words = f"{program.soc} {program.run.name}: {in_words(figures)} against float {facts.used}"
        words += ", both in PyTorch"
        where, causes = (
            model.command("quantize", program.soc, "--where"),
            causes_of(program, facts, slices, {}),
        )
        judged = HowJudged(program.run.kind, facts.used)
        wrong, low = verdict_of_one_model(stem, figures, slices, "", where, causes, judged)
        warnings = [*notes_of(facts), *low]
        lines = [words, *(f"  {line}" for line in slices)]
        products.append(Product(files_of(path, stem, record), lines, (), warnings, Outcome(wrong=wrong)))
    return products


def losses(model: OneModel, choice: Choice) -> tuple[str, Sequence[Loss]]:
    """What quantizing the whole model loses, in words, and what each operator adds to it, the worst first."""
    program = chosen_program(model, choice)
    refuse_floats(program.run.quantizes, program.run.precision)
    plan = plan_of_model(model, "quantize", [program])
    facts = _quantized_in(require_done(program, plan, done(quantizing(plan))))
    words = f"{program.name}: {in_words(facts.in_torch.figures)} against float, both in PyTorch"
    return words, facts.losses


def _quantized_in(result: Result) -> Quantized:
    assert isinstance(result.record, Quantized)
    return result.record
