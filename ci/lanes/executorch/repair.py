"""`repair` of PyTorch models: the programs of suites, and a model's rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version

from ci.lanes.executorch import REWRITTEN, SAMPLES
from ci.lanes.executorch.compile import compile_programs
from ci.lanes.executorch.divergence import on_htp
from ci.lanes.executorch.product import PytorchModel
from ci.lanes.executorch.user_program import plan_of_model, require_done
from ci.pipeline.options import Choice, Compiling, OneModel
from ci.pipeline.rewriting import RewriteChoice, Rewritten, changes_of, needs_of
from provisioning.build_id import version_in


def of_suites(model: OneModel, choice: Choice) -> Sequence[PytorchModel]:
    taken = []
    for program in on_htp(choice, model.selection):
        selection = replace(model.selection, soc=program.soc, named_socs=(program.soc,))
        own = replace(model, precision=program.run.precision, selection=selection)
        taken.append(PytorchModel(own, Compiling(), given=program))
    return taken


def rewritten(taken: PytorchModel, choice: RewriteChoice) -> Rewritten:
    """The model with the rewrites that answer known faults, each proved on the CPU."""
    program = taken.program(taken.model.selection.soc)
    plan = plan_of_model(taken.model, "repair", [program])
    versions = {"executorch": version("executorch"), "qnn": version_in(plan.basis.build_id)}
    needs = needs_of(program.run.precision, "executorch", versions, choice)
    plan = replace(plan, needs=tuple(map(asdict, needs)))
    result = require_done(program, plan, compile_programs(plan))
    assert result.folder is not None
    model = result.folder / REWRITTEN
    changes = changes_of(result.facts)
    if not model.is_file():
        return Rewritten(changes, None)
    return Rewritten(changes, model, result.folder / SAMPLES, result.facts["compared"])
