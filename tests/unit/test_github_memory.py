"""What jobs remember, by GitHub's cache: from the shards of one run to the jobs of the next."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ci.engine.inputs import key_of
from ci.engine.memo import CachedResult, Miss
from ci.github import digests, memory, place, wheels
from ci.sharing import signed
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.secrets import PUBLIC_KEYS, SIGNING_KEY
from tests.support.cache_machines import KEY, OURS, Machine, pems
from tests.support.http_server import FileServer, Reply, Request
from tests.support.wheels import make_wheel
from tests.support.workflows.commands import pairs

COMMIT = "abcdef0123456789"


class CacheList(FileServer):
    """GitHub's list of what is saved in a folder, the newest first. Its filters are left to who asks."""

    def __init__(self, caches: Path) -> None:
        super().__init__(b"")
        self.caches = caches

    def next_reply(self, request: Request) -> Reply:
        files = sorted(self.caches.glob("*/*/*"), key=lambda file: file.stat().st_mtime, reverse=True)
        rows = [{"key": unquote(file.name), "ref": unquote(file.parents[1].name)} for file in files]
        return Reply(body=json.dumps({"actions_caches": rows}).encode())


PULL = "refs/pull/1/merge"


@dataclass
class GitHub:
    """Its caches, its list of them, and jobs that do what the steps of gate.yml do."""

    home: Path
    api: str
    count: int = 0
    trusts: bool = True
    """What the caller says of `trust-cache`."""
    keys: dict[str, str] = field(default_factory=dict)
    """The gate's input `public-keys`, if it has one."""
    strangers: Path | None = None
    """What a job of another kind uploaded under a name as a memory's."""
    secret: dict[str, str] = field(default_factory=dict)
    """The signing key, which the last steps of the job `remember` have."""

    def environ(self, ref: str, **more: str) -> dict[str, str]:
        self.count += 1
        temp = self.home / f"job-{self.count}"
        temp.mkdir()
        event: dict[str, object] = {"repository": {"default_branch": "main"}}
        if ref == PULL:
            event["pull_request"] = {"base": {"ref": "main"}}
        (temp / "event.json").write_text(json.dumps(event))
        names = {"GITHUB_REF": ref, "GITHUB_EVENT_PATH": str(temp / "event.json"), "GITHUB_SHA": COMMIT}
        run = {"GITHUB_RUN_ID": str(self.count), "RUNNER_TEMP": str(temp), "GITHUB_OUTPUT": str(temp / "out")}
        at = {"GITHUB_API_URL": self.api, "GITHUB_REPOSITORY": "somebody/models"}
        return {**names, **run, **at, "QNN_CI_TRUST_CACHE": str(self.trusts).lower(), **self.keys, **more}

    def step(self, what: str, environ: Mapping[str, str]) -> dict[str, str]:
        assert memory.run({**environ, "QNN_CI_MEMORY": what}) == 0
        return pairs(Path(environ["GITHUB_OUTPUT"])) if what == "place" else {}

    def save(self, ref: str, memo: Path, key: str) -> None:
        path = self.home / "caches" / quote(ref, safe="") / "version" / quote(key, safe="")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(memo, path)
        os.utime(path, (1e9 + self.count, 1e9 + self.count))

    def restore(self, ref: str, memo: Path, key: str) -> None:
        """By GitHub's order: of the job's own ref first."""
        for branch in (ref, "refs/heads/main"):
            saved = self.home / "caches" / quote(branch, safe="") / "version" / quote(key, safe="")
            if saved.is_dir():
                shutil.copytree(saved, memo, dirs_exist_ok=True)
                return

    def job(self, ref: str, before_the_check: Callable[[str], None] = lambda key: None) -> Machine:
        """A job's own machine, with what it takes of GitHub's cache."""
        environ = self.environ(ref)
        outputs = self.step("place", environ)
        memo = Path(outputs["memo"])
        if key := outputs["restore"]:
            before_the_check(key)
            self.restore(ref, memo, key)
        self.step("restored", {**environ, "QNN_CI_RESTORED": key})
        job = machine(Path(environ["RUNNER_TEMP"], "machine"))
        job.store = memo.parents[1]
        return job

    def remember(self, *shards: Machine) -> str:
        """What the job `remember` does on the default branch; the key that it saves."""
        environ = self.environ("refs/heads/main")
        outputs = self.step("place", environ)
        memo, new = Path(outputs["memo"]), Path(outputs["new"])
        if outputs["restore"]:
            self.restore("refs/heads/main", memo, outputs["restore"])
        self.step("restored", {**environ, "QNN_CI_RESTORED": outputs["restore"]})
        said = {}
        for number, shard in enumerate(shards, 1):
            job = self.environ("refs/heads/main", QNN_CI_REPORTS=str(self.home / "reports"))
            self.step("pack", {**job, "QNN_CI_STORE": str(shard.store)})
            assert digests.run(job) == 0
            said[f"digests-{number}"] = pairs(Path(job["GITHUB_OUTPUT"]))["digests"]
            shutil.copytree(place.new_memory(job), new / str(number))
        if self.strangers:
            shutil.copytree(self.strangers, new / "strangers")
        self.step("merge", {**environ, "QNN_CI_DIGESTS": json.dumps(said)})
        self.step("sign", {**environ, **self.secret})
        if pairs(Path(environ["GITHUB_OUTPUT"]))["saves"] == "true":
            self.save("refs/heads/main", memo, outputs["key"])
        return outputs["key"]


@pytest.fixture
def github(tmp_path: Path) -> Iterator[GitHub]:
    home = tmp_path / "github"
    home.mkdir()
    with CacheList(home / "caches") as server:
        yield GitHub(home, server.url(""))


def machine(folder: Path) -> Machine:
    job_machine = Machine(folder, "http://127.0.0.1:1")
    job_machine.remote.off = "not asked"
    return job_machine


def memo_of(machine: Machine) -> Path:
    return machine.store / "cache" / "memo"


@pytest.fixture
def signing(github: GitHub) -> GitHub:
    """A caller with keys."""
    public, secret = pems(OURS)
    github.keys, github.secret = {PUBLIC_KEYS: public}, {SIGNING_KEY: secret}
    github.trusts = False
    return github


@pytest.fixture
def key(github: GitHub) -> str:
    """Of what the default branch saved: two shards' work."""
    one, other = github.job("refs/heads/main"), github.job("refs/heads/main")
    other.weights("2")
    for clone in (one, other):
        clone.work()
    return github.remember(one, other)


def forged(github: GitHub, key: str, tmp_path: Path) -> Path:
    """The memory that was saved, with another figure and every digest right."""
    memo = tmp_path / "forged"
    github.restore("refs/heads/main", memo, key)
    for path in memo.glob("test/??/*/*.json"):
        document = json.loads(path.read_text())["document"]
        document["result"] = {"value": 99}
        path.write_text(json.dumps({"digest": key_of(document), "document": document}))
    return memo


@pytest.mark.parametrize("ref", ["refs/heads/main", PULL, "refs/heads/gh-readonly-queue/main/pr-1"])
def test_a_later_job_takes_what_every_shard_did_and_says_from_which_commit(
    github: GitHub, key: str, ref: str
) -> None:
    later = github.job(ref)
    for text in ("1", "2"):
        later.weights(text)
        entry = later.find()
        assert isinstance(entry, CachedResult) and entry.origin == f"GitHub's cache of {COMMIT[:12]}"
    later.weights("3")
    assert isinstance(later.find(), Miss)
    later.work()
    entry = later.find()
    assert isinstance(entry, CachedResult) and entry.origin == "store"


def test_work_that_failed_since_is_not_passed_by_the_next_run(github: GitHub, key: str) -> None:
    failing = github.job("refs/heads/main")
    failing.memo().forget(KEY)
    github.remember(failing)
    assert isinstance(github.job("refs/heads/main").find(), Miss)


@pytest.mark.parametrize("ending", ["", "9", "another-name"])
def test_a_figure_forged_in_a_pull_requests_own_cache_is_not_believed(
    github: GitHub, key: str, tmp_path: Path, ending: str
) -> None:
    github.count += 100
    github.save(PULL, forged(github, key, tmp_path), key + ending)
    assert isinstance(github.job(PULL).find(), Miss)
    # It hides nothing from others.
    entry = github.job("refs/heads/main").find()
    assert isinstance(entry, CachedResult) and entry.result == {"value": 7}


def test_a_cache_that_is_forged_while_a_job_restores_is_not_believed(
    github: GitHub, key: str, tmp_path: Path
) -> None:
    memo = forged(github, key, tmp_path)
    job = github.job(PULL, lambda planned: github.save(PULL, memo, planned))
    assert isinstance(job.find(), Miss)


def test_only_the_default_branchs_memory_counts(github: GitHub, key: str, tmp_path: Path) -> None:
    memo = forged(github, key, tmp_path)
    github.count += 100
    github.save("refs/pull/2/merge", memo, f"{key}9")
    github.save("refs/heads/topic", memo, f"{key}9")
    entry = github.job(PULL).find()
    assert isinstance(entry, CachedResult) and entry.result == {"value": 7}
    assert isinstance(github.job("refs/heads/topic").find(), Miss)


@pytest.mark.parametrize("ref", [PULL, "refs/heads/main", "refs/heads/gh-readonly-queue/main/pr-1"])
def test_without_keys_a_pull_request_takes_nothing_unless_its_caller_says_so(
    github: GitHub, key: str, ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    github.trusts = False
    entry = github.job(ref).find()
    assert isinstance(entry, Miss if ref == PULL else CachedResult)
    assert ("trust-cache: true" in capsys.readouterr().out) == (ref == PULL)


@pytest.mark.parametrize("event", ["pull_request", "pull_request_target"])
def test_every_event_of_a_pull_request_is_one(github: GitHub, key: str, event: str) -> None:
    github.trusts = False
    environ = github.environ("refs/heads/main", GITHUB_EVENT_NAME=event)
    assert github.step("place", environ)["restore"] == ""


@pytest.mark.parametrize("ref", [PULL, "refs/heads/main"])
def test_a_gate_with_public_keys_takes_what_the_default_branch_signed(
    signing: GitHub, key: str, ref: str
) -> None:
    entry = signing.job(ref).find()
    assert isinstance(entry, CachedResult) and entry.origin == f"GitHub's cache of {COMMIT[:12]}"
    assert entry.folder and (entry.folder / "out" / "net.pte").read_text() == "program 1"
    # What a later run adds is signed together with what it restored.
    other = signing.job("refs/heads/main")
    other.weights("3")
    other.work(9)
    signing.remember(other)
    later = signing.job(ref)
    for text, value in (("1", 7), ("3", 9)):
        later.weights(text)
        entry = later.find()
        assert isinstance(entry, CachedResult) and entry.result == {"value": value}


def resigned(memo: Path, by: Ed25519PrivateKey) -> None:
    """All files of a memory under a signature."""
    names = [path.relative_to(memo).as_posix() for path in memo.rglob("*") if path.is_file()]
    signed.sign(memo, [name for name in names if name != signed.SIGNED], by)


def unlisted(memo: Path) -> None:
    """The new entry under another name, which the list has not."""
    for path in list(memo.glob("test/??/*/*.json")):
        path.rename(path.with_name(f"0{path.name[1:]}"))


def links(memo: Path) -> None:
    """Every folder of entries is elsewhere."""
    (memo / "test").rename(memo.parent / "elsewhere")
    (memo / "test").symlink_to(memo.parent / "elsewhere")


FORGERIES: dict[str, Callable[[Path], object]] = {
    "a figure": lambda memo: None,
    "a figure, and a stranger's signature": lambda memo: resigned(memo, Ed25519PrivateKey.generate()),
    "a figure, and no signature": lambda memo: (memo / signed.SIGNED).unlink(),
    "a figure, and a list that is no JSON": lambda memo: (memo / signed.SIGNED).write_text("00\n{"),
    "a figure under another name": unlisted,
    "a link to another folder": links,
}


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("ref", [PULL, "refs/heads/main"])
def test_no_forged_figure_counts_where_there_are_keys(
    signing: GitHub, key: str, tmp_path: Path, forgery: str, ref: str
) -> None:
    """Also where GitHub's list cannot tell whose cache it is: here it is the default branch's own."""
    memo = forged(signing, key, tmp_path)
    FORGERIES[forgery](memo)
    signing.count += 100
    signing.save("refs/heads/main", memo, f"{key}9")
    job = signing.job(ref)
    assert isinstance(job.find(), Miss)
    assert not list(memo_of(job).glob("test/??/*/*.json"))


def test_what_is_whole_beside_a_forged_entry_is_still_used(signing: GitHub, key: str, tmp_path: Path) -> None:
    memo = tmp_path / "memo"
    signing.restore("refs/heads/main", memo, key)
    entry, _ = sorted(memo.glob("test/??/*/*.json"))
    entry.write_text(entry.read_text().replace('"value": 7', '"value": 8'))
    signing.count += 100
    signing.save("refs/heads/main", memo, f"{key}9")
    job, found = signing.job(PULL), []
    for text in ("1", "2"):
        job.weights(text)
        found += [type(job.find())]
    assert sorted(found, key=str) == [CachedResult, Miss]


@pytest.mark.parametrize("name", ["digests.json", "builds/00/00.json", "figures/a/b.json", "sets/00/00.json"])
def test_nothing_else_beside_the_entries_comes_unsigned(
    signing: GitHub, key: str, tmp_path: Path, name: str
) -> None:
    memo = tmp_path / "memo"
    signing.restore("refs/heads/main", memo, key)
    (memo / name).parent.mkdir(parents=True, exist_ok=True)
    (memo / name).write_text("{}")
    signing.count += 100
    signing.save("refs/heads/main", memo, f"{key}9")
    job = signing.job(PULL)
    assert not (memo_of(job) / name).exists()
    assert isinstance(job.find(), CachedResult)


def test_the_default_branch_signs_nothing_that_it_restored_unsigned(
    signing: GitHub, key: str, tmp_path: Path
) -> None:
    memo = forged(signing, key, tmp_path)
    signing.count += 100
    signing.save("refs/heads/main", memo, f"{key}9")
    signing.remember()
    assert isinstance(signing.job(PULL).find(), Miss)


def test_a_run_without_the_signing_key_saves_nothing_that_nobody_would_use(
    signing: GitHub, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    signing.secret = {}
    new = signing.remember(signing.job("refs/heads/main"))
    assert not list(signing.home.glob(f"caches/*/*/{quote(new, safe='')}"))
    assert "no signing key" in capsys.readouterr().out
    assert isinstance(signing.job(PULL).find(), CachedResult)


def test_a_signing_key_that_no_gate_knows_is_an_error(signing: GitHub) -> None:
    signing.secret = {SIGNING_KEY: pems(Ed25519PrivateKey.generate())[1]}
    with pytest.raises(UsageError, match="public-keys"):
        signing.remember(signing.job("refs/heads/main"))


def test_the_remote_caches_signatures_sign_no_folder(tmp_path: Path) -> None:
    """Keys are the same, so what is signed says what it is."""
    payload = json.dumps({"schema": 2, "key": "test", "document": {"net.json": "0" * 64}})
    (tmp_path / "memo").mkdir()
    (tmp_path / "memo" / signed.SIGNED).write_text(f"{OURS.sign(payload.encode()).hex()}\n{payload}")
    (tmp_path / "memo" / "net.json").touch()
    assert signed.keep_signed(tmp_path / "memo", [OURS.public_key()]) == 1
    assert not list((tmp_path / "memo").iterdir())


@pytest.mark.parametrize("answer", [403, 404, 500, b"not JSON", b"[]", b"{}", None])
def test_without_githubs_list_nothing_is_believed(
    github: GitHub, key: str, answer: int | bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = Reply(status=answer) if isinstance(answer, int) else Reply(body=answer)
    with FileServer(b"", usual=reply) as server:
        github.api = server.url("") if answer is not None else "http://127.0.0.1:1"
        assert isinstance(github.job(PULL).find(), Miss)
    printed = capsys.readouterr().out
    assert "nothing remembered is taken" in printed
    assert ("actions: read" in printed) == (answer in (403, 404))


def test_a_list_that_was_not_filtered_gives_no_other_refs_cache(github: GitHub) -> None:
    environ = github.environ("refs/heads/main")
    row = {"key": f"{memory.prefix_of(environ)}1", "ref": "refs/pull/9/merge"}
    with FileServer(b"", usual=Reply(body=json.dumps({"actions_caches": [row]}).encode())) as server:
        assert github.step("place", {**environ, "GITHUB_API_URL": server.url("")})["restore"] == ""


def test_the_token_is_sent_to_githubs_api_alone(github: GitHub) -> None:
    with FileServer(b"") as other:
        redirect = Reply(status=302, headers={"Location": other.url("/x")})
        with FileServer(b"", usual=redirect) as server:
            github.api = server.url("")
            github.step("place", github.environ(PULL, GH_TOKEN="hush"))
            assert server.requests[0].headers["authorization"] == "Bearer hush"
    assert not any("authorization" in request.headers for request in other.requests)


def wheel_settings(environ: dict[str, str]) -> tuple[dict[str, str], Path]:
    """A job's environment after the step `place`, and lock files, of one package that an index here has."""
    home = Path(environ["RUNNER_TEMP"])
    for name in ("links", "locks"):
        (home / name).mkdir()
    name, content = "mine-1.0-py3-none-any.whl", make_wheel("mine-1.0-py3-none-any.whl")
    (home / "links" / name).write_bytes(content)
    hashed = hashlib.sha256(content).hexdigest()
    (home / "locks" / "executorch.txt").write_text(f"mine==1.0 \\\n    --hash=sha256:{hashed}\n")
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(home / "links")}
    job = {"PATH": os.environ["PATH"], **environ, **pip, "QNN_CI_STAGE": "test_lowering"}
    return job, home / "locks"


def test_the_locked_packages_are_kept_as_wheels(github: GitHub) -> None:
    environ, locks = wheel_settings(github.environ("refs/heads/main"))
    outputs = github.step("place", {**environ, "GITHUB_ENV": str(github.home / "env")})
    environ |= pairs(github.home / "env")
    assert environ["QNN_CI_WHEELS"] == outputs["wheels"] and "UV_CACHE_DIR" not in environ

    def new() -> str:
        assert wheels.run(environ, locks) == 0
        return pairs(Path(environ["GITHUB_OUTPUT"]))["new"]

    kept = Path(outputs["wheels"], "executorch")
    assert new() == "true" and [file.name for file in kept.iterdir()] == ["mine-1.0-py3-none-any.whl"]
    assert new() == "false"


def test_no_wheels_are_restored_but_those_that_the_default_branch_saved(
    github: GitHub, tmp_path: Path
) -> None:
    """What is unpacked can lie anywhere, so that their hashes are compared later is not enough."""

    def placed(ref: str) -> dict[str, str]:
        return github.step("place", github.environ(ref, QNN_CI_STAGE="test_lowering"))

    (tmp_path / "wheels").mkdir()
    key = placed("refs/heads/main")["wheels-save"]
    assert placed(PULL)["wheels-restore"] == ""
    github.save("refs/heads/main", tmp_path / "wheels", key)
    assert placed(PULL)["wheels-restore"] == key
    github.save(PULL, tmp_path / "wheels", f"{key}9")
    assert placed(PULL)["wheels-restore"] == ""
    github.api = "http://127.0.0.1:1"
    outputs = placed("refs/heads/main")
    assert outputs["wheels-restore"] == outputs["wheels-save"] == ""


def test_wheels_that_cannot_be_had_fail_no_job(github: GitHub) -> None:
    environ, locks = wheel_settings(github.environ("refs/heads/main"))
    shutil.rmtree(environ["PIP_FIND_LINKS"])
    kept = github.home / "wheels"
    assert wheels.run({**environ, "QNN_CI_WHEELS": str(kept)}, locks) == 0
    assert pairs(Path(environ["GITHUB_OUTPUT"]))["new"] == "false" and not any(kept.rglob("*.whl"))


def test_a_runner_with_a_cache_of_its_own_takes_no_wheels(github: GitHub) -> None:
    environ = github.environ(PULL, QNN_CI_STAGE="test_lowering", UV_CACHE_DIR="/mine")
    assert github.step("place", environ)["wheels"] == ""


def test_a_store_that_a_pull_request_may_have_saved_itself_is_not_restored(
    github: GitHub, tmp_path: Path
) -> None:
    def cacheable(ref: str) -> tuple[str, str]:
        environ = github.environ(ref)
        assert place.run(environ) == 0
        outputs = pairs(Path(environ["GITHUB_OUTPUT"]))
        return outputs["cacheable"], outputs["key"]

    assert cacheable(PULL)[0] == "true"
    (tmp_path / "store").mkdir()
    github.save(PULL, tmp_path / "store", cacheable(PULL)[1])
    assert cacheable(PULL)[0] == "false"
    assert cacheable("refs/heads/main")[0] == "true"
    github.api = "http://127.0.0.1:1"
    assert (cacheable(PULL)[0], cacheable("refs/heads/main")[0]) == ("false", "true")


@pytest.mark.parametrize("of", ["a stranger", "the gate", "the gate, too large"])
def test_only_what_the_gate_s_own_jobs_packed_is_signed(
    of: str, signing: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = signing.job("refs/heads/main")
    job.work()
    if of.endswith("large"):
        monkeypatch.setattr(memory, "MOST_BYTES", 1000)
    if of == "a stranger":
        memory.pack(memo_of(job), signing.home / "another" / place.PACKED)
        signing.strangers = signing.home / "another"
        signing.remember()
    else:
        signing.remember(job)
    found = signing.job("refs/heads/main").find()
    assert isinstance(found, CachedResult) == (of == "the gate")


def test_an_archive_whose_members_are_larger_than_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "new.tar", "w") as archive:
        member = tarfile.TarInfo("file")
        member.size = 2000
        archive.addfile(member, io.BytesIO(b"0" * 2000))
    monkeypatch.setattr(memory, "MOST_BYTES", 1999)
    with pytest.raises(CheckFailed):
        memory.merge(tmp_path / "memo", [tmp_path / "new.tar"])


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "link"])
def test_an_archive_that_writes_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "new.tar", "w") as archive:
        member = tarfile.TarInfo(name)
        member.type = tarfile.SYMTYPE if name == "link" else tarfile.REGTYPE
        archive.addfile(member, io.BytesIO())
    with pytest.raises(CheckFailed):
        memory.merge(tmp_path / "memo", [tmp_path / "new.tar"])


def test_each_profile_and_suite_has_a_memory_of_its_own(github: GitHub) -> None:
    plain, other = (github.environ(PULL, **more) for more in ({}, {"QNN_CI_SUITE": "other.toml"}))
    one, two = (github.step("place", environ)["key"].rpartition(COMMIT[:12])[0] for environ in (plain, other))
    assert one and two and one != two
