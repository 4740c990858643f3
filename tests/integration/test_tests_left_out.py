"""Tests that cannot run here, or are left out on purpose, are counted at the end of the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT

FILE = """
import pytest

@pytest.mark.engine
def test_engine() -> None: ...
@pytest.mark.needs("openssl")
def test_openssl() -> None: ...
@pytest.mark.needs("openssl", "shellcheck")
def test_both() -> None: ...
@pytest.mark.whole
def test_whole() -> None: ...
def test_always() -> None: ...
"""


def test_what_did_not_run_is_counted_in_a_line_a_kind(tmp_path: Path) -> None:
    file = tmp_path / "test_small.py"
    file.write_text(FILE)
    words = ["-q", "-n", "1", "-c", "pyproject.toml", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    # PATH has no program at all.
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", *words, str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert "2 checks did not run without openssl: apt-get install openssl" in lines
    assert "1 check did not run without shellcheck: apt-get install shellcheck" in lines
    (engine,) = (line for line in lines if line.startswith("1 check marked engine did not run: needs "))
    assert "docker.io" in engine
    assert "1 check of whole suites did not run: nox -s tests -- --whole -m whole" in lines
    assert not any("::test_" in line for line in lines)
    assert lines[-1].startswith("1 passed")


def collected(folder: Path, *more: str) -> list[str]:
    words = ["-n0", "--co", "-q", "-c", "pyproject.toml", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    command = [sys.executable, "-m", "pytest", *words, *more, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return sorted(line.split("/")[-1] for line in done.stdout.splitlines() if "::" in line)


@pytest.mark.whole
def test_what_is_long_and_of_the_whole_suites_runs_with_those(tmp_path: Path) -> None:
    marked = '@pytest.mark.long("x")\n@pytest.mark.whole\ndef test_a(): ...\n'
    (tmp_path / "test_one.py").write_text(f"import pytest\n{marked}")
    flags = ((), ("--long",), ("--whole", "-m", "whole"))
    assert [len(collected(tmp_path, *more)) for more in flags] == [0, 0, 1]


@pytest.mark.whole
def test_shards_have_every_test_once_and_whole_files(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / f"test_{name}.py").write_text("def test_a(): ...\ndef test_b(): ...\n")
    shards = [collected(tmp_path, "--shard", f"{i}/2") for i in (1, 2)]
    files = [{test.partition("::")[0] for test in shard} for shard in shards]
    assert not files[0] & files[1] and all(files)
    assert sorted(shards[0] + shards[1]) == collected(tmp_path) != []
