"""manifests/gate.toml: what it calls harmless is nothing that a stage imports, starts or reads."""

from __future__ import annotations

import ast
import itertools
from functools import cache
from pathlib import Path

import pytest

from ci.__main__ import VERBS as CI
from ci.gate.table import gate_table, matches
from ci.models.imports import module_file
from lab.lint import tracked_files
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.errors import ManifestError
from provisioning.base.settings import ROOT
from tests.support.sources import closure, nodes

TABLE = gate_table()
VERBS = {"ci": CI, "provisioning": PROVISIONING}
COMMON = ("ci.__main__", "provisioning.__main__", "noxfile", "qnn_ci.command")
TABLES = (*COMMON, "lab.generate", "ci.one_model.model")
"""These name modules in a table, of which a stage starts one at most."""

STARTED_BEFORE = {"test_emulator": ("build_runner",), "test_delegate": ("build_runner",)}
ROWS = {row.stage: row for row in TABLE.row.values() if row.ignores and row.stage != "tests"}


@cache
def _constants(path: Path) -> frozenset[str]:
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [item.value for item in node.elts if isinstance(item, ast.Constant)]
            for program, verb in itertools.pairwise(words):
                if isinstance(program, str) and verb in VERBS.get(program, {}):
                    names.add(VERBS[program][str(verb)].module)
    return frozenset(names)


def _files_and_texts(stage: str) -> tuple[set[Path], set[str]]:
    """Every file of ours that a stage imports, or starts as a process, and all text in their code."""
    verbs = [stage, *STARTED_BEFORE.get(stage, ())]
    waiting = [VERBS["ci" if verb in CI else "provisioning"][verb].module for verb in verbs]
    tables = {module_file(name, [ROOT]) for name in TABLES}
    files = {path for name in COMMON for path in closure(name)}
    texts: set[str] = set()
    started: set[str] = set()
    read: set[Path] = {path for path in tables if path}
    while waiting:
        module = waiting.pop()
        if module in started:
            continue
        started.add(module)
        files |= closure(module)
        for path in files - read:
            read.add(path)
            names = _constants(path)
            texts |= names
            waiting += [name for name in names if name.startswith(("ci.", "provisioning.")) and _exists(name)]
    return files, texts


@cache
def _exists(name: str) -> bool:
    parts = name.partition(":")[0]
    return parts.replace(".", "").isidentifier() and module_file(parts, [ROOT]) is not None


@pytest.mark.parametrize("stage", sorted(ROWS))
def test_nothing_that_a_stage_imports_starts_or_names_is_harmless_to_it(stage: str) -> None:
    files, texts = _files_and_texts(stage)
    ignored = TABLE.ignored_by(ROWS[stage])
    names = {path.relative_to(ROOT).as_posix() for path in files}
    assert len(names) > 30
    assert {name for name in names if matches(name, ignored)} == set()
    manifests = {
        path.relative_to(ROOT).as_posix()
        for path in tracked_files(ROOT)
        if path.relative_to(ROOT).as_posix().startswith("manifests/")
    }
    named = {name for name in manifests if name.rpartition("/")[2] in texts}
    assert named and {name for name in named if matches(name, ignored)} == set()


def test_a_stage_that_needs_a_later_one_and_a_group_that_is_not_there_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "gate.toml"
    file.write_text('[[stage]]\nname = "a"\nprogram = "ci"\nneeds = ["b"]\n')
    with pytest.raises(ManifestError, match=r"\ba\b.*\bb\b"):
        gate_table(file)
    file.write_text('[row.a]\nstage = "lint"\nminutes = 1\nignores = ["b"]\n')
    gate_table.cache_clear()
    with pytest.raises(ManifestError, match=r"ignored_changes\.b"):
        gate_table(file)
