"""A verb reads each flag that it has, and no other."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ci.__main__ import VERBS as CI
from ci.model_commands.typed_model import kinds_of
from lab.__main__ import VERBS as LAB
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.command_line import Verb
from provisioning.base.option_fields import Options, declared_options
from provisioning.base.settings import ROOT
from tests.support.sources import nodes, our_files, parsed, walked
from tests.support.typed import parsers

VERBS = [*PROVISIONING.values(), *CI.values(), *LAB.values()]

READERS = (
    "provisioning.base.command_line",
    "provisioning.base.flags",
    "provisioning.base.selection",
    "ci.suite.options",
    "ci.model_commands.typed_model",
    "ci.lanes.upstream.verb",
    "ci.gate.options",
)
"""They add flags that several verbs share, and read them: `run` may hand its Namespace to these alone."""


def _file(module: str) -> Path:
    path = ROOT / module.partition(":")[0].replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _arguments(node: ast.AST) -> list[ast.arg]:
    if not isinstance(node, ast.FunctionDef):
        return []
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _is_args(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "args"


def _functions(tree: ast.Module, name: str, owner: str = "") -> list[ast.FunctionDef]:
    """The functions and methods of a name, or the class's of that name, that take `args`."""
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    body = next((node.body for node in classes if node.name == owner), tree.body)
    named = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    return [node for node in named if "args" in {argument.arg for argument in _arguments(node)}]


def _readers(tree: ast.Module) -> dict[str, str]:
    """Functions that may take a Namespace, as imported anywhere in a module: name and module."""
    return {
        alias.asname or alias.name: node.module
        for node in walked(tree)
        if isinstance(node, ast.ImportFrom) and node.module in READERS
        for alias in node.names
    }


def _read_by(file: Path, name: str = "run", owner: str = "") -> set[str]:
    """What a function, and the readers that it calls, read of the Namespace."""
    tree = parsed(file)
    (function,) = _functions(tree, name, owner)
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


def _configured(verb: Verb) -> tuple[object, list[argparse.ArgumentParser]]:
    """What has its `run`, and its parser with those of its subcommands."""
    path, _, attribute = verb.module.partition(":")
    module = importlib.import_module(path)
    parser = argparse.ArgumentParser()
    owner = getattr(module, attribute) if attribute else module
    owner.configure(parser)
    return owner, list(parsers(parser))


def _kinds(kind: type[Options]) -> Iterator[type[Options]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _kinds(subclass)


def test_every_option_is_read_or_is_a_suites_field() -> None:
    read = {
        node.attr
        for file in our_files("ci")
        for node in nodes(file)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    for verb in VERBS:
        importlib.import_module(verb.module.partition(":")[0])
    kinds_of("compile")
    kinds = [kind for kind in _kinds(Options) if kind.__module__.startswith("ci.")]
    assert len(kinds) > 4
    unread = {
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, row in declared_options(kind).items()
        if name not in read and not row.suite
    }
    assert not unread


NO_PATHS = {"calibrate", "compare", "device_dir"}
"""Folders of a device, and what the lane reads in its own way."""


@pytest.mark.parametrize("verb", [*PROVISIONING.values(), *CI.values()], ids=lambda verb: verb.module)
def test_what_is_called_a_file_or_folder_is_read_as_a_path(verb: Verb) -> None:
    """mypy takes any value of a Namespace for one."""
    actions = {action for parser in _configured(verb)[1] for action in parser._actions}
    named = {
        action for action in actions if re.fullmatch(r"(FILE|DIR|FOLDER|[A-Z]+\.\w+)", str(action.metavar))
    }
    assert {action.dest for action in named if action.type is not Path} <= NO_PATHS


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.module)
def test_a_verb_reads_the_flags_that_it_has_and_no_others(verb: Verb) -> None:
    """mypy takes any name on a Namespace."""
    owner, every = _configured(verb)
    flags = {action for command in every for action in command._actions}
    known = {action.dest for action in flags}.union(*(command._defaults for command in every))
    # Options are fields of a type, and mypy checks who reads them.
    plain = {action for action in flags if argparse.SUPPRESS not in (action.help, action.default)}
    shown = {action.dest for action in plain} - {"help", "debug"}
    # What has `run` is the module itself, or an object of a class that may be of another module.
    file = Path(str(owner.__file__) if isinstance(owner, ModuleType) else inspect.getfile(type(owner)))
    read = _read_by(file, owner=type(owner).__name__)
    assert not read - known, "read, and never there"
    assert not shown - read, "read by nothing"
