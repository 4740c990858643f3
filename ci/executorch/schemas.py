"""JSON Schemas of the suite and of what lies beside it (`nox -s generate`)."""

from __future__ import annotations

from ci.executorch.judge import Suggestions
from ci.executorch.suite import Suite
from ci.suites.baseline import Tolerances
from provisioning.verbs.generate import _schema


def suite_schema() -> str:
    return _schema(Suite, "A suite: which models are lowered, how, and what is expected", manifest=True)


def suggestions_schema() -> str:
    return _schema(Suggestions, "What to write instead of operators that stay on the CPU", manifest=True)


def tolerances_schema() -> str:
    return _schema(Tolerances, "How much worse than its baseline a program may become", manifest=True)
