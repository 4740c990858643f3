"""Only a verb's `run` sees argparse's Namespace: it hands on typed values, which mypy can check."""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.__main__ import VERBS as CI
from lab.__main__ import VERBS as LAB
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.command_line import Verb
from provisioning.base.settings import ROOT
from tests.support.sources import our_files, parsed, walked, with_any
from tests.support.typed import parsers

VERBS = [*PROVISIONING.values(), *CI.values(), *LAB.values()]

READERS = (
    "provisioning.base.command_line",
    "provisioning.base.selection",
    "ci.suite.options",
    "ci.one_model.model",
    "ci.lanes.upstream.flags",
)
"""They add flags that several verbs share, and read them: `run` may hand its Namespace to these alone."""


def _file(module: str) -> Path:
    path = ROOT / module.partition(":")[0].replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _arguments(node: ast.AST) -> list[ast.arg]:
    if not isinstance(node, ast.FunctionDef):
        return []
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _has_namespace(node: ast.AST) -> bool:
    annotations = [argument.annotation for argument in _arguments(node)]
    annotations += [node.annotation] if isinstance(node, ast.AnnAssign) else []
    words = (word for annotation in annotations if annotation is not None for word in ast.walk(annotation))
    return any("Namespace" in (getattr(word, "id", ""), getattr(word, "attr", "")) for word in words)


def _is_args(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "args"


def _functions(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    """The functions and methods of a name that take `args`."""
    named = (node for node in walked(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    return [node for node in named if "args" in {argument.arg for argument in _arguments(node)}]


def _readers(tree: ast.Module) -> dict[str, str]:
    """Functions that may take a Namespace, as imported anywhere in a module: name and module."""
    return {
        alias.asname or alias.name: node.module
        for node in walked(tree)
        if isinstance(node, ast.ImportFrom) and node.module in READERS
        for alias in node.names
    }


def _given_to_readers(tree: ast.Module, run: ast.FunctionDef) -> Iterator[tuple[ast.expr, str]]:
    """Each `args` that `run` hands to a reader, with the reader's name."""
    readers = _readers(tree)
    for node in ast.walk(run):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in readers:
            yield from ((argument, node.func.id) for argument in node.args if _is_args(argument))


def _leaks(tree: ast.Module, *, verb: bool) -> Iterator[str]:
    """Where a Namespace is below a verb's `run`, or leaves it."""
    runs = _functions(tree, "run") if verb else []
    inside = {id(node) for run in runs for node in ast.walk(run)}
    for node in walked(tree):
        if node not in runs and _has_namespace(node):
            yield f"line {getattr(node, 'lineno', 0)}: has a Namespace"
        if isinstance(node, ast.Attribute) and _is_args(node.value) and id(node) not in inside:
            yield f"line {node.lineno}: reads args.{node.attr}"
    for run in runs:
        allowed = {id(node.value) for node in ast.walk(run) if isinstance(node, ast.Attribute)}
        allowed |= {id(argument) for argument, _ in _given_to_readers(tree, run)}
        for node in ast.walk(run):
            if isinstance(node, ast.Name) and _is_args(node) and id(node) not in allowed:
                yield f"line {node.lineno}: hands args on"


def test_no_function_below_a_verbs_run_sees_a_namespace() -> None:
    verbs = {_file(verb.module) for verb in VERBS}
    readers = {_file(module) for module in READERS}
    files = list(with_any(our_files(), "Namespace", "args"))
    assert verbs <= {*files}
    leaking = {
        _name(file): leaks
        for file in sorted(files)
        if file not in readers and (leaks := list(_leaks(parsed(file), verb=file in verbs)))
    }
    new = [f"{name}: {leak}" for name, leaks in leaking.items() for leak in leaks]
    assert not new, "\n".join(new)


@pytest.mark.parametrize(
    "source",
    [
        "def below(options: argparse.Namespace): ...",
        "def below(*, options: argparse.Namespace | None): ...",
        "def below(args): return args.soc",
        "options: argparse.Namespace = parse()",
        "def run(args: argparse.Namespace): below(args)",
        "def run(args: argparse.Namespace): below(**vars(args))",
        "def run(args: argparse.Namespace): return lambda: below(args)",
        "def run(args: argparse.Namespace): values = args",
    ],
)
def test_every_way_past_the_rule_is_seen(source: str) -> None:
    assert list(_leaks(ast.parse(source), verb=True))


def test_run_may_read_its_flags_and_hand_them_to_a_reader() -> None:
    source = """
from provisioning.base.selection import selection_of
def run(args: argparse.Namespace): return lambda: below(selection_of(args), args.soc)
"""
    assert not list(_leaks(ast.parse(source), verb=True))
    assert list(_leaks(ast.parse(source), verb=False))


def _read_by(file: Path, name: str = "run") -> set[str]:
    """What a function, and the readers that it calls, read of the Namespace."""
    tree = parsed(file)
    (function,) = _functions(tree, name)
    readers = {node.name: file for node in tree.body if isinstance(node, ast.FunctionDef)}
    readers |= {reader: _file(module) for reader, module in _readers(tree).items()}
    read = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and _is_args(node.value):
            read.add(node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and any(map(_is_args, node.args)):
            called = node.func.id
            read |= _read_by(readers[called], called) if called in readers else set()
    return read


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.module)
def test_a_verb_reads_the_flags_that_it_has_and_no_others(verb: Verb) -> None:
    """mypy takes any name on a Namespace."""
    path, _, attribute = verb.module.partition(":")
    module = importlib.import_module(path)
    parser = argparse.ArgumentParser()
    (getattr(module, attribute) if attribute else module).configure(parser)
    every = list(parsers(parser))
    flags = {action for command in every for action in command._actions}
    known = {action.dest for action in flags}.union(*(command._defaults for command in every))
    shown = {action.dest for action in flags if action.help != argparse.SUPPRESS} - {"help", "debug"}
    read = _read_by(_file(verb.module))
    assert not read - known, "read, and never there"
    assert not shown - read, "read by nothing"
