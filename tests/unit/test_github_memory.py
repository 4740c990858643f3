"""What jobs remember, by GitHub's cache: from the shards of one run to the jobs of the next."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from ci.engine.memo import Entry, Miss
from ci.github import memory
from provisioning.base.errors import CheckFailed
from tests.support.cache_machines import KEY, Machine

COMMIT = "abcdef0123456789"


def machine(folder: Path, cache: Path | None = None) -> Machine:
    """A job's own machine, with what GitHub's cache has."""
    job_machine = Machine(folder, "http://127.0.0.1:1")
    job_machine.remote.off = "not asked"
    if cache:
        shutil.copytree(cache, memo_of(job_machine))
    memory.restored(memo_of(job_machine))
    return job_machine


def memo_of(machine: Machine) -> Path:
    return machine.store / "cache" / "memo"


def saved(tmp_path: Path, *shards: Machine, before: Path | None = None) -> Path:
    """What the job `remember` saves of these shards."""
    into = tmp_path / f"saved-{len(list(tmp_path.iterdir()))}"
    if before:
        shutil.copytree(before, into)
    archives = []
    for number, shard in enumerate(shards):
        archives.append(into.with_name(f"{into.name}-new") / str(number) / "new.tar")
        memory.pack(memo_of(shard), archives[-1])
    memory.merge(into, archives, COMMIT)
    return into


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    one, other = machine(tmp_path / "one"), machine(tmp_path / "other")
    other.weights("2")
    for each in (one, other):
        each.work()
    return saved(tmp_path, one, other)


def test_a_later_job_takes_what_every_shard_did_and_says_from_which_commit(
    tmp_path: Path, cache: Path
) -> None:
    later = machine(tmp_path / "later", cache)
    for text in ("1", "2"):
        later.weights(text)
        entry = later.find()
        assert isinstance(entry, Entry) and entry.origin == f"GitHub's cache of {COMMIT[:12]}"
    later.weights("3")
    assert isinstance(later.find(), Miss)
    later.work()
    entry = later.find()
    assert isinstance(entry, Entry) and entry.origin == "store"


def test_work_that_failed_since_is_not_passed_by_the_next_run(tmp_path: Path, cache: Path) -> None:
    failing = machine(tmp_path / "failing", cache)
    failing.memo().forget(KEY)
    assert isinstance(machine(tmp_path / "a", saved(tmp_path, failing, before=cache)).find(), Miss)


@pytest.mark.parametrize(
    ("pattern", "true", "false"),
    [("*.pte", "program 1", "program 2"), ("*.json", '"value": 7', '"value": 8')],
)
def test_a_changed_program_or_entry_in_the_cache_is_not_used_and_named(
    tmp_path: Path, cache: Path, pattern: str, true: str, false: str
) -> None:
    texts = {path: path.read_text() for path in (cache / "test").rglob(pattern)}
    assert any(true in text for text in texts.values())
    for path, text in texts.items():
        path.write_text(text.replace(true, false))
    answer = machine(tmp_path / "later", cache).find()
    assert isinstance(answer, Miss) and "damaged" in answer.why


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "link"])
def test_an_archive_that_writes_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "new.tar", "w") as archive:
        member = tarfile.TarInfo(name)
        member.type = tarfile.SYMTYPE if name == "link" else tarfile.REGTYPE
        archive.addfile(member, io.BytesIO())
    with pytest.raises(CheckFailed):
        memory.merge(tmp_path / "memo", [tmp_path / "new.tar"], COMMIT)


def test_every_part_by_its_variable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"RUNNER_TEMP": str(tmp_path), "GITHUB_RUN_ID": "7", "QNN_CI_MEMORY": "place"}
    assert memory.run(environ) == 0
    outputs = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert outputs["key"] == f"{outputs['prefix']}7-1"
    assert memory.run({**environ, "QNN_CI_SUITE": "other.toml"}) == 0
    assert f"prefix={outputs['prefix']}" not in capsys.readouterr().out
    for what in ("restored", "pack", "merge"):
        assert memory.run({**environ, "QNN_CI_MEMORY": what}) == 0
