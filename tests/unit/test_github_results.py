"""Cached results on GitHub: which cache is taken, and what nobody can do who saved another one."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ci.github import results as parts
from ci.work.results import CachedResults, digest_of
from ci.work.results_archive import pack_results, unpack_results
from provisioning.base.files import hash_file
from provisioning.store.results import results_folder
from tests.support.workflows import flattening, pairs

KEY, OTHER = {"model": "a"}, {"model": "b"}


def kept(store: Path, key: Mapping[str, Any] = KEY, text: str = "program") -> Path:
    """The record of a result with a file."""
    results = CachedResults(store, "lowering")
    folder = results.scratch()
    (folder / "sub").mkdir()
    (folder / "sub/program.bin").write_text(text)
    results.keep("net", key, {"figures": [1.5]}, folder)
    return results_folder(store) / "lowering" / (digest := digest_of(dict(key)))[:2] / f"{digest}.json"


def packed(tmp_path: Path) -> Path:
    record = kept(tmp_path / "main")
    os.utime(record, (time.time() - 3600, time.time() - 3600))
    archive = tmp_path / "main.tar"
    assert pack_results(results_folder(tmp_path / "main"), archive) == 1
    return archive


def found(store: Path, key: Mapping[str, Any] = KEY) -> str:
    result = CachedResults(store, "lowering").find(key)
    return (result.folder / "sub/program.bin").read_text() if result and result.folder else ""


# The archive


def test_results_travel_with_the_time_of_their_last_use(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    assert unpack_results(archive, results_folder(tmp_path / "other")).results == 1
    assert 3000 < time.time() - next((tmp_path / "other").rglob("*.json")).stat().st_mtime < 4000
    assert found(tmp_path / "other") == "program"
    again = tmp_path / "again.tar"
    pack_results(results_folder(tmp_path / "main"), again, since=time.time() - 7200)
    assert hash_file(again) == hash_file(archive)


def test_only_what_was_used_since_and_not_too_long_ago_is_packed(tmp_path: Path) -> None:
    old, used = kept(tmp_path), kept(tmp_path, OTHER)
    start = time.time() - 100
    os.utime(old, (start - 1, start - 1))
    assert pack_results(results_folder(tmp_path), tmp_path / "job.tar", since=start) == 1
    with tarfile.open(tmp_path / "job.tar") as archive:
        assert {Path(name).parts[2][:64] for name in archive.getnames()} == {used.stem}
    os.utime(old, (start - 61 * 86400,) * 2)
    assert pack_results(results_folder(tmp_path), tmp_path / "all.tar") == 1


def test_the_results_used_last_are_packed_where_there_is_no_room_for_all(tmp_path: Path) -> None:
    old, _ = kept(tmp_path), kept(tmp_path, OTHER)
    os.utime(old, (time.time() - 9000,) * 2)
    size = old.stat().st_size + len("program")
    assert pack_results(results_folder(tmp_path), tmp_path / "some.tar", most=2 * size - 1) == 1
    assert unpack_results(tmp_path / "some.tar", results_folder(tmp_path / "new")).results == 1
    assert found(tmp_path / "new", OTHER) == "program" and not found(tmp_path / "new")


def rewritten(archive: Path, change: Any) -> Path:
    """The archive with its members as `change` gives them for each name and content."""
    out = archive.with_name("hostile.tar")
    with tarfile.open(archive) as source, tarfile.open(out, "w") as target:
        for member in source.getmembers():
            stream = source.extractfile(member)
            assert stream is not None
            for info, data in change(member, stream.read()):
                info.size = len(data)
                target.addfile(info, io.BytesIO(data))
    return out


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "hostile",
    [
        member("/etc/evil"),
        member("../evil"),
        member("lowering/aa/../../../evil"),
        member("digests.json"),
        member(f"lowering/aa/{'a' * 64}-{'b' * 16}/../../../../evil"),
        member(f"lowering/aa/{'a' * 64}-{'b' * 16}/link", tarfile.SYMTYPE, "/etc"),
        member(f"lowering/aa/{'a' * 64}-{'b' * 16}/link", tarfile.LNKTYPE, "/etc/passwd"),
        member(f"lowering/aa/{'a' * 64}-{'b' * 16}/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: info.name[-20:],
)
def test_of_an_archive_with_a_member_that_no_result_has_nothing_is_taken(
    tmp_path: Path, hostile: tarfile.TarInfo
) -> None:
    archive = rewritten(packed(tmp_path), lambda info, data: [(info, data), (hostile, b"")])
    store = tmp_path / "victim/store"
    assert unpack_results(archive, results_folder(store)).problem
    assert not [path for path in (tmp_path / "victim").rglob("*") if path.is_file() or path.is_symlink()]


def test_an_archive_that_is_none_or_ends_early_is_a_problem(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    for content in (b"", b"no archive" * 100, archive.read_bytes()[:700]):
        archive.write_bytes(content)
        taken = unpack_results(archive, results_folder(tmp_path / "other"))
        assert not taken.results and not found(tmp_path / "other"), content[:20]


def test_a_record_or_file_that_is_not_as_it_was_written_is_refused(tmp_path: Path) -> None:
    archive = packed(tmp_path)

    def damaged_file(info: tarfile.TarInfo, data: bytes) -> Any:
        yield info, b"another program" if info.name.endswith(".bin") else data

    def damaged_facts(info: tarfile.TarInfo, data: bytes) -> Any:
        yield info, data.replace(b"1.5", b"9.5") if info.name.endswith(".json") else data

    def without_files(info: tarfile.TarInfo, data: bytes) -> Any:
        if info.name.endswith(".json"):
            yield info, data

    for change in (damaged_file, damaged_facts, without_files):
        taken = unpack_results(rewritten(archive, change), results_folder(tmp_path / "other"))
        assert (taken.results, taken.refused) == (0, 1) and not found(tmp_path / "other")


# GitHub's cache


@contextmanager
def github(caches: list[dict[str, str]], status: int = 200) -> Iterator[dict[str, str]]:
    """Its list of a repository's caches: the newest first, as the query asks."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            rows = [
                row for row in caches if row["ref"] == query["ref"] and row["key"].startswith(query["key"])
            ]
            body = json.dumps({"actions_caches": rows[: int(query["per_page"])]}).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        yield {"GITHUB_API_URL": address, "GITHUB_REPOSITORY": "o/models", "QNN_CI_DEFAULT_BRANCH": "main"}
        server.shutdown()


MAIN, EVIL, OLDER = (f"{parts.PREFIX}{letter * 64}" for letter in "abc")


@pytest.mark.parametrize(
    ("caches", "status", "expected"),
    [
        ([("refs/pull/5/merge", EVIL), ("refs/heads/main", MAIN), ("refs/heads/main", OLDER)], 200, MAIN),
        ([("refs/pull/5/merge", EVIL)], 200, ""),
        ([("refs/heads/main", f"{parts.PREFIX}of-another-form")], 200, ""),
        ([("refs/heads/main", "qnn-ci-results-4-x")], 200, ""),
        ([("refs/heads/main", MAIN)], 403, ""),
    ],
)
def test_the_cache_to_take_is_the_last_that_the_default_branch_saved(
    tmp_path: Path, caches: list[tuple[str, str]], status: int, expected: str
) -> None:
    """Not one that an earlier commit of the same pull request saved. Without the right to ask, none is."""
    with github([{"ref": ref, "key": key} for ref, key in caches], status) as environ:
        assert parts.find_results({**environ, "GITHUB_OUTPUT": str(tmp_path / "output")}) == 0
    assert pairs(tmp_path / "output") == {"results": expected}


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    return {
        "GITHUB_WORKSPACE": str(tmp_path / "workspace"),
        "QNN_CI_STORE": str(tmp_path / "store"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }


def restored(job: Mapping[str, str], archive: Path) -> str:
    """A cache as the job restores it, and the name that the default branch gave it."""
    place = Path(job["GITHUB_WORKSPACE"], "results-cache/results.tar")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(archive, place)
    return f"{parts.PREFIX}{hash_file(archive)}"


def test_a_job_takes_what_the_default_branch_saved(tmp_path: Path, job: dict[str, str]) -> None:
    key = restored(job, packed(tmp_path))
    assert parts.take_results({**job, "QNN_CI_RESULTS": key}) == 0
    assert found(tmp_path / "store") == "program"


def test_a_well_formed_result_that_somebody_else_saved_under_that_name_is_not_taken(
    tmp_path: Path, job: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier commit of a pull request can save a cache of any name in the pull request's own scope, where
    GitHub looks first."""
    key = restored(job, packed(tmp_path))
    kept(tmp_path / "evil", text="a program that passes")
    pack_results(results_folder(tmp_path / "evil"), tmp_path / "evil.tar")
    restored(job, tmp_path / "evil.tar")
    assert parts.take_results({**job, "QNN_CI_RESULTS": key}) == 0
    assert not found(tmp_path / "store") and "::warning" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["", "qnn-ci-results-5-", "qnn-ci-results-5-../../x"])
def test_without_a_name_nothing_is_taken(tmp_path: Path, job: dict[str, str], key: str) -> None:
    restored(job, packed(tmp_path))
    assert parts.take_results({**job, "QNN_CI_RESULTS": key}) == 0
    assert not found(tmp_path / "store")


def test_a_link_is_no_archive(tmp_path: Path, job: dict[str, str]) -> None:
    key = restored(job, packed(tmp_path))
    place = Path(job["GITHUB_WORKSPACE"], "results-cache/results.tar")
    place.unlink()
    place.symlink_to(tmp_path / "main.tar")
    parts.take_results({**job, "QNN_CI_RESULTS": key})
    assert not found(tmp_path / "store")


def test_the_saved_cache_has_what_all_jobs_used_and_its_own_digest_as_its_name(
    tmp_path: Path, job: dict[str, str]
) -> None:
    base = {**job, "QNN_CI_RESULTS": restored(job, packed(tmp_path))}
    parts.take_results(base)
    kept(tmp_path / "store", OTHER, "another")
    assert parts.give_results(base) == 0
    given = Path(job["GITHUB_WORKSPACE"], "results-of-job/results.tar")
    for name in ("one", "two", "damaged"):
        place = Path(job["GITHUB_WORKSPACE"], "results-of-jobs", name, "results.tar")
        place.parent.mkdir(parents=True)
        shutil.copy(given, place)
    place.write_bytes(b"no archive")
    assert parts.collect_results(base) == 0
    saved = Path(job["GITHUB_WORKSPACE"], "results-cache/results.tar")
    assert pairs(Path(job["GITHUB_OUTPUT"]))["key"] == f"{parts.PREFIX}{hash_file(saved)}"
    unpack_results(saved, results_folder(tmp_path / "next"))
    assert (found(tmp_path / "next"), found(tmp_path / "next", OTHER)) == ("program", "another")


def test_a_job_gives_no_result_that_it_did_not_use(tmp_path: Path, job: dict[str, str]) -> None:
    parts.take_results({**job, "QNN_CI_RESULTS": restored(job, packed(tmp_path))})
    parts.give_results(job)
    with tarfile.open(Path(job["GITHUB_WORKSPACE"], "results-of-job/results.tar")) as given:
        assert not given.getnames()


# The archive that GitHub's own action unpacks, before we see anything


def test_tar_writes_a_hostile_cache_into_the_folder_of_caches_alone(tmp_path: Path) -> None:
    """actions/cache calls `tar -xf ARCHIVE -P -C WORKSPACE`: any name may be absolute, any link leave it."""
    (tmp_path / "toolkit").mkdir()
    victim = tmp_path / "toolkit/noxfile.py"
    victim.write_text("ours")
    hostile = [
        member("results-cache/", tarfile.DIRTYPE),
        member("results-cache/results.tar"),
        member(str(victim)),
        member("../toolkit/noxfile.py"),
        member("results-cache/../../toolkit/noxfile.py"),
        member("results-cache/\n/../../toolkit/noxfile.py"),
        member("results-cache/absolute", tarfile.SYMTYPE, str(tmp_path / "toolkit")),
        member("results-cache/absolute/noxfile.py"),
        member("results-cache/relative", tarfile.SYMTYPE, "../../toolkit"),
        member("results-cache/relative/noxfile.py"),
        member("..", tarfile.SYMTYPE, str(tmp_path)),
        member("hard", tarfile.LNKTYPE, str(victim)),
        member("hard"),
        member(".git/hooks/post-checkout"),
    ]
    (tmp_path / "workspace").mkdir()
    for chosen in [*([info] for info in hostile), hostile]:
        with tarfile.open(tmp_path / "cache.tar", "w") as archive:
            for info in chosen:
                info.size = 4 if info.isreg() else 0
                archive.addfile(info, io.BytesIO(b"evil"))
        subprocess.run(
            ["tar", "-xf", str(tmp_path / "cache.tar"), "-P", "-C", str(tmp_path / "workspace")],
            env={**os.environ, "TAR_OPTIONS": flattening("results-cache")},
            stderr=subprocess.DEVNULL,
            check=False,
        )
        assert victim.read_text() == "ours"
        assert [path.name for path in (tmp_path / "workspace").iterdir()] in ([], ["results-cache"])
        assert sorted(path.name for path in tmp_path.iterdir()) == ["cache.tar", "toolkit", "workspace"]
