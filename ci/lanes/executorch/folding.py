"""Fold the constants of a model that is to be exported: what no input changes is computed once."""

from __future__ import annotations

from dataclasses import replace

from ci.explain.rewriting import Need
from ci.explain.torch_all_rewrites import BY_NAME
from ci.explain.torch_rewriting import RepairedModule
from ci.models.factory import ModelWithInputs
from ci.models.user_model import BadFactory
from ci.work import doing
from provisioning.known_faults import load_fixes

REWRITE = "constants-folded"


def fold_constants(subject: ModelWithInputs) -> ModelWithInputs:
    """Return the model with buffers in place of what it computes without its inputs, proved to be the
    same."""
    doing("fold constants")
    repaired = RepairedModule(subject.model, [subject.sample(0)], BY_NAME)
    repaired.apply([Need.of(REWRITE, [fix for fix in load_fixes() if fix.rewrite == REWRITE])])
    if refused := next((change for change in repaired.changes if change.refused), None):
        message = f"the constant at {refused.place} cannot be folded: {refused.refused}"
        raise BadFactory(message, "compute it in __init__, and leave --fold-constants (fold_constants) out")
    return replace(subject, model=repaired.module)
