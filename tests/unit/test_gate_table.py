"""Which jobs a change runs, and which programs each of them has."""

from __future__ import annotations

import ast
import itertools
import json
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.__main__ import VERBS as CI
from ci.gate import verb as gate_verb
from ci.gate.options import read_options
from ci.gate.planning import planned_stages
from ci.gate.table import gate_stages, gate_table, matches
from ci.github import matrix
from ci.github.matrix import matrix_of
from ci.github.plan import changed_files
from ci.models.user_model import module_file
from ci.work.jobs import Job
from lab.lint import tracked_files
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.settings import ROOT
from tests.support.repositories import IDENTITY, repository, write
from tests.support.sources import closure, nodes
from tests.support.typed import parsed, run_here

TABLE = gate_table()
VERBS = {"ci": CI, "provisioning": PROVISIONING}
COMMON = ("ci.__main__", "provisioning.__main__", "noxfile", "qnn_ci.command")
REGISTRY = ("ci.lanes.registry", "ci.model_commands.typed_model")
TABLES = (*COMMON, *REGISTRY, "lab.generate")
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
    files = {path for name in COMMON for path in closure(name, REGISTRY)}
    texts: set[str] = set()
    started: set[str] = set()
    read: set[Path] = {path for path in tables if path}
    while waiting:
        module = waiting.pop()
        if module in started:
            continue
        started.add(module)
        files |= closure(module, REGISTRY)
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


def _jobs(*seconds: float) -> list[Job]:
    return [Job(f"job{index}", second) for index, second in enumerate(seconds)]


class TestShards:
    @given(st.lists(st.floats(0.1, 100), max_size=30), st.integers(1, 9))
    def test_every_program_is_in_one_of_them(self, seconds: list[float], shards: int) -> None:
        entries = matrix_of(_jobs(*seconds), shards, [])["include"]
        assert sum(int(str(entry["programs"])) for entry in entries) == len(seconds)
        assert all(entry["programs"] for entry in entries) and len(entries) <= shards

    def test_work_that_does_not_pay_for_a_second_machine_is_one_job(self) -> None:
        assert len(matrix_of(_jobs(*[8.0] * 9), 4, [])["include"]) == 1
        assert len(matrix_of(_jobs(*[80.0] * 9), 4, [])["include"]) == 4


def test_a_job_on_another_machine_finds_the_suite_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (suite := tmp_path / "repository/ci/models.toml").parent.mkdir(parents=True)
    run = '[[case.net.run]]\nlane = "executorch"\nprecision = "fp16"\nsocs = ["SM8650"]\n'
    suite.write_text(f'schema = 2\n[case.net]\nfactory = "m:f"\n{run}')
    monkeypatch.chdir(tmp_path / "repository")
    run_here(matrix, "--suite", "ci/models.toml")
    (job,) = json.loads(capsys.readouterr().out)["include"]
    assert job["arguments"] == "--suite ci/models.toml --shard 1/1"


def test_committed_changed_and_new_files_all_count_from_where_a_branch_left(tmp_path: Path) -> None:
    root = repository(tmp_path / "root", {"kept": "1", "old": "2", "gone": "3"})

    def git(*arguments: str) -> None:
        subprocess.run(["git", *IDENTITY, *arguments], cwd=root, check=True)

    git("checkout", "-q", "-b", "mine")
    git("mv", "old", "odd name\n")
    git("rm", "-q", "gone")
    git("commit", "-qm", "mine")
    git("checkout", "-q", "main")
    write(root, {"theirs": "4"})
    git("add", "theirs")
    git("commit", "-qm", "theirs")
    git("checkout", "-q", "mine")
    write(root, {"kept": "5", "new": "6"})
    assert changed_files("main", root) == ["gone", "kept", "new", "odd name\n", "old"]


@pytest.mark.parametrize("base", ["", "0" * 40, "feedface" * 5])
def test_what_changed_since_an_unknown_commit_is_not_known(tmp_path: Path, base: str) -> None:
    """As of a branch's first push. An empty list would leave jobs out."""
    assert changed_files(base, repository(tmp_path / "root", {"kept": "1"})) is None


RUN = '[[case.{0}.run]]\nlane = "{1}"\nprecision = "8a8w"\nsocs = ["SM8650"]\n'


def test_a_shard_of_the_gate_has_its_part_of_each_lane_and_leaves_out_what_has_none(tmp_path: Path) -> None:
    suite = tmp_path / "models.toml"
    cases = [f'[case.{name}]\nfactory = "m:f"\n{RUN.format(name, "executorch")}' for name in ("one", "two")]
    cases.append(f'[case.net]\nmodel = "net.onnx"\n{RUN.format("net", "onnx")}')
    suite.write_text("schema = 2\n" + "".join(cases))

    def lanes_of_shard(text: str) -> dict[str, tuple[str, ...]]:
        part = planned_stages(
            gate_stages(), read_options(parsed(gate_verb, "--suite", suite, "--shard", text))
        )
        assert {stage.name for stage in part if not stage.lane} == {"provision", "validate", "build_runner"}
        return {stage.name: stage.flags[-2:] for stage in part if stage.lane}

    first, second = lanes_of_shard("1/2"), lanes_of_shard("2/2")
    assert first == dict.fromkeys(("test_lowering", "test_emulator", "test_onnx"), ("--shard", "1/2"))
    assert second == dict.fromkeys(("test_lowering", "test_emulator"), ("--shard", "2/2"))
    with pytest.raises(UsageError, match="3/3"):
        lanes_of_shard("3/3")


@pytest.mark.parametrize(
    "text",
    [
        "x = [",
        '[package]\nname = "x"',
        'schema = 2\n[case.net]\nfactory = "m:f"\n'
        + RUN.format("net", "executorch").replace("SM8650", "SM9999"),
    ],
    ids=["no TOML", "no suite", "no chip"],
)
def test_a_suite_with_mistakes_is_refused_before_the_first_stage(tmp_path: Path, text: str) -> None:
    suite, reports = tmp_path / "models.toml", tmp_path / "reports"
    suite.write_text(text)
    with pytest.raises(UsageError, match=str(suite)):
        gate_verb.run(parsed(gate_verb, "--suite", str(suite), "--reports", str(reports)))
    assert not reports.exists()
