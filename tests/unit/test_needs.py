"""The table of programs that tests need, and the packages that have them."""

from __future__ import annotations

import ast

from provisioning.base.settings import ROOT
from tests.support.needs import PACKAGES
from tests.support.sources import nodes, with_any

NAMING = ("pytest.mark.needs", "needs.program")


def test_every_program_that_a_mark_or_a_test_names_has_a_row_in_the_table() -> None:
    named = set()
    for file in with_any((ROOT / "tests").rglob("*.py"), *NAMING):
        for node in nodes(file):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("needs", "program") and ast.unparse(node.func) in NAMING:
                named |= {ast.literal_eval(argument) for argument in node.args}
    assert named and named - set(PACKAGES) == set()
