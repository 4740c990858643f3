"""The rules that the code can print, read from its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache

from provisioning.base.settings import ROOT
from tests.support.sources import nodes, our_files, parsed, walked

MAKERS = {"Finding": 0, "Problem": 0, "error": 0, "add": 0, "reported": 1, "StageJudgement": 0}
"""Calls that make a finding, with the place of the rule among their arguments."""
SHARED = {"Problem", "error", "add"}
"""Names that other functions have too; a rule among their arguments has a dash or a dot in it."""
ANY = "*"
"""Stands in a rule for what only a run knows."""


@cache
def printed_rules() -> dict[str, str]:
    """By rule of the product the place in the code. A part that only a run knows is `*`."""
    files = our_files("provisioning", "ci")
    names = {name: text for file in files for name, text in _constants(parsed(file))}
    rules: dict[str, str] = {}
    for file in files:
        for rule, line in _rules_of(nodes(file), names):
            rules.setdefault(rule, f"{file.relative_to(ROOT).as_posix()}:{line}")
    return rules


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The module's constants that are text. A rule may be one of another module's."""
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            names, values = ([target], [node.value])
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                names, values = target.elts, node.value.elts
            for name, value in zip(names, values, strict=True):
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and value.value:
                    yield name.id, str(value.value)


def _rules_of(tree: Sequence[ast.AST], names: dict[str, str]) -> Iterator[tuple[str, int]]:
    makers = {**MAKERS, **_forwarders(tree)}
    for node in tree:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "rule":
            yield from ((text, node.lineno) for text in _texts(node.value, names) if "-" in text)
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        maker = makers.get(name)
        if maker is None:
            continue
        place, prefix = maker if isinstance(maker, tuple) else (maker, "")
        values = [word.value for word in node.keywords if word.arg == "rule"] or node.args[place : place + 1]
        for value in values:
            for text in _texts(value, names):
                if name not in SHARED or "-" in text or "." in text:
                    yield prefix + text, node.lineno


def _forwarders(tree: Sequence[ast.AST]) -> dict[str, tuple[int, str]]:
    """Functions of the module whose first parameter `rule` goes into a finding, with its prefix."""
    found = {}
    for node in tree:
        if not isinstance(node, ast.FunctionDef) or not node.args.args or node.args.args[0].arg != "rule":
            continue
        for call in walked(node):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding":
                text = _text(call.args[0], {})
                if isinstance(call.args[0], ast.Name):
                    found[node.name] = (0, "")
                elif text.endswith(ANY):
                    found[node.name] = (0, text.removesuffix(ANY))
    return found


def _texts(value: ast.expr, names: dict[str, str]) -> Iterator[str]:
    if isinstance(value, ast.IfExp):
        yield from _texts(value.body, names)
        yield from _texts(value.orelse, names)
    elif text := _text(value, names):
        yield text


def _text(value: ast.expr, names: dict[str, str]) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.Name):
        return names.get(value.id, "")
    if isinstance(value, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in value.values)
    return ""
