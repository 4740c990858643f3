"""Docstrings of the product are sentences; functions say what they do or give; comprehensions are simple
(CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from provisioning.base.settings import ROOT
from tests.support.sources import our_files, parsed, statements

FRAGMENTS = ("Of ", "Those ", "That of ", "None where ", "By ", "As ", "With ")
"""The beginnings of docstrings that have no verb: a reader must complete them from the code below."""

PRODUCT = ("provisioning", "ci", "qnn_ci")

RELATIONS = ("of_", "in_", "with_", "as_", "by_", "on_", "without_", "at_")
"""The beginnings of names that only say how one thing relates to another."""

PROMISED = {"qnn_ci/api.py: on_cpu", "lab/site.py: on_files", "lab/site.py: on_page_markdown"}
"""Names that others read: a user's own tests, where the key of the JSON has the same, and mkdocs."""


PARTICIPLES = frozenset(
    """
    abbreviated accepted advised aligned answered asked assigned audited billed called captured checked
    chosen claimed cleaned closed compared compiled composed configured connected contradicted copied
    decided declared derived described diagnosed divided drawn encoded estimated explained exported
    failed filled folded forecasted forked found guarded hashed hooked ignored installed interviewed
    joined judged limited linked listed located logged lost mapped merged mirrored missed mixed
    modulated named parted prepared printed provided provisioned quantized quoted raised reached
    recorded referenced refused reloaded relocated rendered repaired repeated replaced replayed reported
    resized rounded saved scored searched selected sent settled shared shipped shortened shuffled signed
    spelled summarised tagged taken touched tuned typed undefined unfinished unhashed unlocked unopened
    unpacked uploaded valued watched widened wrapped
    """.split()  # noqa: SIM905 (a line for each would be a page)
)
"""Names that functions had. Say what is done (`quote_command`) or given (`missed_thresholds`) instead."""


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield every string that stands alone: of modules, classes and functions, and below fields."""
    for node in statements(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value


def fragments(tree: ast.Module) -> list[tuple[int, str]]:
    """List the docstrings that begin as a fragment, each with its line."""
    texts = [(node.lineno, str(node.value).lstrip()) for node in docstrings(tree)]
    return sorted((line, text) for line, text in texts if text.startswith(FRAGMENTS))


def test_a_docstring_is_a_sentence() -> None:
    found: list[str] = []
    for file in [*our_files(*PRODUCT), ROOT / "noxfile.py"]:
        for line, text in fragments(parsed(file)):
            found.append(f"{file.relative_to(ROOT)}:{line}: {text[:60]}")

    assert not found, "write sentences with a verb instead:\n" + "\n".join(found)


def test_a_fragment_is_found_below_a_field_and_in_a_function() -> None:
    source = 'class A:\n    a: int\n    """Of the b."""\n\n    def f(self):\n        """By name."""\n'

    assert [line for line, _ in fragments(ast.parse(source))] == [3, 6]


def relational(tree: ast.Module) -> list[str]:
    """List the functions whose names begin with a relation."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if node.name.lstrip("_").startswith(RELATIONS)]


def test_a_function_says_what_it_does_or_gives() -> None:
    found: list[str] = []
    for file in [*our_files(*PRODUCT, "lab"), ROOT / "noxfile.py"]:
        found += [f"{file.relative_to(ROOT)}: {name}" for name in relational(parsed(file))]

    assert set(found) == PROMISED, "begin these names with a verb or with what the function gives"


def test_a_relational_name_is_found_in_a_class_and_behind_an_underscore() -> None:
    source = "class A:\n    def of_time(self): ...\n\nasync def _with_causes(): ...\n\ndef offset(): ...\n"

    assert sorted(relational(ast.parse(source))) == ["_with_causes", "of_time"]


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def nested_comprehensions(node: ast.AST, outer: bool = False) -> list[int]:
    """List the lines of comprehensions that another one contains."""
    is_comprehension = isinstance(node, COMPREHENSIONS)
    lines = [node.lineno] if outer and isinstance(node, COMPREHENSIONS) else []
    for child in ast.iter_child_nodes(node):
        lines += nested_comprehensions(child, outer or is_comprehension)
    return lines


def test_no_comprehension_contains_another() -> None:
    found: list[str] = []
    for file in [*our_files(*PRODUCT), ROOT / "noxfile.py"]:
        found += [f"{file.relative_to(ROOT)}:{line}" for line in nested_comprehensions(parsed(file))]

    assert not found, "write a loop, or a function with a name"


def test_a_comprehension_is_found_in_an_element_a_condition_and_what_is_iterated() -> None:
    source = (
        "[[b for b in a] for a in c]\n{a for a in c if any(b for b in a)}\n[a for a in (b for b in c)]\n[a]"
    )

    assert nested_comprehensions(ast.parse(source)) == [1, 2, 3]


def bare_participles(tree: ast.Module) -> list[str]:
    """List the functions that are called by a participle alone. A method or property may be: its object says
    the rest."""
    methods = {member for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for member in node.body}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if node.name.lstrip("_") in PARTICIPLES and node not in methods]


def test_no_function_is_called_by_a_participle_alone() -> None:
    found: list[str] = []
    for file in [*our_files(*PRODUCT), ROOT / "noxfile.py"]:
        found += [f"{file.relative_to(ROOT)}: {name}" for name in bare_participles(parsed(file))]

    assert not found, "say what the function does or gives"


def test_a_participle_is_found_within_a_function_and_not_in_a_class() -> None:
    source = "class A:\n    def compared(self): ...\n\ndef f():\n    def _merged(): ...\n"

    assert bare_participles(ast.parse(source)) == ["_merged"]
